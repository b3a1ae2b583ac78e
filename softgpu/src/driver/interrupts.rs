// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver does when the hardware interrupts (`kfd_int_process_v11.c`, `kfd_events.c`).
//!
//! INVARIANT: a callback takes only the lock of events and that of streams, and never waits for the hardware. A thread does work that needs more
//! (evicting queues, reporting through a queue's save area), as the kernel defers such work to a work queue.

use queues::words::words;
use std::sync::Arc;
use std::time::Instant;

use kfd::sys::*;
use parking_lot::{Condvar, Mutex};
use queues::aql::ExceptionCode;

use super::PAGE;
use super::doorbells::DOORBELL_BYTES;
use super::process::{KfdProcess, State};
use super::queue_table::Queue;
use super::smi::Notice;
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
        // What `event_interrupt_wq_v9`, `_v10` and `_v11` (gfx12 has that one, too) make of the interrupt: they look at
        // neither the read bit nor the execute bit, and nothing sets `prot_exec`.
        let failure = kfd_memory_exception_failure {
            NotPresent: u32::from(fault.permission_faults & VmFault::VALID != 0),
            ReadOnly: u32::from(fault.permission_faults & VmFault::WRITE != 0),
            NoExecute: 0,
            imprecise: 0,
        };
        let data = kfd_hsa_memory_exception_data {
            failure,
            va: fault.address & !(PAGE - 1),
            gpu_id: self.user_id(gpu),
            ErrorType: KFD_MEM_ERR_NO_RAS,
        };
        self.streams.tell(gpu, Notice::Fault { pid: self.pid });
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

    fn wave_message(&self, gpu: usize, m0: u32, privileged: bool) {
        if !privileged {
            self.signal_message(m0);
            return;
        }
        self.defer(move |process| {
            if !process.report_message(gpu, m0) {
                process.signal_message(m0);
            }
        });
    }

    fn queue_exception(&self, gpu: usize, queue_id: u32, code: ExceptionCode) {
        self.defer(move |process| process.report_exception(gpu, queue_id, code));
    }
}

/// What a privileged message says (`kfd_int_process_v11.c`, `KFD_CTXID0_*`): the doorbell of the wave's queue below the
/// exceptions, as an exception mask.
const DOORBELL_BITS: u32 = 10;
const MESSAGE_MASK: u32 = (1 << 24) - 1;

/// How much work of interrupts is in progress.
#[derive(Debug, Default)]
pub(super) struct Deferred(Arc<(Mutex<usize>, Condvar)>);

/// One piece of such work; dropping it is its end.
#[derive(Debug)]
struct Counted(Arc<(Mutex<usize>, Condvar)>);

impl Deferred {
    fn begin(&self) -> Counted {
        *self.0.0.lock() += 1;
        Counted(Arc::clone(&self.0))
    }

    /// Waits until no work is in progress; whether that was before the deadline. No lock of the driver may be held.
    pub(super) fn settle(&self, deadline: Instant) -> bool {
        let (count, changed) = &*self.0;
        let mut count = count.lock();
        while *count > 0 {
            if changed.wait_until(&mut count, deadline).timed_out() {
                return *count == 0;
            }
        }
        true
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (count, changed) = &*self.0;
        *count.lock() -= 1;
        changed.notify_all();
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
        let counted = self.deferred.begin();
        let thread = std::thread::Builder::new().name("softgpu-kfd-work".to_owned());
        let spawned = thread.spawn(move || {
            let _counted = counted;
            work(this);
        });
        if let Err(error) = spawned {
            tracing::error!(target: "driver", %error, "no thread for deferred work");
        }
    }

    /// Reports a queue's exception to the client's runtime through the save area's header: sets the exception's bit in
    /// the word at the payload address, then signals the named event (`kfd_send_exception_to_runtime`). Only for
    /// processes that enabled their runtime; others read what the firmware wrote.
    fn report_exception(&self, gpu: usize, queue_id: u32, code: ExceptionCode) {
        self.report_to_queue(gpu, |id, _| id == queue_id, code.mask());
    }

    /// Reports what a privileged wave said; whether somebody is there to be told.
    fn report_message(&self, gpu: usize, m0: u32) -> bool {
        let doorbell = m0 & ((1 << DOORBELL_BITS) - 1);
        let is_it = |_, queue: &Queue| queue.doorbell.byte_offset() / DOORBELL_BYTES == doorbell;
        self.report_to_queue(gpu, is_it, u64::from((m0 & MESSAGE_MASK) >> DOORBELL_BITS))
    }

    fn report_to_queue(&self, gpu: usize, is_it: impl Fn(u32, &Queue) -> bool, mask: u64) -> bool {
        let state = self.state.lock();
        if !state.runtime.enabled {
            return false;
        }
        let wanted =
            |(id, queue): &(u32, &Queue)| queue.gpu == gpu && queue.is_compute() && is_it(*id, queue);
        let Some((_, queue)) = state.queues.iter().find(wanted) else { return false };
        let event_id = report(&state, queue, mask);
        drop(state);
        if let Some(event_id) = event_id {
            self.events.change(|events| events.set(event_id));
        }
        true
    }

    /// A message that is no exception signals the event that it names (`kfd_signal_event_interrupt` with 24 bits).
    fn signal_message(&self, m0: u32) {
        self.events.change(|events| events.interrupt(m0 & MESSAGE_MASK));
    }
}

/// Sets the exceptions' bits in the runtime's word. Answers the event to signal, or `None` when the runtime gave
/// neither.
fn report(state: &State, queue: &Queue, mask: u64) -> Option<u32> {
    let payload = read_u64(state, queue.gpu, queue.properties.cwsr_va + HEADER_PAYLOAD_ADDRESS)?;
    let [event_id, _] = words(read_u64(state, queue.gpu, queue.properties.cwsr_va + HEADER_EVENT_ID)?);
    if payload == 0 || event_id == 0 {
        return None;
    }
    let pending = read_u64(state, queue.gpu, payload)? | mask;
    let (file, offset) = state.resolve(queue.gpu, payload, 8)?;
    // Read and written back without atomicity, as the kernel does with user memory.
    nix::sys::uio::pwrite(file, &pending.to_le_bytes(), offset).ok()?;
    Some(event_id)
}

fn read_u64(state: &State, gpu: usize, va: u64) -> Option<u64> {
    let (file, offset) = state.resolve(gpu, va, 8)?;
    let mut bytes = [0u8; 8];
    let read = nix::sys::uio::pread(file, &mut bytes, offset).ok()?;
    (read == 8).then(|| u64::from_le_bytes(bytes))
}
