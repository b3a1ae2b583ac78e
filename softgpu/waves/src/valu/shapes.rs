// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops of lane-wise instructions: fetch sources, compute 32 lanes, blend under EXEC.
//!
//! INVARIANT: a shape reads every source of a half before it writes that half, and lanes outside EXEC keep their value.
//! Results go through a local row: source and destination rows may be the same, and with a local row the loop needs no
//! aliasing checks and vectorises.

use super::soft::{self, Format};
use super::{fp, nan};
use crate::step::{Kind, OUT_CLAMP, OUT_HIGH, OUT_OMOD_SHIFT, SPECIAL_EXECZ, SPECIAL_VCCZ, Src, Step, mods};
use crate::wave::{Lanes, Wave, mode};

/// Lanes of 64-bit values.
pub(crate) type Lanes64 = [u64; 32];

/// The scalar value of a non-VGPR source, without modifiers.
#[inline(always)]
pub(crate) fn scalar(w: &Wave, s: &Src) -> u32 {
    match s.kind {
        Kind::Scalar | Kind::ScalarMod => w.s[s.index as usize],
        Kind::Special => match s.index {
            SPECIAL_VCCZ => u32::from(w.vccz()),
            SPECIAL_EXECZ => u32::from(w.execz()),
            _ => w.scc,
        },
        _ => s.value,
    }
}

/// A 64-bit scalar source.
#[inline(always)]
pub(crate) fn scalar64(w: &Wave, s: &Src) -> u64 {
    match s.kind {
        Kind::Scalar | Kind::ScalarMod => w.s64(s.index as usize),
        Kind::ConstSigned => s.value as i32 as i64 as u64,
        Kind::ConstHigh => u64::from(s.value) << 32,
        Kind::ConstInvTwoPi => 0x3FC4_5F30_6DC9_C882,
        Kind::Special => u64::from(scalar(w, s)),
        _ => u64::from(s.value),
    }
}

#[cold]
#[inline(never)]
fn fetch_slow(w: &Wave, s: &Src, half: usize, t: &mut Lanes) {
    if s.is_vgpr() {
        let row = &w.v[s.index as usize + half].0;
        for i in 0..32 {
            t[i] = mods::apply(s.mods, row[i]);
        }
    } else {
        *t = [mods::apply(s.mods, scalar(w, s)); 32];
    }
}

/// One half of a 32-bit source.
#[inline(always)]
pub(crate) fn fetch<'a>(w: &'a Wave, s: &Src, half: usize, t: &'a mut Lanes) -> &'a Lanes {
    match s.kind {
        Kind::Vgpr => return &w.v[s.index as usize + half].0,
        Kind::Const => *t = [s.value; 32],
        Kind::Scalar => *t = [w.s[s.index as usize]; 32],
        _ => fetch_slow(w, s, half, t),
    }
    t
}

/// The value of a source that is the same in all lanes and needs no modifiers.
#[inline(always)]
pub(crate) fn plain_scalar(w: &Wave, s: &Src) -> Option<u32> {
    match s.kind {
        Kind::Const => Some(s.value),
        Kind::Scalar => Some(w.s[s.index as usize]),
        _ => None,
    }
}

/// A copy of any source, modified and flushed.
#[cold]
#[inline(never)]
pub(crate) fn fetch_cold(w: &Wave, s: &Src, half: usize, flush: bool) -> Lanes {
    let mut t = [0u32; 32];
    let r = *fetch(w, s, half, &mut t);
    if flush { flushed(&r, w.mode) } else { r }
}

/// Binds `$name` to one half of a 32-bit source. The temporaries are written only when they are needed, and each in one
/// place only: zeroing or merging them would cost as much as the operation.
macro_rules! operand {
    ($name:ident, $t:ident = $w:expr, $src:expr, $half:expr, $flush:expr) => {
        let $t;
        let copy;
        let $name: &$crate::wave::Lanes = if $src.kind == $crate::step::Kind::Vgpr && !$flush {
            &$w.v[$src.index as usize + $half].0
        } else {
            match $crate::valu::shapes::plain_scalar($w, &$src) {
                Some(x) if !$flush => {
                    $t = [x; 32];
                    &$t
                }
                _ => {
                    copy = $crate::valu::shapes::fetch_cold($w, &$src, $half, $flush);
                    &copy
                }
            }
        };
    };
}
pub(crate) use operand;

