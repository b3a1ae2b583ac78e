// SPDX-License-Identifier: MIT OR Apache-2.0
//! The indices of a queue, in every order: words of the program's descriptor.
//!
//! INVARIANT: an operation on a pointer that is no live queue's does nothing and answers 0.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::abi::declared::*;
use crate::abi::{export, unchanged};
use crate::instance::instance;

/// Which index.
enum Which {
    Read,
    Write,
}

/// Does something with an index.
#[inline]
fn with(queue: *const hsa_queue_t, which: Which, act: impl FnOnce(&AtomicU64) -> u64) -> u64 {
    let Ok(instance) = instance() else { return 0 };
    let queues = &instance.queues;
    let Some(place) = queues.area.place_of_queue(queue.addr()) else { return 0 };
    let live = queues.places[place].read();
    let Some(queue) = live.as_deref() else { return 0 };
    match which {
        Which::Write => act(queues.area.write_index(place)),
        Which::Read => {
            if queue.stalled.load(Relaxed) {
                // The reader may be waiting for room.
                queues.forward(queue);
            }
            act(queues.area.read_index(place))
        }
    }
}

/// Stores a value if the old one is as expected; the old one.
#[inline]
fn compare(at: &AtomicU64, expected: u64, value: u64, order: Ordering) -> u64 {
    at.compare_exchange(expected, value, order, unchanged(order)).unwrap_or_else(|found| found)
}

export! {
    /// Packets taken out of the ring.
    fn hsa_queue_load_read_index_acquire(queue: *const hsa_queue_t) -> u64 {
        with(queue, Which::Read, |at| at.load(Acquire))
    }

    /// Packets taken out of the ring.
    fn hsa_queue_load_read_index_relaxed(queue: *const hsa_queue_t) -> u64 {
        with(queue, Which::Read, |at| at.load(Relaxed))
    }

    /// Packets taken out of the ring.
    fn hsa_queue_load_read_index_scacquire(queue: *const hsa_queue_t) -> u64 {
        with(queue, Which::Read, |at| at.load(Acquire))
    }

    /// Packets reserved.
    fn hsa_queue_load_write_index_acquire(queue: *const hsa_queue_t) -> u64 {
        with(queue, Which::Write, |at| at.load(Acquire))
    }

    /// Packets reserved.
    fn hsa_queue_load_write_index_relaxed(queue: *const hsa_queue_t) -> u64 {
        with(queue, Which::Write, |at| at.load(Relaxed))
    }

    /// Packets reserved.
    fn hsa_queue_load_write_index_scacquire(queue: *const hsa_queue_t) -> u64 {
        with(queue, Which::Write, |at| at.load(Acquire))
    }

    /// Says how many packets were taken out: for a program that processes a queue itself.
    fn hsa_queue_store_read_index_relaxed(queue: *const hsa_queue_t, value: u64) -> () {
        with(queue, Which::Read, |at| {
            at.store(value, Relaxed);
            0
        });
    }

    /// Says how many packets were taken out: for a program that processes a queue itself.
    fn hsa_queue_store_read_index_release(queue: *const hsa_queue_t, value: u64) -> () {
        with(queue, Which::Read, |at| {
            at.store(value, Release);
            0
        });
    }

    /// Says how many packets were taken out: for a program that processes a queue itself.
    fn hsa_queue_store_read_index_screlease(queue: *const hsa_queue_t, value: u64) -> () {
        with(queue, Which::Read, |at| {
            at.store(value, Release);
            0
        });
    }

    /// Says how many packets are reserved.
    fn hsa_queue_store_write_index_relaxed(queue: *const hsa_queue_t, value: u64) -> () {
        with(queue, Which::Write, |at| {
            at.store(value, Relaxed);
            0
        });
    }

    /// Says how many packets are reserved.
    fn hsa_queue_store_write_index_release(queue: *const hsa_queue_t, value: u64) -> () {
        with(queue, Which::Write, |at| {
            at.store(value, Release);
            0
        });
    }

    /// Says how many packets are reserved.
    fn hsa_queue_store_write_index_screlease(queue: *const hsa_queue_t, value: u64) -> () {
        with(queue, Which::Write, |at| {
            at.store(value, Release);
            0
        });
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_acq_rel(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, AcqRel))
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_acquire(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, Acquire))
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_relaxed(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, Relaxed))
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_release(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, Release))
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_scacq_screl(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, SeqCst))
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_scacquire(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, Acquire))
    }

    /// Reserves packets if as many were as expected; how many were.
    fn hsa_queue_cas_write_index_screlease(queue: *const hsa_queue_t, expected: u64, value: u64) -> u64 {
        with(queue, Which::Write, |at| compare(at, expected, value, Release))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_acq_rel(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, AcqRel))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_acquire(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, Acquire))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_relaxed(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, Relaxed))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_release(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, Release))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_scacq_screl(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, SeqCst))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_scacquire(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, Acquire))
    }

    /// Reserves packets; the first one's index.
    fn hsa_queue_add_write_index_screlease(queue: *const hsa_queue_t, value: u64) -> u64 {
        with(queue, Which::Write, |at| at.fetch_add(value, Release))
    }
}
