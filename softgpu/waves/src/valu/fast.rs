// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commonest operations with AVX2 intrinsics, for wave32 steps without modifiers.
//!
//! INVARIANT: same results bit for bit as the tables of the sibling modules, which handle every other step and, for f32,
//! every MODE but the default. The compiler's own vectorisation of those loops keeps rows in memory between the parts of
//! an operation; here a row is four registers from load to store.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use softgpu_isa::Op;

use crate::env::Env;
use crate::level::Level;
use crate::step::{Flow, Handler, Kind, Src, Step};
use crate::wave::{Lanes, Wave};

type V = __m256i;
type Row4 = [V; 4];

/// A row, or a scalar in all lanes. Predecode let only these kinds through.
#[inline]
#[target_feature(enable = "avx2")]
fn get(w: &Wave, s: &Src) -> Row4 {
    match s.kind {
        Kind::Vgpr => load(&w.v[s.index as usize].0),
        Kind::Scalar => [_mm256_set1_epi32(w.s[s.index as usize] as i32); 4],
        _ => [_mm256_set1_epi32(s.value as i32); 4],
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(row: &Lanes) -> Row4 {
    let p = row.as_ptr();
    // SAFETY: a row has 32 dwords.
    unsafe {
        [
            _mm256_loadu_si256(p.cast()),
            _mm256_loadu_si256(p.add(8).cast()),
            _mm256_loadu_si256(p.add(16).cast()),
            _mm256_loadu_si256(p.add(24).cast()),
        ]
    }
}

/// Lane masks of eight bits.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(bits: u32, k: usize) -> V {
    let select = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let byte = _mm256_set1_epi32((bits >> (8 * k) & 0xFF) as i32);
    _mm256_cmpeq_epi32(_mm256_and_si256(byte, select), select)
}

#[inline]
#[target_feature(enable = "avx2")]
fn put(w: &mut Wave, row: usize, r: Row4) {
    let exec = w.exec_half(0);
    let p = w.v[row].0.as_mut_ptr();
    for (k, v) in r.into_iter().enumerate() {
        // SAFETY: lanes 8 * k .. 8 * k + 8 of a row of 32 dwords.
        unsafe {
            let p = p.add(8 * k);
            if exec == u32::MAX {
                _mm256_storeu_si256(p.cast(), v);
            } else {
                _mm256_maskstore_epi32(p.cast(), spread(exec, k), v);
            }
        }
    }
}

/// One bit per lane that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(m: Row4) -> u32 {
    let byte = |v: V| _mm256_movemask_ps(_mm256_castsi256_ps(v)) as u32;
    byte(m[0]) | byte(m[1]) << 8 | byte(m[2]) << 16 | byte(m[3]) << 24
}

#[inline]
#[target_feature(enable = "avx2")]
fn below(a: V, b: V) -> V {
    let sign = _mm256_set1_epi32(i32::MIN);
    _mm256_cmpgt_epi32(_mm256_xor_si256(b, sign), _mm256_xor_si256(a, sign))
}

/// Runs the handler of the tables.
#[cold]
fn general(op: Op, w: &mut Wave, e: &mut Env<'_>, s: &Step) -> Flow {
    let Some(handler) = super::table_handler(Level::Avx2, op) else { return Flow::Next };
    // SAFETY: `fast_handler` gives this handler out from AVX2 on only, a level that this CPU was found to have.
    unsafe { handler(w, e, s) }
}

macro_rules! fast_ops {
    ($($op:ident $count:literal $float:literal |$a:ident, $b:ident, $c:ident| $body:expr;)*) => {
        fn simple(op: Op) -> Option<(Handler, usize)> {
            Some(match op {
                $(Op::$op => {
                    #[target_feature(enable = "avx2,fma")]
                    fn run(w: &mut Wave, e: &mut Env<'_>, s: &Step) -> Flow {
                        if $float && !w.f32_default() {
                            return general(Op::$op, w, e, s);
                        }
                        let zero = [_mm256_setzero_si256(); 4];
                        let x = get(w, &s.src[0]);
                        let y = if $count > 1 { get(w, &s.src[1]) } else { zero };
                        let z = if $count > 2 { get(w, &s.src[2]) } else { zero };
                        let mut r = zero;
                        for k in 0..4 {
                            let ($a, $b, $c) = (x[k], y[k], z[k]);
                            let _ = ($b, $c);
                            r[k] = $body;
                        }
                        put(w, s.dst as usize, r);
                        Flow::Next
                    }
                    (run as Handler, $count)
                })*
                _ => return None,
            })
        }
    };
}

