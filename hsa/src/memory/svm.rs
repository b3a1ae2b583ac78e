// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory: memory of the program's own that agents use where it is, without allocation. Offered where the kernel has it
//! (`HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED`).
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;

use stasis::svm::{SvmAnswer, SvmAttribute, SvmError, SvmPlace, SvmUse, flags};

use super::engine::{behind, signals_of};
use super::{address_of, whole_pages};
use crate::abi::declared::*;
use crate::abi::{
    ERROR, INVALID_AGENT, INVALID_ARGUMENT, INVALID_SIGNAL, NOT_SUPPORTED, Outcome, Status, export, slice,
};
use crate::instance::{Instance, instance};
use crate::signals::Signal;

/// The most pages that move together, as a power of two; more is as much, as in AMD's runtime.
const MOST_GRANULARITY: u64 = 18;
const INCOMPATIBLE_ARGUMENTS: Status = Status(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS);

/// `HSA_STATUS_ERROR_XNACK_DISABLED`: for what needs page faults of agents.
const XNACK_DISABLED: hsa_status_t = 48;

/// The status for attributes that were refused.
pub fn refused(error: SvmError) -> Status {
    tracing::debug!(target: "hsa", error = %stasis::explain(&error), "attributes of shared memory were refused");
    match error {
        SvmError::Unsupported { .. } => NOT_SUPPORTED,
        SvmError::Pages { .. } | SvmError::Window { .. } => INVALID_ARGUMENT,
        _ => ERROR,
    }
}

/// Whole pages that hold some bytes, for an address and a length.
fn pages(address: *const c_void, size: usize) -> Outcome<(u64, u64)> {
    let Range { start, end } = whole_pages(address_of(address), size as u64)?;
    if start == 0 || start == end { Err(INVALID_ARGUMENT) } else { Ok((start, end - start)) }
}

/// An agent as a place for memory; none is anywhere.
fn place(instance: &Instance, handle: u64) -> Outcome<SvmPlace> {
    if handle == 0 {
        return Ok(SvmPlace::Undefined);
    }
    let agent = instance.agents.get(hsa_agent_t { handle })?;
    Ok(agent.gpu().map_or(SvmPlace::Host, stasis::Agent::svm_place))
}

/// The agent of a place; none for anywhere.
fn handle_of(instance: &Instance, place: SvmPlace) -> u64 {
    match place {
        SvmPlace::Undefined => 0,
        SvmPlace::Host => instance.agents.host().handle,
        SvmPlace::Gpu(agent) => instance.agents.handle_of_gpu(agent.at()).handle,
    }
}

