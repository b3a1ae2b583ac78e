// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matrix multiply-accumulate of f16 and bf16 into f32 with host vectors: rows of the result stay in registers.
//!
//! INVARIANT: as in `wmma`, each element is accumulated in k order with fused multiply-adds, and a row with a NaN is computed as
//! there, because the order of operands decides which NaN of several is the result. Only steps that [`is_plain`] are done here.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use softgpu_isa::Op;

use super::wmma;
use crate::env::Env;
use crate::level::Level;
use crate::step::{Flow, Handler, Kind, Src, Step};
use crate::wave::{Row, Wave};

/// Rows of lanes of an accumulator: 8 registers of a wave32, or 4 of a wave64. Line `n` of the matrix is in the lower (`n` even)
/// or upper lanes of row `n / 2`.
const ROWS: usize = 8;

/// A matrix of 16 by 16 as floats: element `k` of rows (A) or columns (B) 0 to 15 is line `k`. As large as [`ROWS`] rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slices([[f32; 16]; 16]);

const _: () = assert!(size_of::<Slices>() == size_of::<[Row; ROWS]>());

/// Which operands a matrix step finds as [`Slices`], and where it leaves them: bits 0 to 7 the place of A, 8 to 15 that of B.
pub(crate) mod how {
    /// A is not there yet.
    pub(crate) const NEW_A: u32 = 1 << 16;
    /// B is not there yet.
    pub(crate) const NEW_B: u32 = 1 << 17;
    /// With AVX-512.
    pub(crate) const WIDE: u32 = 1 << 18;
}

/// Whether `step` is done here: its factors are registers, and its addend is a constant, or in the registers of the result or in others
/// than those.
pub(crate) fn is_plain(step: &Step) -> bool {
    let apart = |c: u16, d: u16| c == d || c.abs_diff(d) as usize >= ROWS;
    matches!(step.op, Some(Op::V_WMMA_F32_16X16X16_F16 | Op::V_WMMA_F32_16X16X16_BF16))
        && step.src[..2].iter().all(|s| s.kind == Kind::Vgpr)
        && match step.src[2].kind {
            Kind::Vgpr => apart(step.src[2].index, step.dst),
            Kind::Const => true,
            _ => false,
        }
}

fn is_brain(step: &Step) -> bool {
    step.op == Some(Op::V_WMMA_F32_16X16X16_BF16)
}

/// The rows of an accumulator.
fn rows(w: &Wave, first: u16) -> &[Row; ROWS] {
    let first = first as usize;
    // Predecoding has found all of them to be in the wave.
    w.v[first..first + ROWS].first_chunk().unwrap_or(&[Row::ZERO; ROWS])
}

/// The registers of a factor as floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn convert_z<'a>(w: &Wave, s: &Src, brain: bool, to: &'a mut MaybeUninit<Slices>) -> &'a Slices {
    let lines = to.as_mut_ptr().cast::<f32>();
    for k in 0..8 {
        let row = &w.v[s.index as usize + k * w.halves].0;
        // SAFETY: a row has 32 dwords.
        let x = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
        let (even, odd) = if brain {
            let high = _mm512_and_si512(x, _mm512_set1_epi32(0xFFFF_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)), _mm512_castsi512_ps(high))
        } else {
            let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(x));
            (_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)), _mm512_cvtph_ps(high))
        };
        // SAFETY: there are sixteen lines of sixteen floats.
        unsafe {
            _mm512_storeu_ps(lines.add(32 * k), even);
            _mm512_storeu_ps(lines.add(32 * k + 16), odd);
        }
    }
    // SAFETY: all lines are written.
    unsafe { to.assume_init_ref() }
}

