// SPDX-License-Identifier: MIT OR Apache-2.0
//! The barrier-and and barrier-or packets, which share one layout.
//!
//! ```text
//! 0 header | 2 0 | 4 0 | 8 five signal handles | 48 0 | 56 completion signal
//! ```

use std::fmt;

use super::{FenceScope, Header, Packet, PacketError, PacketKind, RawPacket};
use crate::words::{double, halves, word, words};

/// A wait on up to five signals (HSA 1.2 `hsa_barrier_and_packet_t`, `hsa_barrier_or_packet_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// Barrier bit and fences; the kind says whether all or any of the signals count.
    pub header: Header,
    /// Handles of the signals to wait for; 0 is no signal.
    pub dep_signals: [u64; 5],
    /// Handle of the signal that completion decrements, or 0.
    pub completion_signal: u64,
}

impl Barrier {
    /// A packet that does nothing: barrier-and with no signals, no fences and no barrier bit.
    ///
    /// Slots that cannot be filled, and the slots a restored queue must step over, are plugged with it.
    #[must_use]
    pub const fn noop() -> Self {
        Self::and([0; 5])
    }

    /// A barrier-and on these signals, without fences.
    #[must_use]
    pub const fn and(dep_signals: [u64; 5]) -> Self {
        Self { header: Header::new(PacketKind::BarrierAnd), dep_signals, completion_signal: 0 }
    }

    /// A barrier-or on these signals, without fences.
    #[must_use]
    pub const fn or(dep_signals: [u64; 5]) -> Self {
        Self { header: Header::new(PacketKind::BarrierOr), dep_signals, completion_signal: 0 }
    }

    /// The same barrier with both fences at this scope.
    #[must_use]
    pub const fn with_fences(mut self, scope: FenceScope) -> Self {
        self.header.acquire = scope;
        self.header.release = scope;
        self
    }

    pub(super) fn encode_with(&self, header: u16) -> RawPacket {
        let mut raw = [0; 16];
        raw[0] = word(header, 0);
        for (pair, &signal) in raw[2..12].chunks_exact_mut(2).zip(&self.dep_signals) {
            pair.copy_from_slice(&words(signal));
        }
        raw[14..16].copy_from_slice(&words(self.completion_signal));
        raw
    }

    pub(super) fn decode_body(header: Header, raw: &RawPacket) -> Result<Self, PacketError> {
        for (field, value) in [
            ("bytes 2..4", u64::from(halves(raw[0])[1])),
            ("bytes 4..8", u64::from(raw[1])),
            ("bytes 48..56", double(raw[12], raw[13])),
        ] {
            if value != 0 {
                return Err(PacketError::Reserved { field, value });
            }
        }
        let mut dep_signals = [0; 5];
        for (signal, pair) in dep_signals.iter_mut().zip(raw[2..12].chunks_exact(2)) {
            *signal = double(pair[0], pair[1]);
        }
        Ok(Self { header, dep_signals, completion_signal: double(raw[14], raw[15]) })
    }

    pub(super) fn fmt_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deps=[")?;
        let named = self.dep_signals.iter().filter(|&&signal| signal != 0);
        for (position, signal) in named.enumerate() {
            write!(f, "{}{signal:#x}", if position == 0 { "" } else { " " })?;
        }
        write!(f, "] signal={:#x}", self.completion_signal)
    }
}

impl From<Barrier> for Packet {
    /// Barrier-or if the header's kind says so, else barrier-and.
    fn from(barrier: Barrier) -> Self {
        match barrier.header.kind {
            PacketKind::BarrierOr => Self::BarrierOr(barrier),
            _ => Self::BarrierAnd(barrier),
        }
    }
}
