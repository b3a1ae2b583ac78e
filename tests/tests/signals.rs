// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals: every kind of wait, and no wake-up lost.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use nix::time::ClockId;
use stasis::{Condition, Signal, WaitError, WaitMode};
use stasis_tests::gpu::{Gpu, SOON, open};

#[test]
fn no_wake_up_is_lost_in_thousands_of_round_trips_between_two_threads() {
    const TRIPS: i64 = 3000;
    let runtime = open();
    let (ping, pong) = (Signal::new(&runtime, 0).unwrap(), Signal::new(&runtime, 0).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 1..=TRIPS {
                ping.wait(Condition::Equal(trip), SOON, WaitMode::Blocked).unwrap();
                pong.store(trip).unwrap();
            }
        });
        for trip in 1..=TRIPS {
            ping.add(1).unwrap();
            pong.wait(Condition::AtLeast(trip), SOON, WaitMode::Blocked).unwrap();
        }
    });
}

#[test]
fn no_wake_up_is_lost_between_the_device_and_two_sleeping_threads() {
    let gpu = Gpu::new();
    for _ in 0..1500 {
        let done = Signal::new(&gpu.runtime, 1).unwrap();
        let other = done.clone();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || other.wait(Condition::Equal(0), SOON, WaitMode::Blocked));
            gpu.queue.barrier(&[], Some(&done)).unwrap();
            done.wait(Condition::LessThan(1), SOON, WaitMode::Blocked).unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
}

#[test]
fn every_mode_of_waiting_sees_the_device_complete() {
    let gpu = Gpu::new();
    for mode in [WaitMode::Busy, WaitMode::Auto, WaitMode::Blocked] {
        let done = Signal::new(&gpu.runtime, 100).unwrap();
        for _ in 0..100 {
            gpu.queue.barrier(&[], Some(&done)).unwrap();
        }
        assert_eq!(done.wait(Condition::Equal(0), SOON, mode).unwrap(), 0, "{mode:?}");
    }
}

#[test]
fn wait_that_times_out_says_the_value_and_how_long() {
    let runtime = open();
    let signal = Signal::new(&runtime, 42).unwrap();
    for mode in [WaitMode::Busy, WaitMode::Auto, WaitMode::Blocked] {
        let started = Instant::now();
        let error = signal.wait(Condition::Equal(0), Some(Duration::from_millis(60)), mode).unwrap_err();
        let WaitError::Timeout { value: 42, waited } = error else { panic!("{error}") };
        assert!(
            waited >= Duration::from_millis(60) && started.elapsed() < Duration::from_secs(5),
            "{mode:?}"
        );
    }
}

#[test]
fn sleeping_thread_uses_no_processor_time() {
    let runtime = open();
    let signal = Signal::new(&runtime, 1).unwrap();
    let used = || Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap());
    let before = used();
    assert!(signal.wait(Condition::Equal(0), Some(Duration::from_millis(500)), WaitMode::Blocked).is_err());
    let spent = used() - before;
    assert!(spent < Duration::from_millis(50), "{spent:?} of 500 ms were spent awake");
}

#[test]
fn conditions_compare_as_named() {
    let runtime = open();
    let signal = Signal::new(&runtime, -3).unwrap();
    let at_once = |condition| signal.wait(condition, Some(Duration::ZERO), WaitMode::Busy);
    assert_eq!(at_once(Condition::Equal(-3)).unwrap(), -3);
    assert_eq!(at_once(Condition::NotEqual(0)).unwrap(), -3);
    assert_eq!(at_once(Condition::LessThan(-2)).unwrap(), -3);
    assert_eq!(at_once(Condition::AtLeast(-3)).unwrap(), -3);
    assert!(at_once(Condition::AtLeast(-2)).is_err());
    assert_eq!(signal.add(5).unwrap(), -3);
    assert_eq!(signal.load().unwrap(), 2);
}

#[test]
fn thousands_of_signals_exist_at_once_and_come_back() {
    let gpu = Gpu::new();
    for _ in 0..2 {
        let signals: Vec<Signal> = (0..6000).map(|i| Signal::new(&gpu.runtime, i).unwrap()).collect();
        let mut handles: Vec<u64> = signals.iter().map(Signal::handle).collect();
        handles.sort_unstable();
        handles.dedup();
        assert_eq!(handles.len(), signals.len(), "two signals share a slot");
        assert!(signals.iter().zip(0..).all(|(signal, value)| signal.load().unwrap() == value));
    }
}

#[test]
fn completion_carries_time_stamps() {
    let gpu = Gpu::new();
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let before = gpu.agent.clocks().unwrap();
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[stasis::Arg::Buffer(&gpu.buffer(&[0u32]))]);
    gpu.queue.barrier(&[], Some(&done)).unwrap();
    done.wait_done(SOON).unwrap();
    let (start, end) = done.timestamps(&gpu.agent).unwrap();
    let after = gpu.agent.clocks().unwrap();
    assert!(before.gpu <= start && start <= end && end <= after.gpu, "{before:?} {start} {end} {after:?}");
}
