// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory without allocation: not offered (`HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED` is false), since KFD's ranges of it
//! move by themselves and cannot be checkpointed by the process that has them.
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, NOT_SUPPORTED, Outcome, export, slice};
use crate::instance::instance;

/// Refuses a range.
fn refuse(ptr: *const c_void, size: usize) -> Outcome {
    if ptr.is_null() || size == 0 { Err(INVALID_ARGUMENT) } else { Err(NOT_SUPPORTED) }
}

/// Refuses attributes of a range.
///
/// # Safety
/// The list is null or has that many attributes.
unsafe fn refuse_attributes(
    ptr: *const c_void,
    size: usize,
    list: *const hsa_amd_svm_attribute_pair_t,
    count: usize,
) -> Outcome {
    instance()?;
    // SAFETY: by contract.
    unsafe { slice(list, count) }?;
    refuse(ptr, size)
}

export! {
    /// Says how a range is to be shared: refused.
    fn hsa_amd_svm_attributes_set(
        ptr: *mut c_void,
        size: usize,
        attribute_list: *mut hsa_amd_svm_attribute_pair_t,
        attribute_count: usize,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { refuse_attributes(ptr, size, attribute_list, attribute_count) }
    }

    /// How a range is shared: refused.
    fn hsa_amd_svm_attributes_get(
        ptr: *mut c_void,
        size: usize,
        attribute_list: *mut hsa_amd_svm_attribute_pair_t,
        attribute_count: usize,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { refuse_attributes(ptr, size, attribute_list, attribute_count) }
    }

    /// Moves a range to an agent: refused.
    fn hsa_amd_svm_prefetch_async(
        ptr: *mut c_void,
        size: usize,
        agent: hsa_agent_t,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        _completion_signal: hsa_signal_t,
    ) {
        let instance = instance()?;
        instance.agents.get(agent)?;
        if dep_signals.is_null() != (num_dep_signals == 0) {
            return Err(INVALID_ARGUMENT);
        }
        refuse(ptr, size)
    }
}
