// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues that two XCCs process together: of a gfx942, whose kernels are not executed here, and of a gfx1100 that no one
//! makes, whose kernels are.

use std::mem::offset_of;

use queues::aql::{Pm4Ib, inactive};
use queues::hsa::AmdQueue;
use queues::pm4::{self, PredExec};
use queues::save_area::{SaveAreaHeader, WaveRecord, WaveState, read_waves};

use super::kernels::{UNTIL_FLAG, with_array};
use super::pm4::{dword, encode, wait_for, write_data};
use super::*;

const XCCS: u32 = 2;

/// A quarter of an MI300X (QPX).
fn gfx942() -> Machine {
    let target = Target::by_name("gfx942").unwrap();
    Machine::with_chip(Chip { target, arrays: 4, engines: 4, xccs: XCCS, ..chip() })
}

/// Two 7900 XTX that work as one.
fn twice_gfx1100() -> Machine {
    Machine::with_chip(Chip { xccs: XCCS, ..chip() })
}

/// An indirect buffer of these packets, as an AQL packet.
fn indirect(machine: &Machine, packets: &[pm4::Packet<'_>], done: &Signal) -> (Buffer, Packet) {
    let words = encode(packets);
    let buffer = machine.buffer(words.len() * 4, DATA);
    buffer.fill(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let packet = Pm4Ib::new(buffer.va, u32::try_from(words.len()).unwrap());
    (buffer, Packet::Pm4Ib(Pm4Ib { completion_signal: done.handle(), ..packet }))
}

/// Those of these XCCs alone execute the next so many dwords.
fn only(xccs: u8, packets: &[pm4::Packet<'_>]) -> pm4::Packet<'static> {
    let dwords = u16::try_from(encode(packets).len()).unwrap();
    pm4::Packet::PredExec(PredExec { dwords, xccs })
}

/// The waves in an XCC's area.
fn area(queue: &TestQueue<'_>, xcc: usize) -> Vec<WaveRecord> {
    let saved = queue.mqd.lock().waves_of(xcc);
    if saved.wave_state_bytes == 0 {
        return Vec::new();
    }
    let mut area = queue.save.bytes(xcc * SAVE_BYTES as usize, SAVE_BYTES as usize);
    let wave_state = WaveState {
        control_stack_offset: saved.control_stack_offset,
        control_stack_size: saved.control_stack_bytes,
        wave_state_offset: saved.wave_state_offset,
        wave_state_size: saved.wave_state_bytes,
    };
    SaveAreaHeader { wave_state, ..SaveAreaHeader::default() }.write(&mut area).unwrap();
    read_waves(&area).unwrap()
}

#[test]
fn barrier_is_completed_once_by_all_xccs() {
    let machine = gfx942();
    let (queue, dependency, done) = (machine.queue(1), machine.signal(1), machine.signal(5));
    queue.barrier(&[&dependency], Some(&done));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((queue.read_index(), done.value()), (0, 5));
    dependency.store(0);
    eventually("the barrier", || queue.read_index() == 1);
    eventually("its signal", || done.value() != 5);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(done.value(), 4, "one of them completes it");
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn each_xcc_executes_an_indirect_buffer_and_what_is_for_it_alone() {
    let machine = gfx942();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let array = machine.buffer(4096, DATA);
    let first = [write_data(array.va, &[1])];
    let second = [write_data(array.va + 4, &[2])];
    let third = [write_data(array.va + 8, &[3])];
    let interrupt = pm4::interrupt(array.va + 16, 77);
    let packets = [
        only(1, &first),
        first[0],
        only(2, &second),
        second[0],
        only(4, &third),
        third[0],
        interrupt,
        write_data(array.va + 24, &[4]),
    ];
    let (_buffer, packet) = indirect(&machine, &packets, &done);
    queue.submit(packet);
    done.wait_zero();
    assert_eq!([0, 1, 2, 4, 6].map(|index| dword(&array, index)), [1, 2, 0, 77, 4]);
    assert_eq!(*machine.driver.events.lock(), [77, 77], "from each");
    assert_eq!(queue.read_index(), 1);
}

#[test]
fn xccs_can_wait_for_each_other_and_for_the_host_across_a_preemption() {
    let machine = gfx942();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let array = machine.buffer(4096, DATA);
    // The first waits for the second, which writes further behind in the stream, then the other way round.
    let there = [wait_for(array.va, 1), write_data(array.va + 4, &[1])];
    let back = [write_data(array.va, &[1]), wait_for(array.va + 4, 1)];
    let host = wait_for(array.va + 8, 1);
    let last = [write_data(array.va + 12, &[1])];
    let packets = [
        only(1, &there),
        there[0],
        there[1],
        only(2, &back),
        back[0],
        back[1],
        host,
        only(2, &last),
        last[0],
    ];
    let (_buffer, packet) = indirect(&machine, &packets, &done);
    queue.submit(packet);
    eventually("both", || dword(&array, 1) == 1);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(2));
        queue.stop();
        assert_eq!(queue.mqd.lock().xccs(), 2);
        // What each of them has reached is in its own descriptor.
        array.u32(0).store(0, Ordering::SeqCst);
        array.u32(4).store(0, Ordering::SeqCst);
        queue.start();
    }
    assert_eq!((done.value(), dword(&array, 3)), (1, 0));
    array.u32(8).store(1, Ordering::SeqCst);
    done.wait_zero();
    assert_eq!([0, 1, 3].map(|index| dword(&array, index)), [0, 0, 1], "nothing twice");
}

#[test]
fn kernel_whose_code_is_not_executed_halts_its_queue_and_no_other() {
    for machine in
        [gfx942(), Machine::with_chip(Chip { target: Target::by_name("gfx90a").unwrap(), ..chip() })]
    {
        let (bad, good) = (machine.queue(1), machine.queue(2));
        let (kernel, done) = (machine.kernel("s_endpgm"), machine.signal(1));
        bad.submit(Packet::KernelDispatch(dispatch(&kernel, 0, 1, &done)));
        assert_eq!(machine.exceptions(), [(1, ExceptionCode::PacketUnsupported)]);
        let alive = machine.signal(1);
        good.barrier(&[], Some(&alive));
        alive.wait_zero();
        assert_eq!((done.value(), bad.read_index()), (1, 0));
    }
}

#[test]
fn descriptors_of_another_number_of_xccs_are_refused() {
    let machine = gfx942();
    let queue = machine.queue(1);
    queue.stop();
    let start = |mqd: &Mqd| machine.gpus.start_queue(0, &queue.config(), mqd);
    for xccs in [1, 3] {
        assert_eq!(start(&Mqd::with_xccs(xccs)), Err(nix::errno::Errno::EINVAL), "{xccs}");
    }
    let mut half = queue.mqd.lock().clone();
    half.set_bytes(1, &[0; crate::hardware::MQD_BYTES]);
    assert_eq!(start(&half), Err(nix::errno::Errno::EINVAL));
    queue.start();
}

#[test]
fn waves_are_saved_and_restored_at_each_xccs_stride() {
    let machine = twice_gfx1100();
    let queue = machine.queue(1);
    let dones = [machine.signal(1), machine.signal(1)];
    let kernel = machine.kernel(UNTIL_FLAG);
    let arrays = [with_array(&machine, 4096), with_array(&machine, 4096)];
    // Five work-groups and three, beside each other.
    for ((done, (array, arguments)), groups) in dones.iter().zip(&arrays).zip([5, 3]) {
        let packet = dispatch(&kernel, arguments.va, groups, done);
        let header = Header { barrier: false, ..packet.header };
        queue.submit(Packet::KernelDispatch(KernelDispatch { header, ..packet }));
        eventually("the loop", || array.u32(4).load(Ordering::SeqCst) > 0);
    }
    let groups = |xcc| {
        let mut ids: Vec<_> = area(&queue, xcc).iter().map(|wave| (wave.sgprs[4], wave.ttmp[8])).collect();
        ids.sort_unstable();
        ids
    };
    let [low, high] = [0, 1].map(|at| u32::try_from(arrays[at].0.va & 0xffff_ffff).unwrap());
    let mut pause = Duration::from_millis(1);
    eventually("all work-groups", || {
        queue.stop();
        // A wave that was stopped before its first instruction has not loaded its array's address yet.
        let ids = [groups(0), groups(1)].concat();
        let all = ids.len() == 8 && ids.iter().all(|(array, _)| [low, high].contains(array));
        if !all {
            queue.start();
            // On a busy machine they come no further between two looks that follow each other at once.
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_secs(1));
        }
        all
    });
    let mut expected =
        [vec![(low, 0), (low, 2), (low, 4), (high, 0), (high, 2)], vec![(low, 1), (low, 3), (high, 1)]];
    expected.iter_mut().for_each(|ids| ids.sort_unstable());
    assert_eq!([groups(0), groups(1)], expected);
    for (array, _) in &arrays {
        array.u32(4).store(0, Ordering::SeqCst);
    }
    queue.start();
    // Every wave counts on in its own dispatch's array.
    for (array, _) in &arrays {
        eventually("the loop again", || array.u32(4).load(Ordering::SeqCst) > 0);
    }
    arrays[1].0.u32(0).store(1, Ordering::SeqCst);
    dones[1].wait_zero();
    assert_eq!((dones[0].value(), dword(&arrays[1].0, 2), dword(&arrays[0].0, 2)), (1, 7, 0));
    arrays[0].0.u32(0).store(1, Ordering::SeqCst);
    dones[0].wait_zero();
    assert_eq!(dword(&arrays[0].0, 2), 7);
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn wave_that_traps_is_found_in_the_area_of_its_xcc() {
    let machine = twice_gfx1100();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    // Work-group 1 alone reads what is not there.
    let kernel = machine.kernel(
        "
        s_cmp_lg_u32 s2, 1
        s_cbranch_scc1 end
        v_mov_b32 v0, 0
        v_mov_b32 v1, 0
        global_load_b32 v2, v[0:1], off
        s_waitcnt vmcnt(0)
      end:
        s_endpgm",
    );
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, 0, 2, &done)));
    assert_eq!(machine.exceptions()[0], (1, ExceptionCode::WaveMemoryViolation));
    queue.stop();
    let waves = [0, 1].map(|xcc| area(&queue, xcc).iter().map(|wave| wave.ttmp[8]).collect::<Vec<_>>());
    assert_eq!(waves, [vec![], vec![1]]);
    // It stays there.
    queue.start();
    queue.stop();
    assert_eq!([0, 1].map(|xcc| area(&queue, xcc).len()), [0, 1]);
}