/// One half of a 64-bit source.
#[inline(always)]
pub(crate) fn fetch64(w: &Wave, s: &Src, half: usize, t: &mut Lanes64) {
    if s.is_vgpr() {
        let lo = &w.v[s.index as usize + half].0;
        let hi = &w.v[s.index as usize + w.halves + half].0;
        for i in 0..32 {
            t[i] = u64::from(lo[i]) | u64::from(hi[i]) << 32;
        }
    } else {
        *t = [scalar64(w, s); 32];
    }
    if s.mods != 0 {
        let clear = if s.mods & mods::ABS_HI != 0 { 1u64 << 63 } else { 0 };
        let flip = if s.mods & mods::NEG_HI != 0 { 1u64 << 63 } else { 0 };
        for x in t.iter_mut() {
            *x = (*x & !clear) ^ flip;
        }
    }
}

/// Writes active lanes of a row.
#[inline(always)]
pub(crate) fn put(w: &mut Wave, row: usize, half: usize, r: &Lanes) {
    let exec = w.exec_half(half);
    let d = &mut w.v[row + half].0;
    if exec == u32::MAX {
        *d = *r;
    } else {
        for i in 0..32 {
            d[i] = if exec >> i & 1 != 0 { r[i] } else { d[i] };
        }
    }
}

/// Writes active lanes of a register pair.
#[inline(always)]
pub(crate) fn put64(w: &mut Wave, row: usize, half: usize, r: &Lanes64) {
    let (mut lo, mut hi) = ([0u32; 32], [0u32; 32]);
    for i in 0..32 {
        lo[i] = r[i] as u32;
        hi[i] = (r[i] >> 32) as u32;
    }
    let second = row + w.halves;
    put(w, row, half, &lo);
    put(w, second, half, &hi);
}

/// Writes the low or high 16 bits of active lanes and keeps the other half.
#[inline(always)]
pub(crate) fn put16(w: &mut Wave, s: &Step, half: usize, r: &Lanes) {
    let exec = w.exec_half(half);
    let (shift, keep) = if s.out & OUT_HIGH != 0 { (16, 0xFFFF) } else { (0, 0xFFFF_0000u32) };
    let d = &mut w.v[s.dst as usize + half].0;
    for i in 0..32 {
        let x = (d[i] & keep) | (r[i] & 0xFFFF) << shift;
        d[i] = if exec >> i & 1 != 0 { x } else { d[i] };
    }
}

#[cold]
#[inline(never)]
fn finish_f32_slow(w: &Wave, out: u8, mut r: Lanes) -> Lanes {
    for x in &mut r {
        *x = fp::finish_f32(*x, out & OUT_CLAMP != 0, out >> OUT_OMOD_SHIFT & 3, w.mode);
    }
    r
}

/// Applies clamp, omod and output denormal flushing to f32 results.
#[inline(always)]
pub(crate) fn finish_f32(w: &Wave, s: &Step, r: &mut Lanes) {
    if s.out != 0 || !w.f32_default() {
        // By value: a row whose address is passed on would need alias checks.
        *r = finish_f32_slow(w, s.out, *r);
    }
}

#[cold]
#[inline(never)]
fn finish_f16_slow(w: &Wave, out: u8, mut r: Lanes) -> Lanes {
    for x in &mut r {
        *x = fp::finish_f16(*x & 0xFFFF, out & OUT_CLAMP != 0, out >> OUT_OMOD_SHIFT & 3, w.mode);
    }
    r
}

#[inline(always)]
fn finish_f16(w: &Wave, s: &Step, r: &mut Lanes) {
    if s.out & !OUT_HIGH != 0 || !w.f16_64_default() {
        // By value: a row whose address is passed on would need alias checks.
        *r = finish_f16_slow(w, s.out, *r);
    }
}

#[cold]
#[inline(never)]
fn flushed(src: &Lanes, m: u32) -> Lanes {
    let mut t = *src;
    for x in t.iter_mut() {
        *x = fp::flush_in_f32(*x, m);
    }
    t
}

macro_rules! lane_shape {
    ($(#[$doc:meta])* $name:ident, $flush:ident, $finish:ident, $put:ident, ($($arg:ident : $k:literal),*)) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(w: &mut Wave, s: &Step, f: impl Fn($(lane_shape!(@u32 $arg)),*) -> u32) {
            for half in 0..w.halves {
                let mut r = [0u32; 32];
                {
                    let flush = $flush(w);
                    $(operand!($arg, t = w, s.src[$k], half, flush);)*
                    for i in 0..32 {
                        r[i] = f($($arg[i]),*);
                    }
                }
                $finish(w, s, &mut r);
                $put(w, s, half, &r);
            }
        }
    };
    (@u32 $x:ident) => { u32 };
}

#[inline(always)]
fn keep(_: &Wave, _: &Step, _: &mut Lanes) {}

#[inline(always)]
fn as_is(_: &Wave) -> bool {
    false
}

