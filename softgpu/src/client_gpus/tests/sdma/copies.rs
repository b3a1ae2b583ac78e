// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies against models of them.

use proptest::prelude::*;
use queues::sdma::{CopyRect, RectSide};

use super::*;

fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    };
    (0..length.div_ceil(4)).flat_map(|_| next()).take(length).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_copies_of_any_alignment_touch_exactly_their_bytes(
        src_at in 0_usize..70, dst_at in 0_usize..70, small in 1_usize..600, pieces in 0_usize..2, seed: u32,
    ) {
        let length = small + (pieces << 20);
        let machine = Machine::new();
        let engine = Engine::new(&machine, 1);
        let room = length.next_multiple_of(4) + 140;
        let (src, dst) = (machine.buffer(room, DATA), machine.buffer(room, DATA));
        let (from, mut to) = (noise(room, seed), noise(room, !seed));
        src.fill(0, &from);
        dst.fill(0, &to);
        engine.copy(dst.va + dst_at as u64, src.va + src_at as u64, u32::try_from(length).unwrap());
        engine.finish();
        to[dst_at..dst_at + length].copy_from_slice(&from[src_at..src_at + length]);
        prop_assert!(dst.bytes(0, room / 4 * 4) == to[..room / 4 * 4]);
        prop_assert!(src.bytes(0, room / 4 * 4) == from[..room / 4 * 4]);
    }

    #[test]
    fn rectangle_copies_move_exactly_their_box(
        element_log2 in 0_u8..=4,
        extent in [1_u32..12, 1_u32..8, 1_u32..5],
        src in ([0_u32..6, 0_u32..4, 0_u32..3], 0_u32..9, 0_u32..70),
        dst in ([0_u32..6, 0_u32..4, 0_u32..3], 0_u32..9, 0_u32..70),
        seed: u32,
    ) {
        // Arrays that hold the box, with some elements between rows and slices.
        let side = |(offset, row_gap, slice_gap): ([u32; 3], u32, u32), address| {
            let pitch = offset[0] + extent[0] + row_gap;
            let slice_pitch = u64::from(pitch * (offset[1] + extent[1]) + slice_gap);
            RectSide { address, offset, pitch, slice_pitch }
        };
        let room =
            |side: &RectSide| side.slice_pitch as usize * (side.offset[2] + extent[2]) as usize * 16;
        let machine = Machine::new();
        let engine = Engine::new(&machine, 1);
        let memory = [machine.buffer(room(&side(src, 0)), DATA), machine.buffer(room(&side(dst, 0)), DATA)];
        let (src, dst) = (side(src, memory[0].va), side(dst, memory[1].va));
        let (from, mut to) = (noise(room(&src), seed), noise(room(&dst), !seed));
        memory[0].fill(0, &from);
        memory[1].fill(0, &to);
        engine.submit(&[Packet::CopyRect(CopyRect { element_log2, src, dst, extent })]);
        engine.finish();
        let element = 1_usize << element_log2;
        for z in 0..extent[2] {
            for y in 0..extent[1] {
                for x in 0..extent[0] {
                    let at = |side: &RectSide| {
                        let [x0, y0, z0] = side.offset;
                        let row = u64::from(z0 + z) * side.slice_pitch + u64::from((y0 + y) * side.pitch);
                        (row as usize + (x0 + x) as usize) * element
                    };
                    to[at(&dst)..][..element].copy_from_slice(&from[at(&src)..][..element]);
                }
            }
        }
        prop_assert!(memory[1].bytes(0, to.len()) == to);
    }
}

#[test]
fn copies_one_after_another_see_each_others_results() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let memory = machine.buffer(64 << 10, DATA);
    memory.fill(0, &[0x3c; 4096]);
    // Each doubles what is there.
    let double = |bytes: u32| {
        Packet::CopyLinear(CopyLinear { bytes, src: memory.va, dst: memory.va + u64::from(bytes) })
    };
    engine.submit(&[4096, 8192, 16384, 32768].map(double));
    engine.finish();
    assert_eq!(memory.bytes(0, 64 << 10), [0x3c; 64 << 10]);
}

#[test]
fn overlapping_copies_harm_nobody() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let memory = machine.buffer(4 << 20, DATA);
    memory.fill(0, &noise(4 << 20, 5));
    let before = memory.bytes(0, 4 << 20);
    engine.copy(memory.va, memory.va + 333, 3 << 20);
    engine.finish();
    assert!(memory.bytes(0, 3 << 20) == before[333..333 + (3 << 20)], "towards lower addresses it is exact");
    engine.copy(memory.va + 333, memory.va, 3 << 20);
    engine.finish();
    assert_eq!(*machine.driver.exceptions.lock(), []);
}
