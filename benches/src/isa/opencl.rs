// SPDX-License-Identifier: MIT OR Apache-2.0
//! The few entry points of OpenCL that running a kernel takes (`cl.h` of OpenCL 1.2), loaded at run time.
//!
//! INVARIANT: every handle comes from the platform that is asked with it, the library is never unloaded, and of the
//! handles only memory is given back; the process ends soon after.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;

const SONAME: &str = "libOpenCL.so.1";
const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
const PLATFORM_VERSION: u32 = 0x0901;
const PLATFORM_NAME: u32 = 0x0902;
const PROGRAM_BUILD_LOG: u32 = 0x1183;
const MEM_READ_WRITE: u64 = 1;
const MEM_COPY_HOST_PTR: u64 = 1 << 5;

/// Any of OpenCL's objects.
type Handle = *mut c_void;
type Pointer = *mut c_void;

macro_rules! api {
    ($($name:ident: $symbol:literal ($($kind:ty),*) -> $result:ty;)*) => {
        /// The entry points.
        #[derive(Debug)]
        struct Api {
            $($name: unsafe extern "C" fn($($kind),*) -> $result,)*
        }

        impl Api {
            fn load() -> Result<Self> {
                // SAFETY: a library of the system; its initialisers read configuration files.
                let library = unsafe { Library::new(SONAME) }.context(SONAME)?;
                let library: &'static Library = Box::leak(Box::new(library));
                Ok(Self {
                    // SAFETY: the types are those of `cl.h`.
                    $($name: unsafe { *library.get($symbol).with_context(|| format!("{SONAME} lacks a symbol"))? },)*
                })
            }
        }
    };
}

api! {
    platforms: b"clGetPlatformIDs" (u32, *mut Handle, *mut u32) -> i32;
    platform_info: b"clGetPlatformInfo" (Handle, u32, usize, Pointer, *mut usize) -> i32;
    devices: b"clGetDeviceIDs" (Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    context: b"clCreateContext" (*const isize, u32, *const Handle, Pointer, Pointer, *mut i32) -> Handle;
    queue: b"clCreateCommandQueue" (Handle, Handle, u64, *mut i32) -> Handle;
    program: b"clCreateProgramWithSource" (Handle, u32, *const *const c_char, *const usize, *mut i32) -> Handle;
    build: b"clBuildProgram" (Handle, u32, *const Handle, *const c_char, Pointer, Pointer) -> i32;
    build_info: b"clGetProgramBuildInfo" (Handle, Handle, u32, usize, Pointer, *mut usize) -> i32;
    kernel: b"clCreateKernel" (Handle, *const c_char, *mut i32) -> Handle;
    argument: b"clSetKernelArg" (Handle, u32, usize, *const c_void) -> i32;
    buffer: b"clCreateBuffer" (Handle, u64, usize, Pointer, *mut i32) -> Handle;
    release: b"clReleaseMemObject" (Handle) -> i32;
    launch: b"clEnqueueNDRangeKernel"
        (Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle) -> i32;
    read: b"clEnqueueReadBuffer"
        (Handle, Handle, u32, usize, usize, Pointer, u32, *const Handle, *mut Handle) -> i32;
    finish: b"clFinish" (Handle) -> i32;
}

fn success(act: &str, status: i32) -> Result<()> {
    ensure!(status == 0, "{act} failed with status {status}");
    Ok(())
}

/// A text that is asked for twice: for its length, then for itself.
fn text(mut ask: impl FnMut(usize, Pointer, *mut usize) -> i32) -> Result<String> {
    let mut length = 0;
    success("Asking for a text's length", ask(0, null_mut(), &mut length))?;
    let mut bytes = vec![0u8; length];
    success("Asking for a text", ask(length, bytes.as_mut_ptr().cast(), null_mut()))?;
    Ok(String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_owned())
}

/// The first device of a platform, with a queue.
#[derive(Debug)]
pub struct Platform {
    api: Api,
    device: Handle,
    context: Handle,
    queue: Handle,
    /// What it says about itself.
    pub version: String,
}

/// A built program.
#[derive(Debug)]
pub struct Program<'a> {
    platform: &'a Platform,
    handle: Handle,
}

/// A kernel with its arguments, which must outlive it.
#[derive(Debug)]
pub struct Kernel<'a> {
    handle: Handle,
    _buffers: &'a Buffers<'a>,
}

/// Memory of a platform.
#[derive(Debug)]
pub struct Buffers<'a> {
    platform: &'a Platform,
    handles: Vec<(Handle, usize)>,
}

