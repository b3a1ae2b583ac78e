// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions of a processor that the tests play: sized, answered, put off, and refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kfd::Errno;
use kfd::sys::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU;
use queues::aql::{Header, PacketKind};
use queues::target::Target;

use super::*;
use crate::context::handover::{put_device, take_device};
use crate::context::signal::live::SignalLive;
use crate::queue::{Queue, QueueOptions};
use crate::runtime::Runtime;
use crate::testing::runtime;

const WAVES: u64 = 96 * 32;

fn wanted(lane_bytes: u32, lanes: u32) -> Wanted {
    Wanted { kernel: None, lane_bytes, lanes }
}

#[test]
fn share_of_a_lane_is_counted_in_waves_of_64_and_rounded_up() {
    let format = Target::by_name("gfx1100").unwrap().scratch.unwrap();
    let bytes = |lane, lanes, has| wanted(lane, lanes).lane_bytes_of_64(has, &format);
    assert_eq!(bytes(4, 64, 0), Ok(16));
    assert_eq!(bytes(4, 32, 0), Ok(16));
    assert_eq!(bytes(100, 64, 0), Ok(112));
    assert_eq!(bytes(100, 32, 0), Ok(64));
    // The field's end is no multiple of the granule.
    assert_eq!(bytes(131_068, 64, 16), Ok(131_068));
    assert_eq!(bytes(262_136, 32, 16), Ok(131_068));
    assert_eq!(bytes(131_069, 64, 0), Err(ScratchRefusal::Limit { most: 131_068 }));
    assert_eq!(bytes(262_137, 32, 0), Err(ScratchRefusal::Limit { most: 262_136 }));
    assert_eq!(bytes(0, 64, 0), Err(ScratchRefusal::Unexplained));
    assert_eq!(bytes(128, 32, 64), Err(ScratchRefusal::Unexplained));
    assert_eq!(bytes(129, 32, 64), Ok(80));
}

#[test]
fn processor_is_told_of_the_memory_as_rocr_tells_it() {
    // Shape as in `slots::properties`, bytes of memory, then by hand: tmpring, words 1 and 3 of the descriptor, bytes of an XCC.
    #[rustfmt::skip]
    let rows = [
        ("gfx900", [256, 4, 4, 1, 1], 2048 << 14, 0x10_800, 0x8000_7f12, 0x00ea_4fac, 2048 << 14),
        ("gfx90a", [416, 4, 8, 1, 1], 3328 << 14, 0x10_d00, 0x8000_7f12, 0x00ea_4fac, 3328 << 14),
        ("gfx1030", [160, 2, 8, 2, 1], 2560 << 14, 0x10_a00, 0x8000_7f12, 0x2181_4fac, 2560 << 14),
        ("gfx1100", [192, 2, 12, 2, 1], 3072 << 14, 0x40_200, 0x4000_7f12, 0x2081_4fac, 3072 << 14),
        ("gfx942", [1216, 4, 32, 1, 8], 10_240 << 14, 0x10_500, 0x8000_7f12, 0x00ea_4fac, 1280 << 14),
        ("gfx1201", [128, 2, 8, 2, 1], 2048 << 14, 0x40_200, 0x4000_7f12, 0x2081_4fac, 2048 << 14),
    ];
    for (name, shape, bytes, ring, word1, word3, part) in rows {
        let format = Target::by_name(name).unwrap().scratch.unwrap();
        let slots = Slots::of(&slots::properties(shape));
        let mut queue = AmdQueue::default();
        // 256 bytes a lane: 16 KiB a wave.
        fill(&mut queue, [0x7f12_3456_7000, bytes], 256, &slots, &format);
        assert_eq!(queue.compute_tmpring_size, ring, "{name} {:x}", queue.compute_tmpring_size);
        let size = u32::try_from(part).unwrap();
        assert_eq!(queue.scratch_resource_descriptor, [0x3456_7000, word1, size, word3], "{name}");
        assert_eq!(queue.scratch_backing_memory_location, 0x7f12_3456_7000);
        assert_eq!(queue.scratch_backing_memory_byte_size, part, "{name}");
        assert_eq!(queue.scratch_wave64_lane_byte_size, 256);
    }
}

/// A queue with a dispatch that the processor does not begin, since the write pointer does not say that it is there: as
/// if the processor had no scratch for it.
struct Asking {
    runtime: Runtime,
    kernel: Arc<crate::testing::TestDriver>,
    queue: Queue,
    signal: Arc<SignalLive>,
}

