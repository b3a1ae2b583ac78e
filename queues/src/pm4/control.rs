// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets that set registers or steer the processor itself, and the word that starts a dispatch.
//!
//! INVARIANT: registers are absolute dword addresses outside and relative ones only in the packet; what leaves
//! a packet's range is refused in both directions.

use std::fmt;
use std::ops::Range;

use super::field::{aligned, at, at_most, bit, bits, bits8, bits16, fixed, reserved};
use super::{CachePolicy, Pm4Error, reg};
use crate::words::{double, words};

const PRED_EXEC: &str = "PRED_EXEC";
const INDIRECT_BUFFER: &str = "INDIRECT_BUFFER";
const EVENT_WRITE: &str = "EVENT_WRITE";
const SET_SH_REG: &str = "SET_SH_REG";
const SET_UCONFIG_REG: &str = "SET_UCONFIG_REG";

/// `COMPUTE_DISPATCH_INITIATOR`: how a dispatch starts.
///
/// The word is kept as found; bits that have no accessor here differ between chips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Initiator(pub u32);

impl Initiator {
    /// The dispatch is one of compute waves; without it nothing starts.
    pub const COMPUTE_SHADER_EN: u32 = 1 << 0;
    /// Work-groups at the grid's edge may be partial.
    pub const PARTIAL_TG_EN: u32 = 1 << 1;
    /// The first work-group is 0,0,0 whatever `COMPUTE_START_*` say.
    pub const FORCE_START_AT_000: u32 = 1 << 2;
    /// Waves take part in ordered append.
    pub const ORDERED_APPEND_ENBL: u32 = 1 << 3;
    /// Ordered append counts work-groups instead of waves.
    pub const ORDERED_APPEND_MODE: u32 = 1 << 4;
    /// The packet's sizes count work-items instead of work-groups.
    pub const USE_THREAD_DIMENSIONS: u32 = 1 << 5;
    /// Waves may be launched out of order.
    pub const ORDER_MODE: u32 = 1 << 6;
    /// The queue may tunnel (gfx10 and later).
    pub const TUNNEL_ENABLE: u32 = 1 << 13;
    /// The dispatch resumes from `COMPUTE_RESTART_*`.
    pub const RESTORE: u32 = 1 << 14;
    /// Waves have 32 lanes (gfx10 and later).
    pub const CS_W32_EN: u32 = 1 << 15;

    /// Whether compute waves start at all.
    #[must_use]
    pub const fn compute_shader_en(self) -> bool {
        self.0 & Self::COMPUTE_SHADER_EN != 0
    }

    /// Whether work-groups at the grid's edge may be partial.
    #[must_use]
    pub const fn partial_tg_en(self) -> bool {
        self.0 & Self::PARTIAL_TG_EN != 0
    }

    /// Whether the first work-group is 0,0,0 whatever `COMPUTE_START_*` say.
    #[must_use]
    pub const fn force_start_at_000(self) -> bool {
        self.0 & Self::FORCE_START_AT_000 != 0
    }

    /// Whether waves take part in ordered append.
    #[must_use]
    pub const fn ordered_append_en(self) -> bool {
        self.0 & Self::ORDERED_APPEND_ENBL != 0
    }

    /// Whether the packet's sizes count work-items instead of work-groups.
    #[must_use]
    pub const fn use_thread_dimensions(self) -> bool {
        self.0 & Self::USE_THREAD_DIMENSIONS != 0
    }

    /// Whether the dispatch resumes from `COMPUTE_RESTART_*`.
    #[must_use]
    pub const fn restore(self) -> bool {
        self.0 & Self::RESTORE != 0
    }

    /// Whether waves have 32 lanes.
    #[must_use]
    pub const fn wave32(self) -> bool {
        self.0 & Self::CS_W32_EN != 0
    }
}

impl fmt::Display for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Leaves out the dwords that follow on all XCCs but some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PredExec {
    /// Dwords behind this packet that it is about, at most 0x3fff.
    pub dwords: u16,
    /// Bit per XCC that executes them.
    pub xccs: u8,
}

