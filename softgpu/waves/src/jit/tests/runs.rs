// SPDX-License-Identifier: MIT OR Apache-2.0
//! Straight runs of loads and lane-wise operations, done for one piece of the rows after the other.

use softgpu_isa::{Fmt, Op};

use super::loops::{STEP, addresses, code, load, operation, vop2};
use super::random::{self, Random, below};
use super::{Place, compare_programs, each_block, generates_code, lanes};
use crate::jit::flow;
use crate::jit::generator::Wide;

fn program(r: &mut Random) -> Vec<u32> {
    let mut words = addresses(r);
    for _ in 0..2 + r.below(5) {
        for _ in 0..r.below(5) {
            let (at, is_local) = (8 + below(r, 2), r.chance(2));
            words.extend(load(r, at, is_local));
        }
        for _ in 0..r.below(8) {
            match r.below(24) {
                // A scalar that operations may have read, and may read.
                0 => words.extend([0x8000_0000 | STEP << 16 | 255 << 8 | STEP, 1 + below(r, 9)]),
                // An address.
                1 => words.push(vop2(Op::V_XOR_B32, 8 + below(r, 2), 4, 4)),
                2..4 => {
                    words.push(
                        code(Op::V_ADD_NC_U32, Fmt::Vop2) << 25 | (4 + below(r, 4)) << 17 | 5 << 9 | STEP,
                    );
                }
                _ => words.push(operation(r)),
            }
        }
    }
    words.push(random::END);
    words
}

/// Whether a program's code has a run.
fn has_run(place: &Place, words: &[u32], wide: Wide) -> bool {
    let mut has_run = false;
    each_block(place, words, wide, |emitter, block| {
        let none = vec![false; block.len()];
        let units = flow::units(emitter.program, block.start, block.end, wide, emitter.floats, &none);
        for at in 0..units.len() {
            let begins = matches!(&units[at], flow::Unit::One(item) if item.is_transfer());
            has_run |= begins && emitter.piecewise_run(&units[at..]).1;
            emitter.pass_unit(&units[at]);
        }
    });
    has_run
}

#[test]
fn runs_of_loads_and_operations_agree() {
    if !generates_code() {
        return;
    }
    let is_special =
        |place: &Place, words: &[u32]| [Wide::Z, Wide::Y].iter().any(|&wide| has_run(place, words, wide));
    let (programs, with_runs) = compare_programs(0x5EED_2A75, |r| (program(r), lanes(r)), is_special);
    println!("{programs} programs, {with_runs} of them with runs");
    assert!(programs > 20 && with_runs * 4 > programs, "{with_runs} of {programs} have runs");
}
