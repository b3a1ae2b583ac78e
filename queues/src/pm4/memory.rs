// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ACQUIRE_MEM` and `RELEASE_MEM`: caches, values, times and interrupts.
//!
//! INVARIANT: cache controls stay raw words, because their bits differ between generations and only a chip can
//! say what they do; everything that a device model must act on (destination, data, interrupt) is typed.

use std::fmt;

use super::Pm4Error;
use super::field::{
    CachePolicy, aligned, at, at_most, bit, bits, bits8, bits16, field_enum, fixed, reserved,
};
use crate::words::{double, words};

const ACQUIRE_MEM: &str = "ACQUIRE_MEM";
const RELEASE_MEM: &str = "RELEASE_MEM";

/// `GCR_CNTL` bits of an `ACQUIRE_MEM` of gfx10 and later.
pub mod gcr {
    /// Invalidate the instruction caches.
    pub const GLI_INV: u32 = 1 << 0;
    /// Write metadata back.
    pub const GLM_WB: u32 = 1 << 4;
    /// Invalidate metadata.
    pub const GLM_INV: u32 = 1 << 5;
    /// Write the scalar caches back.
    pub const GLK_WB: u32 = 1 << 6;
    /// Invalidate the scalar caches.
    pub const GLK_INV: u32 = 1 << 7;
    /// Invalidate the vector caches.
    pub const GLV_INV: u32 = 1 << 8;
    /// Invalidate the caches of the shader arrays.
    pub const GL1_INV: u32 = 1 << 9;
    /// Invalidate L2.
    pub const GL2_INV: u32 = 1 << 14;
    /// Write L2 back.
    pub const GL2_WB: u32 = 1 << 15;

    /// Between kernels of one queue: everything but instructions and L2.
    pub const AGENT: u32 = GLM_WB | GLM_INV | GLK_WB | GLK_INV | GLV_INV | GL1_INV;
    /// Between the host or other agents and a kernel: everything.
    pub const SYSTEM: u32 = AGENT | GLI_INV | GL2_INV | GL2_WB;
    /// After code was written: what AMD's runtime sends.
    pub const CODE: u32 = GLI_INV | GLK_INV | GLV_INV | GL1_INV | GL2_INV;
}

/// `CP_COHER_CNTL` bits of an `ACQUIRE_MEM` of gfx9.
pub mod coher {
    /// Write L2 back.
    pub const TC_WB_ACTION_ENA: u32 = 1 << 18;
    /// Invalidate the vector caches.
    pub const TCL1_ACTION_ENA: u32 = 1 << 22;
    /// Invalidate L2.
    pub const TC_ACTION_ENA: u32 = 1 << 23;
    /// Invalidate the scalar caches.
    pub const SH_KCACHE_ACTION_ENA: u32 = 1 << 27;
    /// Invalidate the instruction caches.
    pub const SH_ICACHE_ACTION_ENA: u32 = 1 << 29;

    /// After code was written: what AMD's runtime sends.
    pub const CODE: u32 = SH_ICACHE_ACTION_ENA | SH_KCACHE_ACTION_ENA | TC_ACTION_ENA | TC_WB_ACTION_ENA;
}

/// `GCR_CNTL` bits of a `RELEASE_MEM` of gfx10 and later, as [`ReleaseMem::caches`] holds them.
pub mod release_gcr {
    /// Write metadata back.
    pub const GLM_WB: u16 = 1 << 0;
    /// Invalidate metadata; goes with [`GLM_WB`].
    pub const GLM_INV: u16 = 1 << 1;
    /// Invalidate the vector caches.
    pub const GLV_INV: u16 = 1 << 2;
    /// Invalidate the caches of the shader arrays.
    pub const GL1_INV: u16 = 1 << 3;
    /// Invalidate L2.
    pub const GL2_INV: u16 = 1 << 8;
    /// Write L2 back.
    pub const GL2_WB: u16 = 1 << 9;
    /// The first of two bits that order the levels.
    pub const SEQ: u16 = 1 << 10;

    /// Everything, so that hosts and other agents see what the kernels wrote.
    pub const SYSTEM: u16 = GLM_WB | GLM_INV | GLV_INV | GL1_INV | GL2_INV | GL2_WB | SEQ;
}

/// What an [`AcquireMem`] does to which caches, and with it which form the packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcquireCaches {
    /// The 7-dword form of gfx9: [`coher`] bits, 31 of them.
    Coherency(u32),
    /// The 8-dword form of gfx10 and later: [`gcr`] bits, 19 of them.
    Gcr(u32),
}

