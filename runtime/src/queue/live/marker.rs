// SPDX-License-Identifier: MIT OR Apache-2.0
//! The marker behind everything a queue was given: a barrier packet that a drain submits.
//!
//! Its completion signal lies in the queue's own page, so that draining a queue allocates nothing.

use std::sync::atomic::Ordering;

use bytemuck::bytes_of;
use queues::aql::{Barrier, FenceScope, Header, Packet, PacketKind};
use queues::hsa::{AmdSignal, signal_kind};

use super::QueueLive;
use crate::gate::Pass;

/// Where the queue's page holds the marker's signal.
const MARKER_SIGNAL: u64 = 1024;
const VALUE: u64 = std::mem::offset_of!(AmdSignal, value) as u64;

impl QueueLive {
    /// Whether a marker is in the ring and has not completed.
    pub fn marker_pending(&self) -> bool {
        // ORDERING: Acquire: what the packets before the marker wrote is seen by whoever sees it completed.
        self.memory.page.load(MARKER_SIGNAL + VALUE, Ordering::Acquire) != 0
    }

    /// Puts a marker behind all packets; `false` while the ring is full or the queue has failed. No marker may be pending.
    pub fn submit_marker(&self, pass: &Pass<'_>) -> bool {
        let Ok(mut slot) = self.reserve(pass, 1) else { return false };
        let signal = AmdSignal { kind: signal_kind::USER, value: 1, ..AmdSignal::default() };
        self.memory.page.write(MARKER_SIGNAL, bytes_of(&signal));
        let header = Header {
            barrier: true,
            acquire: FenceScope::System,
            release: FenceScope::System,
            ..Header::new(PacketKind::BarrierAnd)
        };
        let completion_signal = self.memory.page.va() + MARKER_SIGNAL;
        slot.publish(Packet::BarrierAnd(Barrier { header, completion_signal, ..Barrier::noop() }).encode());
        true
    }
}
