// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system's events: memory faults, told to whoever asked for them.
#![allow(unsafe_code)]

use std::ffi::c_void;

use parking_lot::Mutex;
use stasis::QueueFault;

use crate::abi::declared::*;
use crate::abi::{Data, ERROR, INVALID_ARGUMENT, export};
use crate::agents::Agents;
use crate::instance::instance;

type Function = unsafe extern "C" fn(*const hsa_amd_event_t, *mut c_void) -> hsa_status_t;

#[derive(Clone, Copy, Debug)]
struct Handler {
    function: Function,
    data: Data,
}

/// The program's handler.
#[derive(Debug, Default)]
pub struct Events {
    handler: Mutex<Option<Handler>>,
}

impl Events {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn clear(&self) {
        *self.handler.lock() = None;
    }

    /// Tells of a memory fault; whether the handler has taken it.
    pub fn memory_fault(&self, agent: usize, fault: &QueueFault) -> bool {
        let (Some(memory), Some(handler)) = (&fault.memory, *self.handler.lock()) else { return false };
        let mut reasons = 0;
        for (is_so, reason) in [
            (memory.not_present, HSA_AMD_MEMORY_FAULT_PAGE_NOT_PRESENT),
            (memory.read_only, HSA_AMD_MEMORY_FAULT_READ_ONLY),
            (memory.no_execute, HSA_AMD_MEMORY_FAULT_NX),
        ] {
            reasons |= if is_so { reason } else { 0 };
        }
        let event = hsa_amd_event_t {
            event_type: HSA_AMD_GPU_MEMORY_FAULT_EVENT,
            __bindgen_anon_1: hsa_amd_event_s__bindgen_ty_1 {
                memory_fault: hsa_amd_gpu_memory_fault_info_t {
                    agent: Agents::handle(agent),
                    virtual_address: memory.address,
                    fault_reason_mask: reasons.cast_unsigned(),
                },
            },
        };
        // SAFETY: the program's function, with what it gave for it; the event lives as long as the call.
        unsafe { (handler.function)(&raw const event, handler.data.0) == HSA_STATUS_SUCCESS }
    }
}

export! {
    /// Has a function called for the system's events.
    fn hsa_amd_register_system_event_handler(callback: hsa_amd_system_event_callback_t, data: *mut c_void) {
        let instance = instance()?;
        let function = callback.ok_or(INVALID_ARGUMENT)?;
        let mut handler = instance.events.handler.lock();
        if handler.is_some() {
            return Err(ERROR);
        }
        *handler = Some(Handler { function, data: Data(data) });
        Ok(())
    }
}
