// SPDX-License-Identifier: MIT OR Apache-2.0
//! `WAIT_REG_MEM`: the processor stands still until a masked word compares as wanted.
//!
//! INVARIANT: the packet's space and operation bits are one enumeration, so that a wait which writes a
//! register but polls memory cannot be said.

use std::fmt;

use super::Pm4Error;
use super::field::{CachePolicy, Compare, aligned, at, bit, bits, bits16, fixed, register, reserved};
use crate::words::{double, words};

const WAIT_REG_MEM: &str = "WAIT_REG_MEM";
const MEMORY_SPACE: u32 = 1;
const WRITE_WAIT_WRITE: u32 = 1;
const PREEMPTIBLE: u32 = 3;

/// What is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitTarget {
    /// A word in memory at a GPU address, a multiple of 4 B.
    Memory {
        /// The address.
        address: u64,
    },
    /// The same, and the queue may be preempted meanwhile.
    PreemptibleMemory {
        /// The address.
        address: u64,
    },
    /// A register.
    Register {
        /// Its absolute dword address, 18 bits.
        register: u32,
    },
    /// Write the reference to one register, poll the other, then write again: how the host data path is
    /// flushed.
    Request {
        /// Register to write.
        request: u32,
        /// Register to poll.
        done: u32,
    },
}

/// Waits until `polled & mask` compares as wanted with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitRegMem {
    /// What is polled.
    pub target: WaitTarget,
    /// The comparison; the polled value is its left side.
    pub function: Compare,
    /// What the polled value is compared with.
    pub reference: u32,
    /// Bits of the polled value that count.
    pub mask: u32,
    /// Pause between two polls, in the processor's own unit.
    pub poll_interval: u16,
    /// How polls of memory are cached (gfx10 and later).
    pub cache_policy: CachePolicy,
    /// Whether polling may be left to another engine.
    pub offload: bool,
}

impl WaitRegMem {
    const CONTROL: u32 = 0x0600_00f7;

    /// Whether a polled value ends the wait.
    #[must_use]
    pub const fn holds(&self, value: u32) -> bool {
        self.function.holds(value & self.mask, self.reference)
    }

    pub(super) fn decode(body: &[u32]) -> Result<Self, Pm4Error> {
        let &[control, low, high, reference, mask, poll] = fixed(WAIT_REG_MEM, body, "6")?;
        reserved(WAIT_REG_MEM, 1, control, Self::CONTROL)?;
        reserved(WAIT_REG_MEM, 6, poll, 0x8000_ffff)?;
        let (space, operation) = (bits(control, 4, 2), bits(control, 6, 2));
        let address = || aligned(WAIT_REG_MEM, double(low, high), 4);
        let target = match (space, operation) {
            (MEMORY_SPACE, 0) => WaitTarget::Memory { address: address()? },
            (MEMORY_SPACE, PREEMPTIBLE) => WaitTarget::PreemptibleMemory { address: address()? },
            (0, 0) => {
                reserved(WAIT_REG_MEM, 3, high, 0)?;
                WaitTarget::Register { register: register(WAIT_REG_MEM, low)? }
            }
            (0, WRITE_WAIT_WRITE) => WaitTarget::Request {
                request: register(WAIT_REG_MEM, low)?,
                done: register(WAIT_REG_MEM, high)?,
            },
            (0 | MEMORY_SPACE, value) => {
                return Err(Pm4Error::Value { packet: WAIT_REG_MEM, field: "operation", value });
            }
            (value, _) => {
                return Err(Pm4Error::Value { packet: WAIT_REG_MEM, field: "mem_space", value });
            }
        };
        Ok(Self {
            target,
            function: Compare::read(WAIT_REG_MEM, "function", bits(control, 0, 3))?,
            reference,
            mask,
            poll_interval: bits16(poll, 0, 16),
            cache_policy: CachePolicy::read(WAIT_REG_MEM, "cache_policy", bits(control, 25, 2))?,
            offload: bit(poll, 31),
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let (space, operation, [low, high]) = match self.target {
            WaitTarget::Memory { address } => (MEMORY_SPACE, 0, words(aligned(WAIT_REG_MEM, address, 4)?)),
            WaitTarget::PreemptibleMemory { address } => {
                (MEMORY_SPACE, PREEMPTIBLE, words(aligned(WAIT_REG_MEM, address, 4)?))
            }
            WaitTarget::Register { register: polled } => (0, 0, [register(WAIT_REG_MEM, polled)?, 0]),
            WaitTarget::Request { request, done } => {
                (0, WRITE_WAIT_WRITE, [register(WAIT_REG_MEM, request)?, register(WAIT_REG_MEM, done)?])
            }
        };
        let policy = self.cache_policy.bits() << 25;
        out.extend([self.function.bits() | space << 4 | operation << 6 | policy, low, high]);
        out.extend([self.reference, self.mask, u32::from(self.poll_interval) | at(self.offload, 31)]);
        Ok(())
    }
}

impl fmt::Display for WaitRegMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            WaitTarget::Memory { address } => write!(f, "{WAIT_REG_MEM} mem[{address:#x}]")?,
            WaitTarget::PreemptibleMemory { address } => {
                write!(f, "{WAIT_REG_MEM} preemptible mem[{address:#x}]")?;
            }
            WaitTarget::Register { register } => write!(f, "{WAIT_REG_MEM} reg[{register:#x}]")?,
            WaitTarget::Request { request, done } => {
                write!(f, "{WAIT_REG_MEM} request reg[{request:#x}], reg[{done:#x}]")?;
            }
        }
        write!(f, " & {:#x} {} {:#x}", self.mask, self.function, self.reference)?;
        write!(f, " every {}", self.poll_interval)?;
        self.cache_policy.fmt_suffix("policy", f)?;
        f.write_str(if self.offload { " offload" } else { "" })
    }
}