/// Makes what others wrote visible to the packets that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcquireMem {
    /// What happens to which caches.
    pub caches: AcquireCaches,
    /// How much memory it is about, in units of 256 B; clients write all ones for everything.
    pub size: u64,
    /// Where that memory starts, in units of 256 B, below 2^56.
    pub base: u64,
    /// Pause between two checks for completion, in the processor's own unit.
    pub poll_interval: u16,
}

impl AcquireMem {
    const COHERENCY: u32 = 0x7fff_ffff;
    const GCR: u32 = 0x7_ffff;
    const BASE_HIGH: u32 = 0xff_ffff;

    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let (common, caches) = match *body {
            [control, ref common @ .., gcr] if body.len() == 7 => {
                reserved(ACQUIRE_MEM, 1, control, 0)?;
                reserved(ACQUIRE_MEM, 7, gcr, Self::GCR)?;
                (common, AcquireCaches::Gcr(gcr))
            }
            [control, ref common @ ..] => {
                reserved(ACQUIRE_MEM, 1, control, Self::COHERENCY)?;
                (common, AcquireCaches::Coherency(control))
            }
            [] => (body, AcquireCaches::Coherency(0)),
        };
        let &[size_low, size_high, base_low, base_high, poll] = common
            .try_into()
            .map_err(|_| Pm4Error::Length { packet: ACQUIRE_MEM, body: body.len(), wanted: "6 or 7" })?;
        reserved(ACQUIRE_MEM, 5, base_high, Self::BASE_HIGH)?;
        reserved(ACQUIRE_MEM, 6, poll, 0xffff)?;
        Ok(Self {
            caches,
            size: double(size_low, size_high),
            base: double(base_low, base_high),
            poll_interval: bits16(poll, 0, 16),
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let (control, gcr) = match self.caches {
            AcquireCaches::Coherency(control) => {
                (at_most(ACQUIRE_MEM, "coher_cntl", control, Self::COHERENCY)?, None)
            }
            AcquireCaches::Gcr(gcr) => (0, Some(at_most(ACQUIRE_MEM, "gcr_cntl", gcr, Self::GCR)?)),
        };
        let [base_low, base_high] = words(self.base);
        if base_high > Self::BASE_HIGH {
            let limit = double(u32::MAX, Self::BASE_HIGH);
            return Err(Pm4Error::Range { packet: ACQUIRE_MEM, field: "base", value: self.base, limit });
        }
        out.push(control);
        out.extend(words(self.size));
        out.extend([base_low, base_high, u32::from(self.poll_interval)]);
        out.extend(gcr);
        Ok(())
    }
}

impl fmt::Display for AcquireMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.caches {
            AcquireCaches::Coherency(control) => write!(f, "{ACQUIRE_MEM} coher={control:#x}")?,
            AcquireCaches::Gcr(gcr) => write!(f, "{ACQUIRE_MEM} gcr={gcr:#x}")?,
        }
        write!(f, " base={:#x} size={:#x} every {}", self.base, self.size, self.poll_interval)
    }
}

field_enum! {
    /// What a [`ReleaseMem`] writes.
    ///
    /// Value 4 is a performance counter to some headers and the system clock to others, 5 copies from GDS;
    /// both are refused.
    DataSel {
        /// Nothing.
        None = 0 "none",
        /// The low half of its value.
        Low32 = 1 "32-bit",
        /// Its whole value.
        All64 = 2 "64-bit",
        /// The GPU's clock, 64 bits.
        GpuClock = 3 "gpu_clock",
    }
}

impl DataSel {
    /// Bytes that are written.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Low32 => 4,
            Self::All64 | Self::GpuClock => 8,
        }
    }
}

field_enum! {
    /// When a [`ReleaseMem`] sends an interrupt. The conditional forms (5 and 6) are refused.
    IntSel {
        /// Never.
        None = 0 "none",
        /// Without a write.
        Only = 1 "only",
        /// When the write has been confirmed.
        AfterWriteConfirm = 2 "after_write_confirm",
        /// Never, but the packet is done only when the write has been confirmed.
        ConfirmOnly = 3 "confirm_only",
        /// With its context id, whatever is written.
        Unconditional = 4 "unconditional",
    }
}

