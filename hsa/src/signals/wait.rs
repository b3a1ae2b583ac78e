// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for signals.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use stasis::{Condition, WaitError, WaitMode};

use super::Signal;
use crate::abi::declared::*;
use crate::abi::{export, slice};
use crate::instance::{Instance, instance};

/// How often a wait looks whose signal the runtime will not sleep on: its queue has failed.
const LOOK: Duration = Duration::from_millis(1);

/// The condition of the header's name with this value.
pub fn condition(name: hsa_signal_condition_t, value: hsa_signal_value_t) -> Option<Condition> {
    match name {
        HSA_SIGNAL_CONDITION_EQ => Some(Condition::Equal(value)),
        HSA_SIGNAL_CONDITION_NE => Some(Condition::NotEqual(value)),
        HSA_SIGNAL_CONDITION_LT => Some(Condition::LessThan(value)),
        HSA_SIGNAL_CONDITION_GTE => Some(Condition::AtLeast(value)),
        _ => None,
    }
}

/// How to wait.
pub fn mode(hint: hsa_wait_state_t) -> WaitMode {
    if hint == HSA_WAIT_STATE_ACTIVE { WaitMode::Busy } else { WaitMode::Auto }
}

/// A timeout in ticks of the system's clock.
pub fn timeout(hint: u64) -> Option<Duration> {
    (hint != u64::MAX).then(|| Duration::from_nanos(hint))
}

/// Waits until one of several signals meets its condition: which, and its value; `None` when time is up.
pub fn wait_any(
    instance: &Instance,
    signals: &[(Signal, Condition)],
    timeout: Option<Duration>,
    mode: WaitMode,
) -> Option<(usize, i64)> {
    let start = Instant::now();
    let met = || {
        signals.iter().enumerate().find_map(|(nth, (signal, condition))| {
            let value = signal.slot().value().load(std::sync::atomic::Ordering::Acquire);
            condition.met(value).then_some((nth, value))
        })
    };
    if let Some(met) = met() {
        return Some(met);
    }
    let _sleeping = instance.signals.announce();
    let all: Vec<(&stasis::Signal, Condition)> =
        signals.iter().map(|(signal, condition)| (signal.of_runtime(), *condition)).collect();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        match stasis::Signal::wait_any(&instance.runtime, &all, left, mode) {
            Ok(met) => return Some(met),
            Err(WaitError::Timeout { .. }) => return met(),
            // A queue that has failed completes nothing more; but the program may.
            Err(_) => std::thread::sleep(left.map_or(LOOK, |left| left.min(LOOK))),
        }
        if let Some(met) = met() {
            return Some(met);
        }
        if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
            return None;
        }
    }
}

/// Waits for one signal; the last value seen.
fn wait(
    signal: hsa_signal_t,
    name: hsa_signal_condition_t,
    compare: hsa_signal_value_t,
    timeout_hint: u64,
    hint: hsa_wait_state_t,
) -> hsa_signal_value_t {
    let Ok(instance) = instance() else { return 0 };
    let (Some(slot), Some(condition)) = (instance.signals.slot(signal.handle), condition(name, compare))
    else {
        return 0;
    };
    let value = slot.value().load(std::sync::atomic::Ordering::Acquire);
    if condition.met(value) {
        return value;
    }
    let Some(signal) = instance.signals.get(signal.handle) else { return value };
    // It lives until the last look, if only here.
    let awaited = [(signal, condition)];
    let met = wait_any(instance, &awaited, timeout(timeout_hint), mode(hint));
    met.map_or_else(|| slot.value().load(std::sync::atomic::Ordering::Acquire), |(_, value)| value)
}

/// The signals of lists that name one, with their places; `None` for lists that are none.
///
/// # Safety
/// The lists are null or have that many values.
unsafe fn watched(
    instance: &Instance,
    count: u32,
    signals: *const hsa_signal_t,
    conds: *const hsa_signal_condition_t,
    values: *const hsa_signal_value_t,
) -> Option<Vec<(usize, Signal, Condition)>> {
    let count = count as usize;
    // SAFETY: by contract.
    let (signals, conds, values) =
        unsafe { (slice(signals, count).ok()?, slice(conds, count).ok()?, slice(values, count).ok()?) };
    let named = signals.iter().zip(conds.iter().zip(values)).enumerate();
    let found = named.filter_map(|(place, (signal, (cond, value)))| {
        Some((place, instance.signals.get(signal.handle)?, condition(*cond, *value)?))
    });
    Some(found.collect())
}