/// The registers of a factor as floats.
#[target_feature(enable = "avx2,f16c")]
fn convert_y<'a>(w: &Wave, s: &Src, brain: bool, to: &'a mut MaybeUninit<Slices>) -> &'a Slices {
    let lines = to.as_mut_ptr().cast::<f32>();
    let low = _mm256_set1_epi32(0xFFFF);
    for k in 0..8 {
        let row = &w.v[s.index as usize + k * w.halves].0;
        // SAFETY: a row has 32 dwords.
        let x: [__m256i; 2] =
            std::array::from_fn(|n| unsafe { _mm256_loadu_si256(row.as_ptr().add(8 * n).cast()) });
        let (even, odd) = if brain {
            let wide = |x| _mm256_castsi256_ps(x);
            (x.map(|x| wide(_mm256_slli_epi32::<16>(x))), x.map(|x| wide(_mm256_andnot_si256(low, x))))
        } else {
            // Packing puts the lower halves of both in front.
            let pack = |x: [__m256i; 2]| {
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(x[0], x[1]));
                let halves = [_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed)];
                halves.map(|x| _mm256_cvtph_ps(x))
            };
            (pack(x.map(|x| _mm256_and_si256(x, low))), pack(x.map(|x| _mm256_srli_epi32::<16>(x))))
        };
        for n in 0..2 {
            // SAFETY: there are sixteen lines of sixteen floats.
            unsafe {
                _mm256_storeu_ps(lines.add(32 * k + 8 * n), even[n]);
                _mm256_storeu_ps(lines.add(32 * k + 16 + 8 * n), odd[n]);
            }
        }
    }
    // SAFETY: all lines are written.
    unsafe { to.assume_init_ref() }
}

/// Line `n` of the addend.
#[inline(always)]
fn addend(w: &Wave, s: &Step, n: usize) -> [f32; 16] {
    match s.src[2].kind {
        Kind::Vgpr => {
            let row = &rows(w, s.src[2].index)[n / 2].0;
            std::array::from_fn(|lane| f32::from_bits(row[n % 2 * 16 + lane]))
        }
        _ => [f32::from_bits(s.src[2].value); 16],
    }
}

