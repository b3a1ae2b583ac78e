// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rectangle copy as a list of rows.
//!
//! INVARIANT: row `n` depends on the packet and `n` alone, so a copy can resume after any row.

use queues::sdma::{CopyRect, RectSide};

/// One row of the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// GPU address of the first byte to read.
    pub(super) src: u64,
    /// GPU address of the first byte to write.
    pub(super) dst: u64,
    /// Length.
    pub(super) bytes: u64,
}

/// How many rows the box has.
pub(super) fn rows(copy: &CopyRect) -> u64 {
    let [_, height, depth] = copy.extent.map(u64::from);
    height * depth
}

/// The row with this number, y before z.
pub(super) fn row(copy: &CopyRect, number: u64) -> Row {
    let [width, height, _] = copy.extent.map(u64::from);
    let (y, z) = (number % height.max(1), number / height.max(1));
    let element = u64::from(copy.element_bytes());
    let address = |side: &RectSide| {
        let [x, first_y, first_z] = side.offset.map(u64::from);
        // Fields of 16, 19 and 32 bits: the sum is far from 2^64.
        let elements = (first_z + z) * side.slice_pitch + (first_y + y) * u64::from(side.pitch) + x;
        side.address.wrapping_add(elements * element)
    };
    Row { src: address(&copy.src), dst: address(&copy.dst), bytes: width * element }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_pitch_and_slice_pitch_of_their_side() {
        let side = |address, offset, pitch, slice_pitch| RectSide { address, offset, pitch, slice_pitch };
        let copy = CopyRect {
            element_log2: 2,
            src: side(0x1000, [1, 2, 3], 10, 100),
            dst: side(0x9000, [0, 1, 0], 20, 60),
            extent: [5, 3, 2],
        };
        assert_eq!(rows(&copy), 6);
        assert_eq!(row(&copy, 0), Row { src: 0x1000 + 4 * (300 + 20 + 1), dst: 0x9000 + 4 * 20, bytes: 20 });
        assert_eq!(
            row(&copy, 5),
            Row { src: 0x1000 + 4 * (400 + 40 + 1), dst: 0x9000 + 4 * (60 + 60), bytes: 20 }
        );
    }
}
