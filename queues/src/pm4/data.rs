// SPDX-License-Identifier: MIT OR Apache-2.0
//! `WRITE_DATA` and `COPY_DATA`: words to and from memory and registers.
//!
//! INVARIANT: each place has exactly the numbers that belong to it; the packet's other address words must be
//! zero. GDS and the places that only graphics or firmware use are refused.

use std::fmt;

use super::Pm4Error;
use super::control::Words;
use super::field::{CachePolicy, aligned, at, bit, bits, fixed, register, reserved};
use crate::words::{double, words};

const WRITE_DATA: &str = "WRITE_DATA";
const COPY_DATA: &str = "COPY_DATA";

/// Where a [`WriteData`] or [`CopyData`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A register, absolute dword address of 18 bits.
    Register {
        /// Its address.
        register: u32,
    },
    /// Memory through L2.
    L2 {
        /// GPU address.
        address: u64,
    },
    /// A performance counter's register; `COPY_DATA` only.
    PerfCounter {
        /// Its absolute dword address, 18 bits.
        register: u32,
    },
    /// Memory; past L2 on gfx9, the same as [`Self::L2`](variant@Self::L2) later.
    Memory {
        /// GPU address.
        address: u64,
    },
}

impl Destination {
    const REGISTER: u32 = 0;
    const L2: u32 = 2;
    const PERF_COUNTER: u32 = 4;
    const MEMORY: u32 = 5;

    /// Reads the place that `selector` says, from dwords `dword` and `dword + 1`.
    fn read(
        packet: &'static str,
        selector: u32,
        [low, high]: [u32; 2],
        dword: u8,
        align: u64,
    ) -> Result<Self, Pm4Error> {
        let absolute = || {
            reserved(packet, dword + 1, high, 0)?;
            register(packet, low)
        };
        Ok(match selector {
            Self::REGISTER => Self::Register { register: absolute()? },
            Self::L2 => Self::L2 { address: aligned(packet, double(low, high), align)? },
            Self::PERF_COUNTER if packet == COPY_DATA => Self::PerfCounter { register: absolute()? },
            Self::MEMORY => Self::Memory { address: aligned(packet, double(low, high), align)? },
            value => return Err(Pm4Error::Value { packet, field: "dst_sel", value }),
        })
    }

    /// The selector and the two address words.
    fn write(self, packet: &'static str, align: u64) -> Result<(u32, [u32; 2]), Pm4Error> {
        Ok(match self {
            Self::Register { register: target } => (Self::REGISTER, [register(packet, target)?, 0]),
            Self::L2 { address } => (Self::L2, words(aligned(packet, address, align)?)),
            Self::PerfCounter { .. } if packet != COPY_DATA => {
                return Err(Pm4Error::Value { packet, field: "dst_sel", value: Self::PERF_COUNTER });
            }
            Self::PerfCounter { register: target } => (Self::PERF_COUNTER, [register(packet, target)?, 0]),
            Self::Memory { address } => (Self::MEMORY, words(aligned(packet, address, align)?)),
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register { register } => write!(f, "reg[{register:#x}]"),
            Self::L2 { address } => write!(f, "l2[{address:#x}]"),
            Self::PerfCounter { register } => write!(f, "perf[{register:#x}]"),
            Self::Memory { address } => write!(f, "mem[{address:#x}]"),
        }
    }
}

/// Writes words that are in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteData<'a> {
    /// Where they go; memory at a multiple of 4 B.
    pub destination: Destination,
    /// Whether each goes behind the last one; else all go to one place.
    pub increment: bool,
    /// Whether the processor waits until they are written.
    pub confirm: bool,
    /// How they are cached.
    pub cache_policy: CachePolicy,
    /// The words, one or more.
    pub data: &'a [u32],
}

impl<'a> WriteData<'a> {
    const CONTROL: u32 = 0x0611_0f00;

