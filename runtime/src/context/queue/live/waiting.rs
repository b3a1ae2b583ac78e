// SPDX-License-Identifier: MIT OR Apache-2.0
//! An AQL queue whose processor stands at a packet that waits for signals: it will not go on before somebody sets them, who may be a
//! thread that a lock holds back. Such a queue counts as drained: its packets from there on are kept, and given to the hardware queue
//! that is made next.

use std::sync::atomic::Ordering;

use queues::aql::{Packet, RawPacket};
use stasis_protocol::gate::Pass;

use super::QueueLive;
use crate::context::error::SubmitError;
use crate::context::registry::state::QueueKind;

impl QueueLive {
    /// Whether the packet at the read index waits for signals. What ran before it may run still.
    pub fn is_at_wait(&self) -> bool {
        if self.kind != QueueKind::Aql || self.pending() == 0 {
            return false;
        }
        match Packet::decode(&self.packet_at(self.hardware_read())) {
            Ok(Packet::BarrierAnd(barrier) | Packet::BarrierOr(barrier)) => {
                barrier.dep_signals.iter().any(|&signal| signal != 0)
            }
            Ok(Packet::BarrierValue(_)) => true,
            _ => false,
        }
    }

    /// Whether it is off the hardware at such a packet, with nothing that runs.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Says so, or that it is no more.
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// The packets from the read index to the write index, which no processor may be taking.
    pub(super) fn unread_packets(&self) -> Vec<RawPacket> {
        (self.hardware_read()..self.hardware_write()).map(|index| self.packet_at(index)).collect()
    }

    /// Gives such packets to the hardware again, at the places that they had.
    ///
    /// # Errors
    /// [`SubmitError::WouldBlock`] while the no-ops of [`QueueLive::prepare`] take their room, [`SubmitError::Queue`].
    pub fn put_back(&self, pass: &Pass<'_>, packets: &[RawPacket]) -> Result<(), SubmitError> {
        let mut slots = self.reserve(pass, packets.len() as u64)?;
        for packet in packets {
            slots.publish(*packet);
        }
        Ok(())
    }
}
