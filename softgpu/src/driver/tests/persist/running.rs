// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in the middle of kernels, saved on one software GPU and restored on another one.

use std::os::fd::OwnedFd;

use kfd::sys::*;
use queues::aql::{Barrier, FenceScope, Header, KernelDispatch, PACKET_BYTES, Packet, PacketKind, RawPacket};
use queues::hsa::KernelDescriptor;
use queues::pm4;

use super::super::svm;
use super::*;
use crate::client_gpus::tests::{assemble, chip};
use crate::client_gpus::{Chip, ClientGpus, GpusState};
use crate::driver::process::split_handle;
use crate::driver::{KernelModel, memfd};
use crate::hardware::{Hardware, Interrupts};
use crate::journal::Journal;

/// Nothing else of the test process is there.
const BASE: u64 = 21 << 40;
/// From one queue's memory to the next one's.
const STRIDE: u64 = 1 << 32;

/// Counts in `array[1]` until `array[0]` is set, and stores three times the lane in `array[4 + lane]`; the array's address is
/// at s[0:1].
const UNTIL_FLAG: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    v_and_b32 v0, 0x3ff, v0
    v_lshlrev_b32 v5, 2, v0
    v_mul_u32_u24 v3, 3, v0
    v_mov_b32 v6, 0
    v_mov_b32 v2, 0
    s_waitcnt lgkmcnt(0)
  again:
    v_add_nc_u32 v2, 1, v2
    global_store_b32 v6, v2, s[4:5] offset:4
    global_load_b32 v1, v6, s[4:5] glc
    s_waitcnt vmcnt(0)
    v_readfirstlane_b32 s6, v1
    s_cmp_eq_u32 s6, 0
    s_cbranch_scc1 again
    global_store_b32 v5, v3, s[4:5] offset:16
    s_endpgm";

/// A client of a software GPU.
struct Machine {
    client: Client,
    gpus: Arc<ClientGpus>,
}

/// A buffer's memory, whatever device it is on.
struct Bytes(OwnedFd);

impl Bytes {
    fn read(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(nix::sys::uio::pread(&self.0, &mut bytes, offset as i64), Ok(8));
        u64::from_le_bytes(bytes)
    }

    fn word(&self, index: usize) -> u32 {
        (self.read(index * 4) & 0xffff_ffff) as u32
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(nix::sys::uio::pwrite(&self.0, bytes, offset as i64), Ok(bytes.len()));
    }
}

/// A queue as its client has it: its numbers and its memory.
struct QueueOf {
    id: u32,
    cookie: u64,
    ring: Bytes,
    pointers: Bytes,
    doorbells: Bytes,
    /// Array, kernel argument, and completion signal, each in a page.
    data: Bytes,
    data_va: u64,
}

impl QueueOf {
    fn submit(&self, index: u64, raw: &RawPacket) {
        let words = bytemuck::cast_slice::<u32, u8>(raw);
        let slot = index as usize % 256 * PACKET_BYTES;
        self.ring.write(slot + 4, &words[4..]);
        self.ring.write(slot, &words[..4]);
        self.pointers.write(8, &(index + 1).to_le_bytes());
        self.ring_doorbell(index);
    }

    /// By a store alone.
    fn ring_doorbell(&self, value: u64) {
        self.doorbells.write(self.cookie as usize & 0x1fff, &value.to_le_bytes());
    }

    fn counted(&self) -> u32 {
        self.data.word(1)
    }

