// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMD's vendor packets: a call into PM4 commands, and a wait for a signal's value.
//!
//! ```text
//! PM4-IB         0 header | 2 format 1 | 3 0 | 4 command | 8 address, size | 20 10 | 24 0 | 56 completion
//! barrier-value  0 header | 2 format 2 | 3 0 | 4 0 | 8 signal | 16 value | 24 mask | 32 condition
//!                36 0 | 56 completion
//! ```
//!
//! Sources: `hsa_ext_amd.h` (`hsa_amd_vendor_packet_header_t`, `hsa_amd_barrier_value_packet_t`); the PM4
//! packet has no public header, its layout is what ROCr 6.1.2 and tinygrad 0.14.0 were seen to write.
//!
//! INVARIANT: bytes 2 and 3 are the format and zero; any other format is refused before its body is read.

use std::fmt;

use super::{Header, Packet, PacketError, PacketKind, RawPacket};
use crate::words::{double, word, words};

/// `amd_format` of [`Pm4Ib`].
pub(super) const FORMAT_PM4_IB: u8 = 1;
/// `amd_format` of [`BarrierValue`].
pub(super) const FORMAT_BARRIER_VALUE: u8 = 2;

/// PM4 `INDIRECT_BUFFER`, four dwords long.
const INDIRECT_BUFFER: u32 = 0xc002_3f00;
/// `IB_VALID` of the PM4 packet's size word.
const IB_VALID: u32 = 0x0080_0000;
/// `dw_cnt_remain`: dwords of the AQL packet that follow the PM4 packet.
const DWORDS_REMAINING: u32 = 10;

/// Starts the command processor on PM4 commands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pm4Ib {
    /// Barrier bit and fences; the kind is [`PacketKind::VendorSpecific`].
    pub header: Header,
    /// GPU address of the commands, a multiple of 4 below 2^48.
    pub address: u64,
    /// How many dwords of commands, 1 to [`Pm4Ib::MAX_DWORDS`].
    pub dwords: u32,
    /// Handle of the signal that completion decrements, or 0.
    pub completion_signal: u64,
}

impl Pm4Ib {
    /// The most dwords that one indirect buffer can have: 20 bits.
    pub const MAX_DWORDS: u32 = 0xf_ffff;

    /// A packet that runs `dwords` dwords at `address`, without fences, barrier bit or signal.
    #[must_use]
    pub const fn new(address: u64, dwords: u32) -> Self {
        Self { header: Header::new(PacketKind::VendorSpecific), address, dwords, completion_signal: 0 }
    }

    pub(super) const fn validate(&self) -> Result<(), PacketError> {
        let Self { address, dwords, .. } = *self;
        if dwords == 0 || dwords > Self::MAX_DWORDS || address & 3 != 0 || address >> 48 != 0 {
            return Err(PacketError::IndirectBuffer { address, dwords });
        }
        Ok(())
    }

    pub(super) fn encode_with(&self, header: u16) -> RawPacket {
        let mut raw = [0; 16];
        let [low, high] = words(self.address);
        raw[0] = word(header, u16::from(FORMAT_PM4_IB));
        raw[1..6].copy_from_slice(&[INDIRECT_BUFFER, low, high, IB_VALID | self.dwords, DWORDS_REMAINING]);
        raw[14..16].copy_from_slice(&words(self.completion_signal));
        raw
    }

    pub(super) fn decode_body(header: Header, raw: &RawPacket) -> Result<Self, PacketError> {
        for (field, found, wanted) in [
            ("INDIRECT_BUFFER command", raw[1], INDIRECT_BUFFER),
            ("count of dwords that remain", raw[5], DWORDS_REMAINING),
            ("IB_VALID bit", raw[4] & IB_VALID, IB_VALID),
        ] {
            if found != wanted {
                return Err(PacketError::Constant { field, found, wanted });
            }
        }
        refuse_set([
            ("the indirect buffer's low address", u64::from(raw[2] & 3)),
            ("the indirect buffer's high address", u64::from(raw[3] & 0xffff_0000)),
            ("the indirect buffer's size", u64::from(raw[4] & !(IB_VALID | Self::MAX_DWORDS))),
        ])?;
        refuse_tail(&raw[6..14])?;
        Ok(Self {
            header: Header { kind: PacketKind::VendorSpecific, ..header },
            address: double(raw[2], raw[3]),
            dwords: raw[4] & Self::MAX_DWORDS,
            completion_signal: double(raw[14], raw[15]),
        })
    }

