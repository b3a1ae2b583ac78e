// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on a signal's value, in every order; and the ring of a doorbell, which is a store to a queue's signal.
//!
//! INVARIANT: an operation on a handle that names no live signal does nothing and answers 0.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::abi::declared::*;
use crate::abi::{export, unchanged};
use crate::instance::instance;

/// Reads a value.
#[inline]
fn load(signal: hsa_signal_t, order: Ordering) -> hsa_signal_value_t {
    let Ok(instance) = instance() else { return 0 };
    match instance.signals.slot(signal.handle) {
        Some(slot) => slot.value().load(order),
        None => instance.queues.rung(signal.handle).unwrap_or(0).cast_signed(),
    }
}

/// Changes a value, and wakes who sleeps on it; what it was.
#[inline]
fn change(signal: hsa_signal_t, change: impl FnOnce(&AtomicI64) -> hsa_signal_value_t) -> hsa_signal_value_t {
    let Ok(instance) = instance() else { return 0 };
    let Some(slot) = instance.signals.slot(signal.handle) else { return 0 };
    let old = change(slot.value());
    instance.signals.wake(signal.handle);
    old
}

/// Stores a value, or rings a doorbell.
#[inline]
fn store(signal: hsa_signal_t, value: hsa_signal_value_t, order: Ordering) {
    let Ok(instance) = instance() else { return };
    if instance.queues.ring(signal.handle, value.cast_unsigned()) {
        return;
    }
    if let Some(slot) = instance.signals.slot(signal.handle) {
        slot.value().store(value, order);
        instance.signals.wake(signal.handle);
    }
}

/// Stores a value and wakes nobody.
#[inline]
fn store_silently(signal: hsa_signal_t, value: hsa_signal_value_t, order: Ordering) {
    let Ok(instance) = instance() else { return };
    if let Some(slot) = instance.signals.slot(signal.handle) {
        slot.value().store(value, order);
    }
}

/// Stores a value if the old one is as expected; the old one.
#[inline]
fn compare(
    signal: hsa_signal_t,
    expected: hsa_signal_value_t,
    value: hsa_signal_value_t,
    order: Ordering,
) -> hsa_signal_value_t {
    change(signal, |at| {
        at.compare_exchange(expected, value, order, unchanged(order)).unwrap_or_else(|found| found)
    })
}

export! {
    /// The value.
    fn hsa_signal_load_acquire(signal: hsa_signal_t) -> hsa_signal_value_t {
        load(signal, Acquire)
    }

    /// The value.
    fn hsa_signal_load_relaxed(signal: hsa_signal_t) -> hsa_signal_value_t {
        load(signal, Relaxed)
    }

    /// The value.
    fn hsa_signal_load_scacquire(signal: hsa_signal_t) -> hsa_signal_value_t {
        load(signal, Acquire)
    }

    /// Sets the value.
    fn hsa_signal_store_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        store(signal, value, Relaxed);
    }

    /// Sets the value.
    fn hsa_signal_store_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        store(signal, value, Release);
    }

    /// Sets the value.
    fn hsa_signal_store_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        store(signal, value, Release);
    }

    /// Sets the value and wakes nobody.
    fn hsa_signal_silent_store_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        store_silently(signal, value, Relaxed);
    }

    /// Sets the value and wakes nobody.
    fn hsa_signal_silent_store_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        store_silently(signal, value, Release);
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_acq_rel(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, AcqRel))
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_acquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, Acquire))
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, Relaxed))
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, Release))
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_scacq_screl(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, SeqCst))
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_scacquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, Acquire))
    }

    /// Sets the value; what it was.
    fn hsa_signal_exchange_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> hsa_signal_value_t {
        change(signal, |at| at.swap(value, Release))
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_acq_rel(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, AcqRel)
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_acquire(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, Acquire)
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_relaxed(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, Relaxed)
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_release(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, Release)
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_scacq_screl(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, SeqCst)
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_scacquire(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, Acquire)
    }

    /// Sets the value if it is as expected; what it was.
    fn hsa_signal_cas_screlease(
        signal: hsa_signal_t,
        expected: hsa_signal_value_t,
        value: hsa_signal_value_t,
    ) -> hsa_signal_value_t {
        compare(signal, expected, value, Release)
    }

    /// Adds to the value.
    fn hsa_signal_add_acq_rel(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, AcqRel));
    }

    /// Adds to the value.
    fn hsa_signal_add_acquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, Acquire));
    }

    /// Adds to the value.
    fn hsa_signal_add_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, Relaxed));
    }

    /// Adds to the value.
    fn hsa_signal_add_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, Release));
    }

    /// Adds to the value.
    fn hsa_signal_add_scacq_screl(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, SeqCst));
    }

    /// Adds to the value.
    fn hsa_signal_add_scacquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, Acquire));
    }

    /// Adds to the value.
    fn hsa_signal_add_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_add(value, Release));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_acq_rel(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, AcqRel));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_acquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, Acquire));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, Relaxed));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, Release));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_scacq_screl(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, SeqCst));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_scacquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, Acquire));
    }

    /// Subtracts from the value.
    fn hsa_signal_subtract_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_sub(value, Release));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_acq_rel(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, AcqRel));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_acquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, Acquire));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, Relaxed));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, Release));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_scacq_screl(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, SeqCst));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_scacquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, Acquire));
    }

    /// Keeps bits of the value.
    fn hsa_signal_and_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_and(value, Release));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_acq_rel(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, AcqRel));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_acquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, Acquire));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, Relaxed));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, Release));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_scacq_screl(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, SeqCst));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_scacquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, Acquire));
    }

    /// Sets bits of the value.
    fn hsa_signal_or_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_or(value, Release));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_acq_rel(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, AcqRel));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_acquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, Acquire));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_relaxed(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, Relaxed));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_release(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, Release));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_scacq_screl(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, SeqCst));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_scacquire(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, Acquire));
    }

    /// Turns bits of the value.
    fn hsa_signal_xor_screlease(signal: hsa_signal_t, value: hsa_signal_value_t) -> () {
        change(signal, |at| at.fetch_xor(value, Release));
    }
}
