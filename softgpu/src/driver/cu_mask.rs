// SPDX-License-Identifier: MIT OR Apache-2.0
//! How SET_CU_MASK's bits reach the memory descriptor (`kfd_mqd_manager.c:mqd_symmetrically_map_cu_mask`).
//!
//! INVARIANT: the mask is stored in the memory descriptor and nowhere else, because a checkpoint takes the descriptor.

use queues::cwsr::NodeShape;
use queues::words::count;

use crate::hardware::Mqd;

/// Dwords of `COMPUTE_STATIC_THREAD_MGMT_SE0..=7` in `v11_compute_mqd`.
const STATIC_THREAD_MGMT: [usize; 8] = [23, 24, 26, 27, 44, 45, 46, 47];
/// Bit of a shader engine's word where its second shader array begins.
const SECOND_ARRAY: u32 = 16;

/// The masks of an XCC's shader engines.
pub(super) fn read(mqd: &Mqd, xcc: usize) -> [u32; 8] {
    STATIC_THREAD_MGMT.map(|word| mqd.word_of(xcc, word))
}

/// Sets the masks of an XCC's shader engines.
pub(super) fn write(mqd: &mut Mqd, xcc: usize, masks: [u32; 8]) {
    for (word, mask) in STATIC_THREAD_MGMT.into_iter().zip(masks) {
        mqd.set_word_of(xcc, word, mask);
    }
}

/// Distributes the bits of `mask` over the XCCs first, then over the shader engines, the shader arrays, and the compute
/// units; answers what XCC `xcc` has of it. A step is one unit, or a pair of them that are switched together (a work-group
/// processor). Bits beyond the last compute unit are ignored. No compute unit of these GPUs is harvested.
pub(super) fn distribute(mask: &[u32], shape: &NodeShape, pairs: bool, xcc: u32) -> [u32; 8] {
    let (xccs, step) = (shape.num_xcc.max(1), if pairs { 2 } else { 1 });
    let arrays = shape.simd_arrays_per_engine.clamp(1, 2);
    let engines = (shape.array_count / xccs / arrays).clamp(1, 8);
    let units = shape.simd_count / shape.simd_per_cu.max(1) / xccs / (engines * arrays);
    let bits = count(mask.len()).saturating_mul(32);
    let mut masks = [0u32; 8];
    let mut bit = xcc * step;
    for unit in (0..units.min(SECOND_ARRAY)).step_by(step as usize) {
        for array in 0..arrays {
            for engine in &mut masks[..engines as usize] {
                if bit >= bits {
                    return masks;
                }
                // SET_CU_MASK has checked that both bits of a pair are equal.
                if mask[bit as usize / 32] & 1 << (bit % 32) != 0 {
                    *engine |= ((1 << step) - 1) << (unit + SECOND_ARRAY * array);
                }
                bit += step * xccs;
            }
        }
    }
    masks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six shader engines of two arrays of eight compute units.
    fn gfx1100() -> NodeShape {
        NodeShape {
            gfx_target_version: 110_000,
            simd_count: 192,
            simd_per_cu: 2,
            num_xcc: 1,
            array_count: 12,
            simd_arrays_per_engine: 2,
            ..NodeShape::default()
        }
    }

    #[test]
    fn bits_go_round_the_engines_then_the_arrays_then_the_units() {
        let one = |pair: u32| {
            let mut mask = [0u32; 3];
            mask[pair as usize / 16] = 0b11 << (2 * (pair % 16));
            distribute(&mask, &gfx1100(), true, 0)
        };
        assert_eq!(one(0), [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(5), [0, 0, 0, 0, 0, 3, 0, 0]);
        assert_eq!(one(6), [3 << 16, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(12), [3 << 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one(47), [0, 0, 0, 0, 0, 3 << 22, 0, 0]);
    }

    #[test]
    fn bits_go_round_the_xccs_first() {
        // Two XCCs of four engines with 19 units each, which are not switched in pairs.
        let shape = NodeShape {
            simd_count: 608,
            simd_per_cu: 4,
            num_xcc: 2,
            array_count: 8,
            simd_arrays_per_engine: 1,
            ..NodeShape::default()
        };
        let one = |bit: u32| {
            let mut mask = [0u32; 2];
            mask[bit as usize / 32] = 1 << (bit % 32);
            [0, 1].map(|xcc| distribute(&mask, &shape, false, xcc))
        };
        let none = [0; 8];
        let only = |engine: usize, word: u32| std::array::from_fn(|at| if at == engine { word } else { 0 });
        assert_eq!(one(0), [only(0, 1), none]);
        assert_eq!(one(1), [none, only(0, 1)]);
        assert_eq!(one(2), [only(1, 1), none]);
        assert_eq!(one(7), [none, only(3, 1)]);
        assert_eq!(one(8), [only(0, 2), none]);
        assert_eq!(one(33), [none, only(0, 1 << 4)]);
    }

    #[test]
    fn more_bits_than_units_are_ignored_and_fewer_leave_units_off() {
        assert_eq!(distribute(&[u32::MAX; 32], &gfx1100(), true, 0)[..6], [0x00ff_00ff; 6]);
        assert_eq!(distribute(&[u32::MAX; 32], &gfx1100(), true, 0)[6..], [0, 0]);
        // Sixteen pairs: two for each engine, and a third for the first four.
        let (three, two) = (0x0003_000f, 0x0003_0003);
        assert_eq!(distribute(&[u32::MAX], &gfx1100(), true, 0)[..6], [three, three, three, three, two, two]);
    }

    #[test]
    fn read_finds_what_write_set() {
        let mut mqd = Mqd::with_xccs(2);
        let masks = [1, 2, 3, 4, 5, 6, 7, 8];
        write(&mut mqd, 1, masks);
        assert_eq!((read(&mqd, 0), read(&mqd, 1)), ([0; 8], masks));
        assert_eq!((mqd.word_of(1, 25), mqd.word_of(1, 47)), (0, 8));
    }
}
