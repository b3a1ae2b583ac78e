// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wave matrix multiply-accumulate, 16x16x16 (RDNA3 ISA, "Wave Matrix Multiply Accumulate").
//!
//! A and B are in lanes 0..16 (row of A, column of B); the other groups of 16 lanes repeat them. Register `i` of C and
//! D holds, in its lanes' groups of 16, as many rows of the matrix as there are groups: 2 in wave32, 4 in wave64.
//!
//! INVARIANT: EXEC is ignored; each element is accumulated in k order with fused multiply-adds, so results are the same
//! on every host (the hardware's own order is not public).

use super::fp::{f16_to_f32, f32_to_f16};
use super::packed::f32_to_bf16;
use super::shapes::fetch;
use crate::level::{Level, leveled};
use crate::step::{Flow, Handler, Kind, OUT_CLAMP, Src, Step};
use crate::wave::{Lanes, Row, Wave};
use softgpu_isa::Op;

/// Handlers of matrix operations.
pub(crate) fn table(level: Level, op: Op) -> Option<Handler> {
    let _ = level;
    Some(match op {
        Op::V_WMMA_F32_16X16X16_F16 => leveled!(level, |w, _e, s| float(w, s, f16_to_f32, None)),
        Op::V_WMMA_F32_16X16X16_BF16 => leveled!(level, |w, _e, s| float(w, s, bf16, None)),
        Op::V_WMMA_F16_16X16X16_F16 => leveled!(level, |w, _e, s| float(w, s, f16_to_f32, Some(f32_to_f16))),
        Op::V_WMMA_BF16_16X16X16_BF16 => leveled!(level, |w, _e, s| float(w, s, bf16, Some(f32_to_bf16))),
        Op::V_WMMA_I32_16X16X16_IU8 => leveled!(level, |w, _e, s| integer(w, s, 8)),
        Op::V_WMMA_I32_16X16X16_IU4 => leveled!(level, |w, _e, s| integer(w, s, 4)),
        _ => return None,
    })
}

#[inline(always)]
fn bf16(x: u32) -> f32 {
    f32::from_bits(x << 16)
}

/// One half of register `k` of a matrix operand, or the broadcast constant.
fn operand(w: &Wave, s: &Src, k: usize, half: usize) -> Lanes {
    let mut t = [0u32; 32];
    let mut source = *s;
    if source.is_vgpr() {
        source.kind = Kind::Vgpr;
        source.index += (k * w.halves) as u16;
    }
    *fetch(w, &source, half, &mut t)
}

/// Row (A) or column (B) `lane` as 16 floats.
#[inline(always)]
fn unpack(w: &Wave, s: &Src, widen: impl Fn(u32) -> f32) -> [[f32; 16]; 16] {
    let mut m = [[0f32; 16]; 16];
    for k in 0..8 {
        let r = operand(w, s, k, 0);
        for lane in 0..16 {
            m[lane][2 * k] = widen(r[lane] & 0xFFFF);
            m[lane][2 * k + 1] = widen(r[lane] >> 16);
        }
    }
    m
}

#[inline(always)]
fn float(w: &mut Wave, s: &Step, widen: impl Fn(u32) -> f32 + Copy, narrow: Option<fn(f32) -> u32>) -> Flow {
    let a = unpack(w, &s.src[0], widen);
    let b = unpack(w, &s.src[1], widen);
    // Columns of B become rows so that the inner loop runs over columns.
    let mut bt = [[0f32; 16]; 16];
    for (k, row) in bt.iter_mut().enumerate() {
        for (column, x) in row.iter_mut().enumerate() {
            *x = b[column][k];
        }
    }
    let high = s.out & crate::step::OUT_HIGH != 0;
    let start = |x: u32| match narrow {
        None => f32::from_bits(x),
        Some(_) => widen(if high { x >> 16 } else { x & 0xFFFF }),
    };
    for (i, half) in parts(w) {
        let c = operand(w, &s.src[2], i, half);
        let at = s.dst as usize + i * w.halves + half;
        let old = w.v[at].0;
        let mut r = [0u32; 32];
        for upper in 0..2 {
            let row = &a[2 * (i * w.halves + half) + upper];
            let lanes = upper * 16;
            let sum = line(row, &bt, core::array::from_fn(|n| start(c[lanes + n])));
            for n in 0..16 {
                r[lanes + n] = match narrow {
                    None => sum[n].to_bits(),
                    Some(f) if high => old[lanes + n] & 0xFFFF | f(sum[n]) << 16,
                    Some(f) => old[lanes + n] & 0xFFFF_0000 | f(sum[n]),
                };
            }
        }
        w.v[at] = Row(r);
    }
    Flow::Next
}

/// Registers and halves of an accumulator.
#[inline(always)]
fn parts(w: &Wave) -> impl Iterator<Item = (usize, usize)> + use<> {
    let halves = w.halves;
    (0..8).map(move |k| (k / halves, k % halves))
}

/// A row of the result: the row of A times the rows of B, and the row of C.
#[inline(always)]
pub(super) fn line(row: &[f32; 16], b: &[[f32; 16]; 16], start: [f32; 16]) -> [f32; 16] {
    let mut sum = start;
    for k in 0..16 {
        for n in 0..16 {
            sum[n] = row[k].mul_add(b[k][n], sum[n]);
        }
    }
    if sum.iter().any(|x| x.is_nan()) {
        sum = core::array::from_fn(|n| dot(row, &b.map(|row| row[n]), start[n]));
    }
    sum
}

/// One element, with the NaN that the other operations give.
#[cold]
fn dot(row: &[f32; 16], column: &[f32; 16], start: f32) -> f32 {
    let sum = row
        .iter()
        .zip(column)
        .fold(start.to_bits(), |sum, (x, y)| super::nan::fma32(x.to_bits(), y.to_bits(), sum));
    f32::from_bits(sum)
}

#[inline(always)]
fn integer(w: &mut Wave, s: &Step, bits: u32) -> Flow {
    let fields = 32 / bits as usize;
    let unpack = |src: &Src, signed: bool| {
        let mut m = [[0i32; 16]; 16];
        for k in 0..16 / fields {
            let r = operand(w, src, k, 0);
            for lane in 0..16 {
                for field in 0..fields {
                    let up = r[lane] << (32 - bits * (field as u32 + 1));
                    let x = if signed { up as i32 >> (32 - bits) } else { (up >> (32 - bits)) as i32 };
                    m[lane][k * fields + field] = x;
                }
            }
        }
        m
    };
    let a = unpack(&s.src[0], s.flags & 1 != 0);
    let b = unpack(&s.src[1], s.flags & 2 != 0);
    let clamp = s.out & OUT_CLAMP != 0;
    for (i, half) in parts(w) {
        let c = operand(w, &s.src[2], i, half);
        let r = core::array::from_fn(|lane| {
            let (row, column) = (&a[2 * (i * w.halves + half) + lane / 16], &b[lane % 16]);
            let products: i64 = (0..16).map(|k| i64::from(row[k]) * i64::from(column[k])).sum();
            let sum = products + i64::from(c[lane] as i32);
            if clamp { sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32 } else { sum as u32 }
        });
        w.v[s.dst as usize + i * w.halves + half] = Row(r);
    }
    Flow::Next
}
