// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be changed of a queue, and asked.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use queues::hsa::queue_properties::ENABLE_PROFILING;
use stasis::CuMask;

use super::status_of;
use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, INVALID_QUEUE, Status, export, slice};
use crate::agents::Agents;
use crate::instance::instance;

/// KFD's priorities for the header's (`hsakmt`: its table of -3 to 3 as 0 to 15).
const LOW: u32 = 3;
const NORMAL: u32 = 7;
const HIGH: u32 = 11;

export! {
    /// Chooses the compute units of a queue: as many bits as are given.
    fn hsa_amd_queue_cu_set_mask(queue: *const hsa_queue_t, num_cu_mask_count: u32, cu_mask: *const u32) {
        let instance = instance()?;
        let queue = instance.queues.get(queue)?;
        let hardware = queue.hardware.as_ref().ok_or(INVALID_QUEUE)?;
        if !num_cu_mask_count.is_multiple_of(32) || cu_mask.is_null() != (num_cu_mask_count == 0) {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's, by the header.
        let words = unsafe { slice(cu_mask, num_cu_mask_count as usize / 32) }?;
        let units = hardware.agent().compute_units();
        // All units, where none is named.
        let all = vec![u32::MAX; units.div_ceil(32) as usize];
        let words = if words.is_empty() { all.as_slice() } else { words };
        let mask = CuMask::from_words(words).map_err(|_| INVALID_ARGUMENT)?;
        hardware.set_cu_mask(&mask).map_err(status_of)?;
        words.clone_into(&mut queue.cu_mask.lock());
        let beyond = u32::try_from(words.len() * 32).is_ok_and(|bits| bits > units.next_multiple_of(32));
        if beyond { Err(Status(HSA_STATUS_CU_MASK_REDUCED)) } else { Ok(()) }
    }

    /// The compute units of a queue.
    fn hsa_amd_queue_cu_get_mask(queue: *const hsa_queue_t, num_cu_mask_count: u32, cu_mask: *mut u32) {
        let instance = instance()?;
        let queue = instance.queues.get(queue)?;
        let hardware = queue.hardware.as_ref().ok_or(INVALID_QUEUE)?;
        if num_cu_mask_count == 0 || !num_cu_mask_count.is_multiple_of(32) {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(cu_mask.cast()) }?;
        let units = hardware.agent().compute_units();
        let set = queue.cu_mask.lock().clone();
        let word = |nth: u32| {
            let all = (0..32).filter(|bit| nth * 32 + bit < units).fold(0, |word, bit| word | 1 << bit);
            set.get(nth as usize).map_or(all, |word| word & all)
        };
        let words: Vec<u8> = (0..num_cu_mask_count / 32).flat_map(|nth| word(nth).to_ne_bytes()).collect();
        answer.bytes(&words)
    }

    /// Changes the priority of a queue.
    fn hsa_amd_queue_set_priority(queue: *mut hsa_queue_t, priority: hsa_amd_queue_priority_t) {
        let instance = instance()?;
        let queue = instance.queues.get(queue)?;
        let hardware = queue.hardware.as_ref().ok_or(INVALID_QUEUE)?;
        let priority = match priority {
            HSA_AMD_QUEUE_PRIORITY_LOW => LOW,
            HSA_AMD_QUEUE_PRIORITY_NORMAL => NORMAL,
            HSA_AMD_QUEUE_PRIORITY_HIGH => HIGH,
            _ => return Err(INVALID_ARGUMENT),
        };
        hardware.set_priority(priority).map_err(status_of)
    }

    /// Says whether packets of a queue note their times: they do in any case.
    fn hsa_amd_profiling_set_profiler_enabled(queue: *mut hsa_queue_t, enable: c_int) {
        let instance = instance()?;
        let found = instance.queues.get(queue)?;
        let properties = instance.queues.area.properties(found.place);
        match enable {
            0 => properties.fetch_and(!ENABLE_PROFILING, Ordering::Relaxed),
            _ => properties.fetch_or(ENABLE_PROFILING, Ordering::Relaxed),
        };
        Ok(())
    }

    /// An attribute of a queue.
    fn hsa_amd_queue_get_info(queue: *mut hsa_queue_t, attribute: hsa_queue_info_attribute_t, value: *mut c_void) {
        let instance = instance()?;
        let found = instance.queues.get(queue)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            queue_info::AGENT => answer.put(Agents::handle(found.agent)),
            queue_info::DOORBELL_ID => answer.put(found.place as u64),
            _ => Err(INVALID_ARGUMENT),
        }
    }
}