impl Asking {
    fn new(options: QueueOptions, lane_bytes: u32) -> Self {
        let (runtime, kernel) = runtime(1);
        let queue = Queue::create(&runtime.agent(0).unwrap(), options).unwrap();
        let context = runtime.context();
        let signal = {
            let registry = context.registry.lock();
            let key = registry.queues.get(queue.key()).unwrap().state.inactive.unwrap();
            Arc::clone(registry.signals.get(key).unwrap().live.as_ref().unwrap())
        };
        let page = queue.0.live.memory().page;
        let told = page.load(offset_of!(AmdQueue, queue_inactive_signal) as u64, Ordering::Relaxed);
        assert_eq!(told, signal.handle(), "the processor knows whom to ask");
        let packet = KernelDispatch {
            header: Header::new(PacketKind::KernelDispatch),
            dimensions: 1,
            workgroup: [1; 3],
            grid: [1; 3],
            private_segment_bytes: lane_bytes,
            group_segment_bytes: 0,
            kernel_object: 0,
            kernarg_address: 0,
            completion_signal: 0,
        };
        queue.0.live.store_packet(0, &Packet::KernelDispatch(packet).encode());
        Asking { runtime, kernel, queue, signal }
    }

    fn store(&self, code: u64) {
        self.signal.store(code.cast_signed());
    }

    fn raise(&self) {
        let context = self.runtime.context();
        let pass = context.gate.enter().unwrap();
        let id = self.signal.mailbox().unwrap().1;
        context.device(&pass).unwrap().set_event(id).unwrap();
    }

    fn ask(&self, code: u64) {
        self.store(code);
        self.raise();
    }

    fn suspend(&self, suspended: bool) {
        let context = self.runtime.context();
        let pass = context.gate.enter().unwrap();
        let device = context.device(&pass).unwrap();
        let mut registry = context.registry.lock();
        let Registry { queues, bos, .. } = &mut *registry;
        let queue = queues.get_mut(self.queue.key()).unwrap();
        match suspended {
            true => device.suspend_queue(queue, bos).unwrap(),
            false => device.resume_queue(queue, bos).unwrap(),
        }
    }

    fn wait_for(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_answer(&self) {
        self.wait_for("an answer", || self.signal.load() == 0);
    }

    fn scratch_fault(&self) -> ScratchFault {
        self.wait_for("a fault", || self.queue.fault().is_some());
        self.wait_for_answer();
        self.queue.fault().unwrap().scratch.clone().unwrap()
    }

    /// What the processor reads: location, bytes, bytes of a wave.
    fn described(&self) -> (u64, u64, u64) {
        let page = self.queue.0.live.memory().page;
        let word = |offset| page.load(offset as u64, Ordering::Relaxed);
        let ring = page.load32(offset_of!(AmdQueue, compute_tmpring_size) as u64, Ordering::Relaxed);
        // Of a shader engine: there are 6.
        assert_eq!(u64::from(ring & 0xfff) * 6, WAVES);
        (
            word(offset_of!(AmdQueue, scratch_backing_memory_location)),
            word(offset_of!(AmdQueue, scratch_backing_memory_byte_size)),
            u64::from(ring >> 12 & 0x7fff) * 256,
        )
    }

    /// The entry's scratch memory, which is what the processor was told of; bytes a lane of 64, bytes in all.
    fn registered(&self) -> (u32, u64) {
        let registry = self.runtime.context().registry.lock();
        let state = &registry.queues.get(self.queue.key()).unwrap().state;
        let memory = &registry.bos.get(state.bos.scratch.unwrap()).unwrap().state;
        let (va, bytes, _) = self.described();
        assert_eq!((memory.va, memory.bytes), (va, bytes));
        (state.scratch_lane_bytes, memory.bytes)
    }
}

#[test]
fn question_is_answered_for_the_packet_at_the_read_index() {
    let asking = Asking::new(QueueOptions::default(), 4000);
    let before = asking.kernel.counts();
    asking.ask(inactive::insufficient_scratch(true));
    asking.wait_for_answer();
    // 125 KiB a wave of 32, half of that a lane of 64.
    assert_eq!(asking.registered(), (2000, WAVES * 128_000));
    assert_eq!((asking.described().2, asking.queue.read_index().unwrap()), (128_000, 0));
    assert_eq!(asking.kernel.counts().0, before.0 + 1);
    assert!(asking.queue.fault().is_none());
    // The other wave size needs twice that: the memory is replaced.
    asking.ask(inactive::insufficient_scratch(false));
    asking.wait_for_answer();
    assert_eq!(asking.registered(), (4000, WAVES * 256_000));
    assert_eq!(asking.kernel.counts().0, before.0 + 1, "the old memory is freed");
}

#[test]
fn question_of_a_queue_with_enough_is_a_fault_and_not_a_loop() {
    let options = QueueOptions { scratch_lane_bytes: 64, ..QueueOptions::default() };
    let asking = Asking::new(options, 128);
    asking.ask(inactive::insufficient_scratch(true));
    let fault = asking.scratch_fault();
    assert_eq!((fault.lane_bytes, fault.refusal), (128, ScratchRefusal::Unexplained));
}

#[test]
fn no_memory_is_a_fault_that_names_the_bytes() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    asking.kernel.fail_once(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, Errno::ENOMEM);
    asking.ask(inactive::insufficient_scratch(false));
    let fault = asking.scratch_fault();
    assert_eq!((fault.lane_bytes, fault.wanted), (1000, WAVES * 64_000));
    assert!(matches!(fault.refusal, ScratchRefusal::OutOfMemory { .. }), "{fault}");
    asking.queue.destroy().unwrap();
}

