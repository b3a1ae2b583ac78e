// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: order, the ring's end, a full ring, refusals, faults and locks.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::dispatch::tests::{LONG, NOTHING, blank, copy_kernel, full_queue};
use crate::testing::runtime;
use crate::*;

fn small_queue(agent: &Agent) -> Queue {
    Queue::create(agent, QueueOptions { packets: 64, ..QueueOptions::default() }).unwrap()
}

fn copy<'a>(queue: &'a Queue, kernel: &'a Kernel, arguments: &'a [Arg<'a>]) -> Dispatch<'a> {
    queue.dispatch(kernel).grid([64, 1, 1]).block([64, 1, 1]).args(arguments)
}

#[test]
fn each_dispatch_sees_what_the_one_before_has_written() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (queue, kernel) = (small_queue(&agent), copy_kernel(&agent));
    let (buffer, done) = (agent.vram().alloc(4096).unwrap(), Signal::new(&runtime, 3).unwrap());
    buffer.write(0, &[7; 64]).unwrap();
    let span = |index: u64| Arg::Span(buffer.span(64 * index, 64));
    let arguments: [[Arg<'_>; 4]; 3] =
        [0, 1, 2].map(|index| [span(index + 1), span(index), Arg::U64(64), Arg::U64(1)]);
    let dispatches = arguments.each_ref().map(|arguments| copy(&queue, &kernel, arguments).completion(&done));
    assert_eq!(queue.submit_batch(&dispatches).unwrap(), 0..3);
    done.wait(Condition::Equal(0), Some(LONG), WaitMode::Auto).unwrap();
    let mut last = [0; 64];
    buffer.read(192, &mut last).unwrap();
    assert_eq!(last, [7; 64]);
    assert!(done.live().is_settled());
}

#[test]
fn batches_go_around_the_end_of_the_ring() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (queue, kernel) = (small_queue(&agent), copy_kernel(&agent));
    let (buffer, done) = (agent.vram().alloc(40 * 64 * 2).unwrap(), Signal::new(&runtime, 400).unwrap());
    for round in 0..10 {
        let bytes: Vec<u8> = (0..40 * 64).map(|byte| (byte / 64 + round) as u8).collect();
        buffer.write(0, &bytes).unwrap();
        let arguments: Vec<_> = (0..40)
            .map(|index| {
                let (to, from) = (buffer.span(64 * (40 + index), 64), buffer.span(64 * index, 64));
                [Arg::Span(to), Arg::Span(from), Arg::U64(64), Arg::U64(1)]
            })
            .collect();
        let dispatches: Vec<_> =
            arguments.iter().map(|arguments| copy(&queue, &kernel, arguments).completion(&done)).collect();
        // Waiting for an idle queue puts a packet behind the others.
        let first = queue.write_index().unwrap();
        assert_eq!(queue.submit_batch_timeout(&dispatches, LONG).unwrap(), first..first + 40);
        queue.wait_idle(Some(LONG)).unwrap();
        let mut copied = vec![0; 40 * 64];
        buffer.read(40 * 64, &mut copied).unwrap();
        assert_eq!(copied, bytes, "round {round}");
    }
    assert_eq!(done.load().unwrap(), 0);
}

#[test]
fn full_ring_takes_nothing_of_a_batch() {
    let (runtime, _) = runtime(1);
    let (queue, kernel, hold) = full_queue(&runtime, &NOTHING);
    let (before, done) = (queue.write_index().unwrap(), Signal::new(&runtime, 3).unwrap());
    let dispatches = [(); 3].map(|()| blank(&queue, &kernel).completion(&done));
    let error = queue.submit_batch(&dispatches).unwrap_err();
    assert!(matches!(error, SubmitError::WouldBlock { wanted: 3, packets: 64, .. }), "{error}");
    let error = queue.submit_batch_timeout(&dispatches, Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, SubmitError::Timeout { packets: 64, .. }), "{error}");
    assert_eq!(queue.write_index().unwrap(), before);
    assert!(done.live().is_settled());
    hold.store(0).unwrap();
    assert_eq!(queue.submit_batch_timeout(&dispatches, LONG).unwrap(), before..before + 3);
    done.wait(Condition::Equal(0), Some(LONG), WaitMode::Auto).unwrap();
}

