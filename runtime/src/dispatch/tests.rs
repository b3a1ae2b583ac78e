// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments and submission.

use std::time::{Duration, Instant};

use crate::testing::runtime;
use crate::*;

pub(super) const LONG: Duration = Duration::from_secs(10);

/// The embedded copy kernel on an agent: it takes a destination, a source, a length and a number of groups.
pub(super) fn copy_kernel(agent: &Agent) -> Kernel {
    Executable::load(agent, device_lib::object_for("gfx1100").unwrap())
        .unwrap()
        .kernel(device_lib::COPY)
        .unwrap()
}

fn submit(queue: &Queue, kernel: &Kernel, arguments: &[Arg<'_>]) -> Result<u64, SubmitError> {
    queue.dispatch(kernel).grid([64, 1, 1]).block([64, 1, 1]).args(arguments).submit()
}

#[test]
fn span_is_the_address_of_its_first_byte() {
    let (runtime, _) = runtime(1);
    let buffer = runtime.gtt().alloc(4096).unwrap();
    assert_eq!(Arg::Span(buffer.span(256, 64)).as_ref(), (buffer.va() + 256).to_le_bytes());
    assert_eq!(Arg::Span(buffer.all()).as_ref(), Arg::Buffer(&buffer).as_ref());
}

#[test]
fn small_values_have_the_bytes_that_a_kernel_reads() {
    assert_eq!(Arg::I8(-2).as_ref(), [0xfe]);
    assert_eq!(Arg::I16(-2).as_ref(), [0xfe, 0xff]);
    assert_eq!(Arg::F16(f16::from_f32(1.5)).as_ref(), [0x00, 0x3e]);
}

#[test]
fn small_value_for_a_word_is_refused_by_its_size() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (kernel, buffer) = (copy_kernel(&agent), agent.vram().alloc(4096).unwrap());
    for (small, bytes) in [(Arg::I8(1), 1), (Arg::I16(1), 2), (Arg::F16(f16::ONE), 2)] {
        let arguments = [Arg::Buffer(&buffer), Arg::Buffer(&buffer), small, Arg::U64(1)];
        let error = submit(&queue, &kernel, &arguments).unwrap_err();
        assert!(
            matches!(error, SubmitError::Arguments(KernargError::Size { index: 2, expected: 8, found, .. }) if found == bytes),
            "{error}"
        );
    }
    assert_eq!(queue.write_index().unwrap(), 0);
}

#[test]
fn span_counts_as_a_use_of_its_buffer() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (kernel, buffer) = (copy_kernel(&agent), agent.vram().alloc(4096).unwrap());
    let arguments =
        [Arg::Span(buffer.span(0, 64)), Arg::Span(buffer.span(64, 64)), Arg::U64(64), Arg::U64(1)];
    let hold = Signal::new(&runtime, 1).unwrap();
    queue.barrier(&[&hold], None).unwrap();
    submit(&queue, &kernel, &arguments).unwrap();
    assert!(matches!(buffer.free(), Err(FreeError::Pending { .. })));
    hold.store(0).unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
    buffer.free().unwrap();
}

#[test]
fn span_out_of_range_is_refused_with_its_index_and_range() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (kernel, buffer) = (copy_kernel(&agent), agent.vram().alloc(1000).unwrap());
    let with = |span| [Arg::Buffer(&buffer), Arg::Span(span), Arg::U64(64), Arg::U64(1)];
    for (offset, bytes) in [(990, 11), (1001, 0), (u64::MAX, 2), (1, u64::MAX)] {
        let error = submit(&queue, &kernel, &with(buffer.span(offset, bytes))).unwrap_err();
        let SubmitError::SpanRange { index: 1, offset: found, bytes: of, len: 1000, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((found, of), (offset, bytes));
    }
    let text = submit(&queue, &kernel, &with(buffer.span(990, 11))).unwrap_err().to_string();
    let key = buffer.key();
    assert_eq!(text, format!("Argument 1 is 11 bytes from offset 990 of buffer {key}, which has 1000 bytes"));
    assert_eq!(queue.write_index().unwrap(), 0);
    submit(&queue, &kernel, &with(buffer.span(1000, 0))).unwrap();
}

