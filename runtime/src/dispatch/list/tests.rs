// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists: arguments that are replaced, signals, what a list keeps, refusals.

use std::time::Duration;

use crate::dispatch::tests::{LONG, NOTHING, blank, copy_kernel, full_queue};
use crate::testing::runtime;
use crate::*;

/// A list of one copy of 64 bytes, from the start of `buffer` to `to` bytes behind it, and the queue.
fn one_copy(agent: &Agent, buffer: &Buffer, to: u64) -> (Queue, CommandList) {
    let queue = Queue::create(agent, QueueOptions { packets: 64, ..QueueOptions::default() }).unwrap();
    let kernel = copy_kernel(agent);
    let arguments =
        [Arg::Span(buffer.span(to, 64)), Arg::Span(buffer.span(0, 64)), Arg::U64(64), Arg::U64(1)];
    let mut list = CommandList::new(&queue);
    let dispatch = queue.dispatch(&kernel).grid([64, 1, 1]).block([64, 1, 1]).args(&arguments);
    assert_eq!(list.dispatch(dispatch).unwrap(), 0);
    (queue, list)
}

fn byte(buffer: &Buffer, offset: u64) -> u8 {
    let mut byte = [0];
    buffer.read(offset, &mut byte).unwrap();
    byte[0]
}

#[test]
fn replaced_argument_is_seen_by_later_submissions_only() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let buffer = agent.vram().alloc(4096).unwrap();
    buffer.write(0, &[9; 64]).unwrap();
    let (queue, mut list) = one_copy(&agent, &buffer, 64);
    let hold = Signal::new(&runtime, 1).unwrap();
    queue.barrier(&[&hold], None).unwrap();
    list.submit().unwrap();
    // The first submission is still in the ring.
    list.set_arg(0, 0, Arg::Span(buffer.span(128, 64))).unwrap();
    hold.store(0).unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
    assert_eq!((byte(&buffer, 64), byte(&buffer, 128)), (9, 0));
    list.submit().unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
    assert_eq!((byte(&buffer, 127), byte(&buffer, 128), byte(&buffer, 191)), (9, 9, 9));
}

#[test]
fn list_is_submitted_around_the_end_of_the_ring() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions { packets: 64, ..QueueOptions::default() }).unwrap();
    let (each, done) = (Signal::new(&runtime, 2 * 30).unwrap(), Signal::new(&runtime, 30).unwrap());
    let kernel = copy_kernel(&agent);
    let mut list = CommandList::new(&queue);
    for _ in 0..2 {
        list.dispatch(blank(&queue, &kernel).completion(&each)).unwrap();
    }
    assert_eq!(list.barrier(&[], Some(&done)).unwrap(), 2);
    for round in 0..30 {
        assert_eq!(list.submit_timeout(LONG).unwrap(), 3 * round..3 * round + 3);
    }
    done.wait(Condition::Equal(0), Some(LONG), WaitMode::Auto).unwrap();
    assert_eq!(each.load().unwrap(), 0);
    assert!(each.live().is_settled() && done.live().is_settled());
}

#[test]
fn barrier_of_a_list_waits_for_its_signals() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (hold, done) = (Signal::new(&runtime, 1).unwrap(), Signal::new(&runtime, 1).unwrap());
    let mut list = CommandList::new(&queue);
    list.barrier(&[&hold], Some(&done)).unwrap();
    list.submit().unwrap();
    let waited = done.wait_done(Some(Duration::from_millis(20)));
    assert!(matches!(waited, Err(WaitError::Timeout { .. })));
    hold.store(0).unwrap();
    done.wait_done(Some(LONG)).unwrap();
    let error = list.barrier(&[&hold; 6], None).unwrap_err();
    assert!(matches!(error, SubmitError::Dependencies { found: 6 }), "{error}");
    assert_eq!(list.len(), 1);
}