#[test]
fn batch_longer_than_the_ring_is_refused_for_ever() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (queue, kernel) = (small_queue(&agent), copy_kernel(&agent));
    let dispatches = vec![blank(&queue, &kernel); 65];
    let error = queue.submit_batch_timeout(&dispatches, LONG).unwrap_err();
    assert!(matches!(error, SubmitError::TooLong { wanted: 65, packets: 64 }), "{error}");
    assert_eq!(queue.submit_batch(&dispatches[..64]).unwrap(), 0..64);
    assert_eq!(queue.submit_batch(&[]).unwrap(), 64..64);
    queue.wait_idle(Some(LONG)).unwrap();
}

#[test]
fn wrong_dispatch_is_named_and_nothing_submitted() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (queue, kernel, other) = (small_queue(&agent), copy_kernel(&agent), small_queue(&agent));
    let done = Signal::new(&runtime, 2).unwrap();
    let right = || blank(&queue, &kernel).completion(&done);
    let error = queue.submit_batch(&[right(), right().args(&[Arg::U32(1)])]).unwrap_err();
    let SubmitError::Packet { index: 1, source } = error else { panic!("{error}") };
    assert!(matches!(*source, SubmitError::Arguments(KernargError::Count { expected: 4, found: 1, .. })));
    let error = queue.submit_batch(&[blank(&other, &kernel)]).unwrap_err();
    let SubmitError::Packet { index: 0, source } = error else { panic!("{error}") };
    assert!(matches!(*source, SubmitError::OtherQueue { found, queue: wanted }
        if found == other.key() && wanted == queue.key()));
    assert_eq!(queue.write_index().unwrap(), 0);
    assert!(done.live().is_settled());
}

#[test]
fn fault_breaks_every_signal_of_a_batch() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (queue, kernel) = (small_queue(&agent), copy_kernel(&agent));
    let signals = [(); 2].map(|()| Signal::new(&runtime, 1).unwrap());
    let nowhere = [Arg::Address(0x1000), Arg::Address(0x2000), Arg::U64(64), Arg::U64(1)];
    let dispatches = signals.each_ref().map(|signal| copy(&queue, &kernel, &nowhere).completion(signal));
    queue.submit_batch(&dispatches).unwrap();
    for signal in &signals {
        assert!(matches!(signal.wait_done(Some(LONG)), Err(WaitError::Queue(_))));
    }
    assert!(matches!(queue.submit_batch(&dispatches), Err(SubmitError::Queue(_))));
}

#[test]
fn lock_comes_between_batches() {
    const LENGTH: u64 = 7;
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (queue, kernel) = (small_queue(&agent), copy_kernel(&agent));
    let (stop, gate) = (AtomicBool::new(false), &runtime.context().gate);
    std::thread::scope(|scope| {
        let batches = scope.spawn(|| {
            let dispatches = vec![blank(&queue, &kernel); LENGTH as usize];
            let mut batches = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                queue.submit_batch_timeout(&dispatches, LONG).unwrap();
                batches += 1;
            }
            batches
        });
        for _ in 0..100 {
            let closed = gate.close(Instant::now() + LONG, &AtomicBool::new(false)).unwrap();
            assert_eq!(queue.0.live.hardware_write() % LENGTH, 0);
            drop(closed);
            std::thread::yield_now();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let batches: u64 = batches.join().unwrap();
        assert_eq!(queue.write_index().unwrap(), batches * LENGTH);
    });
    queue.wait_idle(Some(LONG)).unwrap();
}
