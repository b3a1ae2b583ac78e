// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups of signals that are waited for together.
#![allow(unsafe_code)]

use super::{Signal, check_consumers, wait};
use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, INVALID_SIGNAL, OUT_OF_RESOURCES, Out, Outcome, Status, export, slice};
use crate::handles::{Kind, Table};
use crate::instance::{Instance, instance};

const INVALID_GROUP: Status = Status(HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP);

/// All groups.
#[derive(Debug)]
pub struct Groups(Table<Vec<Signal>>);

impl Groups {
    pub fn new() -> Self {
        Groups(Table::new(Kind::SignalGroup))
    }

    pub fn clear(&self) {
        self.0.clear();
    }
}

/// Waits for one signal of a group.
///
/// # Safety
/// Pointers are null or the program's, as the header says.
unsafe fn wait_group(
    instance: &Instance,
    group: hsa_signal_group_t,
    conditions: *const hsa_signal_condition_t,
    values: *const hsa_signal_value_t,
    hint: hsa_wait_state_t,
    (signal, value): (*mut hsa_signal_t, *mut hsa_signal_value_t),
) -> Outcome {
    let signals = instance.signals.groups.0.get(group.handle).ok_or(INVALID_GROUP)?;
    // SAFETY: by contract.
    let (met_signal, met_value) = unsafe { (Out::new(signal)?, Out::new(value)?) };
    // SAFETY: by contract: as many as the group has signals.
    let (conditions, values) = unsafe { (slice(conditions, signals.len())?, slice(values, signals.len())?) };
    let named = signals.iter().zip(conditions.iter().zip(values));
    let watched = named
        .map(|(signal, (name, value))| Some((signal.clone(), wait::condition(*name, *value)?)))
        .collect::<Option<Vec<_>>>()
        .ok_or(INVALID_ARGUMENT)?;
    let (nth, found) = wait::wait_any(instance, &watched, None, wait::mode(hint)).ok_or(crate::abi::ERROR)?;
    met_signal.put(hsa_signal_t { handle: signals[nth].handle() });
    met_value.put(found);
    Ok(())
}

export! {
    /// Makes a group of signals.
    fn hsa_signal_group_create(
        num_signals: u32,
        signals: *const hsa_signal_t,
        num_consumers: u32,
        consumers: *const hsa_agent_t,
        signal_group: *mut hsa_signal_group_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(signal_group) }?;
        if num_signals == 0 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as above.
        unsafe { check_consumers(instance, num_consumers, consumers) }?;
        // SAFETY: as above.
        let signals = unsafe { slice(signals, num_signals as usize) }?;
        let all = signals.iter().map(|signal| instance.signals.get(signal.handle).ok_or(INVALID_SIGNAL));
        let group = all.collect::<Outcome<Vec<_>>>()?;
        let handle = instance.signals.groups.0.add(group).ok_or(OUT_OF_RESOURCES)?;
        out.put(hsa_signal_group_t { handle });
        Ok(())
    }

    /// Destroys a group, not its signals.
    fn hsa_signal_group_destroy(signal_group: hsa_signal_group_t) {
        instance()?.signals.groups.0.remove(signal_group.handle).map(drop).ok_or(INVALID_GROUP)
    }

    /// Waits for one signal of a group.
    fn hsa_signal_group_wait_any_relaxed(
        signal_group: hsa_signal_group_t,
        conditions: *const hsa_signal_condition_t,
        compare_values: *const hsa_signal_value_t,
        wait_state_hint: hsa_wait_state_t,
        signal: *mut hsa_signal_t,
        value: *mut hsa_signal_value_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        unsafe { wait_group(instance, signal_group, conditions, compare_values, wait_state_hint, (signal, value)) }
    }

    /// Waits for one signal of a group.
    fn hsa_signal_group_wait_any_scacquire(
        signal_group: hsa_signal_group_t,
        conditions: *const hsa_signal_condition_t,
        compare_values: *const hsa_signal_value_t,
        wait_state_hint: hsa_wait_state_t,
        signal: *mut hsa_signal_t,
        value: *mut hsa_signal_value_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        unsafe { wait_group(instance, signal_group, conditions, compare_values, wait_state_hint, (signal, value)) }
    }
}