#[test]
fn span_of_a_freed_or_foreign_buffer_is_refused() {
    let ((first, _), (second, _)) = (runtime(1), runtime(1));
    let agent = first.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (kernel, buffer) = (copy_kernel(&agent), agent.vram().alloc(4096).unwrap());
    let foreign = second.gtt().alloc(4096).unwrap();
    let with = |other| [Arg::Buffer(&buffer), other, Arg::U64(64), Arg::U64(1)];
    for argument in [Arg::Span(foreign.span(0, 64)), Arg::Buffer(&foreign)] {
        let error = submit(&queue, &kernel, &with(argument)).unwrap_err();
        assert!(matches!(error, SubmitError::ForeignBuffer { index: 1, .. }), "{error}");
    }
    buffer.free().unwrap();
    let arguments = [Arg::Span(buffer.span(0, 64)), Arg::U64(0), Arg::U64(64), Arg::U64(1)];
    let error = submit(&queue, &kernel, &arguments).unwrap_err();
    assert!(matches!(error, SubmitError::FreedBuffer { index: 0, .. }), "{error}");
}

/// A queue of 64 packets, filled to its end: the first one waits until the signal is 0, `second` is copied by the next.
pub(super) fn full_queue(runtime: &Runtime, second: &device_lib::CopyArguments) -> (Queue, Kernel, Signal) {
    let (agent, hold) = (runtime.agent(0).unwrap(), Signal::new(runtime, 1).unwrap());
    let queue = Queue::create(&agent, QueueOptions { packets: 64, ..QueueOptions::default() }).unwrap();
    let kernel = copy_kernel(&agent);
    queue.barrier(&[&hold], None).unwrap();
    let arguments = second.to_bytes();
    queue.dispatch(&kernel).grid([64, 1, 1]).block([64, 1, 1]).raw_kernarg(&arguments).submit().unwrap();
    loop {
        match blank(&queue, &kernel).submit() {
            Ok(_) => {}
            Err(SubmitError::WouldBlock { .. }) => return (queue, kernel, hold),
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) const NOTHING: device_lib::CopyArguments =
    device_lib::CopyArguments { destination: 0, source: 0, bytes: 0, groups: 1 };

/// A dispatch that copies nothing.
pub(super) fn blank<'a>(queue: &'a Queue, kernel: &'a Kernel) -> Dispatch<'a> {
    queue.dispatch(kernel).grid([64, 1, 1]).block([64, 1, 1]).raw_kernarg(&[0; 32])
}

#[test]
fn submit_timeout_on_a_full_queue_says_how_long_it_waited() {
    let (runtime, _) = runtime(1);
    let (queue, kernel, hold) = full_queue(&runtime, &NOTHING);
    let before = queue.write_index().unwrap();
    let timeout = Duration::from_millis(30);
    let error = blank(&queue, &kernel).submit_timeout(timeout).unwrap_err();
    assert!(matches!(error, SubmitError::Timeout { packets: 64, waited } if waited >= timeout), "{error}");
    let error = blank(&queue, &kernel).submit_timeout(Duration::ZERO).unwrap_err();
    assert!(matches!(error, SubmitError::Timeout { .. }), "{error}");
    assert_eq!(queue.write_index().unwrap(), before);
    hold.store(0).unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
}

#[test]
fn submit_timeout_goes_on_when_there_is_room() {
    let (runtime, _) = runtime(1);
    let (queue, kernel, hold) = full_queue(&runtime, &NOTHING);
    let next = queue.write_index().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| blank(&queue, &kernel).submit_timeout(LONG));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        hold.store(0).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), next);
    });
    queue.wait_idle(Some(LONG)).unwrap();
}

#[test]
fn submit_timeout_ends_when_the_queue_stops() {
    let (runtime, _) = runtime(1);
    let nowhere = device_lib::CopyArguments { destination: 0x1000, source: 0x2000, bytes: 64, groups: 1 };
    let (queue, kernel, hold) = full_queue(&runtime, &nowhere);
    let start = Instant::now();
    std::thread::scope(|scope| {
        // The packet before the one that stops the queue leaves room for one more.
        let waiter = scope.spawn(|| {
            loop {
                if let Err(error) = blank(&queue, &kernel).submit_timeout(LONG) {
                    return error;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        hold.store(0).unwrap();
        let error = waiter.join().unwrap();
        assert!(matches!(error, SubmitError::Queue(_)), "{error}");
    });
    let error = blank(&queue, &kernel).submit_timeout(LONG).unwrap_err();
    assert!(matches!(error, SubmitError::Queue(_)), "{error}");
    assert!(start.elapsed() < LONG);
}

#[test]
fn submit_timeout_ends_when_the_device_is_lost() {
    let (runtime, driver) = runtime(1);
    let (queue, kernel, _hold) = full_queue(&runtime, &NOTHING);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| blank(&queue, &kernel).submit_timeout(LONG));
        std::thread::sleep(Duration::from_millis(20));
        driver.kill();
        let error = waiter.join().unwrap().unwrap_err();
        assert!(matches!(error, SubmitError::Lost(_)), "{error}");
    });
    assert!(start.elapsed() < LONG);
}
