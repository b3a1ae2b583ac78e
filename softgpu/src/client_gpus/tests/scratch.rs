// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch memory of AQL queues: the slots that the `amd_queue_t` describes, in memory that holds them or does not.

use std::mem::offset_of;

use queues::aql::inactive;
use queues::hsa::AmdQueue;

use super::*;

/// Stores its id at byte 28 of its private memory, loads it again, and stores it to `array[id]`.
const THERE_AND_BACK: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    v_and_b32 v0, 0x3ff, v0
    s_lshl_b32 s6, s2, 5
    v_add_nc_u32 v1, s6, v0
    scratch_store_b32 off, v1, off offset:28
    s_waitcnt_vscnt null, 0
    scratch_load_b32 v2, off, off offset:28
    s_waitcnt vmcnt(0) lgkmcnt(0)
    v_lshlrev_b32 v3, 2, v1
    global_store_b32 v3, v2, s[4:5]
    s_endpgm";
/// Of a lane and of a wave of it.
const LANE_BYTES: u32 = 32;
const WAVE_BYTES: u32 = LANE_BYTES * 32;
const ENGINES: u32 = 6;

/// A queue, and a kernel with private memory.
struct Private<'a> {
    queue: TestQueue<'a>,
    kernel: Kernel,
    array: Buffer,
    arguments: Buffer,
    inactive: Signal,
    done: Signal,
}

impl<'a> Private<'a> {
    fn new(machine: &'a Machine, assembly: &str) -> Self {
        let (array, arguments) = (machine.buffer(16 << 10, DATA), machine.buffer(4096, DATA));
        arguments.u64(0).store(array.va, Ordering::Relaxed);
        let kernel = machine.kernel(assembly);
        // COMPUTE_PGM_RSRC2.SCRATCH_EN.
        kernel.buffer.u32(offset_of!(KernelDescriptor, compute_pgm_rsrc2)).fetch_or(1, Ordering::Relaxed);
        let (queue, inactive, done) = (machine.queue(1), machine.signal(0), machine.signal(1));
        queue
            .pointers
            .u64(offset_of!(AmdQueue, queue_inactive_signal))
            .store(inactive.handle(), Ordering::Relaxed);
        arguments.u64(8).store(queue.pointers.va, Ordering::Relaxed);
        Private { queue, kernel, array, arguments, inactive, done }
    }

    /// Tells the processor of memory with slots of `wave_bytes`, `waves` for an engine.
    fn describe(&self, memory: &Buffer, wave_bytes: u32, waves: u32) {
        let page = &self.queue.pointers;
        let ring = (wave_bytes / 256) << 12 | waves;
        page.u32(offset_of!(AmdQueue, compute_tmpring_size)).store(ring, Ordering::Relaxed);
        page.u64(offset_of!(AmdQueue, scratch_backing_memory_location)).store(memory.va, Ordering::Relaxed);
        // The size of the memory is not for the processor: tinygrad leaves it 0.
        self.tell_lane_bytes(wave_bytes / 64);
    }

    fn tell_lane_bytes(&self, bytes: u32) {
        let told = self.queue.pointers.u32(offset_of!(AmdQueue, scratch_wave64_lane_byte_size));
        told.store(bytes, Ordering::Relaxed);
    }

    fn submit(&self, groups: u32) {
        let packet = KernelDispatch {
            private_segment_bytes: LANE_BYTES,
            ..dispatch(&self.kernel, self.arguments.va, groups, &self.done)
        };
        self.queue.submit(Packet::KernelDispatch(packet));
    }

    fn check(&self, groups: u32) {
        self.done.wait_zero();
        for id in 0..32 * groups {
            assert_eq!(self.array.u32(4 * id as usize).load(Ordering::Relaxed), id);
        }
    }

    /// The faults until the first of them halted the queue: each worker may have met one.
    fn faults(&self) -> Vec<VmFault> {
        let machine = self.queue.machine;
        let exceptions = machine.exceptions();
        let is_violation = |exception: &_| *exception == (1, ExceptionCode::WaveMemoryViolation);
        assert!(exceptions.iter().all(is_violation), "{exceptions:?}");
        machine.driver.faults.lock().iter().map(|&(_, fault)| fault).collect()
    }

    /// The fault of the one wave that there was.
    fn fault(&self) -> VmFault {
        let faults = self.faults();
        assert_eq!(faults.len(), 1);
        faults[0]
    }
}

#[test]
fn waves_wait_for_the_slots_that_there_are() {
    let machine = Machine::new();
    let private = Private::new(&machine, THERE_AND_BACK);
    // Exactly two pages: with 8 waves of 1 KiB, and 6 engines that have one each.
    let memory = machine.buffer(8 << 10, DATA);
    private.describe(&memory, WAVE_BYTES, 1);
    private.submit(100);
    private.check(100);
    let used = |slot: usize| memory.bytes(slot * 1024, 1024).iter().any(|&byte| byte != 0);
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(used), [true, true, true, true, true, true, false, false]);
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn more_waves_than_the_memory_holds_is_a_fault_behind_it() {
    let machine = Machine::new();
    let private = Private::new(&machine, THERE_AND_BACK);
    // Slots of two engines; the third engine's are behind the memory.
    let memory = machine.buffer(8 << 10, DATA);
    private.describe(&memory, WAVE_BYTES, 4);
    private.submit(6);
    let faults = private.faults();
    assert!((1..=4).contains(&faults.len()), "{faults:x?}");
    for VmFault { address, permission_faults } in faults {
        assert_eq!(permission_faults & VmFault::VALID, VmFault::VALID);
        assert!((memory.va + (8 << 10)..memory.va + (24 << 10)).contains(&address), "{address:x}");
        // Byte 28 of lane 0 is dword 7 of 32 lanes.
        assert_eq!((address - memory.va) % 4096, 7 * 128, "of the first slot of an engine");
    }
}

