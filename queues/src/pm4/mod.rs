// SPDX-License-Identifier: MIT OR Apache-2.0
//! PM4 packets of compute queues: what a ring, an indirect buffer or a vendor packet makes the processor do.
//!
//! ```text
//!  31 30 29      16 15     8 7      2     1         0
//! +-----+----------+--------+--------+---------+-----------+
//! |  3  | dwords-2 | opcode |   0    | compute | predicate |
//! +-----+----------+--------+--------+---------+-----------+
//! ```
//!
//! INVARIANT: a packet that [`decode`] accepts encodes to the same words. Bits whose meaning a [`Packet`]
//! cannot hold are errors, never dropped. The one exception is bit 1 of the header, which clients set or not
//! as they please and which compute queues ignore: it is accepted and written as 0.
//!
//! Layouts are those of gfx11's compute processor (MEC), which gfx9 and gfx10 share except where a field says
//! so. Sources: Linux `soc15d.h` and `nvd.h` (opcodes, cache bits), PAL's `gfx9_f32_mec_pm4_packets.h` (fields),
//! and the streams that clients submit.
//!
//! ```
//! use queues::pm4::{self, Packet};
//! let mut stream = Vec::new();
//! pm4::cs_partial_flush().encode(&mut stream)?;
//! assert_eq!(stream, [0xC000_4600, 0x407]);
//! assert_eq!(pm4::decode(&stream)?, (pm4::cs_partial_flush(), 2));
//! # Ok::<(), pm4::Pm4Error>(())
//! ```

mod control;
mod data;
mod error;
mod field;
mod launch;
mod memory;
mod nop;
mod ready;
pub mod reg;
#[cfg(test)]
mod tests;
mod wait;

use std::fmt;

pub use control::{EventWrite, IndirectBuffer, Initiator, PredExec, event, event_index};
pub use data::{CopyData, CopySource, Destination, WriteData};
pub use error::Pm4Error;
pub use field::{CachePolicy, Compare, FILLER, MAX_BODY, NOP_SINGLE, packet_dwords};
pub use launch::{Dispatch, RSRC1_PRIV, Scratch};
pub use memory::{
    AcquireCaches, AcquireMem, DataSel, IntSel, ReleaseDestination, ReleaseMem, coher, gcr, release_gcr,
};
pub use nop::{Nop, push_nops};
pub use ready::{
    Width, code_invalidate, cs_partial_flush, interrupt, kernel_barrier, memory_barrier, signal, timestamp,
    wait_memory,
};
pub use wait::{WaitRegMem, WaitTarget};

use control::RegisterSpace;
use field::{SHADER_TYPE, aligned, bits8, fixed};

use crate::words::{double, words};

/// Opcodes: bits 8..16 of a type 3 header.
pub mod opcode {
    /// Nothing.
    pub const NOP: u8 = 0x10;
    /// Start waves, sizes in the packet.
    pub const DISPATCH_DIRECT: u8 = 0x15;
    /// Start waves, sizes in memory.
    pub const DISPATCH_INDIRECT: u8 = 0x16;
    /// Execute what follows on some XCCs only.
    pub const PRED_EXEC: u8 = 0x23;
    /// Write words.
    pub const WRITE_DATA: u8 = 0x37;
    /// Wait for a value.
    pub const WAIT_REG_MEM: u8 = 0x3C;
    /// Execute packets elsewhere.
    pub const INDIRECT_BUFFER: u8 = 0x3F;
    /// Copy one word or two.
    pub const COPY_DATA: u8 = 0x40;
    /// Send an event.
    pub const EVENT_WRITE: u8 = 0x46;
    /// Finish work, then write and interrupt.
    pub const RELEASE_MEM: u8 = 0x49;
    /// Invalidate caches.
    pub const ACQUIRE_MEM: u8 = 0x58;
    /// Set shader registers.
    pub const SET_SH_REG: u8 = 0x76;
    /// Set user configuration registers.
    pub const SET_UCONFIG_REG: u8 = 0x79;
}