#[test]
fn list_keeps_what_its_packets_use() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let buffer = agent.vram().alloc(4096).unwrap();
    let (queue, mut list) = one_copy(&agent, &buffer, 64);
    let done = Signal::new(&runtime, 1).unwrap();
    list.barrier(&[], Some(&done)).unwrap();
    let others = list.clone();
    drop((queue, buffer));
    for list in [list, others] {
        done.store(1).unwrap();
        list.submit().unwrap();
        done.wait_done(Some(LONG)).unwrap();
    }
}

#[test]
fn freed_buffer_is_refused_with_its_packet() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (buffer, other) = (agent.vram().alloc(4096).unwrap(), agent.vram().alloc(4096).unwrap());
    let (queue, mut list) = one_copy(&agent, &buffer, 64);
    list.submit().unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
    buffer.free().unwrap();
    let before = queue.write_index().unwrap();
    let error = list.submit().unwrap_err();
    let SubmitError::Packet { index: 0, source } = error else { panic!("{error}") };
    assert!(matches!(*source, SubmitError::FreedBuffer { index: 0, key } if key == buffer.key()));
    assert_eq!(queue.write_index().unwrap(), before);
    list.set_arg(0, 0, Arg::Buffer(&other)).unwrap();
    list.set_arg(0, 1, Arg::Span(other.span(64, 64))).unwrap();
    list.submit().unwrap();
    assert!(matches!(list.set_arg(0, 0, Arg::Buffer(&buffer)), Err(SubmitError::FreedBuffer { .. })));
    queue.wait_idle(Some(LONG)).unwrap();
}

#[test]
fn buffer_of_a_submitted_list_is_not_freed() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let buffer = agent.vram().alloc(4096).unwrap();
    let (queue, list) = one_copy(&agent, &buffer, 64);
    let hold = Signal::new(&runtime, 1).unwrap();
    queue.barrier(&[&hold], None).unwrap();
    list.submit().unwrap();
    assert!(matches!(buffer.free(), Err(FreeError::Pending { .. })));
    hold.store(0).unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
    buffer.free().unwrap();
}

#[test]
fn argument_that_is_none_or_of_another_size_is_refused() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let buffer = agent.vram().alloc(4096).unwrap();
    let (queue, mut list) = one_copy(&agent, &buffer, 64);
    let kernel = copy_kernel(&agent);
    list.dispatch(blank(&queue, &kernel)).unwrap();
    for (packet, index, arguments) in [(0, 4, 4), (1, 0, 0), (2, 0, 0)] {
        let error = list.set_arg(packet, index, Arg::U64(0)).unwrap_err();
        let SubmitError::NoArgument { arguments: found, .. } = error else { panic!("{error}") };
        assert_eq!(found, arguments);
    }
    let error = list.set_arg(0, 2, Arg::U32(64)).unwrap_err();
    assert!(
        matches!(error, SubmitError::Arguments(KernargError::Size { index: 2, expected: 8, found: 4, .. })),
        "{error}"
    );
    list.submit().unwrap();
    queue.wait_idle(Some(LONG)).unwrap();
}

#[test]
fn list_without_room_submits_nothing() {
    let (runtime, _) = runtime(1);
    let (queue, kernel, hold) = full_queue(&runtime, &NOTHING);
    let before = queue.write_index().unwrap();
    let mut list = CommandList::new(&queue);
    for _ in 0..64 {
        list.dispatch(blank(&queue, &kernel)).unwrap();
    }
    let error = list.submit().unwrap_err();
    assert!(matches!(error, SubmitError::WouldBlock { wanted: 64, .. }), "{error}");
    assert_eq!(queue.write_index().unwrap(), before);
    hold.store(0).unwrap();
    list.submit_timeout(LONG).unwrap();
    list.dispatch(blank(&queue, &kernel)).unwrap();
    let error = list.submit_timeout(LONG).unwrap_err();
    assert!(matches!(error, SubmitError::TooLong { wanted: 65, packets: 64 }), "{error}");
    queue.wait_idle(Some(LONG)).unwrap();
}