    pub(super) fn decode(body: &'a [u32]) -> Result<Self, Pm4Error> {
        let (control, low, high, data) = match *body {
            [control, low, high, ref data @ ..] if !data.is_empty() => (control, low, high, data),
            _ => {
                return Err(Pm4Error::Length { packet: WRITE_DATA, body: body.len(), wanted: "4 or more" });
            }
        };
        reserved(WRITE_DATA, 1, control, Self::CONTROL)?;
        Ok(Self {
            destination: Destination::read(WRITE_DATA, bits(control, 8, 4), [low, high], 2, 4)?,
            increment: !bit(control, 16),
            confirm: bit(control, 20),
            cache_policy: CachePolicy::read(WRITE_DATA, "cache_policy", bits(control, 25, 2))?,
            data,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        if self.data.is_empty() {
            return Err(Pm4Error::Length { packet: WRITE_DATA, body: 3, wanted: "4 or more" });
        }
        let (selector, address) = self.destination.write(WRITE_DATA, 4)?;
        let control = selector << 8 | at(!self.increment, 16) | at(self.confirm, 20);
        out.push(control | self.cache_policy.bits() << 25);
        out.extend(address);
        out.extend_from_slice(self.data);
        Ok(())
    }
}

impl fmt::Display for WriteData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WRITE_DATA} {} -> {}", Words(self.data), self.destination)?;
        f.write_str(if self.increment { "" } else { " same" })?;
        f.write_str(if self.confirm { " confirm" } else { "" })?;
        self.cache_policy.fmt_suffix("policy", f)
    }
}

/// Where a [`CopyData`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopySource {
    /// A register, absolute dword address of 18 bits.
    Register {
        /// Its address.
        register: u32,
    },
    /// Memory; past L2 on gfx9, the same as [`Self::L2`](variant@Self::L2) later.
    Memory {
        /// GPU address.
        address: u64,
    },
    /// Memory through L2.
    L2 {
        /// GPU address.
        address: u64,
    },
    /// A performance counter's register.
    PerfCounter {
        /// Its absolute dword address, 18 bits.
        register: u32,
    },
    /// The packet itself.
    Immediate {
        /// What is written, the low half unless 64 bits are copied.
        value: u64,
    },
    /// What the last `ATOMIC_MEM` returned.
    AtomicReturn,
    /// The GPU's clock.
    GpuClock,
    /// The system's clock.
    SystemClock,
}

impl CopySource {
    const REGISTER: u32 = 0;
    const MEMORY: u32 = 1;
    const L2: u32 = 2;
    const PERF_COUNTER: u32 = 4;
    const IMMEDIATE: u32 = 5;
    const ATOMIC_RETURN: u32 = 6;
    const GPU_CLOCK: u32 = 9;
    const SYSTEM_CLOCK: u32 = 10;

    fn read(selector: u32, [low, high]: [u32; 2], align: u64) -> Result<Self, Pm4Error> {
        let absolute = || {
            reserved(COPY_DATA, 3, high, 0)?;
            register(COPY_DATA, low)
        };
        let nowhere = |source| {
            reserved(COPY_DATA, 2, low, 0)?;
            reserved(COPY_DATA, 3, high, 0)?;
            Ok(source)
        };
        match selector {
            Self::REGISTER => Ok(Self::Register { register: absolute()? }),
            Self::MEMORY => Ok(Self::Memory { address: aligned(COPY_DATA, double(low, high), align)? }),
            Self::L2 => Ok(Self::L2 { address: aligned(COPY_DATA, double(low, high), align)? }),
            Self::PERF_COUNTER => Ok(Self::PerfCounter { register: absolute()? }),
            Self::IMMEDIATE => Ok(Self::Immediate { value: double(low, high) }),
            Self::ATOMIC_RETURN => nowhere(Self::AtomicReturn),
            Self::GPU_CLOCK => nowhere(Self::GpuClock),
            Self::SYSTEM_CLOCK => nowhere(Self::SystemClock),
            value => Err(Pm4Error::Value { packet: COPY_DATA, field: "src_sel", value }),
        }
    }

