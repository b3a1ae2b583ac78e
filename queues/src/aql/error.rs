// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a packet cannot be executed, and which exception that raises.

use thiserror::Error;

use super::{ExceptionCode, PacketKind};

/// A packet that the command processor refuses.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketError {
    /// The slot's header is INVALID: wait for it to be published.
    #[error("Packet is not published: its header is still INVALID, wait for the writer")]
    Unpublished,
    /// The kind is none that this queue executes.
    #[error(
        "Packet kind {kind} is not supported by a GPU queue, wanted vendor (0), kernel dispatch (2), \
         barrier-and (3) or barrier-or (5)"
    )]
    Unsupported {
        /// The header's low byte.
        kind: u8,
    },
    /// The packet is the vendor's own.
    #[error("Vendor packet format {format} is not supported, wanted PM4-IB (1) or barrier-value (2)")]
    Vendor {
        /// Byte 2 of the packet, `amd_format`.
        format: u8,
    },
    /// `header.kind` contradicts what the packet is.
    #[error("Packet header says {found}, wanted {wanted}")]
    KindMismatch {
        /// The header's kind.
        found: PacketKind,
        /// The kind that belongs to the body.
        wanted: PacketKind,
    },
    /// Bits that must be zero are set.
    #[error("Reserved bits of {field} must be 0, found {value:#x}")]
    Reserved {
        /// The field that holds them.
        field: &'static str,
        /// The bits that are set.
        value: u64,
    },
    /// A word that is the same in every packet of its kind is different.
    #[error("The {field} must be {wanted:#x}, found {found:#x}")]
    Constant {
        /// Which word.
        field: &'static str,
        /// What the packet holds.
        found: u32,
        /// What every such packet holds.
        wanted: u32,
    },
    /// A barrier-value packet compares in no way that HSA defines.
    #[error("Signal condition must be 0 (eq), 1 (ne), 2 (lt) or 3 (gte), found {condition}")]
    Condition {
        /// What the packet holds.
        condition: u32,
    },
    /// The commands of a PM4-IB packet cannot be fetched.
    #[error(
        "Indirect buffer must have 1 to 1048575 dwords at a multiple of 4 below 2^48, \
         found {dwords} dwords at {address:#x}"
    )]
    IndirectBuffer {
        /// GPU address of the commands.
        address: u64,
        /// How many dwords.
        dwords: u32,
    },
    /// A fence scope is 3.
    #[error("The {fence} fence scope must be 0 (none), 1 (agent) or 2 (system), found 3")]
    FenceScope {
        /// `acquire` or `release`.
        fence: &'static str,
    },
    /// The number of dimensions is not 1, 2 or 3.
    #[error("Dispatch must have 1 to 3 dimensions, found {dimensions}")]
    Dimensions {
        /// What the packet says.
        dimensions: u8,
    },
    /// A size in a dimension that the dispatch does not have is not 1.
    #[error(
        "Dispatch of {dimensions} dimensions must have work-group and grid size 1 in dimension {axis}, \
         found {workgroup} and {grid}"
    )]
    UnusedDimension {
        /// Dimensions of the dispatch.
        dimensions: u8,
        /// The unused one, 1 or 2.
        axis: u8,
        /// Work-group size there, in work-items.
        workgroup: u16,
        /// Grid size there, in work-items.
        grid: u32,
    },
    /// The grid is empty.
    #[error("Grid size must not be 0, found {}x{}x{}", grid[0], grid[1], grid[2])]
    EmptyGrid {
        /// Work-items in each dimension.
        grid: [u32; 3],
    },
    /// The work-group is empty or too large.
    #[error(
        "Work-group must have 1 to {limit} work-items, found {}x{}x{}",
        workgroup[0], workgroup[1], workgroup[2]
    )]
    WorkgroupSize {
        /// Work-items in each dimension.
        workgroup: [u16; 3],
        /// The most work-items it may have.
        limit: u32,
    },
    /// The dispatch needs more group segment than there is.
    #[error("Group segment of {bytes} B does not fit the device's {limit} B")]
    GroupSegment {
        /// Bytes wanted, static and dynamic together.
        bytes: u32,
        /// Bytes a work-group can have.
        limit: u32,
    },
    /// The kernel object is missing or unreadable.
    #[error("Kernel object {address:#x} is no kernel descriptor")]
    CodeObject {
        /// Its GPU address.
        address: u64,
    },
    /// The kernel needs more registers than a wave can have.
    #[error("Kernel wants {wanted} VGPRs per lane, a wave can have {limit}")]
    Registers {
        /// Registers its descriptor asks for.
        wanted: u32,
        /// Registers a wave of the target can have.
        limit: u32,
    },
}

impl PacketError {
    /// The exception that this error raises on its queue.
    ///
    /// The classes are KFD's; which field belongs to which class is inferred from the codes' names and from
    /// how AMD's runtime translates them, since the firmware is not public. [`PacketError::Unpublished`]
    /// raises nothing on hardware: a processor waits there, and only one that was told to execute such a slot
    /// reports it.
    #[must_use]
    pub const fn exception_code(&self) -> ExceptionCode {
        match self {
            Self::Unpublished | Self::Unsupported { .. } | Self::KindMismatch { .. } => {
                ExceptionCode::PacketUnsupported
            }
            Self::Vendor { .. } | Self::Constant { .. } | Self::IndirectBuffer { .. } => {
                ExceptionCode::PacketVendorUnsupported
            }
            Self::Reserved { .. } | Self::FenceScope { .. } | Self::Condition { .. } => {
                ExceptionCode::PacketReserved
            }
            Self::Dimensions { .. } | Self::UnusedDimension { .. } | Self::EmptyGrid { .. } => {
                ExceptionCode::PacketDispatchDimInvalid
            }
            Self::WorkgroupSize { .. } => ExceptionCode::PacketDispatchWorkGroupSizeInvalid,
            Self::GroupSegment { .. } => ExceptionCode::PacketDispatchGroupSegmentSizeInvalid,
            Self::CodeObject { .. } => ExceptionCode::PacketDispatchCodeInvalid,
            Self::Registers { .. } => ExceptionCode::PacketDispatchRegisterInvalid,
        }
    }
}