/// A queue that is told of scratch memory, and what it stores to its signal when it asks for more.
struct Private<'a> {
    queue: TestQueue<'a>,
    inactive: Signal,
}

impl<'a> Private<'a> {
    fn new(machine: &'a Machine) -> Self {
        let (queue, inactive) = (machine.queue(1), machine.signal(0));
        let told = queue.pointers.u64(offset_of!(AmdQueue, queue_inactive_signal));
        told.store(inactive.handle(), Ordering::Relaxed);
        Self { queue, inactive }
    }

    /// `ring`: `COMPUTE_TMPRING_SIZE`; `part`: bytes of an XCC.
    fn describe(&self, memory: &Buffer, ring: u32, part: u64) {
        let page = &self.queue.pointers;
        page.u32(offset_of!(AmdQueue, compute_tmpring_size)).store(ring, Ordering::Relaxed);
        page.u64(offset_of!(AmdQueue, scratch_backing_memory_location)).store(memory.va, Ordering::Relaxed);
        let records = u32::try_from(part).unwrap();
        page.u32(offset_of!(AmdQueue, scratch_resource_descriptor) + 8).store(records, Ordering::Relaxed);
        page.u32(offset_of!(AmdQueue, scratch_wave64_lane_byte_size)).store(16, Ordering::Relaxed);
    }
}

