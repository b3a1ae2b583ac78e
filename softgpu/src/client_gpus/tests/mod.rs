// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine in one process for the processor's tests: buffers as a client has them, queues, hand-written kernels.
//!
//! INVARIANT: every test has its own addresses, so tests of one process do not meet.

mod aliases;
mod barriers;
mod halts;
mod hdp;
mod idle;
mod kernels;
mod order;
mod persist;
mod pm4;
mod preempt;
mod runlist;
mod scratch;
mod sdma;
mod several_xccs;

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use queues::aql::{
    Barrier, ExceptionCode, FenceScope, Header, KernelDispatch, PACKET_BYTES, Packet, PacketKind, RawPacket,
};
use queues::hsa::KernelDescriptor;
use queues::target::Target;

use super::shared::SharedPages;
use super::{Chip, ClientGpus};
use crate::hardware::{
    GpuMapping, Hardware, HwQueue, HwQueueKind, Interrupts, Mqd, PageAccess, SavedWaves, VmFault,
};

const DATA: PageAccess = PageAccess { read: true, write: true, execute: false };
const CODE: PageAccess = PageAccess { read: true, write: true, execute: true };
const READ_ONLY: PageAccess = PageAccess { read: true, write: false, execute: false };

/// A 7900 XTX.
pub(crate) fn chip() -> Chip {
    Chip {
        target: Target::by_name("gfx1100").unwrap(),
        compute_units: 96,
        arrays: 12,
        engines: 6,
        xccs: 1,
        compute_queues: 8,
        errata: true,
        counter_ahead: 1 << 40,
    }
}

#[test]
fn queues_of_chips_that_are_not_executed_are_refused() {
    let start = |name: &str, kind| {
        let target = Target::by_name(name).unwrap();
        let gpus = ClientGpus::new(&[Chip { target, ..chip() }]).unwrap();
        gpus.start_queue(0, &some_queue(kind), &Mqd::default()).unwrap_err()
    };
    let refused = nix::errno::Errno::EOPNOTSUPP;
    for kind in [HwQueueKind::Aql, HwQueueKind::Compute] {
        assert_eq!(start("gfx1201", kind), refused);
    }
    // These get as far as their memory, which is not mapped here.
    for (name, kind) in [
        ("gfx90a", HwQueueKind::Sdma),
        ("gfx1201", HwQueueKind::Sdma),
        ("gfx942", HwQueueKind::Aql),
        ("gfx1102", HwQueueKind::Compute),
    ] {
        assert_eq!(start(name, kind), nix::errno::Errno::EIO, "{name}");
    }
}

/// A queue that is on no hardware.
pub(super) fn some_queue(kind: HwQueueKind) -> HwQueue {
    HwQueue {
        id: 3,
        kind,
        ring_va: 0x10000,
        ring_bytes: 4096,
        read_ptr_va: 0x20080,
        write_ptr_va: 0x20038,
        doorbell_offset: 24,
        cwsr_va: 0x30000,
        cwsr_bytes: SAVE_BYTES,
        control_stack_bytes: CONTROL_STACK_BYTES,
        priority: 7,
    }
}

/// What the processor told its driver.
#[derive(Debug, Default)]
struct FakeDriver {
    events: Mutex<Vec<u32>>,
    faults: Mutex<Vec<(usize, VmFault)>>,
    exceptions: Mutex<Vec<(u32, ExceptionCode)>>,
    /// Of waves without privilege.
    messages: Mutex<Vec<u32>>,
    hangs: Mutex<Vec<usize>>,
}

impl Interrupts for FakeDriver {
    fn end_of_pipe(&self, event_id: u32) {
        self.events.lock().push(event_id);
    }

    fn memory_fault(&self, gpu: usize, fault: VmFault) {
        self.faults.lock().push((gpu, fault));
    }

    fn hang(&self, gpu: usize) {
        self.hangs.lock().push(gpu);
    }

    fn wave_message(&self, _gpu: usize, m0: u32, privileged: bool) {
        let codes = ExceptionCode::ALL.iter().filter(|code| u64::from(m0 >> 10) & code.mask() != 0);
        match privileged {
            true => self.exceptions.lock().extend(codes.map(|code| (m0 & 0x3ff, *code))),
            false => self.messages.lock().push(m0),
        }
    }

    fn queue_exception(&self, _gpu: usize, queue_id: u32, code: ExceptionCode) {
        self.exceptions.lock().push((queue_id, code));
    }
}

/// A buffer mapped to GPU 0, seen by the test through a mapping of its own.
#[derive(Debug)]
struct Buffer {
    pages: SharedPages,
    va: u64,
}