/// Lines of a result in which there is a NaN.
#[cold]
#[inline(never)]
fn lines_with_nan(w: &mut Wave, s: &Step, a: &Slices, b: &Slices, lines: Range<usize>) {
    for n in lines {
        let sum = wmma::line(&a.0.map(|slice| slice[n]), &b.0, addend(w, s, n));
        let row = &mut w.v[s.dst as usize + n / 2].0;
        row[n % 2 * 16..][..16].copy_from_slice(&sum.map(f32::to_bits));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn multiply_z(w: &mut Wave, s: &Step, a: &Slices, b: &Slices) {
    // SAFETY: a line has sixteen floats.
    let load = |line: &[f32; 16]| unsafe { _mm512_loadu_ps(line.as_ptr()) };
    let mut sum: [__m512; 16] = std::array::from_fn(|n| load(&addend(w, s, n)));
    for (column, line) in a.0.iter().zip(&b.0) {
        let line = load(line);
        for n in 0..16 {
            sum[n] = _mm512_fmadd_ps(_mm512_set1_ps(column[n]), line, sum[n]);
        }
    }
    let pairs: [__mmask16; 8] =
        std::array::from_fn(|n| _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sum[2 * n], sum[2 * n + 1]));
    if pairs.iter().fold(0, |any, nan| any | nan) != 0 {
        return lines_with_nan(w, s, a, b, 0..16);
    }
    for n in 0..16 {
        let to = &mut w.v[s.dst as usize + n / 2].0;
        // SAFETY: the lower or upper sixteen of 32 dwords.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * (n % 2)).cast(), sum[n]) };
    }
}

/// Lines `first..first + N`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lines_y<const N: usize>(w: &mut Wave, s: &Step, a: &Slices, b: &Slices, first: usize) {
    // SAFETY: a line has sixteen floats.
    let load = |line: &[f32; 16], half: usize| unsafe { _mm256_loadu_ps(line.as_ptr().add(8 * (half & 1))) };
    let mut sum: [[__m256; 2]; N] = std::array::from_fn(|n| {
        let line = addend(w, s, first + n);
        [load(&line, 0), load(&line, 1)]
    });
    for (column, line) in a.0.iter().zip(&b.0) {
        let line = [load(line, 0), load(line, 1)];
        for n in 0..N {
            let x = _mm256_set1_ps(column[first + n]);
            for half in 0..2 {
                sum[n][half] = _mm256_fmadd_ps(x, line[half], sum[n][half]);
            }
        }
    }
    let nan = sum.iter().fold(_mm256_setzero_ps(), |any, sum| {
        _mm256_or_ps(any, _mm256_cmp_ps::<_CMP_UNORD_Q>(sum[0], sum[1]))
    });
    if _mm256_movemask_ps(nan) != 0 {
        return lines_with_nan(w, s, a, b, first..first + N);
    }
    for n in 0..N {
        let to = &mut w.v[s.dst as usize + (first + n) / 2].0;
        for half in 0..2 {
            // SAFETY: a quarter of 32 dwords.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr().add(16 * ((first + n) % 2) + 8 * half).cast(), sum[n][half])
            };
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_y(w: &mut Wave, s: &Step, a: &Slices, b: &Slices) {
    // Twelve sums, a line of B and an element of A fill the sixteen registers.
    lines_y::<6>(w, s, a, b, 0);
    lines_y::<6>(w, s, a, b, 6);
    lines_y::<4>(w, s, a, b, 12);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn handler_z(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let [mut a, mut b] = [MaybeUninit::uninit(); 2];
    let a = convert_z(w, &s.src[0], is_brain(s), &mut a);
    let b = convert_z(w, &s.src[1], is_brain(s), &mut b);
    multiply_z(w, s, a, b);
    Flow::Next
}

#[target_feature(enable = "avx2,fma,f16c")]
fn handler_y(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let [mut a, mut b] = [MaybeUninit::uninit(); 2];
    let a = convert_y(w, &s.src[0], is_brain(s), &mut a);
    let b = convert_y(w, &s.src[1], is_brain(s), &mut b);
    multiply_y(w, s, a, b);
    Flow::Next
}

/// The handler of a step that [`is_plain`].
pub(crate) fn pick(level: Level, step: &Step) -> Option<Handler> {
    match level {
        _ if !is_plain(step) => None,
        Level::Avx512 => Some(handler_z as Handler),
        Level::Avx2 => Some(handler_y as Handler),
        Level::Baseline => None,
    }
}

/// Runs a step for generated code, which knows which factors earlier steps have converted; `how` is of [`how`].
///
/// # Safety
/// `w` and `s` are a wave, which nobody else uses, and a step that [`is_plain`], predecoded for such waves. The places that `how`
/// names are within `slices`; what is not new there has been written. This CPU has AVX2, FMA and F16C, and AVX-512 if `how` says so.
pub(crate) unsafe extern "sysv64" fn run(
    w: *mut Wave,
    s: *const Step,
    slices: *mut MaybeUninit<Slices>,
    how: u32,
) {
    let places = [how & 0xFF, how >> 8 & 0xFF].map(|place| slices.wrapping_add(place as usize));
    // SAFETY: as the caller says. Both places may be one, so there are no references to them while one is written.
    unsafe {
        let (w, s) = (&mut *w, &*s);
        for ((place, is_new), src) in places.into_iter().zip([how::NEW_A, how::NEW_B]).zip(&s.src) {
            if how & is_new == 0 {
                continue;
            }
            if how & how::WIDE != 0 {
                convert_z(w, src, is_brain(s), &mut *place);
            } else {
                convert_y(w, src, is_brain(s), &mut *place);
            }
        }
        let [a, b] = places.map(|place| (*place).assume_init_ref());
        if how & how::WIDE != 0 {
            multiply_z(w, s, a, b);
        } else {
            multiply_y(w, s, a, b);
        }
    }
}