impl PredExec {
    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let &[word] = fixed(PRED_EXEC, body, "1")?;
        reserved(PRED_EXEC, 1, word, 0xff00_3fff)?;
        Ok(Self { dwords: bits16(word, 0, 14), xccs: word.to_le_bytes()[3] })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let dwords = at_most(PRED_EXEC, "dwords", u32::from(self.dwords), 0x3fff)?;
        out.push(dwords | u32::from(self.xccs) << 24);
        Ok(())
    }
}

impl fmt::Display for PredExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PRED_EXEC} {} dwords xccs={:#x}", self.dwords, self.xccs)
    }
}

/// Executes packets that are elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndirectBuffer {
    /// GPU address of the packets, a multiple of 4 B.
    pub address: u64,
    /// How many dwords there are, below 2^20.
    pub dwords: u32,
    /// Whether execution continues there without returning.
    pub chain: bool,
    /// Whether polling may be left to another engine.
    pub offload_polling: bool,
    /// Whether the buffer is valid. Compute queues require it.
    pub valid: bool,
    /// Address space, 0 to 15; the processor replaces it for user queues.
    pub vmid: u8,
    /// How its fetches are cached.
    pub cache_policy: CachePolicy,
}

impl IndirectBuffer {
    const KNOWN: u32 = 0x3fbf_ffff;

    /// A valid buffer that returns.
    #[must_use]
    pub const fn new(address: u64, dwords: u32) -> Self {
        Self {
            address,
            dwords,
            chain: false,
            offload_polling: false,
            valid: true,
            vmid: 0,
            cache_policy: CachePolicy::Lru,
        }
    }

    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let &[low, high, control] = fixed(INDIRECT_BUFFER, body, "3")?;
        reserved(INDIRECT_BUFFER, 3, control, Self::KNOWN)?;
        Ok(Self {
            address: aligned(INDIRECT_BUFFER, double(low, high), 4)?,
            dwords: bits(control, 0, 20),
            chain: bit(control, 20),
            offload_polling: bit(control, 21),
            valid: bit(control, 23),
            vmid: bits8(control, 24, 4),
            cache_policy: CachePolicy::read(INDIRECT_BUFFER, "cache_policy", bits(control, 28, 2))?,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let dwords = at_most(INDIRECT_BUFFER, "dwords", self.dwords, 0xf_ffff)?;
        let vmid = at_most(INDIRECT_BUFFER, "vmid", u32::from(self.vmid), 15)?;
        out.extend(words(aligned(INDIRECT_BUFFER, self.address, 4)?));
        out.push(
            dwords
                | at(self.chain, 20)
                | at(self.offload_polling, 21)
                | at(self.valid, 23)
                | vmid << 24
                | self.cache_policy.bits() << 28,
        );
        Ok(())
    }
}

impl fmt::Display for IndirectBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{INDIRECT_BUFFER} mem[{:#x}] {} dwords", self.address, self.dwords)?;
        for (set, text) in
            [(self.chain, " chain"), (self.offload_polling, " offload_polling"), (!self.valid, " invalid")]
        {
            if set {
                f.write_str(text)?;
            }
        }
        if self.vmid != 0 {
            write!(f, " vmid={}", self.vmid)?;
        }
        self.cache_policy.fmt_suffix("policy", f)
    }
}

/// `VGT_EVENT_TYPE` values that matter to compute queues.
pub mod event {
    /// Wait until all compute waves of the queue have ended.
    pub const CS_PARTIAL_FLUSH: u8 = 0x07;
    /// Flush and invalidate caches, then write a value or a time.
    pub const CACHE_FLUSH_AND_INV_TS: u8 = 0x14;
}

/// `EVENT_INDEX` values: which class an event belongs to.
pub mod event_index {
    /// Any event without a class.
    pub const OTHER: u8 = 0;
    /// Partial flushes, in `EVENT_WRITE`.
    pub const PARTIAL_FLUSH: u8 = 4;
    /// End of pipe, in `RELEASE_MEM`.
    pub const END_OF_PIPE: u8 = 5;
    /// All waves have ended, in `RELEASE_MEM`.
    pub const SHADER_DONE: u8 = 6;
}

/// Sends an event down the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventWrite {
    /// Which event, 6 bits; see [`event`].
    pub event: u8,
    /// Its class, 4 bits; see [`event_index`].
    pub index: u8,
    /// Where its result goes, a multiple of 8 B; only events that have one.
    pub address: Option<u64>,
}

