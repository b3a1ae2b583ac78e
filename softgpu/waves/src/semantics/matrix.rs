// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wave matrix multiply-accumulate: D = A * B + C of 16 by 16 elements, accumulated in k order with fused steps.

use softgpu_isa::{Fmt, Op, OpInfo};

use super::encode::{VGPR0, Vector};
use super::entry::{Check, Entry};
use super::exact::{self, F16, F32, NEAREST};
use super::lab::Lab;
use crate::wave::Wave;

const fn own(op: Op, check: fn(&mut Lab, &'static OpInfo)) -> Entry {
    Entry { op, check: Check::Own(check) }
}

pub(crate) const ENTRIES: &[Entry] = &[
    own(Op::V_WMMA_F32_16X16X16_F16, floats),
    own(Op::V_WMMA_F32_16X16X16_BF16, floats),
    own(Op::V_WMMA_F16_16X16X16_F16, floats),
    own(Op::V_WMMA_BF16_16X16X16_BF16, floats),
    own(Op::V_WMMA_I32_16X16X16_IU8, integers),
    own(Op::V_WMMA_I32_16X16X16_IU4, integers),
];

const A: usize = 0;
const B: usize = 8;
const C: usize = 16;
const D: usize = 30;

/// Register and lane of element (row, column) of C and D.
fn place(w: &Wave, row: usize, column: usize) -> (usize, usize) {
    let per_register = w.lanes() / 16;
    (row / per_register, row % per_register * 16 + column)
}

/// Element `k` of lane `lane` of A or B, of `bits` bits.
fn element(w: &Wave, first: usize, lane: usize, k: usize, bits: usize) -> u32 {
    let word = w.vgpr(first + k * bits / 32, lane);
    word >> (k * bits % 32) & (u32::MAX >> (32 - bits))
}

fn widen(brain: bool, x: u32) -> u64 {
    if brain { u64::from(x << 16) } else { exact::convert(F16, F32, x.into(), NEAREST) }
}

fn narrow(brain: bool, x: u64) -> u32 {
    if !brain {
        return exact::convert(F32, F16, x, NEAREST) as u32;
    }
    let (bits, rest) = ((x >> 16) as u32, x & 0xFFFF);
    if F32.is_nan(x) {
        bits | 0x40
    } else {
        bits + u32::from(rest > 0x8000 || (rest == 0x8000 && bits & 1 != 0))
    }
}

/// Mostly small numbers, so that sums do not overflow; sometimes any bits.
fn fill(lab: &mut Lab, w: &mut Wave, brain: bool, wild: bool) {
    for register in 0..C {
        for lane in 0..w.lanes() {
            let mut half = || {
                let x = ((lab.r.below(64) as f32) - 32.0) / 8.0;
                if wild && lab.r.one_in(40) {
                    lab.r.next() & 0xFFFF
                } else if brain {
                    x.to_bits() >> 16
                } else {
                    exact::convert(F32, F16, x.to_bits().into(), NEAREST) as u32
                }
            };
            let value = half() | half() << 16;
            w.set_vgpr(register, lane, value);
        }
    }
}

fn repeat_lanes(w: &mut Wave) {
    for register in 0..C {
        for lane in 16..w.lanes() {
            let value = w.vgpr(register, lane % 16);
            w.set_vgpr(register, lane, value);
        }
    }
}

fn fields(op_sel: u32, neg: u32, clamp: bool) -> Vector {
    let src = [A, B, C].map(|r| VGPR0 + r as u32);
    Vector { dst: D as u32, src, op_sel, neg, clamp, ..Vector::default() }
}

fn floats(lab: &mut Lab, row: &'static OpInfo) {
    let brain = row.name.ends_with("bf16");
    let short = !row.name.starts_with("v_wmma_f32");
    for trial in 0..8 {
        let mut w = lab.wave(1 + trial % 2);
        fill(lab, &mut w, brain, trial >= 4);
        repeat_lanes(&mut w);
        let high = short && lab.r.one_in(2);
        let mut want = w.clone();
        for i in 0..16 {
            for j in 0..16 {
                let (register, lane) = place(&w, i, j);
                let c = w.vgpr(C + register, lane);
                let mut sum = match (short, high) {
                    (false, _) => c.into(),
                    (true, false) => widen(brain, c & 0xFFFF),
                    (true, true) => widen(brain, c >> 16),
                };
                for k in 0..16 {
                    let [x, y] = [(A, i), (B, j)].map(|(m, lane)| widen(brain, element(&w, m, lane, k, 16)));
                    sum = exact::fma(F32, x, y, sum, NEAREST);
                }
                let old = w.vgpr(D + register, lane);
                let result = match (short, high) {
                    (false, _) => sum as u32,
                    (true, false) => old & 0xFFFF_0000 | narrow(brain, sum),
                    (true, true) => old & 0xFFFF | narrow(brain, sum) << 16,
                };
                want.set_vgpr(D + register, lane, result);
            }
        }
        let mut got = w;
        let words = fields(u32::from(high) << 2, 0, false).encode(row, Fmt::Vop3p);
        lab.run(&mut got, &words);
        lab.same(&want, &got, &format!("high {high}"));
    }
}

fn integers(lab: &mut Lab, row: &'static OpInfo) {
    let bits = if row.name.ends_with("iu8") { 8 } else { 4 };
    for trial in 0..8 {
        let mut w = lab.wave(1 + trial % 2);
        repeat_lanes(&mut w);
        let (neg, clamp) = (lab.r.next() & 3, lab.r.one_in(2));
        let value = |first: usize, lane: usize, k: usize, signed: bool| {
            let x = i64::from(element(&w, first, lane, k, bits));
            if signed && x >> (bits - 1) != 0 { x - (1 << bits) } else { x }
        };
        let mut want = w.clone();
        for i in 0..16 {
            for j in 0..16 {
                let (register, lane) = place(&w, i, j);
                let products = (0..16).map(|k| value(A, i, k, neg & 1 != 0) * value(B, j, k, neg & 2 != 0));
                let sum = products.sum::<i64>() + i64::from(w.vgpr(C + register, lane) as i32);
                let sum = if clamp { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum };
                want.set_vgpr(D + register, lane, sum as u32);
            }
        }
        let mut got = w.clone();
        lab.run(&mut got, &fields(0, neg, clamp).encode(row, Fmt::Vop3p));
        lab.same(&want, &got, &format!("neg {neg} clamp {clamp}"));
    }
}