    fn write(self, align: u64) -> Result<(u32, [u32; 2]), Pm4Error> {
        Ok(match self {
            Self::Register { register: source } => (Self::REGISTER, [register(COPY_DATA, source)?, 0]),
            Self::Memory { address } => (Self::MEMORY, words(aligned(COPY_DATA, address, align)?)),
            Self::L2 { address } => (Self::L2, words(aligned(COPY_DATA, address, align)?)),
            Self::PerfCounter { register: source } => (Self::PERF_COUNTER, [register(COPY_DATA, source)?, 0]),
            Self::Immediate { value } => (Self::IMMEDIATE, words(value)),
            Self::AtomicReturn => (Self::ATOMIC_RETURN, [0, 0]),
            Self::GpuClock => (Self::GPU_CLOCK, [0, 0]),
            Self::SystemClock => (Self::SYSTEM_CLOCK, [0, 0]),
        })
    }
}

impl fmt::Display for CopySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register { register } => write!(f, "reg[{register:#x}]"),
            Self::Memory { address } => write!(f, "mem[{address:#x}]"),
            Self::L2 { address } => write!(f, "l2[{address:#x}]"),
            Self::PerfCounter { register } => write!(f, "perf[{register:#x}]"),
            Self::Immediate { value } => write!(f, "{value:#x}"),
            Self::AtomicReturn => f.write_str("atomic_return"),
            Self::GpuClock => f.write_str("gpu_clock"),
            Self::SystemClock => f.write_str("system_clock"),
        }
    }
}

/// Copies one word or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyData {
    /// Where it reads; memory at a multiple of what is copied.
    pub source: CopySource,
    /// Where it writes; memory at a multiple of what is copied.
    pub destination: Destination,
    /// Whether 64 bits are copied instead of 32.
    pub wide: bool,
    /// Whether the processor waits until they are written.
    pub confirm: bool,
    /// How reads are cached.
    pub source_policy: CachePolicy,
    /// How writes are cached.
    pub destination_policy: CachePolicy,
}

impl CopyData {
    const CONTROL: u32 = 0x0611_6f0f;

    /// Bytes that are copied, 4 or 8.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let &[control, source_low, source_high, low, high] = fixed(COPY_DATA, body, "5")?;
        reserved(COPY_DATA, 1, control, Self::CONTROL)?;
        let wide = bit(control, 16);
        let align = if wide { 8 } else { 4 };
        Ok(Self {
            source: CopySource::read(bits(control, 0, 4), [source_low, source_high], align)?,
            destination: Destination::read(COPY_DATA, bits(control, 8, 4), [low, high], 4, align)?,
            wide,
            confirm: bit(control, 20),
            source_policy: CachePolicy::read(COPY_DATA, "src_cache_policy", bits(control, 13, 2))?,
            destination_policy: CachePolicy::read(COPY_DATA, "dst_cache_policy", bits(control, 25, 2))?,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let (source_selector, source) = self.source.write(self.bytes())?;
        let (selector, destination) = self.destination.write(COPY_DATA, self.bytes())?;
        out.push(
            source_selector
                | selector << 8
                | self.source_policy.bits() << 13
                | at(self.wide, 16)
                | at(self.confirm, 20)
                | self.destination_policy.bits() << 25,
        );
        out.extend(source);
        out.extend(destination);
        Ok(())
    }
}

impl fmt::Display for CopyData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{COPY_DATA} {} B {} -> {}", self.bytes(), self.source, self.destination)?;
        f.write_str(if self.confirm { " confirm" } else { "" })?;
        self.source_policy.fmt_suffix("source_policy", f)?;
        self.destination_policy.fmt_suffix("policy", f)
    }
}
