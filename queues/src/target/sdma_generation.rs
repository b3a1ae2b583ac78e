// SPDX-License-Identifier: MIT OR Apache-2.0
//! What differs between the SDMA engines of different chips.
//!
//! Sources: the kernel's `vega10_sdma_pkt_open.h`, `navi10_sdma_pkt_open.h` and `sdma_v6_0_0_pkt_open.h` for
//! the widths of fields; ROCr's choice of copy size for gfx90a and gfx10.3, whose engines have wider counts
//! than those headers say.

use super::Target;

/// A version of the packet set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Generation {
    /// SDMA 4.0 to 4.2: gfx900 to gfx908.
    V4,
    /// SDMA 4.4: gfx90a, gfx942 and gfx950.
    V4_4,
    /// SDMA 5.0: gfx10.1.
    V5,
    /// SDMA 5.2: gfx10.3.
    V5_2,
    /// SDMA 6: gfx11.
    V6,
}

impl Generation {
    /// Every generation, oldest first.
    pub const ALL: [Self; 5] = [Self::V4, Self::V4_4, Self::V5, Self::V5_2, Self::V6];

    /// The generation of a target's engines; `None` for gfx12, whose packets [`crate::sdma`] does not know.
    #[must_use]
    pub const fn of(target: &Target) -> Option<Self> {
        target.sdma
    }

    /// Bits of a linear copy's byte count.
    #[must_use]
    pub const fn copy_count_bits(self) -> u32 {
        match self {
            Self::V4 | Self::V5 => 22,
            Self::V4_4 | Self::V5_2 | Self::V6 => 30,
        }
    }

    /// Bits of a constant fill's byte count.
    #[must_use]
    pub const fn fill_count_bits(self) -> u32 {
        match self {
            Self::V4 | Self::V4_4 | Self::V5 | Self::V5_2 => 22,
            Self::V6 => 30,
        }
    }

    /// Bits of a z coordinate in a rectangle copy.
    pub(crate) const fn rect_z_bits(self) -> u32 {
        match self {
            Self::V4 | Self::V4_4 => 11,
            Self::V5 | Self::V5_2 | Self::V6 => 13,
        }
    }

    /// Whether a fence says which memory type it writes.
    pub(crate) const fn has_mtype(self) -> bool {
        matches!(self, Self::V5 | Self::V5_2 | Self::V6)
    }

    /// Whether the engine sits above the GPU's caches and has a packet to manage them.
    #[must_use]
    pub const fn has_gcr(self) -> bool {
        matches!(self, Self::V5 | Self::V5_2 | Self::V6)
    }

    /// The memory type that makes a fence's write visible to the host: uncached, where there is a choice.
    #[must_use]
    pub const fn uncached_mtype(self) -> u8 {
        if self.has_mtype() { 3 } else { 0 }
    }
}
