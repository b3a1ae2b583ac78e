// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver in the test's own process: just enough of KFD's semantics to run the runtime against, with faults to
//! inject.
//!
//! It executes no kernel: a dispatch completes at once, is held back, or raises an exception, as the test says. What
//! kernels compute is the software device's business.
#![allow(unsafe_code)]

pub(crate) mod alloc;
mod drm;
pub(crate) mod faulty;
mod kernel;
mod processor;
mod sysfs;
mod words;

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kfd::topology::SysfsSource;
use kfd::transport::CloseError;
use kfd::transport::kernel::KernelTransport;
use kfd::{DoorbellSlice, Errno, File, OpenError, ProtFlags, Transport};

pub(crate) use self::kernel::FakeKernel;
use crate::runtime::Runtime;

/// The transport to a fake driver.
#[derive(Debug)]
pub(crate) struct FakeTransport {
    pub kernel: Arc<FakeKernel>,
    pub sysfs: sysfs::FakeSysfs,
}

impl FakeTransport {
    pub fn new(gpus: u32) -> Arc<Self> {
        Arc::new(FakeTransport { kernel: FakeKernel::new(gpus), sysfs: sysfs::FakeSysfs::new(gpus) })
    }
}

/// A runtime of its own on a fake driver with `gpus` gfx1100 GPUs.
pub(crate) fn runtime(gpus: u32) -> (Runtime, Arc<FakeKernel>) {
    runtime_on(FakeTransport::new(gpus))
}

/// A runtime of its own on this fake driver.
pub(crate) fn runtime_on(transport: Arc<FakeTransport>) -> (Runtime, Arc<FakeKernel>) {
    let kernel = Arc::clone(&transport.kernel);
    let context = crate::context::open::open(transport, None).unwrap();
    (Runtime::from_context(&context), kernel)
}

impl Transport for FakeTransport {
    fn name(&self) -> &str {
        "fake"
    }

    fn sysfs(&self) -> &dyn SysfsSource {
        &self.sysfs
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError> {
        self.file(path, None)
    }

    fn adopt(&self, path: &Path, _fd: OwnedFd) -> Result<Arc<dyn File>, OpenError> {
        self.file(path, self.kernel.known_file(path))
    }

    fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }
}

impl FakeTransport {
    fn file(&self, path: &Path, id: Option<u64>) -> Result<Arc<dyn File>, OpenError> {
        let memory = if path == Path::new("/dev/kfd") { &self.kernel.doorbells } else { &self.kernel.ram };
        let fd = memory.try_clone().unwrap();
        let memory = KernelTransport::new().adopt(path, fd)?;
        Ok(Arc::new(FakeFile {
            path: path.to_owned(),
            memory,
            kernel: Arc::clone(&self.kernel),
            id: id.unwrap_or_else(|| self.kernel.next_file(path)),
        }))
    }
}

struct FakeFile {
    path: PathBuf,
    memory: Arc<dyn File>,
    kernel: Arc<FakeKernel>,
    id: u64,
}

impl std::fmt::Debug for FakeFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FakeFile({}, {})", self.path.display(), self.id)
    }
}

impl File for FakeFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        // SAFETY: the command encodes the argument's size.
        let bytes = unsafe { std::slice::from_raw_parts_mut(arg.cast(), kfd::sys::ioc_size(cmd)) };
        self.kernel.ioctl(self.id, cmd, bytes)
    }

    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.memory.mmap_fixed(at, len, prot, offset) }
    }

    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, _offset: u64) -> Result<DoorbellSlice, Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.memory.map_doorbells(at, len, 0) }
    }
}
