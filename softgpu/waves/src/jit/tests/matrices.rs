// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matrix operations whose factors stay as floats, and operations in between that change them.

use softgpu_isa::{Fmt, Op, decode, info};

use super::random::{self, Random, below};
use super::{Place, compare_from, generates_code, lanes, seconds, wave};
use crate::jit::matrix::{Factor, Factors};
use crate::jit::touch::Touch;
use crate::predecode::Shape;
use crate::wave::Wave;
use std::time::Instant;

/// Registers of the waves: three accumulators, then factors, which overlap.
const VGPRS: usize = 52;
const FACTORS: u32 = 24;
const COUNTER: u32 = 30;

fn opcode(op: Op, fmt: Fmt) -> u32 {
    let code = info(op).opcode(softgpu_isa::EncodingFamily::Gfx11, fmt);
    u32::from(code.expect("an opcode"))
}

fn multiply(r: &mut Random) -> Vec<u32> {
    let op = if r.chance(3) { Op::V_WMMA_F32_16X16X16_BF16 } else { Op::V_WMMA_F32_16X16X16_F16 };
    let factor = |r: &mut Random| 256 + FACTORS + below(r, 6) * 4;
    let to = below(r, 3) * 8;
    let addend = match r.below(6) {
        0 => 240 + below(r, 9),
        1 => 256 + below(r, 3) * 8,
        // Overlaps the result.
        2 => 256 + (to + 2).min(16),
        _ => 256 + to,
    };
    let low = 0xCC00_4000 | opcode(op, Fmt::Vop3p) << 16 | to;
    vec![low, 0x1800_0000 | factor(r) | factor(r) << 9 | addend << 18]
}

/// Changes one register: a factor, or an accumulator.
fn change(r: &mut Random) -> u32 {
    let to = if r.chance(4) { below(r, FACTORS) } else { FACTORS + below(r, VGPRS as u32 - FACTORS) };
    let mov = 0x7E00_0000 | opcode(Op::V_MOV_B32, Fmt::Vop1) << 9 | to << 17;
    match r.below(3) {
        0 => mov | (256 + below(r, VGPRS as u32)),
        1 => mov | (240 + below(r, 9)),
        _ => opcode(Op::V_XOR_B32, Fmt::Vop2) << 25 | to << 17 | below(r, VGPRS as u32) << 9 | 129,
    }
}

fn program(r: &mut Random) -> Vec<u32> {
    let mut words = vec![0xBE80_0000 | COUNTER << 16 | (129 + below(r, 2))];
    let start = words.len();
    for _ in 0..3 + r.below(20) {
        match r.below(8) {
            0 | 1 => words.push(change(r)),
            // s_cbranch_vccz over an operation, which begins a block.
            2 if r.chance(3) => words.extend([0xBFA3_0001, change(r)]),
            _ => words.extend(multiply(r)),
        }
    }
    words.push(0x8080_0000 | COUNTER << 16 | 129 << 8 | COUNTER);
    words.push(0xBF07_0000 | 128 << 8 | COUNTER);
    let distance = start as i64 - (words.len() as i64 + 1);
    words.push(0xBFA2_0000 | distance as u32 & 0xFFFF);
    words.push(random::END);
    words
}

fn start(r: &mut Random, place: &Place) -> Wave {
    let lanes = lanes(r);
    let like = wave(r, lanes, place.at);
    let mut w = Wave::new(like.lanes(), VGPRS);
    (w.s, w.pc, w.mode, w.lds_bytes) = (like.s, like.pc, like.mode, like.lds_bytes);
    let has_nans = r.chance(4);
    for row in &mut w.v {
        for x in &mut row.0 {
            // Without exponents of infinities, of f16 and of f32.
            *x = if has_nans { r.bits() } else { r.bits() & 0xBBFF_BBFF };
        }
    }
    w
}

#[test]
fn matrix_operations_agree() {
    if !generates_code() {
        return;
    }
    let (place, mut r) = (Place::new(), Random(0x3A7_21CE));
    let deadline = Instant::now() + seconds();
    let mut programs = 0;
    while Instant::now() < deadline {
        let words = program(&mut r);
        let w = start(&mut r, &place);
        if let Err(text) = compare_from(&place, &words, w, r.next()) {
            panic!("{text}");
        }
        programs += 1;
    }
    println!("{programs} programs");
    assert!(programs > 20, "only {programs} programs");
}

#[test]
fn factor_is_kept_until_one_of_its_registers_changes() {
    let touch = |words: &[u32]| Touch::of(&decode(words).unwrap(), &[], Shape { halves: 1, vgprs: VGPRS });
    let mov = |to: u32| touch(&[0x7E00_0000 | opcode(Op::V_MOV_B32, Fmt::Vop1) << 9 | to << 17 | 256]);
    let factor = |first| Factor { first, op: Some(Op::V_WMMA_F32_16X16X16_F16) };
    let mut factors = Factors::default();
    let (place, is_new) = factors.place(factor(24));
    assert!(is_new);
    factors.forget(&mov(23));
    factors.forget(&mov(32));
    assert_eq!(factors.place(factor(24)), (place, false));
    let other = Factor { op: Some(Op::V_WMMA_F32_16X16X16_BF16), ..factor(24) };
    assert!(factors.place(other).1, "f16 and bf16 are not the same floats");
    for register in [24, 31] {
        factors.forget(&mov(register));
        assert!(factors.place(factor(24)).1, "v{register} is one of its registers");
    }
    // The places are taken in turns; the two of one operation are never the same place.
    for first in (0..200).step_by(2) {
        let (a, b) = (factors.place(factor(first)), factors.place(factor(first + 1)));
        assert!(a.0 != b.0 && a.1 && b.1);
    }
    factors.clear();
    assert!(factors.place(factor(199)).1);
}