/// Bits of a header that must be zero: reserved ones and predication.
const HEADER_ZERO: u32 = 0xfd;

/// A packet that a compute queue's processor executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Packet<'a> {
    /// Does nothing.
    Nop(Nop<'a>),
    /// Launches a grid.
    DispatchDirect {
        /// Work-groups in x, y and z; work-items with [`Initiator::use_thread_dimensions`].
        groups: [u32; 3],
        /// How it starts.
        initiator: Initiator,
    },
    /// Launches a grid whose sizes are three dwords in memory.
    DispatchIndirect {
        /// GPU address of the sizes, a multiple of 4 B.
        address: u64,
        /// How it starts.
        initiator: Initiator,
    },
    /// Leaves out what follows on some XCCs.
    PredExec(PredExec),
    /// Writes words.
    WriteData(WriteData<'a>),
    /// Waits for a value.
    WaitRegMem(WaitRegMem),
    /// Executes packets that are elsewhere.
    IndirectBuffer(IndirectBuffer),
    /// Copies one word or two.
    CopyData(CopyData),
    /// Sends an event.
    EventWrite(EventWrite),
    /// Finishes earlier work, then writes and interrupts.
    ReleaseMem(ReleaseMem),
    /// Invalidates caches.
    AcquireMem(AcquireMem),
    /// Sets registers that follow each other, within [`reg::SH_RANGE`].
    SetShReg {
        /// The first, absolute dword address.
        register: u32,
        /// Their values, one or more.
        values: &'a [u32],
    },
    /// Sets registers that follow each other, within [`reg::UCONFIG_RANGE`].
    SetUconfigReg {
        /// The first, absolute dword address.
        register: u32,
        /// Their values, one or more.
        values: &'a [u32],
    },
}

/// Reads the packet at the start of a stream. Returns it with its length in dwords, header included.
///
/// # Errors
/// [`Pm4Error::Truncated`] if the stream ends before the packet does, which is no fault while the rest is yet
/// to be fetched; [`Pm4Error::Kind`], [`Pm4Error::Opcode`] and [`Pm4Error::Header`] for headers of unknown
/// packets; [`Pm4Error::Length`], [`Pm4Error::Reserved`], [`Pm4Error::Value`], [`Pm4Error::Misaligned`],
/// [`Pm4Error::Range`] and [`Pm4Error::Registers`] for bodies that mean nothing.
pub fn decode(stream: &[u32]) -> Result<(Packet<'_>, usize), Pm4Error> {
    let Some((&header, rest)) = stream.split_first() else {
        return Err(Pm4Error::Truncated { wanted: 1, available: 0 });
    };
    let dwords = packet_dwords(header)?;
    match header & !SHADER_TYPE {
        FILLER => return Ok((Packet::Nop(Nop::Filler), dwords)),
        NOP_SINGLE => return Ok((Packet::Nop(Nop::Single), dwords)),
        _ => {}
    }
    let opcode = bits8(header, 8, 8);
    let read = reader(opcode).ok_or(Pm4Error::Opcode { opcode, dwords })?;
    if header & HEADER_ZERO != 0 {
        return Err(Pm4Error::Header { header, bits: header & HEADER_ZERO });
    }
    let body =
        rest.get(..dwords - 1).ok_or(Pm4Error::Truncated { wanted: dwords, available: stream.len() })?;
    Ok((read(body)?, dwords))
}

/// Reads the body of one kind of packet.
type Reader = for<'a> fn(&'a [u32]) -> Result<Packet<'a>, Pm4Error>;