impl Buffer {
    fn u64(&self, offset: usize) -> &AtomicU64 {
        self.pages.u64_at(offset).unwrap()
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        self.pages.u32_at(offset).unwrap()
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        for (at, word) in bytes.chunks(4).enumerate() {
            let mut padded = [0; 4];
            padded[..word.len()].copy_from_slice(word);
            self.u32(offset + 4 * at).store(u32::from_le_bytes(padded), Ordering::Relaxed);
        }
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        (offset..offset + length)
            .step_by(4)
            .flat_map(|at| self.u32(at).load(Ordering::Relaxed).to_le_bytes())
            .collect()
    }
}

/// One GPU of one client.
#[derive(Debug)]
struct Machine {
    // Before the driver, which it only knows weakly.
    gpus: ClientGpus,
    driver: Arc<FakeDriver>,
    used: Mutex<HashSet<u32>>,
}

impl Machine {
    fn new() -> Self {
        Self::with_chip(chip())
    }

    fn with_chip(chip: Chip) -> Self {
        let machine = Self::without_trap_handler(chip);
        let code = device_lib::trap_handler_for(chip.target.name).unwrap();
        let memory = machine.buffer(code.len() + 256, CODE);
        memory.fill(0, code);
        machine.gpus.set_trap_handler(0, memory.va, 0);
        machine
    }

    /// One whose client set no trap handler.
    fn without_trap_handler(chip: Chip) -> Self {
        let gpus = ClientGpus::new(&[chip]).unwrap();
        let driver = Arc::new(FakeDriver::default());
        let line: std::sync::Weak<FakeDriver> = Arc::downgrade(&driver);
        gpus.connect(line);
        Self { gpus, driver, used: Mutex::default() }
    }

    /// Memory at an address that nothing else in this process has.
    fn buffer(&self, bytes: usize, access: PageAccess) -> Buffer {
        static NEXT: AtomicU64 = AtomicU64::new(16 << 40);
        let bytes = bytes.next_multiple_of(4096);
        // A page in between, so that running off the end faults.
        let va = NEXT.fetch_add(bytes as u64 + 4096, Ordering::Relaxed);
        let pages = SharedPages::new("test", bytes).unwrap();
        self.map(&pages, va, bytes as u64, access);
        Buffer { pages, va }
    }

    fn map(&self, pages: &SharedPages, va: u64, bytes: u64, access: PageAccess) {
        self.gpus.map(0, &GpuMapping { va, bytes, access, backing: pages.fd(), offset: 0 }).unwrap();
    }

    /// A started queue of 64 packets whose headers are INVALID.
    fn queue(&self, id: u32) -> TestQueue<'_> {
        let xccs = usize::try_from(self.gpus.gpus[0].gpu().chip.xccs).unwrap();
        assert!(self.used.lock().insert(id), "queue {id} twice");
        let queue = TestQueue {
            machine: self,
            ring: self.buffer(64 * PACKET_BYTES, CODE),
            pointers: self.buffer(4096, DATA),
            save: self.buffer(xccs * SAVE_BYTES as usize, DATA),
            id,
            mqd: Mutex::new(Mqd::with_xccs(xccs)),
        };
        for slot in 0..64 {
            queue.ring.u32(slot * PACKET_BYTES).store(PacketKind::Invalid as u32, Ordering::Relaxed);
        }
        queue.start();
        queue
    }

    /// A kernel made of this assembly, with the kernarg address in s[0:1] and the work-group's x in s2.
    fn kernel(&self, assembly: &str) -> Kernel {
        let code = assemble(assembly);
        let buffer = self.buffer(256 + code.len() + 256, CODE);
        // 32 VGPRs; float mode as compilers set it; kernarg pointer and work-group id x; wave32.
        let descriptor = KernelDescriptor {
            kernel_code_entry_byte_offset: 256,
            compute_pgm_rsrc1: 3 | 0xf0 << 12,
            compute_pgm_rsrc2: 2 << 1 | 1 << 7,
            kernel_code_properties: 1 << 3 | 1 << 10,
            ..KernelDescriptor::default()
        };
        buffer.fill(0, &descriptor.to_bytes());
        buffer.fill(256, &code);
        Kernel { buffer }
    }

    fn signal(&self, value: u64) -> Signal {
        let buffer = self.buffer(4096, DATA);
        buffer.u64(0).store(1, Ordering::Relaxed);
        buffer.u64(8).store(value, Ordering::Relaxed);
        Signal { buffer }
    }

    /// The exceptions once there is one.
    fn exceptions(&self) -> Vec<(u32, ExceptionCode)> {
        eventually("an exception", || !self.driver.exceptions.lock().is_empty());
        self.driver.exceptions.lock().clone()
    }
}

