// SPDX-License-Identifier: MIT OR Apache-2.0
//! LDS dword loads with AVX2: the pattern of each 16 lanes is tested in registers and rows go straight to the VGPRs.
//!
//! INVARIANT: same results as `lds::load` and `lds::load2`, which do the load if a lane is inactive, misaligned or
//! outside. LDS memory is read only at dword indices below `LDS_DWORDS`.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::flags::FLAG_STRIDE64;
use super::lds;
use crate::env::{Env, LDS_DWORDS};
use crate::step::{Flow, Step};
use crate::wave::Wave;

/// Byte offsets of the 32 lanes; `None` unless all are aligned and `len` bytes fit.
#[inline]
#[target_feature(enable = "avx2")]
fn offsets(w: &Wave, row: usize, offset: u32, len: u32) -> Option<[__m256i; 4]> {
    let limit = w.lds_bytes.checked_sub(len)?;
    let source = &w.v[row].0;
    let add = _mm256_set1_epi32(offset as i32);
    let bound = _mm256_set1_epi32(limit as i32);
    let mut a = [_mm256_setzero_si256(); 4];
    let (mut low, mut over) = (a[0], a[0]);
    for (k, a) in a.iter_mut().enumerate() {
        // SAFETY: a row has 32 dwords.
        let v = unsafe { _mm256_loadu_si256(source.as_ptr().add(8 * k).cast()) };
        *a = _mm256_add_epi32(v, add);
        low = _mm256_or_si256(low, *a);
        over = _mm256_or_si256(over, _mm256_sub_epi32(bound, *a));
    }
    // As `pattern::aligned_below`: a sign bit for each lane outside.
    let bad = _mm256_or_si256(
        _mm256_and_si256(low, _mm256_set1_epi32(3)),
        _mm256_and_si256(_mm256_or_si256(low, over), _mm256_set1_epi32(i32::MIN)),
    );
    (_mm256_testz_si256(bad, bad) != 0).then_some(a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn all_equal(a: __m256i, b: __m256i) -> bool {
    _mm256_movemask_epi8(_mm256_cmpeq_epi32(a, b)) == -1
}

/// Loads `N` dwords per lane from `a` into registers `dst..dst + N`; dword `k` of 16 lanes at a time.
#[inline]
#[target_feature(enable = "avx2")]
fn fill<const N: usize>(w: &mut Wave, env: &Env<'_>, a: [__m256i; 4], dst: usize) {
    let stride = w.halves;
    let ramp = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    for half in 0..2 {
        let (x, y) = (a[2 * half], a[2 * half + 1]);
        let first = _mm256_cvtsi256_si32(x) as u32;
        let base = _mm256_set1_epi32(first as i32);
        let run = _mm256_add_epi32(base, ramp);
        let equal = all_equal(x, base) && all_equal(y, base);
        let in_run =
            !equal && all_equal(x, run) && all_equal(y, _mm256_add_epi32(run, _mm256_set1_epi32(32)));
        for k in 0..N {
            let at = (first >> 2) as usize + k;
            let row = &mut w.v[dst + k * stride].0;
            let (lower, upper) = if equal {
                let v = _mm256_set1_epi32(env.lds[at & (LDS_DWORDS - 1)] as i32);
                (v, v)
            } else if let (true, Some(words)) = (in_run, env.lds.get(at..at + 16)) {
                // SAFETY: the slice has 16 dwords, which the two loads of 8 read.
                unsafe {
                    (
                        _mm256_loadu_si256(words.as_ptr().cast()),
                        _mm256_loadu_si256(words.as_ptr().add(8).cast()),
                    )
                }
            } else {
                let from = env.lds.as_ptr().cast::<i32>();
                let mask = _mm256_set1_epi32(LDS_DWORDS as i32 - 1);
                let by = _mm256_set1_epi32(k as i32);
                let index =
                    |v: __m256i| _mm256_and_si256(_mm256_add_epi32(_mm256_srli_epi32::<2>(v), by), mask);
                // SAFETY: the indices are masked to the size of LDS, so every gathered dword lies in it.
                unsafe {
                    (_mm256_i32gather_epi32::<4>(from, index(x)), _mm256_i32gather_epi32::<4>(from, index(y)))
                }
            };
            // SAFETY: lanes 16 * half .. 16 * half + 16 of a row of 32 dwords.
            unsafe {
                _mm256_storeu_si256(row.as_mut_ptr().add(16 * half).cast(), lower);
                _mm256_storeu_si256(row.as_mut_ptr().add(16 * half + 8).cast(), upper);
            }
        }
    }
}

/// ds_load of `N` dwords (`B` bytes).
#[target_feature(enable = "avx2")]
pub(crate) fn load<const B: usize, const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    if w.halves == 1
        && w.exec_half(0) == u32::MAX
        && let Some(a) = offsets(w, s.src[0].index as usize, s.imm as u32, B as u32)
    {
        fill::<N>(w, env, a, s.dst as usize);
        return Flow::Next;
    }
    lds::load::<B, N, false>(w, env, s)
}

/// ds_load_2addr of `N` dwords each.
#[target_feature(enable = "avx2")]
pub(crate) fn load2<const B: usize, const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let unit = B as u32 * if s.flags & FLAG_STRIDE64 != 0 { 64 } else { 1 };
    let (near, far) = ((s.imm as u32 & 0xFF) * unit, (s.imm as u32 >> 8 & 0xFF) * unit);
    let row = s.src[0].index as usize;
    if w.halves == 1
        && w.exec_half(0) == u32::MAX
        && let Some(a) = offsets(w, row, near, B as u32)
        && let Some(b) = offsets(w, row, far, B as u32)
    {
        fill::<N>(w, env, a, s.dst as usize);
        fill::<N>(w, env, b, s.dst as usize + N);
        return Flow::Next;
    }
    lds::load2::<B, N>(w, env, s)
}
