// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops that load and accumulate, several turns of which are one run of generated code.

use softgpu_isa::{EncodingFamily, Fmt, Op, info};

use super::random::{self, DATA, Random, below};
use super::{Place, compare_programs, compare_words, each_block, generates_code, lanes};
use crate::jit::generator::Wide;

/// The loop's counter, and a scalar that is added to addresses in each turn.
pub(super) const COUNTER: u32 = 30;
pub(super) const STEP: u32 = 28;

pub(super) fn code(op: Op, fmt: Fmt) -> u32 {
    info(op).opcode(EncodingFamily::Gfx11, fmt).expect("an opcode").into()
}

pub(super) fn vop2(op: Op, to: u32, a: u32, b: u32) -> u32 {
    code(op, Fmt::Vop2) << 25 | to << 17 | b << 9 | (256 + a)
}

/// A load through the address in `at`, of registers that begin at 4.
pub(super) fn load(r: &mut Random, at: u32, is_local: bool) -> Vec<u32> {
    use Op::*;
    const LOCAL: [Op; 5] = [DS_LOAD_B32, DS_LOAD_B64, DS_LOAD_B128, DS_LOAD_2ADDR_B32, DS_LOAD_2ADDR_B64];
    const GLOBAL: [Op; 3] = [GLOBAL_LOAD_B32, GLOBAL_LOAD_B64, GLOBAL_LOAD_B128];
    let to = 4 + below(r, 2) * 2;
    if is_local {
        let op = LOCAL[r.below(5) as usize];
        let to = if matches!(op, DS_LOAD_B128 | DS_LOAD_2ADDR_B64) { 4 } else { to };
        let offsets = below(r, 16) | below(r, 16) << 8;
        return vec![0xD800_0000 | code(op, Fmt::Ds) << 18 | offsets, to << 24 | at];
    }
    let op = GLOBAL[r.below(3) as usize];
    let to = if op == GLOBAL_LOAD_B128 { 4 } else { to };
    let offset = 4 * below(r, 16);
    vec![0xDC02_0000 | code(op, Fmt::Global) << 18 | offset, to << 24 | DATA << 16 | at]
}

/// An operation of the body: accumulators are registers 1 to 3, what is loaded 4 to 7.
pub(super) fn operation(r: &mut Random) -> u32 {
    use Op::*;
    const OPS: [Op; 7] = [V_FMAC_F32, V_ADD_F32, V_MUL_F32, V_ADD_NC_U32, V_XOR_B32, V_MAX_I32, V_FMAC_F32];
    let op = OPS[r.below(7) as usize];
    let (a, b) = (4 + below(r, 4), 4 + below(r, 4));
    match r.below(6) {
        // Something that the next operations read, or an accumulator that another one reads.
        0 => vop2(V_MUL_F32, a, a, b),
        1 => vop2(op, 1 + below(r, 3), a, 1 + below(r, 3)),
        2 => vop2(op, a, 1 + below(r, 3), b),
        _ => {
            let to = 1 + below(r, 3);
            if op == V_FMAC_F32 { vop2(op, to, a, b) } else { vop2(op, to, a, to) }
        }
    }
}

/// Addresses in 8 and 9, from the work-item's number.
pub(super) fn addresses(r: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for at in [8, 9] {
        words.push(0x7E00_0300 | at << 17);
        if r.chance(2) {
            words.extend([0x3600_0000 | at << 17 | at << 9 | 255, 15]);
        }
        words.push(0x3000_0000 | at << 17 | at << 9 | (128 + below(r, 6)));
        words.extend([0x3600_0000 | at << 17 | at << 9 | 255, if r.chance(4) { 0x3FFF } else { 0xFFF }]);
    }
    words
}

fn program(r: &mut Random, turns: u32) -> Vec<u32> {
    let mut words = vec![0xBE80_0000 | COUNTER << 16 | (128 + turns), 0xBE80_0000 | STEP << 16 | 128];
    words.extend(addresses(r));
    let start = words.len();
    // v10 = s28 + v8, v11 = s28 + v9; or 8 and 9 move on by themselves.
    let is_counted = r.chance(2);
    if is_counted {
        for (to, from) in [(10, 8), (11, 9)] {
            words.push(code(Op::V_ADD_NC_U32, Fmt::Vop2) << 25 | to << 17 | from << 9 | STEP);
        }
        words.extend([0x8000_0000 | STEP << 16 | 255 << 8 | STEP, 4 << below(r, 6)]);
    }
    let addresses = if is_counted { [10, 11] } else { [8, 9] };
    for _ in 0..1 + r.below(3) {
        let is_local = r.chance(2);
        let at = addresses[r.below(2) as usize];
        words.extend(load(r, at, is_local));
    }
    for _ in 0..2 + r.below(9) {
        words.push(operation(r));
    }
    if !is_counted {
        for at in [8, 9] {
            words.extend([0x4A00_0000 | at << 17 | at << 9 | 255, 16]);
        }
    }
    end_loop(&mut words, start);
    words
}

/// The end of a loop that begins at `start`, and of the program.
pub(super) fn end_loop(words: &mut Vec<u32>, start: usize) {
    words.push(0x8080_0000 | COUNTER << 16 | 129 << 8 | COUNTER);
    words.push(0xBF07_0000 | 128 << 8 | COUNTER);
    let distance = start as i64 - (words.len() as i64 + 1);
    words.push(0xBFA2_0000 | distance as u32 & 0xFFFF);
    words.push(random::END);
}

/// How many turns of its loop a program's code does at once.
pub(super) fn turns_at_once(place: &Place, words: &[u32], wide: Wide) -> usize {
    let mut most = 0;
    each_block(place, words, wide, |emitter, block| {
        most = most.max(emitter.copies(block.start, block.end).map_or(0, |copies| copies.scalars.len()));
    });
    most
}

#[test]
fn accumulating_loops_agree() {
    if !generates_code() {
        return;
    }
    let make = |r: &mut Random| {
        let turns = 1 + below(r, 40);
        (program(r, turns), lanes(r))
    };
    let is_unrolled = |place: &Place, words: &[u32]| {
        [Wide::Z, Wide::Y].iter().any(|&wide| turns_at_once(place, words, wide) > 1)
    };
    let (programs, unrolled) = compare_programs(0x1057_7E57, make, is_unrolled);
    println!("{programs} programs, {unrolled} of them unrolled");
    assert!(programs > 20 && unrolled * 4 > programs, "{unrolled} of {programs} were unrolled");
}

/// Such an operation reads what it keeps, although no source names it.
#[test]
fn half_results_keep_the_other_half() {
    if !generates_code() {
        return;
    }
    let place = Place::new();
    let mut r = Random(0x0F16_0F16);
    for turns in 1..40 {
        let mut words = vec![0xBE80_0000 | COUNTER << 16 | (128 + turns)];
        words.extend(addresses(&mut r));
        let start = words.len();
        words.extend([0xDC02_0000 | code(Op::GLOBAL_LOAD_B32, Fmt::Global) << 18, 4 << 24 | DATA << 16 | 8]);
        words.push(0x7E00_0000 | 5 << 17 | code(Op::V_CVT_F16_F32, Fmt::Vop1) << 9 | (256 + 4));
        words.push(vop2(Op::V_XOR_B32, 1, 5, 1));
        words.push(vop2(Op::V_ADD_NC_U32, 2, 5, 2));
        words.push(vop2(Op::V_ADD_F32, 3, 4, 3));
        end_loop(&mut words, start);
        if let Err(text) = compare_words(&place, &words, 32, r.next()) {
            panic!("{text}");
        }
    }
}
