// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles, loads and launches test kernels: just enough of a loader for code objects without relocations.
#![allow(dead_code, unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use queues::aql::{FenceScope, Header, KernelDispatch, PacketKind};
use queues::hsa::KernelDescriptor;
use softgpu_waves::{Access, Control, GridState, Launch, Outcome, Scratch, Vm, Workers, run, run_counted};

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

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("range")
}

fn u16_at(b: &[u8], at: usize) -> usize {
    u16::from_le_bytes(word(b, at)) as usize
}

fn u64_at(b: &[u8], at: usize) -> usize {
    u64::from_le_bytes(word(b, at)) as usize
}

/// GPU-visible memory that is never freed.
pub fn reserve(bytes: usize, align: usize) -> u64 {
    let layout = Layout::from_size_align(bytes.max(64), align).expect("layout");
    // SAFETY: the size is not zero.
    let p = unsafe { alloc_zeroed(layout) };
    assert!(!p.is_null());
    p.expose_provenance() as u64
}

/// A device with one address space.
pub struct Device {
    pub vm: Arc<Vm>,
    pub workers: Workers,
    symbols: HashMap<String, u64>,
    scratch: Scratch,
}

/// A typed buffer in GPU memory.
#[derive(Clone, Copy)]
pub struct Buffer<T> {
    pub address: u64,
    len: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Buffer<T> {
    pub fn get(&self) -> Vec<T> {
        // SAFETY: the memory was allocated for `len` values and nobody writes while no grid runs.
        unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address as usize), self.len)
        }
        .to_vec()
    }
    pub fn set(&self, at: usize, value: T) {
        assert!(at < self.len);
        let p: *mut T = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: in range, see above.
        unsafe { p.add(at).write_volatile(value) }
    }
}

impl Device {
    pub fn new(threads: usize) -> Device {
        let vm = Vm::new();
        let bytes = 8 << 20;
        let base = reserve(bytes, 4096);
        // SAFETY: `reserve` gives memory that stays.
        unsafe { vm.map(base..base + bytes as u64, Access::READ_WRITE) }.expect("map scratch");
        let scratch = Scratch { base, bytes: bytes as u64 };
        Device { vm, workers: Workers::with_threads(threads), symbols: HashMap::new(), scratch }
    }

    /// A device with the test kernels.
    pub fn with_kernels(threads: usize) -> Device {
        let mut device = Device::new(threads);
        device.load(&compile(include_str!("kernels.c"), &[]));
        device
    }