#[test]
fn old_memory_makes_room_for_the_new() {
    let options = QueueOptions { scratch_lane_bytes: 64, ..QueueOptions::default() };
    let asking = Asking::new(options, 1000);
    let before = asking.kernel.counts();
    asking.kernel.fail_once(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, Errno::ENOMEM);
    asking.ask(inactive::insufficient_scratch(false));
    asking.wait_for_answer();
    assert_eq!(asking.registered().0, 1008);
    assert_eq!(asking.kernel.counts(), before);
    assert!(asking.queue.fault().is_none());
}

#[test]
fn refusal_of_the_driver_is_told_with_its_number() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    asking.kernel.fail_once(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, Errno::EPERM);
    asking.ask(inactive::insufficient_scratch(false));
    assert_eq!(asking.scratch_fault().refusal, ScratchRefusal::Refused { errno: Some(Errno::EPERM) });
}

#[test]
fn more_than_the_field_can_say_is_a_fault() {
    let asking = Asking::new(QueueOptions::default(), 200_000);
    asking.ask(inactive::insufficient_scratch(false));
    assert_eq!(asking.scratch_fault().refusal, ScratchRefusal::Limit { most: 131_068 });
}

#[test]
fn exceptions_in_the_inactive_signal_are_the_queues_fault() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    let code = ExceptionCode::PacketDispatchGroupSegmentSizeInvalid;
    asking.ask(code.inactive_signal_code().unwrap() | inactive::INSUFFICIENT_SCRATCH);
    asking.wait_for("a fault", || asking.queue.fault().is_some());
    let fault = asking.queue.fault().unwrap();
    assert_eq!((fault.codes.as_slice(), &fault.scratch), (&[code][..], &None));
    let unknown = Asking::new(QueueOptions::default(), 1000);
    unknown.ask(1 << 40);
    unknown.wait_for("a fault", || unknown.queue.fault().is_some());
    assert!(unknown.queue.fault().unwrap().to_string().contains("not known"));
}

#[test]
fn suspended_queue_keeps_its_question_and_has_it_answered_when_it_is_back() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    asking.suspend(true);
    // The event is used up while the queue is suspended.
    asking.ask(inactive::insufficient_scratch(false));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(asking.signal.load(), 1);
    asking.suspend(false);
    asking.wait_for_answer();
    assert_eq!(asking.registered().0, 1008);
}

#[test]
fn thread_does_not_sleep_for_ever_on_any_question() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    let is_asked = || is_asked(&asking.runtime.context().registry.lock());
    assert!(!is_asked());
    // Its event was used up while it was suspended, and it was back before the thread chose how long to sleep.
    asking.store(inactive::RELEASE_USE_ONCE_SCRATCH);
    assert!(is_asked());
    asking.suspend(true);
    assert!(is_asked());
    asking.suspend(false);
    asking.raise();
    asking.wait_for_answer();
    assert!(!is_asked());
}

#[test]
fn question_without_an_event_is_answered_when_the_event_thread_starts() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    let context = asking.runtime.context();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut closed = context.gate.close(deadline, &AtomicBool::new(false)).unwrap();
    let device = take_device(context, &mut closed, deadline).unwrap();
    asking.store(inactive::insufficient_scratch(false));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(asking.signal.load(), 1);
    put_device(context, &mut closed, Arc::new(device)).unwrap();
    // The gate is still closed.
    asking.wait_for_answer();
    closed.open();
    assert_eq!(asking.registered().0, 1008);
}

#[test]
fn queue_dropped_while_it_asks_leaves_nothing_behind() {
    let asking = Asking::new(QueueOptions::default(), 1000);
    let signals = |asking: &Asking| asking.runtime.context().registry.lock().signals.len();
    let (before, counts) = (signals(&asking), asking.kernel.counts());
    let other = Queue::create(&asking.runtime.agent(0).unwrap(), QueueOptions::default()).unwrap();
    {
        let registry = asking.runtime.context().registry.lock();
        let key = registry.queues.get(other.key()).unwrap().state.inactive.unwrap();
        registry.signals.get(key).unwrap().live.as_ref().unwrap().store(1);
    }
    drop(other);
    let now = asking.kernel.counts();
    // Events stay, for the next signals.
    assert_eq!((signals(&asking), now.0, now.2), (before, counts.0, counts.2));
    assert!(asking.runtime.context().registry.lock().retired.is_empty());
}