macro_rules! ordered {
    ($($name:ident $instruction:literal;)*) => {
        $(#[inline]
        #[target_feature(enable = "avx2")]
        fn $name(a: V, b: V) -> V {
            let r: V;
            // SAFETY: one instruction on registers that reads and writes nothing else; AVX2 is enabled.
            unsafe {
                asm!(
                    concat!("{{vex3}} ", $instruction, " {r}, {a}, {b}"),
                    r = lateout(ymm_reg) r,
                    a = in(ymm_reg) a,
                    b = in(ymm_reg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            r
        }
        )*
    };
}

// The compiler may exchange the operands of its own additions and products, which changes the NaN of the result: these
// functions keep the order of `super::nan`. Without `{vex3}` the assembler would exchange the operands too, where that
// saves a byte.
ordered! {
    add "vaddps";
    sub "vsubps";
    mul "vmulps";
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn fma(a: V, b: V, c: V) -> V {
    let mut r = c;
    // SAFETY: registers alone, no memory, no flags; FMA is enabled.
    unsafe {
        asm!(
            "vfmadd231ps {r}, {a}, {b}",
            r = inout(ymm_reg) r,
            a = in(ymm_reg) a,
            b = in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    r
}

#[inline]
#[target_feature(enable = "avx2")]
fn count(v: V) -> V {
    _mm256_and_si256(v, _mm256_set1_epi32(31))
}

fast_ops! {
    V_MOV_B32 1 false |a, _b, _c| a;
    V_ADD_F32 2 true |a, b, _c| add(a, b);
    V_SUB_F32 2 true |a, b, _c| sub(a, b);
    V_SUBREV_F32 2 true |a, b, _c| sub(b, a);
    V_MUL_F32 2 true |a, b, _c| mul(a, b);
    V_FMA_F32 3 true |a, b, c| fma(a, b, c);
    V_FMAC_F32 3 true |a, b, c| fma(a, b, c);
    V_FMAMK_F32 3 true |a, b, c| fma(a, b, c);
    V_FMAAK_F32 3 true |a, b, c| fma(a, b, c);
    V_ADD_NC_U32 2 false |a, b, _c| _mm256_add_epi32(a, b);
    V_SUB_NC_U32 2 false |a, b, _c| _mm256_sub_epi32(a, b);
    V_SUBREV_NC_U32 2 false |a, b, _c| _mm256_sub_epi32(b, a);
    V_AND_B32 2 false |a, b, _c| _mm256_and_si256(a, b);
    V_OR_B32 2 false |a, b, _c| _mm256_or_si256(a, b);
    V_XOR_B32 2 false |a, b, _c| _mm256_xor_si256(a, b);
    V_LSHLREV_B32 2 false |a, b, _c| _mm256_sllv_epi32(b, count(a));
    V_LSHRREV_B32 2 false |a, b, _c| _mm256_srlv_epi32(b, count(a));
    V_ASHRREV_I32 2 false |a, b, _c| _mm256_srav_epi32(b, count(a));
    V_MUL_LO_U32 2 false |a, b, _c| _mm256_mullo_epi32(a, b);
    V_ADD3_U32 3 false |a, b, c| _mm256_add_epi32(_mm256_add_epi32(a, b), c);
    V_OR3_B32 3 false |a, b, c| _mm256_or_si256(_mm256_or_si256(a, b), c);
    V_XOR3_B32 3 false |a, b, c| _mm256_xor_si256(_mm256_xor_si256(a, b), c);
    V_AND_OR_B32 3 false |a, b, c| _mm256_or_si256(_mm256_and_si256(a, b), c);
    V_LSHL_ADD_U32 3 false |a, b, c| _mm256_add_epi32(_mm256_sllv_epi32(a, count(b)), c);
    V_ADD_LSHL_U32 3 false |a, b, c| _mm256_sllv_epi32(_mm256_add_epi32(a, b), count(c));
    V_LSHL_OR_B32 3 false |a, b, c| _mm256_or_si256(_mm256_sllv_epi32(a, count(b)), c);
}

#[inline]
#[target_feature(enable = "avx2")]
fn carry<const IN: bool, const SUB: bool, const REVERSE: bool>(w: &mut Wave, s: &Step) -> Flow {
    let (mut a, mut b) = (get(w, &s.src[0]), get(w, &s.src[1]));
    if REVERSE {
        (a, b) = (b, a);
    }
    let carry_in = if IN { w.s[s.src[2].index as usize] } else { 0 };
    let mut r = a;
    let mut out = a;
    for k in 0..4 {
        // A set lane mask is -1, so subtracting it adds the carry and the other way round.
        let c = if IN { spread(carry_in, k) } else { _mm256_setzero_si256() };
        if SUB {
            let partial = _mm256_sub_epi32(a[k], b[k]);
            r[k] = _mm256_add_epi32(partial, c);
            let second = _mm256_and_si256(c, _mm256_cmpeq_epi32(partial, _mm256_setzero_si256()));
            out[k] = _mm256_or_si256(below(a[k], b[k]), second);
        } else {
            let partial = _mm256_add_epi32(a[k], b[k]);
            r[k] = _mm256_sub_epi32(partial, c);
            let second = _mm256_and_si256(c, _mm256_cmpeq_epi32(partial, _mm256_set1_epi32(-1)));
            out[k] = _mm256_or_si256(below(partial, a[k]), second);
        }
    }
    let mask = bits(out) & w.exec_half(0);
    put(w, s.dst as usize, r);
    w.s[s.sdst as usize] = mask;
    Flow::Next
}

macro_rules! carry_op {
    ($in:literal, $sub:literal, $reverse:literal) => {{
        #[target_feature(enable = "avx2")]
        fn run(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
            carry::<$in, $sub, $reverse>(w, s)
        }
        run as Handler
    }};
}

#[target_feature(enable = "avx2")]
fn select(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let (a, b) = (get(w, &s.src[0]), get(w, &s.src[1]));
    let mask = w.s[s.src[2].index as usize];
    let mut r = a;
    for k in 0..4 {
        r[k] = _mm256_blendv_epi8(a[k], b[k], spread(mask, k));
    }
    put(w, s.dst as usize, r);
    Flow::Next
}

/// v_lshlrev_b64: variable shifts give 0 for counts of 32 and more, which joins the halves without a branch.
#[target_feature(enable = "avx2")]
fn shift_left64(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let n = get(w, &s.src[0]);
    let row = s.src[1].index as usize;
    let (lo, hi) = (load(&w.v[row].0), load(&w.v[row + 1].0));
    let (mut low, mut high) = (lo, hi);
    let thirty_two = _mm256_set1_epi32(32);
    for k in 0..4 {
        let by = _mm256_and_si256(n[k], _mm256_set1_epi32(63));
        low[k] = _mm256_sllv_epi32(lo[k], by);
        let crossing = _mm256_or_si256(
            _mm256_srlv_epi32(lo[k], _mm256_sub_epi32(thirty_two, by)),
            _mm256_sllv_epi32(lo[k], _mm256_sub_epi32(by, thirty_two)),
        );
        high[k] = _mm256_or_si256(_mm256_sllv_epi32(hi[k], by), crossing);
    }
    put(w, s.dst as usize, low);
    put(w, s.dst as usize + 1, high);
    Flow::Next
}

/// A faster handler for `step`, if there is one.
pub(crate) fn pick(level: Level, halves: usize, op: Op, step: &Step) -> Option<Handler> {
    if level < Level::Avx2 || halves != 1 || step.out != 0 {
        return None;
    }
    let plain =
        |n: usize| step.src[..n].iter().all(|s| matches!(s.kind, Kind::Vgpr | Kind::Const | Kind::Scalar));
    let mask = step.src[2].kind == Kind::Scalar;
    let (handler, sources) = match op {
        Op::V_ADD_CO_U32 => (carry_op!(false, false, false), 2),
        Op::V_SUB_CO_U32 => (carry_op!(false, true, false), 2),
        Op::V_SUBREV_CO_U32 => (carry_op!(false, true, true), 2),
        Op::V_ADD_CO_CI_U32 if mask => (carry_op!(true, false, false), 2),
        Op::V_SUB_CO_CI_U32 if mask => (carry_op!(true, true, false), 2),
        Op::V_SUBREV_CO_CI_U32 if mask => (carry_op!(true, true, true), 2),
        Op::V_CNDMASK_B32 if mask => (select as Handler, 2),
        Op::V_LSHLREV_B64 if step.src[1].kind == Kind::Vgpr => (shift_left64 as Handler, 2),
        _ => simple(op)?,
    };
    plain(sources).then_some(handler)
}