    pub fn buffer<T: Copy>(&self, values: &[T]) -> Buffer<T> {
        let bytes = std::mem::size_of_val(values);
        let address = reserve(bytes, 256);
        // SAFETY: `reserve` gives memory that stays.
        unsafe { self.vm.map(address..address + bytes.max(1) as u64, Access::READ_WRITE) }
            .expect("map buffer");
        let p: *mut T = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: just allocated with that size and alignment.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), p, values.len()) };
        Buffer { address, len: values.len(), kind: std::marker::PhantomData }
    }

    /// Loads all segments and notes the symbols.
    pub fn load(&mut self, elf: &[u8]) {
        let (phoff, phnum) = (u64_at(elf, 32), u16_at(elf, 56));
        let loads: Vec<usize> = (0..phnum).map(|k| phoff + 56 * k).filter(|&p| elf[p] == 1).collect();
        let end = loads.iter().map(|&p| u64_at(elf, p + 16) + u64_at(elf, p + 40)).max().expect("LOAD");
        let base = reserve(end + 4096, 4096);
        for &p in &loads {
            let (offset, va, size) = (u64_at(elf, p + 8), u64_at(elf, p + 16), u64_at(elf, p + 32));
            let d: *mut u8 = std::ptr::with_exposed_provenance_mut(base as usize + va);
            // SAFETY: the segment lies in the reservation made for the whole image.
            unsafe { std::ptr::copy_nonoverlapping(elf[offset..offset + size].as_ptr(), d, size) };
        }
        // SAFETY: `reserve` gives memory that stays.
        unsafe { self.vm.map(base..base + end as u64, Access::ALL) }.expect("map code");
        let (shoff, shnum) = (u64_at(elf, 40), u16_at(elf, 60));
        let header = |k: usize| shoff + 64 * k;
        for h in (0..shnum).map(header).filter(|&h| elf[h + 4] == 2) {
            let strings = header(elf[h + 40] as usize);
            let names = u64_at(elf, strings + 24);
            let (offset, size) = (u64_at(elf, h + 24), u64_at(elf, h + 32));
            for s in (offset..offset + size).step_by(24) {
                let name = names + u32::from_le_bytes(word(elf, s)) as usize;
                let name: String = elf[name..].iter().take_while(|&&b| b != 0).map(|&b| b as char).collect();
                self.symbols.insert(name, base + u64_at(elf, s + 8) as u64);
            }
        }
    }

    /// A launch of kernel `name` with packed arguments.
    pub fn launch(&self, name: &str, grid: [u32; 3], workgroup: [u16; 3], arguments: &[u8]) -> Launch {
        let kernel_object = self.symbols[&format!("{name}.kd")];
        let mut bytes = [0u8; 64];
        self.vm.read_bytes(kernel_object, &mut bytes).expect("descriptor");
        let descriptor = KernelDescriptor::from_bytes(&bytes);
        let mut kernarg = arguments.to_vec();
        kernarg.resize(kernarg.len().next_multiple_of(8), 0);
        for k in 0..3 {
            kernarg.extend((grid[k] / u32::from(workgroup[k])).to_le_bytes());
        }
        for w in workgroup {
            kernarg.extend(w.to_le_bytes());
        }
        kernarg.resize(kernarg.len() + 256, 0);
        let kernarg = self.buffer(&kernarg);
        let packet = KernelDispatch {
            header: Header {
                kind: PacketKind::KernelDispatch,
                barrier: false,
                acquire: FenceScope::System,
                release: FenceScope::System,
            },
            dimensions: 3,
            workgroup,
            grid,
            private_segment_bytes: descriptor.private_segment_fixed_size.max(if name == "calls" {
                1024
            } else {
                0
            }),
            group_segment_bytes: descriptor.group_segment_fixed_size,
            kernel_object,
            kernarg_address: kernarg.address,
            completion_signal: 0,
        };
        Launch {
            target: queues::target::Target::by_name("gfx1100").expect("gfx1100"),
            descriptor,
            kernel_object,
            entry: descriptor.entry(kernel_object),
            packet,
            packet_address: kernarg.address,
            queue_address: kernarg.address,
            dispatch_id: 0,
            scratch: Some(self.scratch),
            doorbell: 0,
            priority: 7,
            user_data: None,
            first_workgroup: [0; 3],
        }
    }

    pub fn run(&self, launch: &Launch, control: &Control, resume: Option<Box<GridState>>) -> Outcome {
        run(launch, &self.vm, &self.workers, control, resume)
    }

    /// Runs to completion; anything else fails the test. Returns instructions executed.
    pub fn complete(&self, launch: &Launch) -> u64 {
        match run_counted(launch, &self.vm, &self.workers, &Control::new(), None) {
            (Outcome::Completed, n) => n,
            (Outcome::Exception(e), _) => {
                panic!("{:x?} at {:#x} in {:?} wave {}", e.cause, e.pc, e.workgroup, e.wave_in_group)
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

/// Packs kernel arguments with their natural alignment.
#[derive(Default)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    pub fn new() -> Arguments {
        Arguments::default()
    }
    fn push(mut self, bytes: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend(bytes);
        self
    }
    pub fn buffer<T>(self, b: &Buffer<T>) -> Self {
        self.push(&b.address.to_le_bytes())
    }
    pub fn u64(self, x: u64) -> Self {
        self.push(&x.to_le_bytes())
    }
    pub fn u32(self, x: u32) -> Self {
        self.push(&x.to_le_bytes())
    }
    pub fn f32(self, x: f32) -> Self {
        self.push(&x.to_le_bytes())
    }
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A small deterministic generator.
pub struct Random(pub u64);

impl Random {
    pub fn u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (self.0 >> 33) as u32 ^ (self.0 >> 11) as u32;
        x.wrapping_mul(0x9E37_79B1)
    }
    pub fn f32(&mut self) -> f32 {
        (self.u32() >> 8) as f32 / 16_777_216.0 * 2.0 - 1.0
    }
}
