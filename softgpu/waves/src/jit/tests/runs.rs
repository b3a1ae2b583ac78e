// SPDX-License-Identifier: MIT OR Apache-2.0
//! Straight runs of loads and lane-wise operations, done for one piece of the rows after the other.

use std::time::Instant;

use softgpu_isa::{Fmt, Op};

use super::loops::{STEP, addresses, code, load, operation, vop2};
use super::random::{self, Random, below};
use super::{Place, compare_words, seconds};
use crate::facts::Fact;
use crate::jit::emit::Emitter;
use crate::jit::flow;
use crate::jit::generator::Wide;
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::Cache;
use crate::wave::mode;

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
    place.put(words);
    let (cache, map) = (Cache::default(), place.vm.lock());
    let shape = Shape { halves: 1, vgprs: random::VGPRS as usize };
    let program = cache.get(&map, Level::Baseline, shape, place.at);
    let items = Fact::of_items([256, 1, 1], u32::MAX);
    let mut emitter = Emitter::new(&program, wide, mode::FP_DEFAULT | mode::IEEE, items);
    let blocks: Vec<usize> = emitter.leaders.iter().copied().chain([program.steps.len()]).collect();
    let mut has_run = false;
    for (k, range) in blocks.windows(2).enumerate() {
        emitter.facts = emitter.heads[k].clone();
        let units = flow::units(&program, range[0], range[1], wide, emitter.floats);
        for at in 0..units.len() {
            let begins = matches!(&units[at], flow::Unit::One(item) if item.is_transfer());
            has_run |= begins && emitter.piecewise_run(&units[at..]).1;
            emitter.pass_unit(&units[at]);
        }
    }
    has_run
}

#[test]
fn runs_of_loads_and_operations_agree() {
    if Level::best() < Level::Avx2 {
        println!("skipped: this CPU has no AVX2, so there is no generated code");
        return;
    }
    let place = Place::new();
    let mut r = Random(0x5EED_2A75);
    let deadline = Instant::now() + seconds();
    let (mut programs, mut with_runs) = (0, 0);
    while Instant::now() < deadline {
        let words = program(&mut r);
        with_runs += u32::from([Wide::Z, Wide::Y].iter().any(|&wide| has_run(&place, &words, wide)));
        let lanes = if r.chance(4) { 64 } else { 32 };
        if let Err(text) = compare_words(&place, &words, lanes, r.next()) {
            panic!("{text}");
        }
        programs += 1;
    }
    println!("{programs} programs, {with_runs} of them with runs");
    assert!(programs > 20 && with_runs * 4 > programs, "{with_runs} of {programs} have runs");
}