impl Platform {
    /// Opens the platform of a name.
    pub fn open(name: &str) -> Result<Self> {
        let api = Api::load()?;
        let mut found = [null_mut(); 16];
        let mut count = 0;
        // SAFETY: there is room for so many.
        let status = unsafe { (api.platforms)(found.len() as u32, found.as_mut_ptr(), &mut count) };
        success("clGetPlatformIDs", status)?;
        let said = |platform: Handle, what| {
            // SAFETY: text() hands over room and its length.
            text(|size, to, length| unsafe { (api.platform_info)(platform, what, size, to, length) })
        };
        let mut all = found.into_iter().take(count as usize);
        let platform = all.find(|platform| said(*platform, PLATFORM_NAME).is_ok_and(|said| said == name));
        let platform = platform.with_context(|| format!("There is no OpenCL platform {name}"))?;
        let version = said(platform, PLATFORM_VERSION)?;
        let (mut device, mut status) = (null_mut(), 0);
        // SAFETY: there is room for one device, which is what is asked for; the rest is null or points to variables.
        let (context, queue) = unsafe {
            success("clGetDeviceIDs", (api.devices)(platform, DEVICE_TYPE_ALL, 1, &mut device, null_mut()))?;
            let context = (api.context)(null(), 1, &device, null_mut(), null_mut(), &mut status);
            success("clCreateContext", status)?;
            let queue = (api.queue)(context, device, 0, &mut status);
            success("clCreateCommandQueue", status)?;
            (context, queue)
        };
        Ok(Self { api, device, context, queue, version })
    }

    /// Compiles a program.
    pub fn build(&self, source: &str) -> Result<Program<'_>> {
        let (start, length, mut status) = (source.as_ptr().cast::<c_char>(), source.len(), 0);
        // SAFETY: one source with its length; options are a C string; there is no callback.
        let (handle, built) = unsafe {
            let handle = (self.api.program)(self.context, 1, &start, &length, &mut status);
            success("clCreateProgramWithSource", status)?;
            let options = c"-cl-std=CL1.2".as_ptr();
            (handle, (self.api.build)(handle, 1, &self.device, options, null_mut(), null_mut()))
        };
        if built != 0 {
            // SAFETY: text() hands over room and its length.
            let log = text(|size, to, length| unsafe {
                (self.api.build_info)(handle, self.device, PROGRAM_BUILD_LOG, size, to, length)
            })?;
            bail!("clBuildProgram failed with status {built}: {log}");
        }
        Ok(Program { platform: self, handle })
    }

    /// Runs a kernel to its end.
    pub fn run(&self, kernel: &Kernel<'_>, grid: [u32; 3], block: [u16; 3]) -> Result<()> {
        let (grid, block) = (grid.map(|n| n as usize), block.map(usize::from));
        // SAFETY: three dimensions have three sizes each; there are no events.
        unsafe {
            let queue = self.queue;
            let (grid, block) = (grid.as_ptr(), block.as_ptr());
            let launched =
                (self.api.launch)(queue, kernel.handle, 3, null(), grid, block, 0, null(), null_mut());
            success("clEnqueueNDRangeKernel", launched)?;
            success("clFinish", (self.api.finish)(queue))
        }
    }
}

impl Program<'_> {
    /// A kernel whose arguments are the buffers, and `last` behind them.
    pub fn kernel<'a>(&self, name: &str, buffers: &'a Buffers<'a>, last: Option<u32>) -> Result<Kernel<'a>> {
        let (api, name, mut status) = (&self.platform.api, CString::new(name)?, 0);
        // SAFETY: a C string; every argument is pointed to with its size.
        unsafe {
            let handle = (api.kernel)(self.handle, name.as_ptr(), &mut status);
            success("clCreateKernel", status)?;
            let mut at = 0;
            for (buffer, _) in &buffers.handles {
                let value: *const Handle = buffer;
                success("clSetKernelArg", (api.argument)(handle, at, size_of::<Handle>(), value.cast()))?;
                at += 1;
            }
            if let Some(last) = &last {
                let value: *const u32 = last;
                success("clSetKernelArg", (api.argument)(handle, at, size_of::<u32>(), value.cast()))?;
            }
            Ok(Kernel { handle, _buffers: buffers })
        }
    }
}

impl<'a> Buffers<'a> {
    /// Memory with these contents.
    pub fn new(platform: &'a Platform, contents: &[Vec<u8>]) -> Result<Self> {
        let mut buffers = Self { platform, handles: Vec::new() };
        for bytes in contents {
            let mut status = 0;
            let from = bytes.as_ptr().cast_mut().cast();
            let flags = MEM_READ_WRITE | MEM_COPY_HOST_PTR;
            // SAFETY: the bytes are only read from, and only during the call.
            let handle =
                unsafe { (platform.api.buffer)(platform.context, flags, bytes.len(), from, &mut status) };
            success("clCreateBuffer", status)?;
            buffers.handles.push((handle, bytes.len()));
        }
        Ok(buffers)
    }

    /// What is in one of them.
    pub fn read(&self, index: usize) -> Result<Vec<u8>> {
        let (handle, size) = *self.handles.get(index).context("no such buffer")?;
        let mut bytes = vec![0u8; size];
        let to = bytes.as_mut_ptr().cast();
        let api = &self.platform.api;
        // SAFETY: there is room for the whole buffer, and the call returns when it is read.
        let status =
            unsafe { (api.read)(self.platform.queue, handle, 1, 0, size, to, 0, null(), null_mut()) };
        success("clEnqueueReadBuffer", status)?;
        Ok(bytes)
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        for (handle, _) in &self.handles {
            // SAFETY: created by new() and not given back before. A failure leaks memory of a process that ends.
            let _ = unsafe { (self.platform.api.release)(*handle) };
        }
    }
}
