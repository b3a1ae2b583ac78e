// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops of instructions with 64-bit operands.
//!
//! INVARIANT: as in [`super::shapes`], a half is read before it is written.

use super::shapes::{Lanes64, fetch64, finish_f32, operand, put, put64};
use super::soft::{self, Format};
use super::{fp, nan};
use crate::step::{OUT_CLAMP, OUT_OMOD_SHIFT, Step};
use crate::wave::{Lanes, Wave};

#[inline(always)]
fn put_dst(w: &mut Wave, s: &Step, half: usize, r: &Lanes) {
    put(w, s.dst as usize, half, r);
}

/// Applies clamp, omod and output denormal flushing to f64 results.
#[inline(always)]
pub(crate) fn finish_f64(w: &Wave, s: &Step, r: &mut Lanes64) {
    if s.out != 0 || !w.f16_64_default() {
        for x in r.iter_mut() {
            *x = fp::finish_f64(*x, s.out & OUT_CLAMP != 0, s.out >> OUT_OMOD_SHIFT & 3, w.mode);
        }
    }
}

macro_rules! wide_shape {
    ($(#[$doc:meta])* $name:ident, ($($arg:ident : $k:literal $fetch:ident $ty:ty),*), $out:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(w: &mut Wave, s: &Step, f: impl Fn($($ty),*) -> wide_shape!(@ret $out)) {
            for half in 0..w.halves {
                let mut r = wide_shape!(@zero $out);
                {
                    $(wide_shape!(@fetch $fetch, w, s, $k, half, $arg);)*
                    for i in 0..32 {
                        r[i] = f($($arg[i]),*);
                    }
                }
                wide_shape!(@put $out, w, s, half, r);
            }
        }
    };
    (@ret w64) => { u64 };
    (@ret f64) => { u64 };
    (@ret w32) => { u32 };
    (@ret f32) => { u32 };
    (@zero w64) => { [0u64; 32] };
    (@zero f64) => { [0u64; 32] };
    (@zero w32) => { [0u32; 32] };
    (@zero f32) => { [0u32; 32] };
    (@fetch f64, $w:ident, $s:ident, $k:literal, $h:ident, $a:ident) => {
        let mut t = [0u64; 32];
        fetch64($w, &$s.src[$k], $h, &mut t);
        let $a = &t;
    };
    (@fetch f32, $w:ident, $s:ident, $k:literal, $h:ident, $a:ident) => {
        operand!($a, t = $w, $s.src[$k], $h, false);
    };
    (@put w64, $w:ident, $s:ident, $h:ident, $r:ident) => { put64($w, $s.dst as usize, $h, &$r) };
    (@put f64, $w:ident, $s:ident, $h:ident, $r:ident) => {
        finish_f64($w, $s, &mut $r);
        put64($w, $s.dst as usize, $h, &$r)
    };
    (@put w32, $w:ident, $s:ident, $h:ident, $r:ident) => { put_dst($w, $s, $h, &$r) };
    (@put f32, $w:ident, $s:ident, $h:ident, $r:ident) => {
        finish_f32($w, $s, &mut $r);
        put_dst($w, $s, $h, &$r)
    };
}

wide_shape!(
    /// f64 to f64.
    d1, (a: 0 f64 u64), f64
);
wide_shape!(
    /// Two f64 to f64, never rounding.
    d2, (a: 0 f64 u64, b: 1 f64 u64), f64
);
wide_shape!(
    /// f64 and a 32-bit operand to f64.
    d2w, (a: 0 f64 u64, b: 1 f32 u32), f64
);
wide_shape!(
    /// 32 bits to f64.
    wd1, (a: 0 f32 u32), f64
);
wide_shape!(
    /// 64 bits to 32 bits.
    dw1, (a: 0 f64 u64), w32
);
wide_shape!(
    /// f64 to f32.
    df1, (a: 0 f64 u64), f32
);
wide_shape!(
    /// 32-bit amount and 64-bit operand to 64 bits (shifts).
    q2, (a: 0 f32 u32, b: 1 f64 u64), w64
);
wide_shape!(
    /// 64, 32 and 64 bits to 64 bits (msad).
    q3, (a: 0 f64 u64, b: 1 f32 u32, c: 2 f64 u64), w64
);

/// f64 binary arithmetic, native and in software.
#[inline(always)]
pub(crate) fn da2(
    w: &mut Wave,
    s: &Step,
    f: impl Fn(u64, u64) -> u64,
    g: impl Fn(u64, u64, soft::Env) -> u64,
) {
    let env = soft::Env::f16_64(w.mode);
    if w.f16_64_default() {
        d2(w, s, f);
    } else {
        d2(w, s, |a, b| g(a, b, env));
    }
}

/// f64 fused multiply-add.
#[inline(always)]
pub(crate) fn fma64(w: &mut Wave, s: &Step) {
    for half in 0..w.halves {
        let (mut a, mut b, mut c) = ([0u64; 32], [0u64; 32], [0u64; 32]);
        fetch64(w, &s.src[0], half, &mut a);
        fetch64(w, &s.src[1], half, &mut b);
        fetch64(w, &s.src[2], half, &mut c);
        let mut r = [0u64; 32];
        if w.f16_64_default() {
            for i in 0..32 {
                r[i] = nan::fma64(a[i], b[i], c[i]);
            }
        } else {
            let env = soft::Env::f16_64(w.mode);
            r = core::array::from_fn(|i| soft::fma(Format::F64, a[i], b[i], c[i], 0, env));
        }
        finish_f64(w, s, &mut r);
        put64(w, s.dst as usize, half, &r);
    }
}