const SAVE_BYTES: u32 = 0x0010_0000;
const CONTROL_STACK_BYTES: u32 = 0xa000;

struct Kernel {
    buffer: Buffer,
}

struct Signal {
    buffer: Buffer,
}

impl Signal {
    fn handle(&self) -> u64 {
        self.buffer.va
    }

    fn value(&self) -> u64 {
        self.buffer.u64(8).load(Ordering::SeqCst)
    }

    fn store(&self, value: u64) {
        self.buffer.u64(8).store(value, Ordering::SeqCst);
    }

    fn wait_zero(&self) {
        eventually("the signal", || self.value() == 0);
    }
}

struct TestQueue<'a> {
    machine: &'a Machine,
    ring: Buffer,
    pointers: Buffer,
    save: Buffer,
    id: u32,
    /// What is known of it while it is off the hardware.
    mqd: Mutex<Mqd>,
}

impl TestQueue<'_> {
    fn config(&self) -> HwQueue {
        HwQueue {
            id: self.id,
            ring_va: self.ring.va,
            ring_bytes: 64 * PACKET_BYTES as u64,
            read_ptr_va: self.pointers.va + 128,
            write_ptr_va: self.pointers.va + 56,
            doorbell_offset: self.id * 8,
            cwsr_va: self.save.va,
            ..some_queue(HwQueueKind::Aql)
        }
    }

    fn read_index(&self) -> u64 {
        self.pointers.u64(128).load(Ordering::SeqCst)
    }

    /// Body first, header last; returns the packet's index.
    fn write(&self, raw: &RawPacket) -> u64 {
        let index = self.pointers.u64(56).fetch_add(1, Ordering::SeqCst);
        eventually("a free slot", || index - self.read_index() < 64);
        let slot = usize::try_from(index % 64).unwrap() * PACKET_BYTES;
        for (word, value) in raw.iter().enumerate().skip(1) {
            self.ring.u32(slot + 4 * word).store(*value, Ordering::Relaxed);
        }
        self.ring.u32(slot).store(raw[0], Ordering::Release);
        index
    }

    fn ring(&self, index: u64) {
        self.machine.gpus.gpus[0].gpu().doorbells.ring(self.id * 8, index);
    }

    fn submit_raw(&self, raw: &RawPacket) {
        let index = self.write(raw);
        self.ring(index);
    }

    fn submit(&self, packet: Packet) {
        self.submit_raw(&packet.encode());
    }

    fn barrier(&self, deps: &[&Signal], completion: Option<&Signal>) {
        let mut handles = [0; 5];
        for (handle, dep) in handles.iter_mut().zip(deps) {
            *handle = dep.handle();
        }
        let completion_signal = completion.map_or(0, Signal::handle);
        self.submit(Packet::BarrierAnd(Barrier { completion_signal, ..Barrier::and(handles) }));
    }

    fn stop(&self) -> SavedWaves {
        let mqd = self.machine.gpus.stop_queue(0, self.id).unwrap().unwrap();
        *self.mqd.lock() = *mqd;
        self.mqd.lock().waves()
    }

    fn start(&self) {
        self.machine.gpus.start_queue(0, &self.config(), &self.mqd.lock()).unwrap();
    }

    fn destroy(&self) {
        self.machine.gpus.destroy_queue(0, self.id);
    }
}

/// A dispatch of `groups` work-groups of 32.
fn dispatch(kernel: &Kernel, kernarg: u64, groups: u32, completion: &Signal) -> KernelDispatch {
    let header = Header {
        kind: PacketKind::KernelDispatch,
        barrier: true,
        acquire: FenceScope::System,
        release: FenceScope::System,
    };
    KernelDispatch {
        header,
        dimensions: 1,
        workgroup: [32, 1, 1],
        grid: [32 * groups, 1, 1],
        private_segment_bytes: 0,
        group_segment_bytes: 0,
        kernel_object: kernel.buffer.va,
        kernarg_address: kernarg,
        completion_signal: completion.handle(),
    }
}

/// Waits up to ten seconds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited 10 s for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The machine code of gfx1100 assembly, by the machine's LLVM 19.
pub(crate) fn assemble(source: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (object, binary) = (directory.path().join("k.o"), directory.path().join("k.bin"));
    let mut assembler = Command::new("llvm-mc-19")
        .args(["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-filetype=obj", "-o"])
        .arg(&object)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    assembler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(assembler.wait().unwrap().success(), "{source}");
    let copied = Command::new("llvm-objcopy-19")
        .args(["-O", "binary", "--only-section=.text"])
        .args([&object, &binary])
        .status()
        .unwrap();
    assert!(copied.success());
    std::fs::read(binary).unwrap()
}
