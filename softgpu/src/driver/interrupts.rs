// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver does when the hardware interrupts (`kfd_int_process_v11.c`, `kfd_events.c`).
//!
//! INVARIANT: a callback takes only the event lock and never waits for the hardware. A thread does work that needs more
//! (evicting queues, reporting through a queue's save area), as the kernel defers such work to a work queue.

use std::os::fd::AsFd;
use std::sync::Arc;

use kfd::sys::*;
use queues::aql::ExceptionCode;

use super::PAGE;
use super::process::{KfdProcess, State};
use super::queue_table::Queue;
use crate::hardware::{Interrupts, VmFault};

/// Offsets in the save area's header (`kfd_context_save_area_header`): payload address, event id.
const HEADER_PAYLOAD_ADDRESS: u64 = 24;
const HEADER_EVENT_ID: u64 = 32;

impl Interrupts for KfdProcess {
    fn end_of_pipe(&self, event_id: u32) {
        // Firmware that interrupts at every end of pipe names event 0 when no event was asked for.
        if event_id != 0 {
            self.events.change(|events| events.interrupt(event_id));
        }
    }

    fn memory_fault(&self, gpu: usize, fault: VmFault) {
        if gpu >= self.gpus.len() {
            return;
        }
        let failure = kfd_memory_exception_failure {
            NotPresent: u32::from(fault.not_present),
            ReadOnly: u32::from(fault.read_only),
            NoExecute: u32::from(fault.no_execute),
            imprecise: 0,
        };
        let data = kfd_hsa_memory_exception_data {
            failure,
            va: fault.address & !(PAGE - 1),
            gpu_id: self.user_id(gpu),
            ErrorType: KFD_MEM_ERR_NO_RAS,
        };
        if self.kernel.evicts_on_fault() {
            // The queues are evicted before the events are signalled, so that a waiter finds them off the hardware
            // (`kfd_int_process_v11.c`).
            self.defer(move |process| {
                process.evict_after_fault(gpu);
                process.signal_memory_fault(data);
            });
        } else {
            self.signal_memory_fault(data);
        }
    }

    fn hang(&self, gpu: usize) {
        if gpu < self.gpus.len() {
            // An ioctl that waits for the preemption holds the state's lock.
            self.defer(move |process| {
                process.lose_queues(gpu);
                process.signal_reset(gpu);
            });
        }
    }

    fn queue_exception(&self, gpu: usize, queue_id: u32, code: ExceptionCode) {
        self.defer(move |process| process.report_exception(gpu, queue_id, code));
    }
}

impl KfdProcess {
    fn signal_memory_fault(&self, data: kfd_hsa_memory_exception_data) {
        self.events.change(|events| {
            for id in events.of_type(KFD_IOC_EVENT_MEMORY) {
                if let Some(event) = events.get_mut(id) {
                    event.memory_exception = data;
                }
                events.set(id);
            }
        });
    }

    /// Signals that a hang was ended by a reset: HW_EXCEPTION events for the whole GPU, and MEMORY events because its
    /// memory is lost (`kfd_signal_reset_event`).
    fn signal_reset(&self, gpu: usize) {
        let gpu_id = self.user_id(gpu);
        let hardware = kfd_hsa_hw_exception_data {
            reset_type: KFD_HW_EXCEPTION_WHOLE_GPU_RESET,
            reset_cause: KFD_HW_EXCEPTION_GPU_HANG,
            memory_lost: 1,
            gpu_id,
        };
        let memory =
            kfd_hsa_memory_exception_data { gpu_id, ErrorType: KFD_MEM_ERR_GPU_HANG, ..Default::default() };
        self.events.change(|events| {
            for id in events.of_type(KFD_IOC_EVENT_HW_EXCEPTION) {
                if let Some(event) = events.get_mut(id) {
                    event.hw_exception = hardware;
                }
                events.set(id);
            }
        });
        self.signal_memory_fault(memory);
    }

    fn defer(&self, work: impl FnOnce(Arc<Self>) + Send + 'static) {
        let Some(this) = self.this.upgrade() else { return };
        let spawned =
            std::thread::Builder::new().name("softgpu-kfd-work".to_owned()).spawn(move || work(this));
        if let Err(error) = spawned {
            tracing::error!(target: "driver", %error, "no thread for deferred work");
        }
    }

    /// Reports a queue's exception to the client's runtime through the save area's header: sets the exception's bit in
    /// the word at the payload address, then signals the named event (`kfd_send_exception_to_runtime`). Only for
    /// processes that enabled their runtime; others read what the firmware wrote.
    fn report_exception(&self, gpu: usize, queue_id: u32, code: ExceptionCode) {
        let state = self.state.lock();
        if !state.runtime.enabled {
            return;
        }
        let Some(queue) = state.queues.get(queue_id).filter(|queue| queue.gpu == gpu && queue.is_compute())
        else {
            return;
        };
        let event_id = report(&state, queue, code);
        drop(state);
        if let Some(event_id) = event_id {
            self.events.change(|events| events.set(event_id));
        }
    }
}

/// Sets the exception's bit in the runtime's word. Answers the event to signal, or `None` when the runtime gave
/// neither.
fn report(state: &State, queue: &Queue, code: ExceptionCode) -> Option<u32> {
    let payload = read_u64(state, queue.gpu, queue.cwsr_va + HEADER_PAYLOAD_ADDRESS)?;
    // CAST: the id is the low word of the last eight bytes.
    let event_id = read_u64(state, queue.gpu, queue.cwsr_va + HEADER_EVENT_ID)? as u32;
    if payload == 0 || event_id == 0 {
        return None;
    }
    let pending = read_u64(state, queue.gpu, payload)? | code.mask();
    let (backing, offset) = state.pdds.get(queue.gpu)?.vm.resolve(payload, 8)?;
    // Read and written back without atomicity, as the kernel does with user memory.
    rustix::io::pwrite(backing.fd.as_fd(), &pending.to_le_bytes(), offset).ok()?;
    Some(event_id)
}

fn read_u64(state: &State, gpu: usize, va: u64) -> Option<u64> {
    let (backing, offset) = state.pdds.get(gpu)?.vm.resolve(va, 8)?;
    let mut bytes = [0u8; 8];
    let read = rustix::io::pread(backing.fd.as_fd(), &mut bytes, offset).ok()?;
    (read == 8).then(|| u64::from_le_bytes(bytes))
}
