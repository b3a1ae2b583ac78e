// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated code needs no feature of the host CPU that `level` has not detected before it gives out a level.
//!
//! The code is only emitted and decoded, so the test checks AVX-512 on any machine.

use std::collections::BTreeSet;

use iced_x86::{CpuidFeature, Decoder, DecoderOptions};

use super::random::{self, Random};
use super::{INLINE, Place};
use crate::engine::Effort;
use crate::facts::Fact;
use crate::jit::emit::Emitter;
use crate::jit::generator::Wide;
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::Cache;
use crate::wave::mode;

/// The features of every x86-64 host.
const BASE: &[CpuidFeature] = {
    use CpuidFeature::*;
    &[INTEL8086, INTEL186, INTEL386, INTEL486, X64, CMOV, SSE, SSE2]
};
/// The further features of [`Level::Avx2`].
const AVX2: &[CpuidFeature] = {
    use CpuidFeature::*;
    &[AVX, CpuidFeature::AVX2, FMA, F16C, BMI1, BMI2, LZCNT, POPCNT]
};
/// The further features of [`Level::Avx512`]: those of Skylake servers.
const AVX512: &[CpuidFeature] = {
    use CpuidFeature::*;
    &[AVX512F, AVX512BW, AVX512DQ, AVX512VL]
};

/// The instructions of generated code for `words` that need more than `allowed`, and the number of all instructions.
fn beyond(
    place: &Place,
    words: &[u32],
    wide: Wide,
    allowed: &BTreeSet<CpuidFeature>,
) -> (Vec<String>, usize) {
    place.put(words);
    let (cache, map) = (Cache::default(), place.vm.lock());
    let shape = Shape { halves: 1, vgprs: random::VGPRS as usize };
    let program = cache.get(&map, Level::Baseline, shape, place.at);
    let mut decoded = Vec::new();
    let items = Fact::of_items([256, 1, 1], u32::MAX);
    let wanted = [(None, Effort::Full), (items, Effort::Full), (items, Effort::Quick)];
    for (items, effort) in wanted {
        // Every program can have code: no form of an operation needs more registers than there are, and quick code is left between
        // instructions.
        let emitter = Emitter::new(&program, wide, mode::FP_DEFAULT | mode::IEEE, items, effort);
        let (finished, _) = emitter.emit().expect("generated code");
        decoded.extend(Decoder::with_ip(64, &finished.code, 0, DecoderOptions::NONE));
    }
    let is_beyond = |i: &&iced_x86::Instruction| i.cpuid_features().iter().any(|f| !allowed.contains(f));
    let named = |i: &iced_x86::Instruction| format!("{:?} wants {:?}", i.code(), i.cpuid_features());
    (decoded.iter().filter(is_beyond).map(named).collect(), decoded.len())
}

fn check(wide: Wide, allowed: &[&[CpuidFeature]]) {
    let allowed: BTreeSet<_> = allowed.iter().copied().flatten().copied().collect();
    let (place, mut r) = (Place::new(), Random(0xFEA7_0123));
    let mut instructions = 0;
    // Each operation in many forms, then random programs.
    let single = INLINE.iter().flat_map(|&op| std::iter::repeat_n(vec![op], 300));
    for ops in single.chain(std::iter::repeat_n(Vec::new(), 600)) {
        let words = random::program(&mut r, if ops.is_empty() { 24 } else { 1 }, 2, &ops);
        let (found, decoded) = beyond(&place, &words, wide, &allowed);
        assert_eq!(found, Vec::<String>::new(), "{wide:?}");
        instructions += decoded;
    }
    assert!(instructions > 100_000, "only {instructions} instructions were looked at");
}

#[test]
fn code_for_avx512_asks_for_what_skylake_servers_have() {
    check(Wide::Z, &[BASE, AVX2, AVX512]);
}

#[test]
fn code_for_avx2_asks_for_nothing_of_avx512() {
    check(Wide::Y, &[BASE, AVX2]);
}
