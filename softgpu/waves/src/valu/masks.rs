// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops of instructions that make or use lane masks: compares, carries, selects.
//!
//! INVARIANT: a mask is written whole, with 0 for inactive lanes, and only after every half was computed.

use super::fp;
use super::shapes::{fetch64, operand, put, put16, scalar64};
use crate::step::{Kind, Src, Step};
use crate::wave::{Lanes, Wave};

#[inline(always)]
fn put_dst(w: &mut Wave, s: &Step, half: usize, r: &Lanes) {
    put(w, s.dst as usize, half, r);
}

#[inline(always)]
fn as_is(_: &Wave) -> bool {
    false
}

/// Whether f32 denormals need handling in this MODE.
#[inline(always)]
fn by_mode(w: &Wave) -> bool {
    !w.f32_default()
}

/// Both dwords of a lane mask, which need not be in the scalar file: SCC and constants are possible.
#[inline(always)]
fn mask(w: &Wave, s: &Src) -> [u32; 2] {
    if s.kind == Kind::Scalar {
        return [w.s[s.index as usize], w.s[s.index as usize + 1]];
    }
    let bits = scalar64(w, s);
    // CAST: its two halves.
    [bits as u32, (bits >> 32) as u32]
}

/// Writes lane masks of all halves to the scalar destination after every half was computed.
#[inline(always)]
pub(crate) fn put_mask(w: &mut Wave, index: usize, m: [u32; 2]) {
    w.s[index] = m[0];
    if w.halves == 2 {
        w.s[index + 1] = m[1];
    }
}

macro_rules! compare_shape {
    ($(#[$doc:meta])* $name:ident, $flush:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> bool) {
            let mut masks = [0u32; 2];
            for half in 0..w.halves {
                let flush = $flush(w);
                operand!(a, ta = &*w, s.src[0], half, flush);
                operand!(b, tb = &*w, s.src[1], half, flush);
                let mut m = 0u32;
                for i in 0..32 {
                    m |= if f(a[i], b[i]) { 1 << i } else { 0 };
                }
                masks[half] = m & w.exec_half(half);
            }
            put_mask(w, s.sdst as usize, masks);
        }
    };
}

compare_shape!(
    /// Compare of 32-bit operands; inactive lanes of the mask are 0. CMPX has EXEC as its destination.
    c32, as_is
);
compare_shape!(
    /// f32 compare: denormals flushed as MODE says.
    cf32, by_mode
);

/// Compare of 64-bit operands.
#[inline(always)]
pub(crate) fn c64(w: &mut Wave, s: &Step, f: impl Fn(u64, u64) -> bool) {
    let mut masks = [0u32; 2];
    for half in 0..w.halves {
        let (mut a, mut b) = ([0u64; 32], [0u64; 32]);
        fetch64(w, &s.src[0], half, &mut a);
        fetch64(w, &s.src[1], half, &mut b);
        let mut m = 0u32;
        for i in 0..32 {
            m |= if f(a[i], b[i]) { 1 << i } else { 0 };
        }
        masks[half] = m & w.exec_half(half);
    }
    put_mask(w, s.sdst as usize, masks);
}

/// f16 compare on low halves.
#[inline(always)]
pub(crate) fn cf16(w: &mut Wave, s: &Step, f: impl Fn(f32, f32) -> bool) {
    let m = w.mode;
    if w.f16_64_default() {
        c32(w, s, |a, b| f(fp::f16_to_f32(a & 0xFFFF), fp::f16_to_f32(b & 0xFFFF)));
    } else {
        c32(w, s, |a, b| {
            f(
                fp::f16_to_f32(fp::flush_in_f16(a & 0xFFFF, m)),
                fp::f16_to_f32(fp::flush_in_f16(b & 0xFFFF, m)),
            )
        });
    }
}

/// Class test of a float against the bits of the second source.
#[inline(always)]
pub(crate) fn class64(w: &mut Wave, s: &Step, f: impl Fn(u64, u32) -> bool) {
    let mut masks = [0u32; 2];
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        fetch64(w, &s.src[0], half, &mut a);
        operand!(b, tb = w, s.src[1], half, false);
        let mut m = 0u32;
        for i in 0..32 {
            m |= if f(a[i], b[i]) { 1 << i } else { 0 };
        }
        masks[half] = m & w.exec_half(half);
    }
    put_mask(w, s.sdst as usize, masks);
}

/// Add or subtract with carry in (`carry_in`) and out. `f` gives sum and carry of two operands and a carry bit.
#[inline(always)]
pub(crate) fn carry(w: &mut Wave, s: &Step, carry_in: bool, f: impl Fn(u32, u32, u32) -> (u32, bool)) {
    let mut masks = [0u32; 2];
    let cin = if carry_in { mask(w, &s.src[2]) } else { [0; 2] };
    for half in 0..w.halves {
        let mut sums = [0u32; 32];
        let mut m = 0u32;
        {
            operand!(a, ta = w, s.src[0], half, false);
            operand!(b, tb = w, s.src[1], half, false);
            let bits = cin[half];
            for i in 0..32 {
                let (sum, c) = f(a[i], b[i], bits >> i & 1);
                sums[i] = sum;
                m |= if c { 1 << i } else { 0 };
            }
        }
        masks[half] = m & w.exec_half(half);
        put_dst(w, s, half, &sums);
    }
    put_mask(w, s.sdst as usize, masks);
}

/// Select by lane mask: src1 where the bit is set, else src0.
#[inline(always)]
pub(crate) fn select(w: &mut Wave, s: &Step) {
    for half in 0..w.halves {
        let mut r = [0u32; 32];
        {
            operand!(a, ta = w, s.src[0], half, false);
            operand!(b, tb = w, s.src[1], half, false);
            let bits = mask(w, &s.src[2])[half];
            for i in 0..32 {
                r[i] = if bits >> i & 1 != 0 { b[i] } else { a[i] };
            }
        }
        put_dst(w, s, half, &r);
    }
}

/// 16-bit select.
#[inline(always)]
pub(crate) fn select16(w: &mut Wave, s: &Step) {
    for half in 0..w.halves {
        let mut r = [0u32; 32];
        {
            operand!(a, ta = w, s.src[0], half, false);
            operand!(b, tb = w, s.src[1], half, false);
            let bits = mask(w, &s.src[2])[half];
            for i in 0..32 {
                r[i] = if bits >> i & 1 != 0 { b[i] } else { a[i] };
            }
        }
        put16(w, s, half, &r);
    }
}
