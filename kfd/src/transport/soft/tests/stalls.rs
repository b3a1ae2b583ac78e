// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that does not answer for a while, which is not a device that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use parking_lot::Mutex;

use super::server::{bare, unique_name};
use super::*;
use crate::OpenError;
use crate::ioctl::WaitOutcome;
use crate::sys::{self, *};
use crate::transport::CallLimit;
use crate::transport::wire::PROTOCOL;

/// A limit that is over soon.
fn soon() -> CallLimit {
    CallLimit::until(Instant::now() + Duration::from_millis(30))
}

#[test]
fn call_that_has_no_answer_in_time_was_not_made_and_can_be_made_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let (server, transport, kfd) = kfd(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        bare(0)
    });
    server.stall(true);
    // The first on the channel that is there, the second for want of a greeting.
    for _ in 0..2 {
        let error = soon().hold(|| kfd.runtime_disable()).unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT, "{error}");
    }
    let begun = Instant::now();
    let limit = CallLimit::while_true(move || begun.elapsed() < Duration::from_millis(30));
    assert_eq!(limit.hold(|| kfd.runtime_disable()).unwrap_err().errno, Errno::ETIMEDOUT);
    server.stall(false);
    kfd.runtime_disable().unwrap();
    // What was withdrawn arrives, and is dropped.
    server.wait_for_live(1);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    transport.close().unwrap();
    server.wait_for_live(0);
}

#[test]
fn call_without_a_limit_waits_for_as_long_as_the_device_stands_still() {
    let (server, _transport, kfd) = kfd(|_| bare(0));
    server.stall(true);
    // More calls than there are channels: most of them wait for a greeting.
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| kfd.runtime_disable())).collect();
        std::thread::sleep(Duration::from_millis(200));
        assert!(calls.iter().all(|call| !call.is_finished()));
        server.stall(false);
        calls.into_iter().for_each(|call| call.join().unwrap().unwrap());
    });
}

#[test]
fn call_that_the_device_has_begun_is_waited_for_beyond_its_limit() {
    let begun = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&begun);
    let (_server, _transport, kfd) = kfd(move |_| {
        begins.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        bare(0)
    });
    let limit = CallLimit::while_true(move || !begun.load(Ordering::SeqCst));
    limit.hold(|| kfd.runtime_disable()).unwrap();
}

#[test]
fn call_behind_a_reply_whose_claim_is_not_back_is_not_sent() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let (server, _transport, kfd) = kfd(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        bare(0)
    });
    server.stall_after_replies(true);
    kfd.runtime_disable().unwrap();
    let error = soon().hold(|| kfd.runtime_disable()).unwrap_err();
    assert_eq!(error.errno, Errno::ETIMEDOUT, "{error}");
    server.stall_after_replies(false);
    kfd.runtime_disable().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn device_that_is_killed_with_the_claim_ends_the_next_call_at_once() {
    let (server, _transport, kfd) = kfd(|_| bare(0));
    server.stall_after_replies(true);
    kfd.runtime_disable().unwrap();
    server.kill();
    // The server is dead and never returns the claim: a call that waits for the claim alone never ends.
    let error = CallLimit::while_true(|| true).hold(|| kfd.runtime_disable()).unwrap_err();
    assert_eq!(error.errno, Errno::ENODEV, "{error}");
    server.stall_after_replies(false);
}

#[test]
fn wait_is_given_up_at_its_limit_and_the_device_goes_on() {
    const WAIT: u32 = sys::ioc_nr(AMDKFD_IOC_WAIT_EVENTS);
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (server, _transport, kfd) = kfd(move |call| {
        if sys::ioc_nr(call.cmd) == WAIT {
            let _ = released.lock().recv();
        }
        bare(0)
    });
    let wait = || kfd.wait_events(&mut [kfd_event_data::new(1, 0)], false, None);
    assert_eq!(soon().hold(wait).unwrap_err().errno, Errno::ETIMEDOUT);
    kfd.runtime_disable().unwrap();
    drop(release);
    assert_eq!(wait().unwrap(), WaitOutcome::Complete);
    // The first wait's channel was closed, though a reply was still to come on it.
    server.wait_for_live(1);
}

#[test]
fn first_connection_keeps_the_caller_s_limit() {
    let name = unique_name();
    let server = Server::start_as(&name, PROTOCOL, |_| bare(0));
    server.stall(true);
    let error = soon().hold(|| SoftTransport::connect_socket(&name, &devices())).unwrap_err();
    assert!(matches!(error, OpenError::Unreachable { errno: Errno::ETIMEDOUT, .. }), "{error}");
    server.stall(false);
    SoftTransport::connect_socket(&name, &devices()).unwrap();
}

#[test]
fn channels_of_a_busy_moment_are_closed_when_nobody_needs_them() {
    const THREADS: usize = 6;
    let together = Arc::new(Barrier::new(THREADS));
    let is_busy = Arc::new(AtomicBool::new(true));
    let (meet, busy) = (Arc::clone(&together), Arc::clone(&is_busy));
    let (server, _transport, kfd) = kfd(move |_| {
        if busy.load(Ordering::SeqCst) {
            meet.wait();
        }
        bare(0)
    });
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(|| kfd.runtime_disable().unwrap())));
    });
    assert_eq!(server.live(), THREADS);
    is_busy.store(false, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(1100));
    // The next calls find them old.
    kfd.runtime_disable().unwrap();
    server.wait_for_live(1);
    kfd.runtime_disable().unwrap();
    assert_eq!(server.opened(), THREADS);
}
