// SPDX-License-Identifier: MIT OR Apache-2.0
//! Outer products of what is loaded, in straight runs and in loops.

use std::time::Instant;

use softgpu_isa::{Fmt, Op};

use super::loops::{COUNTER, STEP, addresses, code, end_loop, vop2};
use super::random::{self, DATA, Random, below};
use super::{Place, compare_from, each_block_with, generates_code, lanes, seconds, wave_with};
use crate::jit::flow;
use crate::jit::generator::Wide;

const VGPRS: usize = 64;
/// The first accumulator, and the first register for factors.
const SUMS: u32 = 10;
const FACTORS: u32 = 36;

/// Loads of `count` registers from `to` on.
fn loads(r: &mut Random, to: u32, count: u32) -> Vec<u32> {
    use Op::*;
    let mut words = Vec::new();
    let mut at = 0;
    while at < count {
        let left = count - at;
        let address = 8 + below(r, 2);
        let local = |op: Op, offsets: u32| {
            [0xD800_0000 | code(op, Fmt::Ds) << 18 | offsets, (to + at) << 24 | address]
        };
        let global = |op: Op, offset: u32| {
            [0xDC02_0000 | code(op, Fmt::Global) << 18 | offset, (to + at) << 24 | DATA << 16 | address]
        };
        let offset = 4 * below(r, 16);
        let pair = below(r, 16) | below(r, 16) << 8;
        let (load, size) = match r.below(6) {
            0 if left >= 4 => (local(DS_LOAD_B128, offset), 4),
            1 if left >= 4 => (local(DS_LOAD_2ADDR_B64, pair), 4),
            2 if left >= 2 => (local(DS_LOAD_2ADDR_B32, pair), 2),
            3 if left >= 2 => (global(GLOBAL_LOAD_B64, offset), 2),
            4 => (global(GLOBAL_LOAD_B32, offset), 1),
            _ => (local(DS_LOAD_B32, offset), 1),
        };
        words.extend(load);
        at += size;
    }
    words
}

/// Accumulations of one turn, in any order: `a` and `b` are the first registers of the sides.
fn accumulations(r: &mut Random, [n, m]: [u32; 2], [a, b]: [u32; 2]) -> Vec<u32> {
    let mut words: Vec<u32> = Vec::new();
    for (i, j) in (0..n).flat_map(|i| (0..m).map(move |j| (i, j))) {
        let (x, y) = if r.chance(3) { (b + j, a + i) } else { (a + i, b + j) };
        let at = r.below(words.len() as u64 + 1) as usize;
        words.insert(at, vop2(Op::V_FMAC_F32, SUMS + i * m + j, x, y));
    }
    words
}

/// Where the sides' registers are in a turn.
fn sides(r: &mut Random, [n, m]: [u32; 2]) -> [u32; 2] {
    let a = FACTORS + below(r, 8);
    [a, a + n + below(r, VGPRS as u32 - a - n - m + 1)]
}

/// Something that is no outer product.
fn disturbance(r: &mut Random) -> u32 {
    let factor = FACTORS + below(r, 12);
    match r.below(3) {
        0 => vop2(Op::V_ADD_F32, SUMS + below(r, 4), factor, SUMS + 5),
        1 => vop2(Op::V_FMAC_F32, SUMS + below(r, 4), factor, factor),
        _ => vop2(Op::V_MUL_F32, factor, factor, factor),
    }
}

fn straight(r: &mut Random, size: [u32; 2]) -> Vec<u32> {
    let mut words = addresses(r);
    let mut before = Vec::new();
    for _ in 0..2 + r.below(12) {
        let sides = sides(r, size);
        let is_loaded = [!r.chance(8), !r.chance(8)];
        let mut next = Vec::new();
        for k in [0, 1] {
            if is_loaded[k] {
                next.extend(loads(r, sides[k], size[k]));
            }
        }
        // The next turn's loads may come before this one's accumulations, which then read them, too.
        if r.chance(2) {
            words.append(&mut before);
            words.extend(next);
        } else {
            words.extend(next);
            words.append(&mut before);
        }
        before = accumulations(r, size, sides);
        if r.chance(40) {
            before.push(disturbance(r));
        }
    }
    words.extend(before);
    if r.chance(3) {
        let sides = sides(r, size);
        words.extend(loads(r, sides[0], size[0]));
    }
    words.push(random::END);
    words
}

fn in_a_loop(r: &mut Random, size: [u32; 2]) -> Vec<u32> {
    let turns = 1 + below(r, 20);
    let mut words = vec![0xBE80_0000 | COUNTER << 16 | (128 + turns), 0xBE80_0000 | STEP << 16 | 128];
    words.extend(addresses(r));
    let start = words.len();
    let sides = sides(r, size);
    for k in [0, 1] {
        words.extend(loads(r, sides[k], size[k]));
    }
    words.extend(accumulations(r, size, sides));
    if r.chance(10) {
        words.push(disturbance(r));
    }
    for at in [8, 9] {
        words.extend([0x4A00_0000 | at << 17 | at << 9 | 255, 16]);
    }
    end_loop(&mut words, start);
    words
}

/// Whether a program's code has tiles, in a run or in a loop.
fn has_tiles(place: &Place, words: &[u32], wide: Wide) -> bool {
    let mut has_tiles = false;
    each_block_with(place, words, wide, VGPRS, |emitter, block| {
        has_tiles |= emitter
            .copies(block.start, block.end)
            .is_some_and(|copies| emitter.by_tiles(&copies.late).is_some());
        let none = vec![false; block.len()];
        let units = flow::units(emitter.program, block.start, block.end, wide, emitter.floats, &none);
        for at in 0..units.len() {
            let (count, is_worth_it) = emitter.piecewise_run(&units[at..]);
            has_tiles |= is_worth_it && emitter.has_products(&units[at..at + count]);
            emitter.pass_unit(&units[at]);
        }
    });
    has_tiles
}

fn compare(seed: u64, make: fn(&mut Random, [u32; 2]) -> Vec<u32>) {
    if !generates_code() {
        return;
    }
    let (place, mut r) = (Place::new(), Random(seed));
    let deadline = Instant::now() + seconds();
    let (mut programs, mut special) = (0, 0);
    while Instant::now() < deadline {
        let size = [2 + below(&mut r, 4), 2 + below(&mut r, 4)];
        let words = make(&mut r, size);
        special += u32::from([Wide::Z, Wide::Y].iter().any(|&wide| has_tiles(&place, &words, wide)));
        let lanes = lanes(&mut r);
        let start = wave_with(&mut r, lanes, place.at, VGPRS);
        if let Err(text) = compare_from(&place, &words, start, r.next()) {
            panic!("{text}");
        }
        programs += 1;
    }
    println!("{programs} programs, {special} of them with tiles");
    assert!(programs > 20 && special * 8 > programs, "{special} of {programs} have tiles");
}

#[test]
fn products_of_straight_runs_agree() {
    compare(0x5EED_0A7B, straight);
}

#[test]
fn products_of_loops_agree() {
    compare(0x5EED_100B, in_a_loop);
}
