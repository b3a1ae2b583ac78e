// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be changed of a queue, and asked.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use queues::hsa::queue_properties::ENABLE_PROFILING;
use stasis::CuMask;

use super::{Callback, INVALID_QUEUE_CREATION, PACKET, Queue, create, status_of};
use crate::abi::declared::*;
use crate::abi::{Answer, Data, INVALID_ARGUMENT, INVALID_QUEUE, Outcome, Status, export, slice};
use crate::agents::Agents;
use crate::instance::{Instance, instance};

/// KFD's priorities for the header's (`hsakmt`: its table of -3 to 3 as 0 to 15).
const LOW: u32 = 3;
const NORMAL: u32 = 7;
const HIGH: u32 = 11;

/// Chooses the compute units of a queue: as many bits as are given.
fn choose_units(queue: &Queue, words: &[u32]) -> Outcome {
    let hardware = queue.hardware.as_ref().ok_or(INVALID_QUEUE)?;
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

/// KFD's priority for the header's.
fn priority_of(priority: hsa_amd_queue_priority_t) -> Outcome<u32> {
    match priority {
        HSA_AMD_QUEUE_PRIORITY_LOW => Ok(LOW),
        HSA_AMD_QUEUE_PRIORITY_NORMAL => Ok(NORMAL),
        HSA_AMD_QUEUE_PRIORITY_HIGH => Ok(HIGH),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Checks what `hsa_amd_queue_create` is to make; of other engines than compute there are no queues.
fn check(desc: &hsa_amd_queue_create_desc_t) -> Outcome {
    let is_reserved_zero =
        desc.reserved_header == [0; 3] && desc.reserved == [0; 20] && desc.traffic_class == 0;
    let is_known = desc.version == queue_create::VERSION
        && desc.engine_type <= queue_create::LAST_ENGINE
        && desc.flags & !queue_create::FLAGS == 0
        && is_reserved_zero;
    if !is_known || !desc.queue_size_bytes.is_power_of_two() || priority_of(desc.priority).is_err() {
        return Err(INVALID_ARGUMENT);
    }
    if desc.engine_type != queue_create::COMPUTE {
        return Err(INVALID_QUEUE_CREATION);
    }
    let is_whole = desc.queue_size_bytes.is_multiple_of(PACKET)
        && desc.cu_mask_count.is_multiple_of(32)
        && desc.cu_mask.is_null() == (desc.cu_mask_count == 0)
        && desc.reserved_compute == [0; 3];
    if is_whole { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

/// Makes one of several queues, with its priority and its compute units.
fn create_one(
    instance: &'static Instance,
    agent: hsa_agent_t,
    desc: &hsa_amd_queue_create_desc_t,
    units: &[u32],
) -> Outcome<*mut hsa_queue_t> {
    let callback = desc.callback.map(|function| Callback { function, data: Data(desc.callback_data) });
    let made = create(instance, agent, desc.queue_size_bytes / PACKET, desc.type_, callback)?;
    let set = || -> Outcome {
        let queue = instance.queues.get(made)?;
        let hardware = queue.hardware.as_ref().ok_or(INVALID_QUEUE)?;
        if desc.priority != HSA_AMD_QUEUE_PRIORITY_NORMAL {
            hardware.set_priority(priority_of(desc.priority)?).map_err(status_of)?;
        }
        if units.is_empty() {
            return Ok(());
        }
        match choose_units(&queue, units) {
            // Units that are disabled stay so; the queue is there.
            Err(Status(HSA_STATUS_CU_MASK_REDUCED)) => Ok(()),
            chosen => chosen,
        }
    };
    if let Err(status) = set() {
        instance.queues.remove(made)?;
        return Err(status);
    }
    Ok(made)
}

export! {
    /// Chooses the compute units of a queue: as many bits as are given.
    fn hsa_amd_queue_cu_set_mask(queue: *const hsa_queue_t, num_cu_mask_count: u32, cu_mask: *const u32) {
        let instance = instance()?;
        let queue = instance.queues.get(queue)?;
        if !num_cu_mask_count.is_multiple_of(32) || cu_mask.is_null() != (num_cu_mask_count == 0) {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's, by the header.
        choose_units(&queue, unsafe { slice(cu_mask, num_cu_mask_count as usize / 32) }?)
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
        hardware.set_priority(priority_of(priority)?).map_err(status_of)
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

    /// Makes queues; what went wrong first is answered, and those that could be made are there.
    fn hsa_amd_queue_create(
        agent: hsa_agent_t,
        descs: *mut hsa_amd_queue_create_desc_t,
        num_descs: u32,
    ) {
        let instance = instance()?;
        instance.agents.get(agent)?;
        if descs.is_null() || !descs.is_aligned() || num_descs == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let mut outcome = Ok(());
        for nth in 0..num_descs as usize {
            // SAFETY: the caller's, by the header: so many descriptors.
            let at = unsafe { descs.add(nth) };
            // SAFETY: as above.
            let desc = unsafe { at.read() };
            let made = check(&desc).and_then(|()| {
                // SAFETY: as above.
                let units = unsafe { slice(desc.cu_mask, desc.cu_mask_count as usize / 32) }?;
                create_one(instance, agent, &desc, units)
            });
            let queue = made.as_ref().map_or(std::ptr::null_mut(), |queue| *queue);
            // SAFETY: as above.
            unsafe { (*at).queue = queue };
            outcome = outcome.and(made.map(drop));
        }
        outcome
    }
}