    fn end(&self) {
        self.data.write(0, &1u32.to_le_bytes());
        eventually(|| self.data.word(4 + 31) == 3 * 31);
        assert!((0..32).all(|lane| self.data.word(4 + lane) == 3 * lane as u32));
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = soon();
    while !condition() {
        assert!(Instant::now() < deadline, "waited 20 s");
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn options(client: &Client, gpus: &Arc<ClientGpus>) -> ProcessOptions {
    let hardware: Arc<dyn Hardware> = Arc::clone(gpus) as _;
    let slot = client.ledger.claim(1).unwrap();
    ProcessOptions { gpus: Arc::clone(&client.gpus), hardware, slot, kernel: KernelModel::V7_3, pid: PID }
}

impl Machine {
    fn new(chip: Chip) -> Self {
        // Only what is beside the process is used of this one.
        let mut client = Client::with_svm("gfx1100");
        let gpus = Arc::new(ClientGpus::new(&[chip]).unwrap());
        client.process = KfdProcess::new(options(&client, &gpus));
        client.kfd = client.process.open("/dev/kfd").unwrap().0;
        client.acquire(0);
        let interrupts: std::sync::Weak<dyn Interrupts> = Arc::downgrade(&client.process) as _;
        gpus.connect(interrupts);
        Self { client, gpus }
    }

    fn bytes(&self, handle: u64) -> Bytes {
        let state = self.client.process.state.lock();
        let (_, index) = split_handle(handle);
        Bytes(memfd::duplicate(&state.bo(0, index).unwrap().backing.fd).unwrap())
    }

    fn kernel(&self, va: u64) -> u64 {
        let code = assemble(UNTIL_FLAG);
        let handle = self.client.buffer(0, va, 8192, GTT | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE);
        let memory = self.bytes(handle);
        memory.write(0, &descriptor().to_bytes());
        memory.write(256, &code);
        va
    }

    fn queue(&self, number: u64, queue_type: u32) -> QueueOf {
        let base = BASE + number * STRIDE;
        let mut parts = self.client.queue_parts(0, base);
        let data_va = base + 0x1000_0000;
        let data = self.bytes(self.client.buffer(0, data_va, 3 * 4096, GTT));
        data.write(4096, &data_va.to_le_bytes());
        data.write(8192, &[1u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
        let (ring, pointers) = (self.bytes(parts.ring), self.bytes(parts.pointers));
        if queue_type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL {
            (0..256).for_each(|slot| ring.write(slot * PACKET_BYTES, &[PacketKind::Invalid as u8]));
        }
        parts.args.queue_type = queue_type;
        // Of every second queue the save area is shared virtual memory, in two ranges.
        if number % 2 == 1 {
            self.client.unmap(parts.cwsr, 0).unwrap();
            let (area, pages) =
                (parts.args.ctx_save_restore_address, self.client.gpus[0].geometry().total_bytes / svm::PAGE);
            let attributes =
                [(svm::SET_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED), (svm::ACCESS, self.client.id(0))];
            for (from, pages) in [(0, 1), (1, pages - 1)] {
                let memory = svm::new(pages * svm::PAGE);
                svm::set(&self.client, area + from * svm::PAGE, pages, &attributes, memory).unwrap();
            }
        }
        let id = self.client.create(&mut parts.args).unwrap();
        let doorbells = Bytes(self.gpus.doorbells(0).unwrap().0);
        QueueOf { id, cookie: parts.args.doorbell_offset, ring, pointers, doorbells, data, data_va }
    }

    /// Saves everything and ends.
    fn save(self) -> (Client, ProcessState, GpusState, Memories) {
        let Self { mut client, gpus } = self;
        let (state, memories) = client.process.save().unwrap();
        let (of_gpus, pages) = gpus.save().unwrap();
        let mut all: Memories = memories.into_iter().collect();
        all.extend(pages);
        // The hardware goes with the process, and with it what is mapped in this one.
        client.process = KfdProcess::new(options(&client, &Arc::new(ClientGpus::new(&[]).unwrap())));
        assert_eq!(Arc::strong_count(&gpus), 1);
        (client, state, of_gpus, all)
    }

    fn restore(
        chip: Chip,
        mut client: Client,
        state: &ProcessState,
        of_gpus: &GpusState,
        all: &Memories,
    ) -> Self {
        let gpus = ClientGpus::restore(&[chip], Arc::<Journal>::default(), of_gpus, all).unwrap();
        let gpus = Arc::new(gpus);
        client.ledger = ledger_of(&client.gpus);
        client.process = KfdProcess::restore(options(&client, &gpus), state, all).unwrap();
        let interrupts: std::sync::Weak<dyn Interrupts> = Arc::downgrade(&client.process) as _;
        gpus.connect(interrupts);
        Self { client, gpus }
    }
}

/// 32 VGPRs, the kernel argument's address in s[0:1] and the work-group's x in s2; wave32.
fn descriptor() -> KernelDescriptor {
    KernelDescriptor {
        kernel_code_entry_byte_offset: 256,
        compute_pgm_rsrc1: 3 | 0xf0 << 12,
        compute_pgm_rsrc2: 2 << 1 | 1 << 7,
        kernel_code_properties: 1 << 3 | 1 << 10,
        ..KernelDescriptor::default()
    }
}

fn dispatch(kernel: u64, queue: &QueueOf) -> RawPacket {
    let header = Header {
        kind: PacketKind::KernelDispatch,
        barrier: true,
        acquire: FenceScope::System,
        release: FenceScope::System,
    };
    let packet = KernelDispatch {
        header,
        dimensions: 1,
        workgroup: [32, 1, 1],
        grid: [32, 1, 1],
        private_segment_bytes: 0,
        group_segment_bytes: 0,
        kernel_object: kernel,
        kernarg_address: queue.data_va + 4096,
        completion_signal: queue.data_va + 8192,
    };
    Packet::KernelDispatch(packet).encode()
}

fn launch(kernel: u64, queue: &QueueOf) -> Vec<u32> {
    let argument = queue.data_va + 4096;
    let descriptor = descriptor();
    let user_data = queues::words::words(argument);
    let launch = pm4::Dispatch {
        target: chip().target,
        simd_arrays: chip().arrays,
        entry: kernel + 256,
        descriptor: &descriptor,
        group_segment_bytes: 0,
        scratch: None,
        user_data: &user_data,
        workgroup: [32, 1, 1],
        groups: [1, 1, 1],
        wave32: true,
    };
    let mut words = Vec::new();
    launch.encode(&mut words).unwrap();
    words
}

/// Kernels that run on an AQL and a PM4 queue go on elsewhere, beside a queue that was parked in a kernel and one that halted.
fn kernels_go_on(chip: Chip) {
    let machine = Machine::new(chip);
    let kernel = machine.kernel(BASE - 0x10_0000);
    let aql = machine.queue(0, KFD_IOC_QUEUE_TYPE_COMPUTE_AQL);
    let pm4 = machine.queue(1, KFD_IOC_QUEUE_TYPE_COMPUTE);
    let parked = machine.queue(2, KFD_IOC_QUEUE_TYPE_COMPUTE_AQL);
    let halted = machine.queue(3, KFD_IOC_QUEUE_TYPE_COMPUTE_AQL);
    machine.client.process.expect_stores(&machine.client.kfd, aql.cookie, None).unwrap();
    aql.submit(0, &dispatch(kernel, &aql));
    parked.submit(0, &dispatch(kernel, &parked));
    let words = launch(kernel, &pm4);
    pm4.ring.write(0, bytemuck::cast_slice(&words));
    pm4.pointers.write(8, &(words.len() as u64).to_le_bytes());
    pm4.ring_doorbell(words.len() as u64);
    let mut wrong = dispatch(kernel, &halted);
    // Of more dimensions than there are.
    wrong[0] |= 0xffff << 16;
    halted.submit(0, &wrong);
    for queue in [&aql, &pm4, &parked] {
        eventually(|| queue.counted() > 0);
    }
    super::super::queues::update(&machine.client, parked.id, BASE + 2 * STRIDE + 0x1_0000, 0x4000, 0)
        .unwrap();
    std::thread::sleep(Duration::from_millis(20));

    machine.client.process.pause(soon()).unwrap();
    assert_eq!(machine.client.process.saved_waves(), 3);
    let ticks = machine.gpus.clock(0);
    let (client, state, of_gpus, memories) = machine.save();
    let before = [&aql, &pm4].map(QueueOf::counted);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!([&aql, &pm4].map(QueueOf::counted), before, "nothing runs");

    let machine = Machine::restore(chip, client, &state, &of_gpus, &memories);
    assert!(machine.gpus.clock(0) >= ticks);
    assert_eq!(machine.client.process.saved_waves(), 3);
    assert_eq!(machine.client.process.save().unwrap().0, state);
    machine.client.process.resume().unwrap();
    for (queue, before) in [&aql, &pm4].into_iter().zip(before) {
        eventually(|| queue.counted() > before);
    }
    let at = parked.counted();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(parked.counted(), at, "it is parked still");
    super::super::queues::update(&machine.client, parked.id, BASE + 2 * STRIDE + 0x1_0000, 0x4000, 100)
        .unwrap();
    for queue in [&aql, &parked] {
        queue.end();
        eventually(|| queue.data.read(8192 + 8) == 0);
    }
    pm4.end();
    // A store alone is noticed here, too.
    std::thread::sleep(Duration::from_millis(10));
    aql.data.write(8192 + 8, &1u64.to_le_bytes());
    let barrier = Barrier { completion_signal: aql.data_va + 8192, ..Barrier::and([0; 5]) };
    aql.submit(1, &Packet::BarrierAnd(barrier).encode());
    halted.submit(1, &Packet::BarrierAnd(barrier).encode());
    eventually(|| aql.data.read(8192 + 8) == 0);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(aql.data.read(8192 + 8), 0, "the halted queue executes nothing");
    assert_eq!([&aql, &halted].map(|queue| queue.pointers.read(0x80)), [2, 0]);
    for queue in [aql, pm4, parked, halted] {
        assert_eq!(machine.client.destroy(queue.id), Ok(0));
    }
}

#[test]
fn kernels_go_on_on_another_device() {
    kernels_go_on(chip());
}

#[test]
fn kernels_of_queues_that_take_turns_go_on_on_another_device() {
    kernels_go_on(Chip { compute_queues: 1, ..chip() });
}