export! {
    /// Waits for a signal.
    fn hsa_signal_wait_acquire(
        signal: hsa_signal_t,
        condition: hsa_signal_condition_t,
        compare_value: hsa_signal_value_t,
        timeout_hint: u64,
        wait_state_hint: hsa_wait_state_t,
    ) -> hsa_signal_value_t {
        wait(signal, condition, compare_value, timeout_hint, wait_state_hint)
    }

    /// Waits for a signal.
    fn hsa_signal_wait_relaxed(
        signal: hsa_signal_t,
        condition: hsa_signal_condition_t,
        compare_value: hsa_signal_value_t,
        timeout_hint: u64,
        wait_state_hint: hsa_wait_state_t,
    ) -> hsa_signal_value_t {
        wait(signal, condition, compare_value, timeout_hint, wait_state_hint)
    }

    /// Waits for a signal.
    fn hsa_signal_wait_scacquire(
        signal: hsa_signal_t,
        condition: hsa_signal_condition_t,
        compare_value: hsa_signal_value_t,
        timeout_hint: u64,
        wait_state_hint: hsa_wait_state_t,
    ) -> hsa_signal_value_t {
        wait(signal, condition, compare_value, timeout_hint, wait_state_hint)
    }

    /// Waits for all of several signals: 0, or `u32::MAX` when time is up. Handles that name none are passed over.
    fn hsa_amd_signal_wait_all(
        signal_count: u32,
        signals: *mut hsa_signal_t,
        conds: *mut hsa_signal_condition_t,
        values: *mut hsa_signal_value_t,
        timeout_hint: u64,
        wait_hint: hsa_wait_state_t,
        satisfying_values: *mut hsa_signal_value_t,
    ) -> u32 {
        let Ok(instance) = instance() else { return u32::MAX };
        let start = Instant::now();
        // SAFETY: the caller's, by the header.
        let Some(watched) = (unsafe { watched(instance, signal_count, signals, conds, values) }) else {
            return u32::MAX;
        };
        for (place, signal, condition) in watched {
            let left = timeout(timeout_hint).map(|timeout| timeout.saturating_sub(start.elapsed()));
            let Some((_, value)) = wait_any(instance, &[(signal, condition)], left, mode(wait_hint)) else {
                return u32::MAX;
            };
            if !satisfying_values.is_null() {
                // SAFETY: the caller's array is as long as the others.
                unsafe { satisfying_values.add(place).write_unaligned(value) };
            }
        }
        0
    }

    /// Waits for one of several signals: which, or `u32::MAX`. Handles that name none are passed over.
    fn hsa_amd_signal_wait_any(
        signal_count: u32,
        signals: *mut hsa_signal_t,
        conds: *mut hsa_signal_condition_t,
        values: *mut hsa_signal_value_t,
        timeout_hint: u64,
        wait_hint: hsa_wait_state_t,
        satisfying_value: *mut hsa_signal_value_t,
    ) -> u32 {
        let Ok(instance) = instance() else { return u32::MAX };
        // SAFETY: the caller's, by the header.
        let Some(watched) = (unsafe { watched(instance, signal_count, signals, conds, values) }) else {
            return u32::MAX;
        };
        let (places, watched): (Vec<usize>, Vec<_>) =
            watched.into_iter().map(|(place, signal, condition)| (place, (signal, condition))).unzip();
        let met = wait_any(instance, &watched, timeout(timeout_hint), mode(wait_hint));
        let Some((nth, value)) = met.filter(|_| !watched.is_empty()) else { return u32::MAX };
        // SAFETY: as above.
        if let Ok(out) = unsafe { crate::abi::Out::new(satisfying_value) } {
            out.put(value);
        }
        queues::words::count(places[nth])
    }
}
