// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of lane addresses: equal, evenly spaced, aligned and in bounds.
//!
//! INVARIANT: pure functions of lane values. They are written with SSE2 intrinsics, which every x86-64 has, because the
//! compiler splits plain loops into scalar compares; inside an AVX handler they become VEX code.
#![allow(unsafe_code)]

use crate::wave::Lanes;

/// Half of a row: 16 lanes.
pub(crate) type Half = [u32; 16];

/// The two halves of a row.
#[inline(always)]
pub(crate) fn halves(a: &Lanes) -> [&Half; 2] {
    let (lower, upper) = a.split_at(16);
    match (lower.first_chunk(), upper.first_chunk()) {
        (Some(lower), Some(upper)) => [lower, upper],
        _ => [&[0; 16]; 2],
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::*;

    use super::Half;
    use crate::wave::Lanes;

    #[inline(always)]
    fn load(a: &[u32], at: usize) -> __m128i {
        let chunk: &[u32; 4] = match a.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(chunk) => chunk,
            None => &[0; 4],
        };
        // SAFETY: 16 readable bytes; the load has no alignment requirement.
        unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat(x: u32) -> __m128i {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_set1_epi32(x as i32) }
    }

    #[inline(always)]
    pub(crate) fn equal16(a: &Half) -> bool {
        let first = splat(a[0]);
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let mut m = _mm_cmpeq_epi32(load(a, 0), first);
            for k in 1..4 {
                m = _mm_and_si128(m, _mm_cmpeq_epi32(load(a, 4 * k), first));
            }
            _mm_movemask_epi8(m) == 0xFFFF
        }
    }

    #[inline(always)]
    pub(crate) fn run16<const B: u32>(a: &Half) -> bool {
        let step = splat(4 * B);
        let b = B as i32;
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let mut want = _mm_add_epi32(splat(a[0]), _mm_set_epi32(3 * b, 2 * b, b, 0));
            let mut m = _mm_cmpeq_epi32(load(a, 0), want);
            for k in 1..4 {
                want = _mm_add_epi32(want, step);
                m = _mm_and_si128(m, _mm_cmpeq_epi32(load(a, 4 * k), want));
            }
            _mm_movemask_epi8(m) == 0xFFFF
        }
    }

    #[inline(always)]
    pub(crate) fn aligned_below(a: &Lanes, limit: u32) -> bool {
        let bound = splat(limit);
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let zero = _mm_setzero_si128();
            let (mut low, mut over) = (zero, zero);
            for k in 0..8 {
                let x = load(a, 4 * k);
                low = _mm_or_si128(low, x);
                over = _mm_or_si128(over, _mm_sub_epi32(bound, x));
            }
            // The sign of `limit - x` tells x beyond the limit, the sign of x itself those where it does not.
            let signs = _mm_movemask_ps(_mm_castsi128_ps(_mm_or_si128(low, over)));
            let odd = _mm_cmpeq_epi32(_mm_and_si128(low, splat(3)), zero);
            signs == 0 && _mm_movemask_epi8(odd) == 0xFFFF
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use super::Half;
    use crate::wave::Lanes;

    pub(crate) fn equal16(a: &Half) -> bool {
        a.iter().all(|&x| x == a[0])
    }

    pub(crate) fn run16<const B: u32>(a: &Half) -> bool {
        a.iter().enumerate().all(|(i, &x)| x == a[0].wrapping_add(i as u32 * B))
    }

    pub(crate) fn aligned_below(a: &Lanes, limit: u32) -> bool {
        a.iter().all(|&x| x & 3 == 0 && x <= limit)
    }
}

/// All 16 values are the same.
#[inline(always)]
pub(crate) fn equal16(a: &Half) -> bool {
    imp::equal16(a)
}

/// Values are `B` apart, without wrapping.
#[inline(always)]
pub(crate) fn run16<const B: u32>(a: &Half) -> bool {
    imp::run16::<B>(a) && a[0] <= u32::MAX - 16 * B
}

/// All values are multiples of 4 and at most `limit`, which is below 2^31.
#[inline(always)]
pub(crate) fn aligned_below(a: &Lanes, limit: u32) -> bool {
    imp::aligned_below(a, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn patterns_equal_their_definition(start: u32, at in 0usize..16, change in 0u32..3, limit in 0u32..0x1_0000) {
            let mut run: Half = core::array::from_fn(|i| start.wrapping_add(i as u32 * 4));
            run[at] = run[at].wrapping_add(change);
            let want = change == 0 && start <= u32::MAX - 64;
            prop_assert_eq!(run16::<4>(&run), want);
            let mut same = [start; 16];
            same[at] = same[at].wrapping_add(change);
            prop_assert_eq!(equal16(&same), change == 0);
            let mut a = [limit & !3; 32];
            a[at * 2] = start;
            let want = start & 3 == 0 && start <= limit;
            prop_assert_eq!(aligned_below(&a, limit), want);
        }
    }
}
