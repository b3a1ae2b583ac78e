// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent dispatch packet: a function call that a host agent serves.
//!
//! ```text
//! 0 header | 2 type | 4 0 | 8 return address | 16 four arguments | 48 0 | 56 completion signal
//! ```
//!
//! INVARIANT: it decodes, because a dump must print it and a host agent may run it, but it never passes
//! [`Packet::validate`](super::Packet::validate): GPU queues do not support the kind.

use std::fmt;

use super::{Header, Packet, PacketError, PacketKind, RawPacket};
use crate::words::{double, halves, word, words};

/// A call of an agent's own function (HSA 1.2 `hsa_agent_dispatch_packet_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentDispatch {
    /// Barrier bit and fences; the kind is [`PacketKind::AgentDispatch`].
    pub header: Header,
    /// Which function: caller and agent agree on the numbers, 0 to 0x3fff are HSA's own.
    pub function: u16,
    /// Address where the function's result goes, or 0.
    pub return_address: u64,
    /// The function's arguments.
    pub arguments: [u64; 4],
    /// Handle of the signal that completion decrements, or 0.
    pub completion_signal: u64,
}

impl AgentDispatch {
    pub(super) fn encode_with(&self, header: u16) -> RawPacket {
        let mut raw = [0; 16];
        raw[0] = word(header, self.function);
        raw[2..4].copy_from_slice(&words(self.return_address));
        for (pair, &argument) in raw[4..12].chunks_exact_mut(2).zip(&self.arguments) {
            pair.copy_from_slice(&words(argument));
        }
        raw[14..16].copy_from_slice(&words(self.completion_signal));
        raw
    }

    pub(super) fn decode_body(header: Header, raw: &RawPacket) -> Result<Self, PacketError> {
        for (field, value) in [("bytes 4..8", u64::from(raw[1])), ("bytes 48..56", double(raw[12], raw[13]))]
        {
            if value != 0 {
                return Err(PacketError::Reserved { field, value });
            }
        }
        let mut arguments = [0; 4];
        for (argument, pair) in arguments.iter_mut().zip(raw[4..12].chunks_exact(2)) {
            *argument = double(pair[0], pair[1]);
        }
        Ok(Self {
            header: Header { kind: PacketKind::AgentDispatch, ..header },
            function: halves(raw[0])[1],
            return_address: double(raw[2], raw[3]),
            arguments,
            completion_signal: double(raw[14], raw[15]),
        })
    }

    pub(super) fn fmt_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.arguments;
        write!(
            f,
            "function={:#x} arguments=[{a:#x} {b:#x} {c:#x} {d:#x}] return={:#x} signal={:#x}",
            self.function, self.return_address, self.completion_signal
        )
    }
}

impl From<AgentDispatch> for Packet {
    fn from(dispatch: AgentDispatch) -> Self {
        Self::AgentDispatch(dispatch)
    }
}