/// Whether f32 denormals need handling in this MODE.
#[inline(always)]
fn by_mode(w: &Wave) -> bool {
    !w.f32_default()
}

#[inline(always)]
fn put_dst(w: &mut Wave, s: &Step, half: usize, r: &Lanes) {
    put(w, s.dst as usize, half, r);
}

lane_shape!(
    /// 32-bit unary operation on bits.
    u1, as_is, keep, put_dst, (a: 0)
);
lane_shape!(
    /// 32-bit binary operation on bits.
    u2, as_is, keep, put_dst, (a: 0, b: 1)
);
lane_shape!(
    /// 32-bit ternary operation on bits.
    u3, as_is, keep, put_dst, (a: 0, b: 1, c: 2)
);
lane_shape!(
    /// f32 unary operation that never rounds, or whose rounding does not depend on MODE.
    f1, by_mode, finish_f32, put_dst, (a: 0)
);
lane_shape!(
    /// f32 binary operation that never rounds.
    f2, by_mode, finish_f32, put_dst, (a: 0, b: 1)
);
lane_shape!(
    /// f32 ternary operation that never rounds.
    f3, by_mode, finish_f32, put_dst, (a: 0, b: 1, c: 2)
);
lane_shape!(
    /// Integer or bits in, f32 out.
    uf1, as_is, finish_f32, put_dst, (a: 0)
);
lane_shape!(
    /// Bits in (packed halves, or formats that differ by operand), f32 out.
    uf3, as_is, finish_f32, put_dst, (a: 0, b: 1, c: 2)
);
lane_shape!(
    /// 16-bit unary operation on the low bits; the other half of the destination is kept.
    h1, as_is, keep, put16, (a: 0)
);
lane_shape!(
    /// 16-bit binary operation on the low bits.
    h2, as_is, keep, put16, (a: 0, b: 1)
);
lane_shape!(
    /// 16-bit ternary operation on the low bits.
    h3, as_is, keep, put16, (a: 0, b: 1, c: 2)
);
lane_shape!(
    /// f16 unary operation with output modifiers.
    hf1, as_is, finish_f16, put16, (a: 0)
);
lane_shape!(
    /// f16 binary operation that never rounds.
    hf2, as_is, finish_f16, put16, (a: 0, b: 1)
);
lane_shape!(
    /// f16 ternary operation that never rounds.
    hf3, as_is, finish_f16, put16, (a: 0, b: 1, c: 2)
);

#[cold]
#[inline(never)]
fn cold2(a: &Lanes, b: &Lanes, env: soft::Env, g: impl Fn(u32, u32, soft::Env) -> u32) -> Lanes {
    core::array::from_fn(|i| g(a[i], b[i], env))
}

#[cold]
#[inline(never)]
fn cold3(
    a: &Lanes,
    b: &Lanes,
    c: &Lanes,
    env: soft::Env,
    g: impl Fn(u32, u32, u32, soft::Env) -> u32,
) -> Lanes {
    core::array::from_fn(|i| g(a[i], b[i], c[i], env))
}

/// f32 binary arithmetic. `f` is the native operation, `g` the same in software, for when MODE asks for another rounding
/// or for flushing.
#[inline(always)]
pub(crate) fn fa2(
    w: &mut Wave,
    s: &Step,
    f: impl Fn(u32, u32) -> u32,
    g: impl Fn(u32, u32, soft::Env) -> u32,
) {
    for half in 0..w.halves {
        let mut r = [0u32; 32];
        {
            operand!(a, ta = w, s.src[0], half, false);
            operand!(b, tb = w, s.src[1], half, false);
            if w.f32_default() {
                for i in 0..32 {
                    r[i] = f(a[i], b[i]);
                }
            } else {
                r = cold2(a, b, soft::Env::f32(w.mode), &g);
            }
        }
        finish_f32(w, s, &mut r);
        put_dst(w, s, half, &r);
    }
}

/// f32 ternary arithmetic, native and in software.
#[inline(always)]
pub(crate) fn fa3(
    w: &mut Wave,
    s: &Step,
    f: impl Fn(u32, u32, u32) -> u32,
    g: impl Fn(u32, u32, u32, soft::Env) -> u32,
) {
    for half in 0..w.halves {
        let mut r = [0u32; 32];
        {
            operand!(a, ta = w, s.src[0], half, false);
            operand!(b, tb = w, s.src[1], half, false);
            operand!(c, tc = w, s.src[2], half, false);
            if w.f32_default() {
                for i in 0..32 {
                    r[i] = f(a[i], b[i], c[i]);
                }
            } else {
                r = cold3(a, b, c, soft::Env::f32(w.mode), &g);
            }
        }
        finish_f32(w, s, &mut r);
        put_dst(w, s, half, &r);
    }
}

