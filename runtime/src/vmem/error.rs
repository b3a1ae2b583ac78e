// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why addresses, memory and what lies between them could not be changed.

use crate::context::error::{AllocError, DeviceError, Lost};
use crate::context::registry::state::{BoKey, MapKey, QueueKey};

/// A range or a mapping could not be made or changed. Unless a variant says otherwise everything is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmemError {
    /// Not whole pages.
    #[error("The {what} {value:#x} is not a multiple of the page of {page} bytes")]
    Misaligned {
        /// What of: `offset`, `memory offset`, `length`.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it must be a multiple of.
        page: u64,
    },
    /// An alignment that is none.
    #[error("Ranges are aligned to powers of two, found {align:#x}")]
    Alignment {
        /// The alignment asked for.
        align: u64,
    },
    /// No bytes.
    #[error("Nothing of 0 bytes can be mapped or given access to")]
    Empty,
    /// Past the end of the range.
    #[error("Bytes {offset:#x}+{bytes:#x} are outside range {range} of {len:#x} bytes")]
    OutsideRange {
        /// The range.
        range: BoKey,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The range's length.
        len: u64,
    },
    /// Past the end of the memory.
    #[error("Bytes {offset:#x}+{bytes:#x} are outside memory {memory} of {len:#x} bytes")]
    OutsideMemory {
        /// The memory.
        memory: BoKey,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The memory's length.
        len: u64,
    },
    /// Something is mapped there.
    #[error(
        "Bytes {offset:#x}+{bytes:#x} of range {range} cannot be mapped: mapping {taken} of memory {memory} is at \
         {taken_offset:#x}+{taken_bytes:#x}; unmap that first"
    )]
    Overlap {
        /// The range.
        range: BoKey,
        /// First byte asked for.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The first mapping in the way.
        taken: MapKey,
        /// Its memory.
        memory: BoKey,
        /// Where it begins in the range.
        taken_offset: u64,
        /// Its length.
        taken_bytes: u64,
    },
    /// Nothing is mapped there.
    #[error("Nothing is mapped at {offset:#x} of range {range}: map memory there first")]
    NotMapped {
        /// The range.
        range: BoKey,
        /// The first byte without memory.
        offset: u64,
    },
    /// The CPU does not see the memory.
    #[error(
        "Memory {memory} at {offset:#x} of range {range} is not visible to the CPU: copy it on an agent instead"
    )]
    NotVisible {
        /// The range.
        range: BoKey,
        /// The first byte that cannot be seen.
        offset: u64,
        /// The memory there.
        memory: BoKey,
    },
    /// It was freed.
    #[error("The {what} {key} was freed")]
    Freed {
        /// `range` or `memory`.
        what: &'static str,
        /// Its key.
        key: BoKey,
    },
    /// One of another runtime.
    #[error("The {what} belongs to another runtime")]
    Foreign {
        /// `memory` or `agent`.
        what: &'static str,
    },
    /// One agent's memory was to be given to another that has no way to it.
    #[error(
        "{agent} has no path to the memory {memory} of {owner}: the topology has no link between them; copy it through \
         the host, or map host memory"
    )]
    NoPath {
        /// Who was to have it.
        agent: String,
        /// Whose it is.
        owner: String,
        /// Which.
        memory: BoKey,
    },
    /// Packets that were submitted with the range have not completed.
    #[error(
        "Range {range} is an argument of packets that queue {queue} has not completed: wait for them first"
    )]
    Pending {
        /// The range.
        range: BoKey,
        /// Where they are.
        queue: QueueKey,
    },
    /// No addresses.
    #[error("The addresses could not be reserved")]
    Reserve(#[source] AllocError),
    /// The driver refused. Of an unmapping, what came before it is done.
    #[error("The mapping could not be changed")]
    Device(#[from] DeviceError),
    /// The device is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}
