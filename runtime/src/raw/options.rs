// SPDX-License-Identifier: MIT OR Apache-2.0
//! What raw queues there can be.
//!
//! INVARIANT: what the driver would refuse for its size, its numbers or its kind is refused here, before the ioctl.

use queues::sdma::Generation;
use queues::words::count;

use crate::context::agent::info::AgentInfo;
use crate::context::error::QueueError;
use crate::context::queue::create::{Recipe, check_priority};
use crate::context::registry::state::QueueKind;

/// Fewest bytes of a ring: a page, since the driver wants a mapping of exactly its size.
pub const MIN_RING_BYTES: u32 = 4096;
/// Most bytes of a ring of words.
pub const MAX_RING_BYTES: u32 = 1 << 30;
/// Most bytes of a ring of AQL packets (HSA's limit on these chips: 131072 packets).
pub const MAX_AQL_RING_BYTES: u32 = crate::queue::MAX_PACKETS * count(queues::aql::PACKET_BYTES);
/// Interface 1.x of the driver from which a copy engine can be chosen (`kfd_ioctl.h`).
const ENGINE_MINOR: u32 = 17;

/// A packet language, and with it the unit of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RawKind {
    /// AQL packets of 64 bytes; positions count packets.
    Aql,
    /// PM4 packets of the compute engines; positions count dwords.
    Pm4,
    /// Packets of a copy engine; positions count bytes, always whole dwords.
    Sdma {
        /// The engine, counted from 0; `None` lets the driver choose.
        engine: Option<u32>,
    },
}

impl From<RawKind> for QueueKind {
    fn from(kind: RawKind) -> Self {
        match kind {
            RawKind::Aql => Self::Aql,
            RawKind::Pm4 => Self::Pm4,
            RawKind::Sdma { engine } => Self::Sdma { engine },
        }
    }
}

impl From<QueueKind> for RawKind {
    fn from(kind: QueueKind) -> Self {
        match kind {
            QueueKind::Aql => Self::Aql,
            QueueKind::Pm4 => Self::Pm4,
            QueueKind::Sdma { engine } => Self::Sdma { engine },
        }
    }
}

/// How a raw queue is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// Its packet language.
    pub kind: RawKind,
    /// Bytes of the ring, a power of two of at least [`MIN_RING_BYTES`].
    pub ring_bytes: u32,
    /// KFD priority, 0 (lowest) to 15.
    pub priority: u32,
    /// Share of the hardware in percent, 1 to 100.
    pub percentage: u32,
}

impl Default for RawOptions {
    /// A PM4 queue of 64 KiB at priority 7.
    fn default() -> Self {
        RawOptions { kind: RawKind::Pm4, ring_bytes: 64 << 10, priority: 7, percentage: 100 }
    }
}

impl RawOptions {
    pub(super) fn recipe(
        &self,
        info: &AgentInfo,
        interface_minor: u32,
        internal: bool,
    ) -> Result<Recipe, QueueError> {
        let max = if self.kind == RawKind::Aql { MAX_AQL_RING_BYTES } else { MAX_RING_BYTES };
        let bytes = self.ring_bytes;
        if !bytes.is_power_of_two() || !(MIN_RING_BYTES..=max).contains(&bytes) {
            return Err(QueueError::RingBytes { bytes, min: MIN_RING_BYTES, max });
        }
        check_priority(self.priority)?;
        if !(1..=kfd::sys::KFD_MAX_QUEUE_PERCENTAGE).contains(&self.percentage) {
            return Err(QueueError::Percentage { percentage: self.percentage });
        }
        if let RawKind::Sdma { engine } = self.kind {
            check_engines(info, interface_minor, engine)?;
        }
        Ok(Recipe {
            kind: self.kind.into(),
            ring_bytes: bytes,
            priority: self.priority,
            percentage: self.percentage,
            kernarg_slot_bytes: 0,
            scratch_lane_bytes: 0,
            internal,
        })
    }
}

fn check_engines(info: &AgentInfo, interface_minor: u32, engine: Option<u32>) -> Result<(), QueueError> {
    let agent = || info.target().name.to_owned();
    let unsupported = |why| Err(QueueError::Unsupported { agent: agent(), kind: "SDMA", why });
    let engines = info.copy_engines();
    if Generation::of(info.target()).is_none() {
        return unsupported("the packets of its copy engines are not known");
    }
    if engines == 0 {
        return unsupported("its node in the topology has no copy engines");
    }
    match engine {
        None => Ok(()),
        Some(_) if interface_minor < ENGINE_MINOR => {
            unsupported("this driver's interface is older than 1.17 and cannot choose an engine: pass None")
        }
        Some(engine) if engine >= engines => Err(QueueError::Engine { agent: agent(), engine, engines }),
        Some(_) => Ok(()),
    }
}