/// f32 fused multiply-add of three sources.
#[inline(always)]
pub(crate) fn fma32(w: &mut Wave, s: &Step) {
    fa3(w, s, nan::fma32, |a, b, c, env| soft::fma(Format::F32, a.into(), b.into(), c.into(), 0, env) as u32);
}

/// f16 unary operation, native and in software.
#[inline(always)]
pub(crate) fn ha1(w: &mut Wave, s: &Step, f: impl Fn(u32) -> u32, g: impl Fn(u32, soft::Env) -> u32) {
    if w.f16_64_default() {
        return hf1(w, s, |a| f(a & 0xFFFF));
    }
    let env = soft::Env::f16_64(w.mode);
    hf1(w, s, |a| g(a & 0xFFFF, env));
}

/// f16 binary arithmetic, native and in software, on low halves.
#[inline(always)]
pub(crate) fn ha2(
    w: &mut Wave,
    s: &Step,
    f: impl Fn(u32, u32) -> u32,
    g: impl Fn(u32, u32, soft::Env) -> u32,
) {
    if w.f16_64_default() {
        return hf2(w, s, |a, b| f(a & 0xFFFF, b & 0xFFFF));
    }
    let env = soft::Env::f16_64(w.mode);
    hf2(w, s, |a, b| g(a & 0xFFFF, b & 0xFFFF, env));
}

/// f16 ternary arithmetic, native and in software, on low halves.
#[inline(always)]
pub(crate) fn ha3(
    w: &mut Wave,
    s: &Step,
    f: impl Fn(u32, u32, u32) -> u32,
    g: impl Fn(u32, u32, u32, soft::Env) -> u32,
) {
    if w.f16_64_default() {
        return hf3(w, s, |a, b, c| f(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF));
    }
    let env = soft::Env::f16_64(w.mode);
    hf3(w, s, |a, b, c| g(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF, env));
}

/// f16 fused multiply-add.
#[inline(always)]
pub(crate) fn fma16(w: &mut Wave, s: &Step) {
    ha3(w, s, fp::fma_f16, |a, b, c, env| {
        soft::fma(Format::F16, a.into(), b.into(), c.into(), 0, env) as u32
    });
}

/// Packed binary operation on both 16-bit halves.
#[inline(always)]
pub(crate) fn p2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    u2(w, s, |a, b| (f(a & 0xFFFF, b & 0xFFFF) & 0xFFFF) | f(a >> 16, b >> 16) << 16);
}

/// Packed ternary operation on both 16-bit halves.
#[inline(always)]
pub(crate) fn p3(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) {
    u3(w, s, |a, b, c| (f(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) & 0xFFFF) | f(a >> 16, b >> 16, c >> 16) << 16);
}

/// Packed f16 arithmetic, native and in software.
#[inline(always)]
pub(crate) fn pa2(
    w: &mut Wave,
    s: &Step,
    f: impl Fn(u32, u32) -> u32,
    g: impl Fn(u32, u32, soft::Env) -> u32,
) {
    if w.f16_64_default() && s.out == 0 {
        return p2(w, s, f);
    }
    let (m, out) = (w.mode, s.out);
    let env = soft::Env::f16_64(m);
    p2(w, s, |a, b| fp::finish_f16(g(a, b, env), out & OUT_CLAMP != 0, 0, m));
}

/// Packed f16 fused multiply-add.
#[inline(always)]
pub(crate) fn pfma(w: &mut Wave, s: &Step) {
    if w.f16_64_default() && s.out == 0 {
        return p3(w, s, fp::fma_f16);
    }
    let (m, out) = (w.mode, s.out);
    p3(w, s, |a, b, c| {
        let r = soft::fma(Format::F16, a.into(), b.into(), c.into(), 0, soft::Env::f16_64(m)) as u32;
        fp::finish_f16(r, out & OUT_CLAMP != 0, 0, m)
    });
}

/// Packed f16 minimum or maximum with clamp.
#[inline(always)]
pub(crate) fn pm2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    let (m, clamp) = (w.mode, s.out & OUT_CLAMP != 0);
    if w.f16_64_default() && !clamp {
        return p2(w, s, f);
    }
    p2(w, s, |a, b| fp::finish_f16(f(fp::flush_in_f16(a, m), fp::flush_in_f16(b, m)), clamp, 0, m));
}

/// Whether DX10_CLAMP turns NaN into zero.
pub(crate) fn dx10(m: u32) -> bool {
    m & mode::DX10_CLAMP != 0
}
