// SPDX-License-Identifier: MIT OR Apache-2.0
//! What differs between the SDMA engines of different chips.
//!
//! Sources: the kernel's `vega10_sdma_pkt_open.h`, `navi10_sdma_pkt_open.h` and `sdma_v6_0_0_pkt_open.h` for
//! the widths of fields; ROCr's choice of copy size for gfx90a and gfx10.3, whose engines have wider counts
//! than those headers say. SDMA 7 has the packets of SDMA 6 (`sdma_v7_0.c` includes the same header, and ROCr's
//! `GpuAgent::CreateBlitSdma` makes the same class for both) but for the rectangle copy, whose fields have other widths
//! (ROCr `sdma_registers.h`, `SDMA_PKT_COPY_LINEAR_RECT_GFX12`). What SDMA 7 adds is for compressed memory: bit 19 of a
//! linear copy (`CPV`), which makes it eight dwords long, and bit 16 of a fill. As by ROCr both are 0 here.

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
    /// SDMA 7: gfx12.
    V7,
}

/// Bits of the fields of a rectangle copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RectBits {
    /// Of an offset and an extent in x and in y.
    pub xy: u32,
    /// Of an offset and an extent in z.
    pub z: u32,
    /// Of a pitch, which is at the top of its dword.
    pub pitch: u32,
    /// Of a slice pitch.
    pub slice: u32,
}

impl Generation {
    /// Every generation, oldest first.
    pub const ALL: [Self; 6] = [Self::V4, Self::V4_4, Self::V5, Self::V5_2, Self::V6, Self::V7];

    /// The generation of a target's engines; `None` where [`crate::sdma`] does not know their packets.
    #[must_use]
    pub const fn of(target: &Target) -> Option<Self> {
        target.sdma
    }

    /// Bits of a linear copy's byte count.
    #[must_use]
    pub const fn copy_count_bits(self) -> u32 {
        match self {
            Self::V4 | Self::V5 => 22,
            Self::V4_4 | Self::V5_2 | Self::V6 | Self::V7 => 30,
        }
    }

    /// Bits of a constant fill's byte count.
    #[must_use]
    pub const fn fill_count_bits(self) -> u32 {
        match self {
            Self::V4 | Self::V4_4 | Self::V5 | Self::V5_2 => 22,
            Self::V6 | Self::V7 => 30,
        }
    }

    /// Bits of the fields of a rectangle copy.
    pub(crate) const fn rect_bits(self) -> RectBits {
        let narrow = RectBits { xy: 14, z: 11, pitch: 19, slice: 28 };
        match self {
            Self::V4 | Self::V4_4 => narrow,
            Self::V5 | Self::V5_2 | Self::V6 => RectBits { z: 13, ..narrow },
            Self::V7 => RectBits { xy: 16, z: 14, pitch: 16, slice: 32 },
        }
    }

    /// Whether a fence says which memory type it writes.
    pub(crate) const fn has_mtype(self) -> bool {
        matches!(self, Self::V5 | Self::V5_2 | Self::V6 | Self::V7)
    }

    /// Whether the engine sits above the GPU's caches and has a packet to manage them.
    #[must_use]
    pub const fn has_gcr(self) -> bool {
        matches!(self, Self::V5 | Self::V5_2 | Self::V6 | Self::V7)
    }

    /// The memory type that makes a fence's write visible to the host: uncached, where there is a choice.
    #[must_use]
    pub const fn uncached_mtype(self) -> u8 {
        if self.has_mtype() { 3 } else { 0 }
    }
}