impl EventWrite {
    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let (control, address) = match *body {
            [control] => (control, None),
            [control, low, high] => (control, Some(aligned(EVENT_WRITE, double(low, high), 8)?)),
            _ => return Err(Pm4Error::Length { packet: EVENT_WRITE, body: body.len(), wanted: "1 or 3" }),
        };
        reserved(EVENT_WRITE, 1, control, 0xf3f)?;
        Ok(Self { event: bits8(control, 0, 6), index: bits8(control, 8, 4), address })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let event = at_most(EVENT_WRITE, "event", u32::from(self.event), 0x3f)?;
        let index = at_most(EVENT_WRITE, "index", u32::from(self.index), 0xf)?;
        out.push(event | index << 8);
        if let Some(address) = self.address {
            out.extend(words(aligned(EVENT_WRITE, address, 8)?));
        }
        Ok(())
    }
}

impl fmt::Display for EventWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{EVENT_WRITE} event={:#x} index={}", self.event, self.index)?;
        self.address.map_or(Ok(()), |address| write!(f, " -> mem[{address:#x}]"))
    }
}

/// Which registers a `SET_*_REG` packet writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum RegisterSpace {
    /// [`reg::SH_RANGE`].
    Sh,
    /// [`reg::UCONFIG_RANGE`].
    Uconfig,
}

impl RegisterSpace {
    const fn packet(self) -> &'static str {
        match self {
            Self::Sh => SET_SH_REG,
            Self::Uconfig => SET_UCONFIG_REG,
        }
    }

    const fn range(self) -> Range<u32> {
        match self {
            Self::Sh => reg::SH_RANGE,
            Self::Uconfig => reg::UCONFIG_RANGE,
        }
    }

    /// Refuses registers outside the range, and none.
    fn check(self, register: u32, count: usize) -> Result<(), Pm4Error> {
        let Range { start: first, end } = self.range();
        let last = u32::try_from(count).ok().and_then(|count| register.checked_add(count));
        if count == 0 || register < first || last.is_none_or(|last| last > end) {
            return Err(Pm4Error::Registers { packet: self.packet(), register, count, first, end });
        }
        Ok(())
    }

    pub(super) fn decode(self, body: &[u32]) -> Result<(u32, &[u32]), Pm4Error> {
        let Some((&offset, values)) = body.split_first() else {
            return Err(Pm4Error::Length { packet: self.packet(), body: 0, wanted: "2 or more" });
        };
        reserved(self.packet(), 1, offset, 0xffff)?;
        let register = self.range().start + offset;
        self.check(register, values.len())?;
        Ok((register, values))
    }

    pub(super) fn encode(self, register: u32, values: &[u32], out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        self.check(register, values.len())?;
        out.push(register - self.range().start);
        out.extend_from_slice(values);
        Ok(())
    }

    pub(super) fn fmt(self, register: u32, values: &[u32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {register:#x}", self.packet())?;
        if let Some(name) = reg::name(register) {
            write!(f, " {name}")?;
        }
        write!(f, " = {}", Words(values))
    }
}

/// Words in one line, the tail of long lists left out.
pub(super) struct Words<'a>(pub(super) &'a [u32]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        f.write_str("[")?;
        for (index, word) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{word:#x}", if index == 0 { "" } else { ", " })?;
        }
        if let Some(more) = self.0.len().checked_sub(SHOWN + 1) {
            write!(f, ", {} more", more + 1)?;
        }
        f.write_str("]")
    }
}