    pub(super) fn fmt_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pm4_ib address={:#x} dwords={} signal={:#x}",
            self.address, self.dwords, self.completion_signal
        )
    }
}

impl From<Pm4Ib> for Packet {
    fn from(ib: Pm4Ib) -> Self {
        Self::Pm4Ib(ib)
    }
}

/// How a signal's value must stand to the wanted one (HSA 1.2 `hsa_signal_condition_t`). Values are signed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
    /// Less than.
    Lt = 2,
    /// Greater than or equal.
    Gte = 3,
}

impl Condition {
    const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::Eq),
            1 => Some(Self::Ne),
            2 => Some(Self::Lt),
            3 => Some(Self::Gte),
            _ => None,
        }
    }

    /// Whether `found` stands so to `wanted`.
    #[must_use]
    pub const fn holds(self, found: i64, wanted: i64) -> bool {
        match self {
            Self::Eq => found == wanted,
            Self::Ne => found != wanted,
            Self::Lt => found < wanted,
            Self::Gte => found >= wanted,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Gte => "gte",
        })
    }
}

/// Waits until a signal's masked value meets a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BarrierValue {
    /// Barrier bit and fences; the kind is [`PacketKind::VendorSpecific`].
    pub header: Header,
    /// Handle of the signal to wait for; 0 counts as satisfied.
    pub signal: u64,
    /// What the masked value is compared with.
    pub value: i64,
    /// Bits of the signal's value that count.
    pub mask: i64,
    /// How they must compare.
    pub condition: Condition,
    /// Handle of the signal that completion decrements, or 0.
    pub completion_signal: u64,
}

impl BarrierValue {
    /// A wait for `signal`'s whole value, without fences, barrier bit or completion signal.
    #[must_use]
    pub const fn new(signal: u64, condition: Condition, value: i64) -> Self {
        let header = Header::new(PacketKind::VendorSpecific);
        Self { header, signal, value, mask: -1, condition, completion_signal: 0 }
    }

    /// Whether a signal that holds `found` ends the wait. Not asked when [`BarrierValue::signal`] is 0.
    #[must_use]
    pub const fn is_satisfied_by(&self, found: i64) -> bool {
        self.condition.holds(found & self.mask, self.value)
    }

    pub(super) fn encode_with(&self, header: u16) -> RawPacket {
        let mut raw = [0; 16];
        raw[0] = word(header, u16::from(FORMAT_BARRIER_VALUE));
        raw[2..4].copy_from_slice(&words(self.signal));
        raw[4..6].copy_from_slice(&words(self.value.cast_unsigned()));
        raw[6..8].copy_from_slice(&words(self.mask.cast_unsigned()));
        // CAST: one-byte discriminant, widened.
        raw[8] = self.condition as u32;
        raw[14..16].copy_from_slice(&words(self.completion_signal));
        raw
    }

    /// Bytes 4 to 7 and 36 to 55 are reserved, and not looked at: HIP leaves there what its stack holds
    /// (`VirtualGPU::dispatchBarrierValuePacket`, with `GPU_STREAMOPS_CP_WAIT=1`).
    pub(super) fn decode_body(header: Header, raw: &RawPacket) -> Result<Self, PacketError> {
        Ok(Self {
            header: Header { kind: PacketKind::VendorSpecific, ..header },
            signal: double(raw[2], raw[3]),
            value: double(raw[4], raw[5]).cast_signed(),
            mask: double(raw[6], raw[7]).cast_signed(),
            condition: Condition::from_bits(raw[8]).ok_or(PacketError::Condition { condition: raw[8] })?,
            completion_signal: double(raw[14], raw[15]),
        })
    }

    pub(super) fn fmt_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "barrier_value dep={:#x} mask={:#x} {} {} signal={:#x}",
            self.signal, self.mask, self.condition, self.value, self.completion_signal
        )
    }
}

impl From<BarrierValue> for Packet {
    fn from(barrier: BarrierValue) -> Self {
        Self::BarrierValue(barrier)
    }
}

fn refuse_set<const N: usize>(fields: [(&'static str, u64); N]) -> Result<(), PacketError> {
    match fields.into_iter().find(|&(_, value)| value != 0) {
        Some((field, value)) => Err(PacketError::Reserved { field, value }),
        None => Ok(()),
    }
}

/// The unused words between a vendor packet's body and its completion signal.
fn refuse_tail(words: &[u32]) -> Result<(), PacketError> {
    match words.iter().find(|&&word| word != 0) {
        Some(&word) => {
            Err(PacketError::Reserved { field: "the unused bytes before byte 56", value: u64::from(word) })
        }
        None => Ok(()),
    }
}