/// What one attribute of the program's sets.
fn attribute(instance: &Instance, pair: &hsa_amd_svm_attribute_pair_t) -> Outcome<SvmAttribute> {
    let value = pair.value;
    let flag = |flag| match value {
        0 => SvmAttribute::ClearFlags(flag),
        _ => SvmAttribute::SetFlags(flag),
    };
    let access = |how: SvmUse| -> Outcome<SvmAttribute> {
        let agent = instance.agents.get(hsa_agent_t { handle: value })?;
        Ok(match agent.gpu() {
            Ok(gpu) => gpu.svm_access(how),
            Err(_) if how == SvmUse::No => SvmAttribute::ClearFlags(flags::HOST_ACCESS),
            Err(_) => SvmAttribute::SetFlags(flags::HOST_ACCESS),
        })
    };
    let number = u32::try_from(pair.attribute).map_err(|_| INVALID_ARGUMENT)?;
    match number {
        HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG => match u32::try_from(value) {
            Ok(HSA_AMD_SVM_GLOBAL_FLAG_FINE_GRAINED) => Ok(SvmAttribute::SetFlags(flags::COHERENT)),
            Ok(HSA_AMD_SVM_GLOBAL_FLAG_COARSE_GRAINED) => Ok(SvmAttribute::ClearFlags(flags::COHERENT)),
            _ => Err(INVALID_ARGUMENT),
        },
        HSA_AMD_SVM_ATTRIB_READ_ONLY => Ok(flag(flags::READ_ONLY)),
        HSA_AMD_SVM_ATTRIB_HIVE_LOCAL => Ok(flag(flags::HIVE_LOCAL)),
        HSA_AMD_SVM_ATTRIB_READ_MOSTLY => Ok(flag(flags::READ_MOSTLY)),
        HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY => {
            let pages = u32::try_from(value.min(MOST_GRANULARITY)).map_err(|_| INVALID_ARGUMENT)?;
            Ok(SvmAttribute::Granularity(pages))
        }
        HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION => Ok(SvmAttribute::Preferred(place(instance, value)?)),
        HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE => access(SvmUse::Migrating),
        HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE => access(SvmUse::InPlace),
        HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS => access(SvmUse::No),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Refuses an attribute that is given twice, and two accesses of one agent.
fn check_once(list: &[hsa_amd_svm_attribute_pair_t]) -> Outcome {
    let is_access = |pair: &hsa_amd_svm_attribute_pair_t| {
        pair.attribute >= u64::from(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE)
    };
    let is_same = |a: &hsa_amd_svm_attribute_pair_t, b: &hsa_amd_svm_attribute_pair_t| match is_access(a) {
        true => is_access(b) && a.value == b.value,
        false => a.attribute == b.attribute,
    };
    let is_given_before = |(nth, pair)| list[..nth].iter().any(|before| is_same(pair, before));
    if list.iter().enumerate().any(is_given_before) { Err(INCOMPATIBLE_ARGUMENTS) } else { Ok(()) }
}

/// What a pair of the program's asks for.
fn answer(
    instance: &Instance,
    pair: hsa_amd_svm_attribute_pair_t,
    found: &SvmAnswer,
) -> Outcome<hsa_amd_svm_attribute_pair_t> {
    let flag = |flag| u64::from(found.set & flag != 0);
    let number = u32::try_from(pair.attribute).map_err(|_| INVALID_ARGUMENT)?;
    let value = match number {
        HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG => u64::from(match () {
            () if found.set & flags::COHERENT != 0 => HSA_AMD_SVM_GLOBAL_FLAG_FINE_GRAINED,
            () if found.clear & flags::COHERENT != 0 => HSA_AMD_SVM_GLOBAL_FLAG_COARSE_GRAINED,
            () => HSA_AMD_SVM_GLOBAL_FLAG_INDETERMINATE,
        }),
        HSA_AMD_SVM_ATTRIB_READ_ONLY => flag(flags::READ_ONLY),
        HSA_AMD_SVM_ATTRIB_HIVE_LOCAL => flag(flags::HIVE_LOCAL),
        HSA_AMD_SVM_ATTRIB_READ_MOSTLY => flag(flags::READ_MOSTLY),
        HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY => found.granularity.into(),
        HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION => handle_of(instance, found.preferred),
        HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION => handle_of(instance, found.prefetch),
        HSA_AMD_SVM_ATTRIB_ACCESS_QUERY => {
            let agent = instance.agents.get(hsa_agent_t { handle: pair.value }).map_err(|_| INVALID_AGENT)?;
            let how = match agent.gpu() {
                Ok(gpu) => found.uses.get(gpu.index()).copied().unwrap_or(SvmUse::No),
                Err(_) if found.set & flags::HOST_ACCESS != 0 => SvmUse::Migrating,
                Err(_) => SvmUse::No,
            };
            let attribute = match how {
                SvmUse::Migrating => HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE,
                SvmUse::InPlace => HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE,
                SvmUse::No => HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS,
            };
            return Ok(hsa_amd_svm_attribute_pair_t { attribute: attribute.into(), value: pair.value });
        }
        _ => return Err(INVALID_ARGUMENT),
    };
    Ok(hsa_amd_svm_attribute_pair_t { value, ..pair })
}

/// Moves pages once the signals before it are 0, and completes a signal then.
fn prefetch(
    instance: &'static Instance,
    (start, bytes): (u64, u64),
    to: SvmPlace,
    after: Vec<Signal>,
    done: Option<Signal>,
) -> Outcome {
    let go = move || {
        // SAFETY: the memory is the program's, which has said so to agents already or will before they use it.
        let moved = unsafe { instance.runtime.set_svm(start, bytes, &[SvmAttribute::Prefetch(to)]) };
        let Some(done) = &done else { return };
        match moved {
            Ok(()) => instance.signals.complete(done),
            Err(error) => {
                tracing::warn!(target: "hsa", error = %stasis::explain(&error), "memory was not prefetched");
                instance.signals.fail(done);
            }
        }
    };
    if after.is_empty() {
        go();
        return Ok(());
    }
    behind(instance, "stasis-hsa-prefetch", after, go)
}

export! {
    /// Says how a range is to be shared.
    fn hsa_amd_svm_attributes_set(
        ptr: *mut c_void,
        size: usize,
        attribute_list: *mut hsa_amd_svm_attribute_pair_t,
        attribute_count: usize,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let list = unsafe { slice(attribute_list.cast_const(), attribute_count) }?;
        let (start, bytes) = pages(ptr, size)?;
        let attributes = list.iter().map(|pair| attribute(instance, pair)).collect::<Outcome<Vec<_>>>()?;
        check_once(list)?;
        // SAFETY: the caller's, by the header: the program shares this memory.
        unsafe { instance.runtime.set_svm(start, bytes, &attributes) }.map_err(refused)
    }

    /// How a range is shared.
    fn hsa_amd_svm_attributes_get(
        ptr: *mut c_void,
        size: usize,
        attribute_list: *mut hsa_amd_svm_attribute_pair_t,
        attribute_count: usize,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let list = unsafe { slice(attribute_list.cast_const(), attribute_count) }?;
        let (start, bytes) = pages(ptr, size)?;
        let found = instance.runtime.svm(start, bytes).map_err(refused)?;
        let answers = list.iter().map(|pair| answer(instance, *pair, &found)).collect::<Outcome<Vec<_>>>()?;
        for (nth, pair) in answers.into_iter().enumerate() {
            // SAFETY: the caller's, by the header: the list has so many pairs.
            unsafe { attribute_list.add(nth).write(pair) };
        }
        Ok(())
    }

    /// Moves a range to an agent.
    fn hsa_amd_svm_prefetch_async(
        ptr: *mut c_void,
        size: usize,
        agent: hsa_agent_t,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
    ) {
        let instance = instance()?;
        let to = place(instance, agent.handle)?;
        if to == SvmPlace::Undefined {
            return Err(INVALID_AGENT);
        }
        // SAFETY: the caller's, by the header.
        let after = unsafe { signals_of(instance, num_dep_signals, dep_signals) }?;
        let done = match completion_signal.handle {
            0 => None,
            handle => Some(instance.signals.get(handle).ok_or(INVALID_SIGNAL)?),
        };
        let pages = pages(ptr, size)?;
        // Refused at once, and not by a thread.
        instance.runtime.svm(pages.0, pages.1).map_err(refused)?;
        prefetch(instance, pages, to, after, done)
    }

    /// Gives memory of ranges back: refused, since no page fault of an agent would bring other memory there.
    fn hsa_amd_svm_discard_batch_async(
        ptrs: *mut *mut c_void,
        sizes: *mut usize,
        count: u32,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        _completion_signal: hsa_signal_t,
    ) {
        instance()?;
        if ptrs.is_null() || sizes.is_null() || count == 0 || dep_signals.is_null() != (num_dep_signals == 0) {
            return Err(INVALID_ARGUMENT);
        }
        Err(Status(XNACK_DISABLED))
    }
}
