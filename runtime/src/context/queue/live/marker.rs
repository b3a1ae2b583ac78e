// SPDX-License-Identifier: MIT OR Apache-2.0
//! The marker behind everything a queue was given: what a drain submits, in the queue's own language.
//!
//! It is an `amd_signal_t` in the queue's own page, and the packets that clear it are encoded with the queue, so that
//! draining allocates nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytemuck::bytes_of;
use queues::aql::{Barrier, FenceScope, Header, Packet, PacketKind};
use queues::hsa::{AmdSignal, signal_kind};
use queues::target::Target;
use stasis_protocol::gate::Pass;

use crate::context::memory::mapped::Mapped;
use crate::context::queue::fault::QueueFault;
use crate::context::queue::live::QueueLive;
use crate::context::queue::packets;
use crate::context::registry::state::QueueKind;
use crate::context::signal::live::SignalLive;

/// Where the queue's page holds the marker's signal.
const MARKER_SIGNAL: u64 = 1024;
const VALUE: u64 = std::mem::offset_of!(AmdSignal, value) as u64;

/// TIMEOUT: how long to wait for a caller who writes the ring himself; it may be this very thread.
const OWN_RING: Duration = Duration::from_millis(1);

/// The packets of a queue of words that clear its marker.
pub(super) fn words(kind: QueueKind, target: &Target, page: Mapped) -> Vec<u32> {
    match kind {
        QueueKind::Aql => Vec::new(),
        QueueKind::Pm4 | QueueKind::Sdma { .. } => {
            packets::completion(kind, target, page.va() + MARKER_SIGNAL + VALUE, None)
        }
    }
}

fn barrier(completion_signal: u64) -> Packet {
    let header = Header {
        barrier: true,
        acquire: FenceScope::System,
        release: FenceScope::System,
        ..Header::new(PacketKind::BarrierAnd)
    };
    Packet::BarrierAnd(Barrier { header, completion_signal, ..Barrier::noop() })
}

impl QueueLive {
    /// Whether a marker is in the ring and has not completed.
    pub fn marker_pending(&self) -> bool {
        // ORDERING: Acquire: what the packets before the marker wrote is seen by whoever sees it completed.
        self.memory.page.load(MARKER_SIGNAL + VALUE, Ordering::Acquire) != 0
    }

    /// Puts a marker behind all packets, those included that the caller wrote without ringing the doorbell; `false`
    /// while the ring is full or the queue has failed. No marker may be pending.
    pub fn submit_marker(&self, pass: &Pass<'_>) -> bool {
        let signal = AmdSignal { kind: signal_kind::USER, value: 1, ..AmdSignal::default() };
        let submitted = match self.kind {
            QueueKind::Aql => self.reserve(pass, 1).is_ok_and(|mut slot| {
                self.memory.page.write(MARKER_SIGNAL, bytes_of(&signal));
                slot.publish(barrier(self.memory.page.va() + MARKER_SIGNAL).encode());
                true
            }),
            QueueKind::Pm4 | QueueKind::Sdma { .. } => self.producer.try_lock().is_some_and(|producer| {
                self.memory.page.write(MARKER_SIGNAL, bytes_of(&signal));
                let written = self.write_words(pass, &producer, &self.marker);
                if written.is_err() {
                    self.memory.page.store(MARKER_SIGNAL + VALUE, 0, Ordering::Release);
                }
                written.is_ok()
            }),
        };
        if !submitted {
            // Room comes only with what the processor has been told of.
            self.tell_up_to(pass, self.hardware_write());
        }
        submitted
    }

    /// Puts a packet behind all others that brings `signal` from 1 to 0 when they have completed: the caller's index of
    /// the first unit behind it, or `Ok(None)` while there is no room for it.
    ///
    /// # Errors
    /// The queue's fault.
    pub(crate) fn complete_behind(
        &self,
        pass: &Pass<'_>,
        signal: &SignalLive,
    ) -> Result<Option<u64>, Arc<QueueFault>> {
        if let Some(fault) = self.fault() {
            return Err(Arc::clone(fault));
        }
        let own_ring = self.kind != QueueKind::Aql || self.memory.kernargs.is_none();
        let producer = match own_ring {
            true => match self.try_produce(OWN_RING) {
                Some(producer) => Some(producer),
                None => return Ok(None),
            },
            false => None,
        };
        match (self.kind, producer) {
            (QueueKind::Aql, _) => match self.reserve(pass, 1) {
                Ok(mut slot) => {
                    signal.promise();
                    Ok(Some(slot.publish(barrier(signal.handle()).encode()) + 1))
                }
                Err(_) => Ok(None),
            },
            (_, Some(producer)) => {
                let words = packets::completion(self.kind, self.target, signal.value_va(), signal.mailbox());
                signal.promise();
                let end = self.write_words(pass, &producer, &words).ok();
                if end.is_none() {
                    signal.unpromise();
                    self.tell_up_to(pass, self.hardware_write());
                }
                Ok(end.map(|end| self.logical(end)))
            }
            (_, None) => Ok(None),
        }
    }
}
