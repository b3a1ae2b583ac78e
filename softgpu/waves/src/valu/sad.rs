// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums of absolute differences of bytes, words and dwords.
//!
//! INVARIANT: accumulators wrap unless the instruction clamps; a masked sum leaves out bytes whose reference (source 1)
//! is zero.

use super::shapes::*;
use super::shapes64::q3;
use crate::step::{OUT_CLAMP, Step};
use crate::wave::{Lanes, Wave};

#[inline(always)]
fn bytes_apart(a: u32, b: u32, masked: bool) -> u32 {
    let mut r = 0;
    for k in 0..4 {
        let (x, y) = (a >> (8 * k) & 0xFF, b >> (8 * k) & 0xFF);
        let d = x.abs_diff(y);
        // msad: bytes that are zero in the reference (second operand) do not count.
        r += if masked && y == 0 { 0 } else { d };
    }
    r
}

#[inline(always)]
fn accumulate(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    if s.out == 0 {
        u3(w, s, |a, b, c| f(a, b).wrapping_add(c));
    } else {
        u3(w, s, |a, b, c| f(a, b).saturating_add(c));
    }
}

/// v_sad_u8.
#[inline(always)]
pub(crate) fn sad_u8(w: &mut Wave, s: &Step) {
    accumulate(w, s, |a, b| bytes_apart(a, b, false));
}

/// v_sad_hi_u8.
#[inline(always)]
pub(crate) fn sad_hi_u8(w: &mut Wave, s: &Step) {
    accumulate(w, s, |a, b| bytes_apart(a, b, false) << 16);
}

/// v_msad_u8.
#[inline(always)]
pub(crate) fn msad_u8(w: &mut Wave, s: &Step) {
    accumulate(w, s, |a, b| bytes_apart(a, b, true));
}

/// v_sad_u16.
#[inline(always)]
pub(crate) fn sad_u16(w: &mut Wave, s: &Step) {
    accumulate(w, s, |a, b| (a & 0xFFFF).abs_diff(b & 0xFFFF) + (a >> 16).abs_diff(b >> 16));
}

/// v_sad_u32.
#[inline(always)]
pub(crate) fn sad_u32(w: &mut Wave, s: &Step) {
    accumulate(w, s, |a, b| a.abs_diff(b));
}

/// Four sums at byte offsets 0 to 3 of `a`, added to the 16-bit accumulators of `c`.
#[inline(always)]
pub(crate) fn qsad(w: &mut Wave, s: &Step, masked: bool) {
    let clamp = s.out & OUT_CLAMP != 0;
    q3(w, s, |a, b, c| {
        let mut r = 0;
        for k in 0..4 {
            let d = u64::from(bytes_apart((a >> (8 * k)) as u32, b, masked));
            let sum = d + (c >> (16 * k) & 0xFFFF);
            r |= (if clamp { sum.min(0xFFFF) } else { sum & 0xFFFF }) << (16 * k);
        }
        r
    });
}

/// v_mqsad_u32_u8: four masked sums at byte offsets 0 to 3, added to four 32-bit accumulators.
pub(crate) fn mqsad_wide(w: &mut Wave, s: &Step) {
    let clamp = s.out & OUT_CLAMP != 0;
    for half in 0..w.halves {
        let mut a: Lanes64 = [0; 32];
        fetch64(w, &s.src[0], half, &mut a);
        let mut t = [0u32; 32];
        let b: Lanes = *fetch(w, &s.src[1], half, &mut t);
        let rows: [Lanes; 4] = core::array::from_fn(|k| {
            let c = &w.v[s.src[2].index as usize + k * w.halves + half].0;
            core::array::from_fn(|i| {
                let d = bytes_apart((a[i] >> (8 * k)) as u32, b[i], true);
                if clamp { d.saturating_add(c[i]) } else { d.wrapping_add(c[i]) }
            })
        });
        for (k, row) in rows.iter().enumerate() {
            put(w, s.dst as usize + k * w.halves, half, row);
        }
    }
}