/// Stores its work-group's number to its private memory.
const TO_PRIVATE: &str = "
    s_add_i32 s2, s2, 1
    v_mov_b32 v0, s2
    scratch_store_b32 off, v0, off offset:0
    s_waitcnt_vscnt null, 0
    s_endpgm";

/// [`TO_PRIVATE`], dispatched with 16 bytes a lane.
fn submit_private(machine: &Machine, queue: &TestQueue<'_>, groups: u32, done: &Signal) -> Kernel {
    let kernel = machine.kernel(TO_PRIVATE);
    // COMPUTE_PGM_RSRC2.SCRATCH_EN.
    kernel.buffer.u32(offset_of!(KernelDescriptor, compute_pgm_rsrc2)).fetch_or(1, Ordering::Relaxed);
    let packet = KernelDispatch { private_segment_bytes: 16, ..dispatch(&kernel, 0, groups, done) };
    queue.submit(Packet::KernelDispatch(packet));
    kernel
}

#[test]
fn waves_of_an_xcc_have_private_memory_in_its_own_part() {
    let machine = twice_gfx1100();
    let (private, done) = (Private::new(&machine), machine.signal(1));
    // Slots of 1 KiB, one for each of six engines, in parts of 8 KiB.
    let memory = machine.buffer(16 << 10, DATA);
    private.describe(&memory, 4 << 12 | 1, 8 << 10);
    let _kernel = submit_private(&machine, &private.queue, 12, &done);
    done.wait_zero();
    let slot = |slot: usize| dword(&memory, slot * 256);
    let parts: [Vec<u32>; 2] = [0, 1].map(|xcc| (0..8).map(|at| slot(xcc * 8 + at)).collect());
    for (xcc, part) in (0..).zip(&parts) {
        // Work-groups go round the XCCs: the first one has those with odd numbers, counted from 1.
        assert!(part[..6].iter().all(|&number| number % 2 == 1 - xcc || number == 0), "{parts:?}");
        assert!(part.iter().any(|&number| number != 0) && part[6..] == [0, 0], "{parts:?}");
    }
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn slots_that_leave_their_xccs_part_are_a_violation() {
    let machine = twice_gfx1100();
    let (private, done) = (Private::new(&machine), machine.signal(1));
    let memory = machine.buffer(32 << 10, DATA);
    // Two slots of 1 KiB for each of six engines are 12 KiB.
    private.describe(&memory, 4 << 12 | 2, (12 << 10) - 1);
    let _kernel = submit_private(&machine, &private.queue, 1, &done);
    assert_eq!(machine.exceptions(), [(1, ExceptionCode::WaveApertureViolation)]);
    assert!(memory.bytes(0, 32 << 10).iter().all(|&byte| byte == 0), "no wave ran");
}

#[test]
fn memory_for_one_xcc_is_not_enough_for_two() {
    // What the fields say is the same; the memory is there once, or twice. A page lies behind each buffer.
    for (bytes, fault) in [(8 << 10, true), (16 << 10, false)] {
        let machine = gfx942();
        let (private, done) = (Private::new(&machine), machine.signal(1));
        let _kernel = submit_private(&machine, &private.queue, 1, &done);
        let asked = inactive::insufficient_scratch(true);
        eventually("a question", || private.inactive.value() == asked);
        let memory = machine.buffer(bytes, DATA);
        // WAVES counts those of all four engines, in KiB.
        private.describe(&memory, 1 << 12 | 8, 8 << 10);
        private.inactive.store(0);
        if fault {
            assert_eq!(machine.exceptions(), [(1, ExceptionCode::WaveMemoryViolation)]);
            assert_eq!(machine.driver.faults.lock()[0].1.address, memory.va + (8 << 10));
        } else {
            assert_eq!(machine.exceptions(), [(1, ExceptionCode::PacketUnsupported)], "only then the code");
        }
    }
}