/// What reads the body behind an opcode.
fn reader(opcode: u8) -> Option<Reader> {
    Some(match opcode {
        opcode::NOP => |body| Ok(Packet::Nop(Nop::Payload(body))),
        opcode::DISPATCH_DIRECT => |body| {
            let &[x, y, z, initiator] = fixed("DISPATCH_DIRECT", body, "4")?;
            Ok(Packet::DispatchDirect { groups: [x, y, z], initiator: Initiator(initiator) })
        },
        opcode::DISPATCH_INDIRECT => |body| {
            let &[low, high, initiator] = fixed("DISPATCH_INDIRECT", body, "3")?;
            let address = aligned("DISPATCH_INDIRECT", double(low, high), 4)?;
            Ok(Packet::DispatchIndirect { address, initiator: Initiator(initiator) })
        },
        opcode::PRED_EXEC => |body| PredExec::decode(body).map(Packet::PredExec),
        opcode::WRITE_DATA => |body| WriteData::decode(body).map(Packet::WriteData),
        opcode::WAIT_REG_MEM => |body| WaitRegMem::decode(body).map(Packet::WaitRegMem),
        opcode::INDIRECT_BUFFER => |body| IndirectBuffer::decode(body).map(Packet::IndirectBuffer),
        opcode::COPY_DATA => |body| CopyData::decode(body).map(Packet::CopyData),
        opcode::EVENT_WRITE => |body| EventWrite::decode(body).map(Packet::EventWrite),
        opcode::RELEASE_MEM => |body| ReleaseMem::decode(body).map(Packet::ReleaseMem),
        opcode::ACQUIRE_MEM => |body| AcquireMem::decode(body).map(Packet::AcquireMem),
        opcode::SET_SH_REG => |body| {
            let (register, values) = RegisterSpace::Sh.decode(body)?;
            Ok(Packet::SetShReg { register, values })
        },
        opcode::SET_UCONFIG_REG => |body| {
            let (register, values) = RegisterSpace::Uconfig.decode(body)?;
            Ok(Packet::SetUconfigReg { register, values })
        },
        _ => return None,
    })
}

