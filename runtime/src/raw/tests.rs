// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw queues: rings, positions, packets that wait, faults, and masks.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kfd::sys::{AMDKFD_IOC_CREATE_QUEUE, AMDKFD_IOC_SET_CU_MASK};
use queues::aql::{Barrier, Packet};
use queues::sdma::Generation;
use queues::{pm4, sdma};

use super::*;
use crate::checkpoint::in_place::requeue;
use crate::testing::{TestDriver, runtime};
use crate::{Condition, CuMaskError, FreeError, Runtime, WaitMode};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const SDMA: RawKind = RawKind::Sdma { engine: None };
const KINDS: [RawKind; 3] = [RawKind::Aql, RawKind::Pm4, SDMA];

fn open() -> (Runtime, Arc<TestDriver>, Agent) {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    (runtime, kernel, agent)
}

fn small(kind: RawKind) -> RawOptions {
    RawOptions { kind, ring_bytes: 4096, ..RawOptions::default() }
}

/// Some words that do nothing, as a submission of this kind takes them.
fn noops(kind: RawKind, dwords: usize) -> Vec<u32> {
    let mut words = Vec::new();
    match kind {
        RawKind::Aql => {
            (0..dwords.div_ceil(16)).for_each(|_| words.extend(Packet::BarrierAnd(Barrier::noop()).encode()))
        }
        RawKind::Pm4 => pm4::push_nops(&mut words, dwords),
        RawKind::Sdma { .. } => sdma::push_nops(&mut words, dwords),
    }
    words
}

