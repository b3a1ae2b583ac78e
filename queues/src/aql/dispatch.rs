// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel dispatch packet.
//!
//! ```text
//!  0 header | 2 setup | 4,6,8 work-group | 10 0 | 12,16,20 grid | 24 private | 28 group
//! 32 kernel object | 40 kernarg | 48 0 | 56 completion signal
//! ```

use std::fmt;

use super::{Header, PacketError, PacketKind, RawPacket};
use crate::words::{double, halves, word, words};

/// The most work-items that one work-group may have on any supported target.
pub const MAX_WORKGROUP_ITEMS: u32 = 1024;

/// `setup` bits that hold the number of dimensions.
const SETUP_DIMENSIONS: u16 = 3;

/// A request to launch a grid (HSA 1.2 `hsa_kernel_dispatch_packet_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelDispatch {
    /// Barrier bit and fences; the kind is [`PacketKind::KernelDispatch`].
    pub header: Header,
    /// Dimensions of the grid, 1 to 3.
    pub dimensions: u8,
    /// Work-items per work-group in x, y and z.
    pub workgroup: [u16; 3],
    /// Work-items of the whole grid in x, y and z; the last work-group of a dimension may be partial.
    pub grid: [u32; 3],
    /// Scratch per work-item, bytes.
    pub private_segment_bytes: u32,
    /// LDS per work-group, bytes, static and dynamic together.
    pub group_segment_bytes: u32,
    /// GPU address of the kernel descriptor.
    pub kernel_object: u64,
    /// GPU address of the kernel arguments.
    pub kernarg_address: u64,
    /// Handle of the signal that completion decrements, or 0.
    pub completion_signal: u64,
}

impl KernelDispatch {
    /// Work-groups in x, y and z, partial ones included; 0 where the work-group size is 0.
    #[must_use]
    pub fn workgroups(&self) -> [u32; 3] {
        let count = |axis: usize| match u32::from(self.workgroup[axis]) {
            0 => 0,
            size => self.grid[axis].div_ceil(size),
        };
        [count(0), count(1), count(2)]
    }

    /// Work-items of one full work-group.
    #[must_use]
    pub fn workgroup_items(&self) -> u64 {
        self.workgroup.iter().map(|&size| u64::from(size)).product()
    }

    /// Whether the group segment fits a device with `limit` bytes of LDS per work-group.
    ///
    /// # Errors
    /// [`PacketError::GroupSegment`] if it does not.
    pub const fn check_group_segment(&self, limit: u32) -> Result<(), PacketError> {
        if self.group_segment_bytes > limit {
            return Err(PacketError::GroupSegment { bytes: self.group_segment_bytes, limit });
        }
        Ok(())
    }

    pub(super) fn validate(&self) -> Result<(), PacketError> {
        if !(1..=3).contains(&self.dimensions) {
            return Err(PacketError::Dimensions { dimensions: self.dimensions });
        }
        for axis in self.dimensions..3 {
            let (workgroup, grid) = (self.workgroup[usize::from(axis)], self.grid[usize::from(axis)]);
            if workgroup != 1 || grid != 1 {
                let dimensions = self.dimensions;
                return Err(PacketError::UnusedDimension { dimensions, axis, workgroup, grid });
            }
        }
        if self.grid.contains(&0) {
            return Err(PacketError::EmptyGrid { grid: self.grid });
        }
        if !(1..=u64::from(MAX_WORKGROUP_ITEMS)).contains(&self.workgroup_items()) {
            let workgroup = self.workgroup;
            return Err(PacketError::WorkgroupSize { workgroup, limit: MAX_WORKGROUP_ITEMS });
        }
        if self.kernel_object == 0 {
            return Err(PacketError::CodeObject { address: 0 });
        }
        Ok(())
    }

    /// The packet's words, as [`super::Packet::encode`] makes them.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> RawPacket {
        let header = Header { kind: PacketKind::KernelDispatch, ..self.header };
        self.encode_with(header.encode())
    }

    #[inline]
    pub(super) fn encode_with(&self, header: u16) -> RawPacket {
        let [wg_x, wg_y, wg_z] = self.workgroup;
        let [grid_x, grid_y, grid_z] = self.grid;
        let [object_lo, object_hi] = words(self.kernel_object);
        let [kernarg_lo, kernarg_hi] = words(self.kernarg_address);
        let [signal_lo, signal_hi] = words(self.completion_signal);
        [
            word(header, u16::from(self.dimensions)),
            word(wg_x, wg_y),
            word(wg_z, 0),
            grid_x,
            grid_y,
            grid_z,
            self.private_segment_bytes,
            self.group_segment_bytes,
            object_lo,
            object_hi,
            kernarg_lo,
            kernarg_hi,
            0,
            0,
            signal_lo,
            signal_hi,
        ]
    }

    pub(super) fn decode_body(header: Header, raw: &RawPacket) -> Result<Self, PacketError> {
        let [_, setup] = halves(raw[0]);
        let [wg_x, wg_y] = halves(raw[1]);
        let [wg_z, reserved0] = halves(raw[2]);
        for (field, value) in [
            ("setup", u64::from(setup & !SETUP_DIMENSIONS)),
            ("bytes 10..12", u64::from(reserved0)),
            ("bytes 48..56", double(raw[12], raw[13])),
        ] {
            if value != 0 {
                return Err(PacketError::Reserved { field, value });
            }
        }
        Ok(Self {
            header: Header { kind: PacketKind::KernelDispatch, ..header },
            dimensions: (setup & SETUP_DIMENSIONS).to_le_bytes()[0],
            workgroup: [wg_x, wg_y, wg_z],
            grid: [raw[3], raw[4], raw[5]],
            private_segment_bytes: raw[6],
            group_segment_bytes: raw[7],
            kernel_object: double(raw[8], raw[9]),
            kernarg_address: double(raw[10], raw[11]),
            completion_signal: double(raw[14], raw[15]),
        })
    }

    pub(super) fn fmt_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([gx, gy, gz], [wx, wy, wz]) = (self.grid, self.workgroup);
        write!(
            f,
            "dims={} grid={gx}x{gy}x{gz} workgroup={wx}x{wy}x{wz} private={} group={} object={:#x} \
             kernarg={:#x} signal={:#x}",
            self.dimensions,
            self.private_segment_bytes,
            self.group_segment_bytes,
            self.kernel_object,
            self.kernarg_address,
            self.completion_signal,
        )
    }
}