impl Packet<'_> {
    /// The opcode; that of [`opcode::NOP`] for fillers of type 2 too.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        match self {
            Self::Nop(_) => opcode::NOP,
            Self::DispatchDirect { .. } => opcode::DISPATCH_DIRECT,
            Self::DispatchIndirect { .. } => opcode::DISPATCH_INDIRECT,
            Self::PredExec(_) => opcode::PRED_EXEC,
            Self::WriteData(_) => opcode::WRITE_DATA,
            Self::WaitRegMem(_) => opcode::WAIT_REG_MEM,
            Self::IndirectBuffer(_) => opcode::INDIRECT_BUFFER,
            Self::CopyData(_) => opcode::COPY_DATA,
            Self::EventWrite(_) => opcode::EVENT_WRITE,
            Self::ReleaseMem(_) => opcode::RELEASE_MEM,
            Self::AcquireMem(_) => opcode::ACQUIRE_MEM,
            Self::SetShReg { .. } => opcode::SET_SH_REG,
            Self::SetUconfigReg { .. } => opcode::SET_UCONFIG_REG,
        }
    }

    /// Appends the packet's words. After an error nothing is appended.
    ///
    /// # Errors
    /// [`Pm4Error::TooLong`] for a body that no header can announce, and for values that their fields cannot
    /// hold the errors with which [`decode`] refuses them.
    pub fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        let start = out.len();
        let header = match self {
            Self::Nop(Nop::Filler) => Ok(FILLER),
            Self::Nop(Nop::Single) => Ok(NOP_SINGLE),
            _ => {
                out.push(0);
                self.encode_body(out).and_then(|()| self.header(out.len() - start - 1))
            }
        };
        out.truncate(if header.is_ok() { out.len() } else { start });
        let header = header?;
        match out.get_mut(start) {
            Some(first) => *first = header,
            None => out.push(header),
        }
        Ok(())
    }

    fn header(&self, body: usize) -> Result<u32, Pm4Error> {
        // The largest count of a NOP means that there is no body at all.
        let limit = if matches!(self, Self::Nop(_)) { MAX_BODY - 1 } else { MAX_BODY };
        let count = u32::try_from(body).ok().filter(|_| body <= limit).and_then(|body| body.checked_sub(1));
        let count = count.ok_or(Pm4Error::TooLong { packet: self.name(), body, limit })?;
        Ok(3 << 30 | count << 16 | u32::from(self.opcode()) << 8)
    }

    fn encode_body(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        match *self {
            Self::Nop(Nop::Payload([])) => {
                return Err(Pm4Error::Length { packet: "NOP", body: 0, wanted: "1 or more" });
            }
            Self::Nop(Nop::Payload(payload)) => out.extend_from_slice(payload),
            Self::Nop(Nop::Filler | Nop::Single) => {}
            Self::DispatchDirect { groups, initiator } => {
                out.extend(groups);
                out.push(initiator.0);
            }
            Self::DispatchIndirect { address, initiator } => {
                out.extend(words(aligned("DISPATCH_INDIRECT", address, 4)?));
                out.push(initiator.0);
            }
            Self::PredExec(packet) => packet.encode(out)?,
            Self::WriteData(packet) => packet.encode(out)?,
            Self::WaitRegMem(packet) => packet.encode(out)?,
            Self::IndirectBuffer(packet) => packet.encode(out)?,
            Self::CopyData(packet) => packet.encode(out)?,
            Self::EventWrite(packet) => packet.encode(out)?,
            Self::ReleaseMem(packet) => packet.encode(out)?,
            Self::AcquireMem(packet) => packet.encode(out)?,
            Self::SetShReg { register, values } => RegisterSpace::Sh.encode(register, values, out)?,
            Self::SetUconfigReg { register, values } => {
                RegisterSpace::Uconfig.encode(register, values, out)?;
            }
        }
        Ok(())
    }

    /// The packet's name in AMD's headers.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Nop(_) => "NOP",
            Self::DispatchDirect { .. } => "DISPATCH_DIRECT",
            Self::DispatchIndirect { .. } => "DISPATCH_INDIRECT",
            Self::PredExec(_) => "PRED_EXEC",
            Self::WriteData(_) => "WRITE_DATA",
            Self::WaitRegMem(_) => "WAIT_REG_MEM",
            Self::IndirectBuffer(_) => "INDIRECT_BUFFER",
            Self::CopyData(_) => "COPY_DATA",
            Self::EventWrite(_) => "EVENT_WRITE",
            Self::ReleaseMem(_) => "RELEASE_MEM",
            Self::AcquireMem(_) => "ACQUIRE_MEM",
            Self::SetShReg { .. } => "SET_SH_REG",
            Self::SetUconfigReg { .. } => "SET_UCONFIG_REG",
        }
    }
}

/// One line, for dumps.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Nop(nop) => nop.fmt(f),
            Self::DispatchDirect { groups: [x, y, z], initiator } => {
                write!(f, "DISPATCH_DIRECT {x}x{y}x{z} initiator={initiator}")
            }
            Self::DispatchIndirect { address, initiator } => {
                write!(f, "DISPATCH_INDIRECT mem[{address:#x}] initiator={initiator}")
            }
            Self::PredExec(packet) => packet.fmt(f),
            Self::WriteData(packet) => packet.fmt(f),
            Self::WaitRegMem(packet) => packet.fmt(f),
            Self::IndirectBuffer(packet) => packet.fmt(f),
            Self::CopyData(packet) => packet.fmt(f),
            Self::EventWrite(packet) => packet.fmt(f),
            Self::ReleaseMem(packet) => packet.fmt(f),
            Self::AcquireMem(packet) => packet.fmt(f),
            Self::SetShReg { register, values } => RegisterSpace::Sh.fmt(register, values, f),
            Self::SetUconfigReg { register, values } => RegisterSpace::Uconfig.fmt(register, values, f),
        }
    }
}
