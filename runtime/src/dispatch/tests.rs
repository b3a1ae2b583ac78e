// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments and submission against the fake driver.

use crate::testing::runtime;
use crate::*;

/// The embedded copy kernel on an agent: it takes a destination, a source, a length and a number of groups.
fn copy_kernel(agent: &Agent) -> Kernel {
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
    let (runtime, kernel_driver) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (kernel, buffer) = (copy_kernel(&agent), agent.vram().alloc(4096).unwrap());
    let arguments =
        [Arg::Span(buffer.span(0, 64)), Arg::Span(buffer.span(64, 64)), Arg::U64(64), Arg::U64(1)];
    kernel_driver.hold_dispatches(true);
    submit(&queue, &kernel, &arguments).unwrap();
    assert!(matches!(buffer.free(), Err(FreeError::Pending { .. })));
    kernel_driver.hold_dispatches(false);
    queue.wait_idle(Some(std::time::Duration::from_secs(10))).unwrap();
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