impl IntSel {
    /// Whether there is an interrupt.
    #[must_use]
    pub const fn interrupts(self) -> bool {
        matches!(self, Self::Only | Self::AfterWriteConfirm | Self::Unconditional)
    }
}

field_enum! {
    /// Which way a [`ReleaseMem`]'s data takes. The write pointer's registers (2 and 3) are refused.
    ReleaseDestination {
        /// Past the caches.
        Memory = 0 "memory",
        /// Through L2.
        L2 = 1 "l2",
    }
}

/// Waits until earlier work is done, tends to caches, then writes and interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseMem {
    /// Which event ends the work, 6 bits; see [`event`](super::event).
    pub event: u8,
    /// Its class, 4 bits; see [`event_index`](super::event_index).
    pub index: u8,
    /// What happens to which caches: bits 12..25 of the packet; see [`release_gcr`].
    pub caches: u16,
    /// How its data is cached.
    pub cache_policy: CachePolicy,
    /// Whether the queue's execution status is updated (`pq_exe_status`).
    pub update_status: bool,
    /// Whether the scalar caches are invalidated (`glk_inv`, gfx11 and later).
    pub scalar_invalidate: bool,
    /// Which way the data takes.
    pub destination: ReleaseDestination,
    /// When it interrupts.
    pub int_sel: IntSel,
    /// What it writes.
    pub data_sel: DataSel,
    /// GPU address of what it writes, a multiple of [`DataSel::bytes`]; any if it writes nothing.
    pub address: u64,
    /// What it writes if [`Self::data_sel`] says so.
    pub value: u64,
    /// What the interrupt says; user queues' interrupts carry the event's id.
    pub context_id: u32,
}

impl ReleaseMem {
    const CONTROL: u32 = 0x57ff_ff3f;
    const SELECT: u32 = 0xe703_0000;
    const CACHES: u32 = 0x1fff;

    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let &[control, select, address_low, address_high, low, high, context_id] =
            fixed(RELEASE_MEM, body, "7")?;
        reserved(RELEASE_MEM, 1, control, Self::CONTROL)?;
        reserved(RELEASE_MEM, 2, select, Self::SELECT)?;
        let data_sel = DataSel::read(RELEASE_MEM, "data_sel", bits(select, 29, 3))?;
        Ok(Self {
            event: bits8(control, 0, 6),
            index: bits8(control, 8, 4),
            caches: bits16(control, 12, 13),
            cache_policy: CachePolicy::read(RELEASE_MEM, "cache_policy", bits(control, 25, 2))?,
            update_status: bit(control, 28),
            scalar_invalidate: bit(control, 30),
            destination: ReleaseDestination::read(RELEASE_MEM, "dst_sel", bits(select, 16, 2))?,
            int_sel: IntSel::read(RELEASE_MEM, "int_sel", bits(select, 24, 3))?,
            data_sel,
            address: aligned(RELEASE_MEM, double(address_low, address_high), data_sel.bytes().max(1))?,
            value: double(low, high),
            context_id,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let event = at_most(RELEASE_MEM, "event", u32::from(self.event), 0x3f)?;
        let index = at_most(RELEASE_MEM, "index", u32::from(self.index), 0xf)?;
        let caches = at_most(RELEASE_MEM, "caches", u32::from(self.caches), Self::CACHES)?;
        out.push(
            event
                | index << 8
                | caches << 12
                | self.cache_policy.bits() << 25
                | at(self.update_status, 28)
                | at(self.scalar_invalidate, 30),
        );
        out.push(self.destination.bits() << 16 | self.int_sel.bits() << 24 | self.data_sel.bits() << 29);
        out.extend(words(aligned(RELEASE_MEM, self.address, self.data_sel.bytes().max(1))?));
        out.extend(words(self.value));
        out.push(self.context_id);
        Ok(())
    }
}

impl fmt::Display for ReleaseMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{RELEASE_MEM} event={:#x} index={} caches={:#x} {} value={:#x} -> {}[{:#x}] interrupt={} \
             context={:#x}",
            self.event,
            self.index,
            self.caches,
            self.data_sel,
            self.value,
            self.destination,
            self.address,
            self.int_sel,
            self.context_id,
        )?;
        self.cache_policy.fmt_suffix("policy", f)?;
        for (set, text) in
            [(self.update_status, " update_status"), (self.scalar_invalidate, " scalar_invalidate")]
        {
            if set {
                f.write_str(text)?;
            }
        }
        Ok(())
    }
}
