// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matrix multiply-accumulate of f16 and bf16 into f32 with AVX-512: the sixteen rows of the result stay in registers.
//!
//! INVARIANT: as in `wmma`, each element is accumulated in k order with fused multiply-adds. The handler of `wmma` does
//! a result that contains a NaN, because it decides which NaN of several is the result.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use softgpu_isa::Op;

use crate::env::Env;
use crate::level::Level;
use crate::step::{Flow, Handler, Kind, Src, Step};
use crate::wave::{Row, Wave};

/// Element `k` of rows (A) or columns (B) 0 to 15, as floats.
type Slices = [__m512; 16];

/// Lanes 0 to 15 of `row`, or its upper ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn half(row: &Row, upper: usize) -> __m512i {
    // SAFETY: a row has 32 dwords.
    unsafe { _mm512_loadu_si512(row.0.as_ptr().add(16 * (upper & 1)).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn slices<const BF16: bool>(w: &Wave, s: &Src) -> Slices {
    let mut out = [_mm512_setzero_ps(); 16];
    for k in 0..8 {
        let x = half(&w.v[s.index as usize + k], 0);
        (out[2 * k], out[2 * k + 1]) = if BF16 {
            let high = _mm512_and_si512(x, _mm512_set1_epi32(0xFFFF_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)), _mm512_castsi512_ps(high))
        } else {
            let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(x));
            (_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)), _mm512_cvtph_ps(high))
        };
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn multiply<const BF16: bool>(w: &mut Wave, e: &mut Env<'_>, s: &Step) -> Flow {
    let a = slices::<BF16>(w, &s.src[0]);
    let b = slices::<BF16>(w, &s.src[1]);
    let c = &s.src[2];
    let mut sum = [_mm512_set1_ps(f32::from_bits(c.value)); 16];
    if c.kind == Kind::Vgpr {
        for (row, sum) in sum.iter_mut().enumerate() {
            *sum = _mm512_castsi512_ps(half(&w.v[c.index as usize + row / 2], row));
        }
    }
    // All are stored before the first is read back: a broadcast directly after its store would wait for the store.
    let mut spread = [[0f32; 16]; 16];
    for (to, slice) in spread.iter_mut().zip(&a) {
        // SAFETY: the array has sixteen floats, which is what the store writes.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), *slice) };
    }
    for (column, &b) in spread.iter().zip(&b) {
        for (sum, &x) in sum.iter_mut().zip(column) {
            *sum = _mm512_fmadd_ps(_mm512_set1_ps(x), b, *sum);
        }
    }
    let nan = sum.iter().fold(0, |nan, &x| nan | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x));
    if nan != 0 {
        let op = if BF16 { Op::V_WMMA_F32_16X16X16_BF16 } else { Op::V_WMMA_F32_16X16X16_F16 };
        return general(op, w, e, s);
    }
    for (row, sum) in sum.iter().enumerate() {
        let to = &mut w.v[s.dst as usize + row / 2].0;
        // SAFETY: the lower or upper sixteen of 32 dwords.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * (row & 1)).cast(), *sum) };
    }
    Flow::Next
}

/// Runs the handler of the tables.
#[cold]
fn general(op: Op, w: &mut Wave, e: &mut Env<'_>, s: &Step) -> Flow {
    let Some(handler) = super::table_handler(Level::Avx512, op) else { return Flow::Next };
    // SAFETY: this module's handlers are given out for the level AVX-512 only, which this CPU was found to have.
    unsafe { handler(w, e, s) }
}

/// The handler of a matrix step of a wave32 whose operands are registers (the addend may be a constant).
pub(crate) fn pick(level: Level, halves: usize, op: Op, step: &Step) -> Option<Handler> {
    let plain = step.src[..2].iter().all(|s| s.kind == Kind::Vgpr);
    let addend = matches!(step.src[2].kind, Kind::Vgpr | Kind::Const);
    if level < Level::Avx512 || halves != 1 || !plain || !addend {
        return None;
    }
    Some(match op {
        Op::V_WMMA_F32_16X16X16_F16 => multiply::<false> as Handler,
        Op::V_WMMA_F32_16X16X16_BF16 => multiply::<true> as Handler,
        _ => return None,
    })
}