#[test]
fn dispatches_begin_with_successive_engines() {
    let machine = Machine::new();
    let private = Private::new(&machine, THERE_AND_BACK);
    let memory = machine.buffer(4 << 10, DATA);
    private.describe(&memory, WAVE_BYTES, 4);
    private.submit(1);
    private.check(1);
    private.submit(1);
    assert_eq!(private.fault().address, memory.va + 4096 + 7 * 128);
}

#[test]
fn numbers_that_give_no_wave_enough_are_a_question() {
    type Spoil = fn(&Private<'_>, &Buffer);
    let cases: [Spoil; 3] = [
        |private, memory| private.describe(memory, WAVE_BYTES, 0),
        |private, memory| {
            private.describe(memory, WAVE_BYTES - 256, 1);
            private.tell_lane_bytes(WAVE_BYTES / 64);
        },
        |private, memory| {
            private.describe(memory, WAVE_BYTES, 1);
            private.tell_lane_bytes(WAVE_BYTES / 64 - 1);
        },
    ];
    for spoil in cases {
        let machine = Machine::new();
        let private = Private::new(&machine, THERE_AND_BACK);
        let memory = machine.buffer(8 << 10, DATA);
        spoil(&private, &memory);
        private.submit(2);
        eventually("the question", || private.inactive.value() == inactive::insufficient_scratch(true));
        assert_eq!((private.done.value(), private.queue.read_index()), (1, 0));
        private.describe(&memory, WAVE_BYTES, 1);
        private.inactive.store(0);
        private.check(2);
    }
}

#[test]
fn offset_behind_the_slot_reaches_the_next_one_and_then_nothing() {
    for (offset, fault) in [(36, false), (4092, true)] {
        let machine = Machine::new();
        let assembly = format!(
            "v_mov_b32 v1, 0x1234
             scratch_store_b32 off, v1, off offset:{offset}
             s_endpgm"
        );
        let private = Private::new(&machine, &assembly);
        let memory = machine.buffer(8 << 10, DATA);
        private.describe(&memory, WAVE_BYTES, 1);
        private.submit(1);
        if fault {
            assert_eq!(private.fault().address, memory.va + u64::from(offset / 4 * 128_u32));
        } else {
            private.done.wait_zero();
            // Of the wave that engine 1 would run.
            assert_eq!(memory.u32(1024 + 128).load(Ordering::Relaxed), 0x1234);
        }
    }
}

#[test]
fn buffer_descriptor_of_the_scratch_memory_bounds_what_goes_through_it() {
    // Stores lane + 1 to dwords 0 and 1 as private memory; adds what the buffer's dwords 0 and 1 hold; stores it there.
    let assembly = "
        s_load_b128 s[4:7], s[0:1], 0
        v_and_b32 v0, 0x3ff, v0
        v_add_nc_u32 v1, 1, v0
        v_lshlrev_b32 v3, 2, v0
        scratch_store_b32 off, v1, off
        scratch_store_b32 off, v1, off offset:4
        s_waitcnt_vscnt null, 0
        s_waitcnt lgkmcnt(0)
        s_load_b128 s[8:11], s[6:7], 144
        s_waitcnt lgkmcnt(0)
        s_or_b32 s11, s11, 0x400000
        buffer_load_b32 v4, off, s[8:11], 0
        buffer_load_b32 v5, off, s[8:11], 0 offset:4
        s_waitcnt vmcnt(0)
        v_lshlrev_b32 v5, 8, v5
        v_or_b32 v4, v4, v5
        buffer_store_b32 v3, off, s[8:11], 0 offset:4
        global_store_b32 v3, v4, s[4:5]
        s_endpgm";
    // NUM_RECORDS and OOB_SELECT: ROCr's, which looks for 0 only, and the one that compares offsets.
    for (records, select, loaded, stored) in
        [(WAVE_BYTES * ENGINES, 2, 0x0303, true), (0, 2, 0, false), (4, 3, 3, false), (8, 3, 0x0303, true)]
    {
        let machine = Machine::new();
        let private = Private::new(&machine, assembly);
        let memory = machine.buffer(8 << 10, DATA);
        private.describe(&memory, WAVE_BYTES, 1);
        let format = chip().target.scratch.unwrap();
        let [low, high] = [memory.va & 0xffff_ffff, memory.va >> 32].map(|half| u32::try_from(half).unwrap());
        let word3 = format.descriptor_word3 & !(3 << 28) | select << 28;
        let words = [low, high | format.descriptor_word1, records, word3];
        for (at, word) in words.into_iter().enumerate() {
            let offset = offset_of!(AmdQueue, scratch_resource_descriptor) + 4 * at;
            private.queue.pointers.u32(offset).store(word, Ordering::Relaxed);
        }
        private.submit(1);
        private.done.wait_zero();
        assert_eq!(private.array.u32(8).load(Ordering::Relaxed), loaded, "{records} {select}");
        let there = memory.u32(128 + 8).load(Ordering::Relaxed);
        assert_eq!(there, if stored { 8 } else { 3 }, "{records} {select}");
    }
}
