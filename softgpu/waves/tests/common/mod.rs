// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles and assembles test kernels, and loads and launches them by `softgpu-kernels`: a failure there fails the
//! test.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Pod;
use softgpu_kernels::{Allocation, Array, Assembly, Dispatch, Launched};
use softgpu_waves::{Access, Control, GridState, Launch, Outcome, Vm, Workers};

/// Runs a tool; a missing one fails the test by name.
pub fn tool(name: &str, arguments: &[&str]) {
    let output = Command::new(name).args(arguments).output();
    let output =
        output.unwrap_or_else(|e| panic!("{name} is needed for this test and could not be started: {e}"));
    assert!(output.status.success(), "{name} {arguments:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn scratch_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("waves-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temporary directory");
    dir
}

/// Compiles a C file to a linked code object.
pub fn compile(source: &str, more: &[&str]) -> Vec<u8> {
    let dir = scratch_dir();
    let [c, o, so] = ["k.c", "k.o", "k.so"].map(|f| dir.join(f).to_string_lossy().into_owned());
    std::fs::write(&c, source).expect("write source");
    let mut arguments = vec![
        "--target=amdgcn-amd-amdhsa",
        "-mcpu=gfx1100",
        "-O3",
        "-nogpulib",
        "-ffreestanding",
        "-ffp-contract=off",
    ];
    arguments.extend(more);
    arguments.extend(["-c", "-o", &o, &c]);
    tool("clang-19", &arguments);
    tool("ld.lld-19", &["-shared", "-o", &so, &o]);
    let bytes = std::fs::read(&so).expect("read code object");
    let _ = std::fs::remove_dir_all(&dir);
    bytes
}

/// Assembles instructions for gfx1100 to words.
pub fn assemble(text: &str) -> Vec<u32> {
    let dir = scratch_dir();
    let [s, o, bin] = ["k.s", "k.o", "k.bin"].map(|f| dir.join(f).to_string_lossy().into_owned());
    std::fs::write(&s, text).expect("write source");
    let arguments = ["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-filetype=obj", "-o", &o, &s];
    tool("llvm-mc-19", &arguments);
    tool("llvm-objcopy-19", &["-O", "binary", "--only-section=.text", &o, &bin]);
    let bytes = std::fs::read(&bin).expect("read text");
    let _ = std::fs::remove_dir_all(&dir);
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Room for the code of an [`Assembly`].
pub const CODE_BYTES: usize = 8192;

/// A device with one address space.
pub struct Device(softgpu_kernels::Device);

impl Device {
    pub fn new(threads: usize) -> Device {
        Device::with_workers(Workers::with_threads(threads))
    }

    pub fn with_workers(workers: Workers) -> Device {
        Device(softgpu_kernels::Device::empty(workers).expect("device"))
    }

    /// A device with the test kernels.
    pub fn with_kernels(threads: usize) -> Device {
        let mut device = Device::new(threads);
        device.load(&compile(include_str!("kernels.c"), &[]));
        device
    }

    pub fn load(&mut self, elf: &[u8]) {
        self.0.load(elf).expect("code object");
    }

    pub fn buffer<T: Pod>(&self, values: &[T]) -> Array<T> {
        self.0.array(values).expect("buffer")
    }

    pub fn allocate(&self, bytes: usize, access: Access) -> Allocation {
        self.0.allocate(bytes, access).expect("memory")
    }

    pub fn vm(&self) -> &Vm {
        self.0.vm()
    }

    /// Writes memory that a grid may be reading.
    pub fn write(&self, address: u64, words: &[u32]) {
        for (at, word) in (address..).step_by(4).zip(words) {
            self.0.vm().write_u32(at, *word).expect("mapped memory");
        }
    }

    /// Assembles `text` to code that may be executed and written.
    pub fn assemble(&self, text: &str) -> Assembly {
        let code = self.0.assembly(CODE_BYTES).expect("memory");
        code.write(&assemble(text)).expect("short code");
        code
    }

    /// A launch of kernel `name` with packed arguments.
    pub fn launch(&self, kernel: &str, grid: [u32; 3], workgroup: [u16; 3], arguments: &[u8]) -> Launched {
        let dispatch = Dispatch { kernel, grid, workgroup, dynamic_lds: 0, arguments };
        self.0.prepare(&dispatch).expect("launch")
    }

    pub fn run(&self, launch: &Launch, control: &Control, resume: Option<Box<GridState>>) -> Outcome {
        self.0.outcome(launch, control, resume)
    }

    /// Runs to completion; anything else fails the test. Returns instructions executed.
    pub fn complete(&self, launch: &Launch) -> u64 {
        self.0.execute(launch).unwrap_or_else(|why| panic!("{why}"))
    }
}