/// Submits as soon as there is room.
fn push(queue: &RawQueue, words: &[u32]) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match queue.submit(words) {
            Ok(end) => return end,
            Err(RawError::Full { .. }) => assert!(Instant::now() < deadline, "the ring wedged"),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn creation_asks_for_what_was_said() {
    let (_runtime, kernel, agent) = open();
    let options = RawOptions { priority: 11, percentage: 50, ..small(RawKind::Pm4) };
    let _queues = [
        RawQueue::create(&agent, options).unwrap(),
        RawQueue::create(&agent, small(RawKind::Aql)).unwrap(),
        RawQueue::create(&agent, small(SDMA)).unwrap(),
        RawQueue::create(&agent, small(RawKind::Sdma { engine: Some(1) })).unwrap(),
    ];
    // `KFD_IOC_QUEUE_TYPE_*`, engine, percentage, priority.
    assert_eq!(kernel.created(), [(0, 0, 50, 11), (2, 0, 100, 7), (1, 0, 100, 7), (4, 1, 100, 7)]);
}

#[test]
fn impossible_options_are_refused_before_the_ioctl() {
    let (_runtime, kernel, agent) = open();
    let refused = |options: RawOptions| RawQueue::create(&agent, options).unwrap_err();
    for bytes in [0, 2048, 4097, 12_288, 1 << 31] {
        let error = refused(RawOptions { ring_bytes: bytes, ..small(RawKind::Pm4) });
        assert!(matches!(error, QueueError::RingBytes { bytes: found, min: 4096, .. } if found == bytes));
    }
    let wide = refused(RawOptions { ring_bytes: 16 << 20, ..small(RawKind::Aql) });
    assert!(matches!(wide, QueueError::RingBytes { max: 8_388_608, .. }), "{wide}");
    let error = refused(RawOptions { priority: 16, ..small(SDMA) });
    assert!(matches!(error, QueueError::Priority { priority: 16 }));
    for percentage in [0, 101] {
        let error = refused(RawOptions { percentage, ..small(SDMA) });
        assert!(matches!(error, QueueError::Percentage { percentage: found } if found == percentage));
    }
    let error = refused(small(RawKind::Sdma { engine: Some(2) }));
    assert!(matches!(error, QueueError::Engine { engine: 2, engines: 2, .. }), "{error}");
    assert_eq!(kernel.created(), []);
}

#[test]
fn failed_creation_leaves_nothing_behind() {
    let (_runtime, kernel, agent) = open();
    drop(RawQueue::create(&agent, small(RawKind::Pm4)).unwrap());
    let before = kernel.counts();
    for kind in KINDS {
        kernel.fail_once(AMDKFD_IOC_CREATE_QUEUE, kfd::Errno::ENOSPC);
        assert!(matches!(RawQueue::create(&agent, small(kind)), Err(QueueError::Device(_))));
        assert_eq!(kernel.counts(), before);
    }
}

#[test]
fn positions_count_on_around_small_rings() {
    let (_runtime, _kernel, agent) = open();
    for kind in KINDS {
        let queue = RawQueue::create(&agent, small(kind)).unwrap();
        let mut last = 0;
        for n in 0..2000 {
            let end = push(&queue, &noops(kind, 1 + n % 37));
            assert!(end > last);
            last = end;
        }
        queue.wait_consumed(last, SOON).unwrap();
        assert_eq!((queue.read_position().unwrap(), queue.write_position().unwrap()), (last, last));
        let unit = QueueKind::from(kind).unit_bytes();
        assert!(last * unit > 20 * 4096, "{last} {unit}");
    }
}

#[test]
fn full_ring_refuses_with_its_numbers() {
    let (runtime, _kernel, agent) = open();
    let hold = Signal::new(&runtime, 1).unwrap();
    let mut wait = Vec::new();
    pm4::wait_memory(hold.value_va(), pm4::Compare::Equal, 0, u32::MAX).encode(&mut wait).unwrap();
    let queue = RawQueue::create(&agent, small(RawKind::Pm4)).unwrap();
    assert_eq!(queue.capacity(), 1023);
    queue.submit(&wait).unwrap();
    let used = wait.len() as u64;
    queue.submit(&noops(RawKind::Pm4, 1023 - wait.len())).unwrap();
    let full = queue.submit(&noops(RawKind::Pm4, 1)).unwrap_err();
    assert!(matches!(full, RawError::Full { wanted: 1, used: 1023, free: 0, unit: "dwords" }), "{full}");
    let long = queue.submit(&noops(RawKind::Pm4, 1024)).unwrap_err();
    assert!(matches!(long, RawError::TooLong { wanted: 1024, most: 1023, unit: "dwords" }), "{long}");
    assert!(matches!(
        queue.wait_consumed(used, Some(Duration::from_millis(5))),
        Err(WaitError::Consumed { read: 0, .. })
    ));
    assert!(matches!(queue.destroy(), Err(QueueError::Busy { pending: 1023, unit: "dwords", .. })));
    hold.store(0).unwrap();
    queue.wait_consumed(1023, SOON).unwrap();
    assert_eq!(queue.submit(&noops(RawKind::Pm4, 9)).unwrap(), 1032);
}

#[test]
fn copy_packets_never_straddle_and_long_ones_find_room() {
    let (_runtime, _kernel, agent) = open();
    let queue = RawQueue::create(&agent, small(SDMA)).unwrap();
    let mut at = 0;
    for dwords in [700, 700, 1, 1023, 5, 512, 1023] {
        let end = push(&queue, &noops(SDMA, dwords));
        let access = queue.access().unwrap();
        while at < end {
            let left = 4096 - at % 4096;
            let stream: Vec<u32> = (0..left / 4).map(|nth| access.ring().load(at + 4 * nth, 0)).collect();
            // A packet that reached beyond the ring's end would be cut short here.
            let (_, taken) = sdma::decode(&stream, Generation::V6).unwrap();
            at += 4 * taken as u64;
        }
        assert_eq!(at, end);
    }
    assert!(matches!(
        queue.submit(&noops(SDMA, 1024)),
        Err(RawError::TooLong { wanted: 4096, most: 4092, .. })
    ));
    queue.wait_idle(SOON).unwrap();
}

#[test]
fn what_is_no_packet_is_refused() {
    let (_runtime, _kernel, agent) = open();
    let queue = RawQueue::create(&agent, small(RawKind::Aql)).unwrap();
    assert!(matches!(queue.submit(&[]), Err(RawError::Empty)));
    assert!(matches!(queue.submit(&[2; 17]), Err(RawError::Packets { dwords: 17 })));
    let mut two = noops(RawKind::Aql, 32);
    two[16] = 1;
    assert!(matches!(queue.submit(&two), Err(RawError::Unpublished { index: 1, header: 1 })));
    assert!(matches!(queue.submit(&noops(RawKind::Aql, 65 * 16)), Err(RawError::TooLong { most: 64, .. })));
    assert_eq!(queue.write_position().unwrap(), 0);
    queue.destroy().unwrap();
    assert!(matches!(queue.submit(&noops(RawKind::Aql, 16)), Err(RawError::Stale { .. })));
    assert!(matches!(queue.access().map(drop), Err(RawError::Stale { .. })));
}

/// What a dispatcher appends to have a signal completed and its sleepers woken.
fn completion(queue: &RawQueue, signal: &Signal) -> Vec<u32> {
    let (mailbox, event) = signal.mailbox().unwrap().unwrap();
    let mut words = Vec::new();
    match queue.kind() {
        RawKind::Aql => {
            let barrier = Barrier { completion_signal: signal.handle(), ..Barrier::noop() };
            words.extend(Packet::BarrierAnd(barrier).encode());
        }
        RawKind::Pm4 => {
            pm4::signal(signal.value_va(), 0, pm4::Width::Bits64).encode(&mut words).unwrap();
            pm4::interrupt(mailbox, event).encode(&mut words).unwrap();
        }
        RawKind::Sdma { .. } => {
            let generation = Generation::V6;
            sdma::signal_decrement(signal.value_va()).encode(generation, &mut words).unwrap();
            for packet in sdma::interrupt(generation, mailbox, event) {
                packet.encode(generation, &mut words).unwrap();
            }
        }
    }
    words
}

#[test]
fn packets_complete_signals_and_wake_sleepers() {
    let (runtime, _kernel, agent) = open();
    for kind in KINDS {
        let queue = RawQueue::create(&agent, small(kind)).unwrap();
        for _ in 0..50 {
            let done = Signal::new(&runtime, 1).unwrap();
            let waiter = done.clone();
            let thread =
                std::thread::spawn(move || waiter.wait(Condition::Equal(0), SOON, WaitMode::Blocked));
            queue.completes(&done);
            push(&queue, &completion(&queue, &done));
            assert_eq!(thread.join().unwrap().unwrap(), 0);
        }
        queue.wait_idle(SOON).unwrap();
    }
}

#[test]
fn ring_written_by_hand_is_consumed() {
    let (_runtime, _kernel, agent) = open();
    for kind in KINDS {
        let queue = RawQueue::create(&agent, small(kind)).unwrap();
        let unit = QueueKind::from(kind).unit_bytes();
        let deadline = Instant::now() + Duration::from_secs(20);
        while queue.write_position().unwrap() * unit < 5 * 4096 {
            assert!(Instant::now() < deadline, "the ring wedged");
            let words = noops(kind, 16);
            let access = queue.access().unwrap();
            if access.free() < 64 / unit {
                drop(access);
                std::thread::yield_now();
                continue;
            }
            let at = access.write_pointer().load();
            match kind {
                RawKind::Aql => access.ring().publish(at, words.first_chunk().unwrap()),
                RawKind::Pm4 | RawKind::Sdma { .. } => access.ring().write(at, &words),
            }
            assert_eq!(access.ring().load(at, 3), words[3]);
            let end = at + 64 / unit;
            access.write_pointer().store(end);
            access.doorbell().ring(end);
            assert!(access.read_pointer().load() <= end && access.used() <= queue.capacity());
        }
        queue.wait_idle(SOON).unwrap();
        assert_eq!(queue.read_position().unwrap(), queue.write_position().unwrap());
    }
}

#[test]
fn closing_the_gate_waits_for_an_access() {
    let (runtime, _kernel, agent) = open();
    let queue = RawQueue::create(&agent, small(RawKind::Pm4)).unwrap();
    let access = queue.access().unwrap();
    let gate = Arc::clone(&runtime.context().gate);
    let close = |limit: u64| {
        let gate = Arc::clone(&gate);
        let deadline = Instant::now() + Duration::from_millis(limit);
        std::thread::spawn(move || gate.close(deadline, &AtomicBool::new(false)).map(drop)).join().unwrap()
    };
    assert!(close(30).is_err());
    // Nobody else writes meanwhile, and who asks whether the queue is idle is not kept waiting.
    assert!(queue.wait_idle(Some(Duration::from_millis(5))).is_ok(), "nothing was submitted");
    drop(access);
    close(5000).unwrap();
}

#[test]
fn buffer_in_use_is_not_freed() {
    let (runtime, _kernel, agent) = open();
    let (buffer, hold) = (agent.vram().alloc(4096).unwrap(), Signal::new(&runtime, 1).unwrap());
    for kind in [RawKind::Pm4, SDMA] {
        let queue = RawQueue::create(&agent, small(kind)).unwrap();
        let mut words = Vec::new();
        match kind {
            RawKind::Pm4 => pm4::wait_memory(hold.value_va(), pm4::Compare::Equal, 0, u32::MAX)
                .encode(&mut words)
                .unwrap(),
            _ => sdma::Packet::PollRegMem(sdma::PollRegMem::memory(hold.value_va(), sdma::Compare::Equal, 0))
                .encode(Generation::V6, &mut words)
                .unwrap(),
        }
        queue.uses(&buffer).unwrap();
        queue.submit(&words).unwrap();
        assert!(matches!(buffer.free(), Err(FreeError::Pending { .. })));
    }
    // Dropped with packets in flight: the queues are gone, and so is the use.
    buffer.free().unwrap();
    let queue = RawQueue::create(&agent, small(SDMA)).unwrap();
    assert!(matches!(queue.uses(&buffer), Err(RawError::Freed { .. })));
}

#[test]
fn fault_is_reported_and_breaks_promised_signals() {
    let (runtime, _kernel, agent) = open();
    let queue = RawQueue::create(&agent, small(RawKind::Pm4)).unwrap();
    let done = Signal::new(&runtime, 1).unwrap();
    // Nothing has said how many work-items a work-group has.
    let mut words = Vec::new();
    let dispatch = pm4::Packet::DispatchDirect { groups: [1; 3], initiator: pm4::Initiator(5) };
    dispatch.encode(&mut words).unwrap();
    words.extend(completion(&queue, &done));
    queue.completes(&done);
    let end = queue.submit(&words).unwrap();
    let error = done.wait(Condition::Equal(0), SOON, WaitMode::Blocked).unwrap_err();
    let WaitError::Queue(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.codes, [queues::aql::ExceptionCode::PacketDispatchWorkGroupSizeInvalid]);
    assert!(fault.packet.as_ref().unwrap().starts_with("DISPATCH_DIRECT 1x1x1"), "{fault}");
    assert!(matches!(queue.submit(&words), Err(RawError::Queue(_))));
    assert!(matches!(queue.access().map(drop), Err(RawError::Queue(_))));
    assert!(matches!(queue.wait_consumed(end, SOON), Err(WaitError::Queue(_))));
    // Promised after the fault: broken at once.
    let late = Signal::new(&runtime, 1).unwrap();
    queue.completes(&late);
    assert!(matches!(late.wait_done(SOON), Err(WaitError::Queue(_))));
    queue.destroy().unwrap();
}

#[test]
fn cu_mask_is_checked_set_and_refused_for_copies() {
    let (_runtime, kernel, agent) = open();
    let queue = RawQueue::create(&agent, small(RawKind::Pm4)).unwrap();
    let mask = |words: &[u32]| CuMask::from_words(words).unwrap();
    let odd = queue.set_cu_mask(&mask(&[0b0111])).unwrap_err();
    assert!(matches!(odd, QueueError::CuMask(CuMaskError::Pair { first: 2, second: 3, mask: 1 })), "{odd}");
    assert!(matches!(
        queue.set_cu_mask(&mask(&[0])),
        Err(QueueError::CuMask(CuMaskError::None { units: 96 }))
    ));
    assert_eq!(kernel.masks(), []);
    queue.set_cu_mask(&mask(&[0b1100, u32::MAX])).unwrap();
    assert_eq!(kernel.masks().last().unwrap().1, [0b1100, u32::MAX]);
    kernel.fail_once(AMDKFD_IOC_SET_CU_MASK, kfd::Errno::EBUSY);
    assert!(matches!(queue.set_cu_mask(&mask(&[3])), Err(QueueError::Device(_))));
    let kept = queue.agent().context.registry.lock().queues.get(queue.key()).unwrap().state.cu_mask.clone();
    assert_eq!(kept, [0b1100, u32::MAX]);
    let copies = RawQueue::create(&agent, small(SDMA)).unwrap();
    assert!(matches!(copies.set_cu_mask(&mask(&[3])), Err(QueueError::Unsupported { .. })));
    copies.set_priority(3).unwrap();
    assert!(matches!(copies.set_priority(16), Err(QueueError::Priority { priority: 16 })));
}

fn identity(queue: &RawQueue) -> (u32, u32) {
    let registry = queue.agent().context.registry.lock();
    let numbers = registry.queues.get(queue.key()).unwrap().numbers;
    (numbers.id, numbers.doorbell_offset)
}

#[test]
fn drained_queues_continue_at_their_positions_at_every_offset() {
    let (runtime, kernel, agent) = open();
    let queues = KINDS.map(|kind| RawQueue::create(&agent, small(kind)).unwrap());
    let before: Vec<_> = queues.iter().map(identity).collect();
    queues[1].set_cu_mask(&CuMask::from_words(&[0b11]).unwrap()).unwrap();
    // Odd steps: over the rounds they come to every part of the ring, and to every packet of the AQL ring.
    for round in 0..70 {
        let positions: Vec<u64> =
            queues.iter().map(|queue| push(queue, &noops(queue.kind(), 1 + 29 * (round % 7)))).collect();
        requeue(runtime.context());
        for (queue, &position) in queues.iter().zip(&positions) {
            // The drain's marker is behind what was submitted.
            let at = queue.write_position().unwrap();
            assert!(at > position, "round {round}: {at} {position}");
            assert_eq!(queue.read_position().unwrap(), at, "the no-ops were not consumed");
            let done = Signal::new(&runtime, 1).unwrap();
            queue.completes(&done);
            assert!(queue.submit(&completion(queue, &done)).unwrap() > at);
            done.wait_done(SOON).unwrap();
        }
    }
    assert_eq!(queues.iter().map(identity).collect::<Vec<_>>(), before);
    assert_eq!(kernel.masks().len(), 71, "a mask is set again with every restore");
}

#[test]
fn drain_rings_the_doorbell_the_caller_forgot() {
    let (runtime, _kernel, agent) = open();
    for kind in KINDS {
        // A processor reads the write pointer when the queue is new, which may be as late as the queue is full.
        let unread = (0..100).find_map(|_| {
            let queue = RawQueue::create(&agent, small(kind)).unwrap();
            let end = fill_without_ringing(&queue, kind);
            (queue.read_position().unwrap() == 0).then_some((queue, end))
        });
        let (queue, end) = unread.unwrap_or_else(|| panic!("{kind:?}: each of 100 queues was read unasked"));
        requeue(runtime.context());
        assert!(queue.write_position().unwrap() > end);
        queue.wait_idle(SOON).unwrap();
    }
}

/// Fills a ring up to the last place, so that not even the drain's own packets have room. Answers the write pointer.
fn fill_without_ringing(queue: &RawQueue, kind: RawKind) -> u64 {
    let unit = QueueKind::from(kind).unit_bytes();
    let access = queue.access().unwrap();
    let mut at = access.write_pointer().load();
    while access.free() >= 64 / unit {
        let words = noops(kind, 16);
        match kind {
            RawKind::Aql => access.ring().publish(at, words.first_chunk().unwrap()),
            RawKind::Pm4 | RawKind::Sdma { .. } => access.ring().write(at, &words),
        }
        at += 64 / unit;
        access.write_pointer().store(at);
    }
    at
}

#[test]
fn producers_share_a_ring_without_mixing_packets() {
    let (runtime, _kernel, agent) = open();
    let total = runtime.gtt().alloc(8).unwrap();
    total.write(0, &[0; 8]).unwrap();
    let queue = RawQueue::create(&agent, small(SDMA)).unwrap();
    queue.uses(&total).unwrap();
    let mut words = Vec::new();
    sdma::push_nops(&mut words, 3);
    sdma::signal_decrement(total.va()).encode(Generation::V6, &mut words).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| assert!(push(&queue, &words) > 0)));
        }
    });
    queue.wait_idle(SOON).unwrap();
    let mut found = [0; 8];
    total.read(0, &mut found).unwrap();
    assert_eq!(i64::from_le_bytes(found), -2000);
}

#[test]
fn submit_makes_no_ioctl_and_no_allocation() {
    let (_runtime, kernel, agent) = open();
    for kind in KINDS {
        let queue = RawQueue::create(&agent, RawOptions { ring_bytes: 1 << 20, ..small(kind) }).unwrap();
        let words = noops(kind, 16);
        let (calls, allocations) = (kernel.calls(), crate::testing::alloc::count());
        for _ in 0..1000 {
            queue.submit(&words).unwrap();
        }
        // Counted before the device is asked, whose locks may allocate when they are contended.
        let allocated = crate::testing::alloc::count() - allocations;
        assert_eq!((kernel.calls(), allocated), (calls, 0));
    }
}
