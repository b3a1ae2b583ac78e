// SPDX-License-Identifier: MIT OR Apache-2.0
//! Telling the program that a queue has stopped.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queues::aql::ExceptionCode;
use stasis::QueueFault;

use super::{Queue, Queues};
use crate::abi::declared::*;
use crate::instance::instance;

/// The status of a fault, for a queue's callback.
fn status(fault: &QueueFault) -> hsa_status_t {
    if fault.memory.is_some() {
        return HSA_STATUS_ERROR_MEMORY_FAULT;
    }
    let has = |code: ExceptionCode| fault.codes.contains(&code);
    match () {
        () if has(ExceptionCode::WaveIllegalInstruction) => HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION,
        () if has(ExceptionCode::WaveMemoryViolation) => HSA_STATUS_ERROR_MEMORY_FAULT,
        () if has(ExceptionCode::WaveApertureViolation) => HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION,
        () if fault.scratch.is_some() => HSA_STATUS_ERROR_OUT_OF_RESOURCES,
        () if has(ExceptionCode::PacketDispatchDimInvalid)
            || has(ExceptionCode::PacketDispatchGroupSegmentSizeInvalid)
            || has(ExceptionCode::PacketDispatchWorkGroupSizeInvalid) =>
        {
            HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS
        }
        () if has(ExceptionCode::PacketDispatchCodeInvalid) => HSA_STATUS_ERROR_INVALID_CODE_OBJECT,
        () if has(ExceptionCode::PacketUnsupported) || has(ExceptionCode::PacketVendorUnsupported) => {
            HSA_STATUS_ERROR_INVALID_PACKET_FORMAT
        }
        () => HSA_STATUS_ERROR_EXCEPTION,
    }
}

impl Queues {
    /// Tells, once, why a queue has stopped: the handlers of the system's events of a memory fault, the queue's callback of all. A
    /// program that has neither is ended, as AMD's runtime ends it.
    pub(super) fn report(&self, queue: &Queue) {
        let Some(fault) = queue.hardware.as_ref().and_then(stasis::RawQueue::fault) else { return };
        if queue.reported.swap(true, Ordering::AcqRel) {
            return;
        }
        let Ok(instance) = instance() else { return };
        let (callback, agent, at) = (queue.callback, queue.agent, self.area.queue(queue.place));
        let told = instance.signals.handlers().run(instance, move || {
            let handled = instance.events.memory_fault(agent, &fault);
            let status = status(&fault);
            match callback {
                Some(callback) if !handled => {
                    let pointer = std::ptr::with_exposed_provenance_mut(at);
                    // SAFETY: the program's function, with what it gave for it.
                    unsafe { (callback.function)(status, pointer, callback.data.0) };
                }
                None if !handled && fault.memory.is_some() => end(&fault),
                _ => {}
            }
        });
        if told.is_err() {
            tracing::error!(target: "hsa", "nobody could be told that a queue has stopped");
        }
    }
}

/// Ends the process with a message.
fn end(fault: &Arc<QueueFault>) {
    tracing::error!(target: "hsa", %fault, "a memory fault that nobody handles");
    eprintln!("stasis: {fault}");
    std::process::abort();
}
