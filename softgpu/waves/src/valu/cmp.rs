// SPDX-License-Identifier: MIT OR Apache-2.0
//! Vector compares into lane masks; CMPX forms have EXEC as their destination.

use super::fp;
use super::half::sx;
use super::masks::*;
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

lane_table! {
    /// Float compares.
    floats:
    V_CMP_F_F32 = float32 { |_, _| false };
    V_CMPX_F_F32 = float32 { |_, _| false };
    V_CMP_LT_F32 = float32 { lt };
    V_CMPX_LT_F32 = float32 { lt };
    V_CMP_EQ_F32 = float32 { eq };
    V_CMPX_EQ_F32 = float32 { eq };
    V_CMP_LE_F32 = float32 { le };
    V_CMPX_LE_F32 = float32 { le };
    V_CMP_GT_F32 = float32 { gt };
    V_CMPX_GT_F32 = float32 { gt };
    V_CMP_LG_F32 = float32 { lg };
    V_CMPX_LG_F32 = float32 { lg };
    V_CMP_GE_F32 = float32 { ge };
    V_CMPX_GE_F32 = float32 { ge };
    V_CMP_O_F32 = float32 { o };
    V_CMPX_O_F32 = float32 { o };
    V_CMP_U_F32 = float32 { u };
    V_CMPX_U_F32 = float32 { u };
    V_CMP_NGE_F32 = float32 { nge };
    V_CMPX_NGE_F32 = float32 { nge };
    V_CMP_NLG_F32 = float32 { nlg };
    V_CMPX_NLG_F32 = float32 { nlg };
    V_CMP_NGT_F32 = float32 { ngt };
    V_CMPX_NGT_F32 = float32 { ngt };
    V_CMP_NLE_F32 = float32 { nle };
    V_CMPX_NLE_F32 = float32 { nle };
    V_CMP_NEQ_F32 = float32 { neq };
    V_CMPX_NEQ_F32 = float32 { neq };
    V_CMP_NLT_F32 = float32 { nlt };
    V_CMPX_NLT_F32 = float32 { nlt };
    V_CMP_T_F32 = float32 { |_, _| true };
    V_CMPX_T_F32 = float32 { |_, _| true };
    V_CMP_F_F16 = float16 { |_, _| false };
    V_CMPX_F_F16 = float16 { |_, _| false };
    V_CMP_LT_F16 = float16 { lt };
    V_CMPX_LT_F16 = float16 { lt };
    V_CMP_EQ_F16 = float16 { eq };
    V_CMPX_EQ_F16 = float16 { eq };
    V_CMP_LE_F16 = float16 { le };
    V_CMPX_LE_F16 = float16 { le };
    V_CMP_GT_F16 = float16 { gt };
    V_CMPX_GT_F16 = float16 { gt };
    V_CMP_LG_F16 = float16 { lg };
    V_CMPX_LG_F16 = float16 { lg };
    V_CMP_GE_F16 = float16 { ge };
    V_CMPX_GE_F16 = float16 { ge };
    V_CMP_O_F16 = float16 { o };
    V_CMPX_O_F16 = float16 { o };
    V_CMP_U_F16 = float16 { u };
    V_CMPX_U_F16 = float16 { u };
    V_CMP_NGE_F16 = float16 { nge };
    V_CMPX_NGE_F16 = float16 { nge };
    V_CMP_NLG_F16 = float16 { nlg };
    V_CMPX_NLG_F16 = float16 { nlg };
    V_CMP_NGT_F16 = float16 { ngt };
    V_CMPX_NGT_F16 = float16 { ngt };
    V_CMP_NLE_F16 = float16 { nle };
    V_CMPX_NLE_F16 = float16 { nle };
    V_CMP_NEQ_F16 = float16 { neq };
    V_CMPX_NEQ_F16 = float16 { neq };
    V_CMP_NLT_F16 = float16 { nlt };
    V_CMPX_NLT_F16 = float16 { nlt };
    V_CMP_T_F16 = float16 { |_, _| true };
    V_CMPX_T_F16 = float16 { |_, _| true };
    V_CMP_F_F64 = float64 { |_, _| false };
    V_CMPX_F_F64 = float64 { |_, _| false };
    V_CMP_LT_F64 = float64 { lt };
    V_CMPX_LT_F64 = float64 { lt };
    V_CMP_EQ_F64 = float64 { eq };
    V_CMPX_EQ_F64 = float64 { eq };
    V_CMP_LE_F64 = float64 { le };
    V_CMPX_LE_F64 = float64 { le };
    V_CMP_GT_F64 = float64 { gt };
    V_CMPX_GT_F64 = float64 { gt };
    V_CMP_LG_F64 = float64 { lg };
    V_CMPX_LG_F64 = float64 { lg };
    V_CMP_GE_F64 = float64 { ge };
    V_CMPX_GE_F64 = float64 { ge };
    V_CMP_O_F64 = float64 { o };
    V_CMPX_O_F64 = float64 { o };
    V_CMP_U_F64 = float64 { u };
    V_CMPX_U_F64 = float64 { u };
    V_CMP_NGE_F64 = float64 { nge };
    V_CMPX_NGE_F64 = float64 { nge };
    V_CMP_NLG_F64 = float64 { nlg };
    V_CMPX_NLG_F64 = float64 { nlg };
    V_CMP_NGT_F64 = float64 { ngt };
    V_CMPX_NGT_F64 = float64 { ngt };
    V_CMP_NLE_F64 = float64 { nle };
    V_CMPX_NLE_F64 = float64 { nle };
    V_CMP_NEQ_F64 = float64 { neq };
    V_CMPX_NEQ_F64 = float64 { neq };
    V_CMP_NLT_F64 = float64 { nlt };
    V_CMPX_NLT_F64 = float64 { nlt };
    V_CMP_T_F64 = float64 { |_, _| true };
    V_CMPX_T_F64 = float64 { |_, _| true };
}

lane_table! {
    /// Integer compares and class tests.
    integers:
    V_CMP_F_I32 = c32 { |_, _| false };
    V_CMPX_F_I32 = c32 { |_, _| false };
    V_CMP_LT_I32 = c32 { |a, b| (a as i32) < (b as i32) };
    V_CMPX_LT_I32 = c32 { |a, b| (a as i32) < (b as i32) };
    V_CMP_EQ_I32 = c32 { |a, b| (a as i32) == (b as i32) };
    V_CMPX_EQ_I32 = c32 { |a, b| (a as i32) == (b as i32) };
    V_CMP_LE_I32 = c32 { |a, b| (a as i32) <= (b as i32) };
    V_CMPX_LE_I32 = c32 { |a, b| (a as i32) <= (b as i32) };
    V_CMP_GT_I32 = c32 { |a, b| (a as i32) > (b as i32) };
    V_CMPX_GT_I32 = c32 { |a, b| (a as i32) > (b as i32) };
    V_CMP_NE_I32 = c32 { |a, b| (a as i32) != (b as i32) };
    V_CMPX_NE_I32 = c32 { |a, b| (a as i32) != (b as i32) };
    V_CMP_GE_I32 = c32 { |a, b| (a as i32) >= (b as i32) };
    V_CMPX_GE_I32 = c32 { |a, b| (a as i32) >= (b as i32) };
    V_CMP_T_I32 = c32 { |_, _| true };
    V_CMPX_T_I32 = c32 { |_, _| true };
    V_CMP_F_U32 = c32 { |_, _| false };
    V_CMPX_F_U32 = c32 { |_, _| false };
    V_CMP_LT_U32 = c32 { |a, b| a < b };
    V_CMPX_LT_U32 = c32 { |a, b| a < b };
    V_CMP_EQ_U32 = c32 { |a, b| a == b };
    V_CMPX_EQ_U32 = c32 { |a, b| a == b };
    V_CMP_LE_U32 = c32 { |a, b| a <= b };
    V_CMPX_LE_U32 = c32 { |a, b| a <= b };
    V_CMP_GT_U32 = c32 { |a, b| a > b };
    V_CMPX_GT_U32 = c32 { |a, b| a > b };
    V_CMP_NE_U32 = c32 { |a, b| a != b };
    V_CMPX_NE_U32 = c32 { |a, b| a != b };
    V_CMP_GE_U32 = c32 { |a, b| a >= b };
    V_CMPX_GE_U32 = c32 { |a, b| a >= b };
    V_CMP_T_U32 = c32 { |_, _| true };
    V_CMPX_T_U32 = c32 { |_, _| true };
    V_CMP_LT_I16 = c32 { |a, b| sx(a) < sx(b) };
    V_CMPX_LT_I16 = c32 { |a, b| sx(a) < sx(b) };
    V_CMP_EQ_I16 = c32 { |a, b| sx(a) == sx(b) };
    V_CMPX_EQ_I16 = c32 { |a, b| sx(a) == sx(b) };
    V_CMP_LE_I16 = c32 { |a, b| sx(a) <= sx(b) };
    V_CMPX_LE_I16 = c32 { |a, b| sx(a) <= sx(b) };
    V_CMP_GT_I16 = c32 { |a, b| sx(a) > sx(b) };
    V_CMPX_GT_I16 = c32 { |a, b| sx(a) > sx(b) };
    V_CMP_NE_I16 = c32 { |a, b| sx(a) != sx(b) };
    V_CMPX_NE_I16 = c32 { |a, b| sx(a) != sx(b) };
    V_CMP_GE_I16 = c32 { |a, b| sx(a) >= sx(b) };
    V_CMPX_GE_I16 = c32 { |a, b| sx(a) >= sx(b) };
    V_CMP_LT_U16 = c32 { |a, b| (a & 0xFFFF) < (b & 0xFFFF) };
    V_CMPX_LT_U16 = c32 { |a, b| (a & 0xFFFF) < (b & 0xFFFF) };
    V_CMP_EQ_U16 = c32 { |a, b| (a & 0xFFFF) == (b & 0xFFFF) };
    V_CMPX_EQ_U16 = c32 { |a, b| (a & 0xFFFF) == (b & 0xFFFF) };
    V_CMP_LE_U16 = c32 { |a, b| (a & 0xFFFF) <= (b & 0xFFFF) };
    V_CMPX_LE_U16 = c32 { |a, b| (a & 0xFFFF) <= (b & 0xFFFF) };
    V_CMP_GT_U16 = c32 { |a, b| (a & 0xFFFF) > (b & 0xFFFF) };
    V_CMPX_GT_U16 = c32 { |a, b| (a & 0xFFFF) > (b & 0xFFFF) };
    V_CMP_NE_U16 = c32 { |a, b| (a & 0xFFFF) != (b & 0xFFFF) };
    V_CMPX_NE_U16 = c32 { |a, b| (a & 0xFFFF) != (b & 0xFFFF) };
    V_CMP_GE_U16 = c32 { |a, b| (a & 0xFFFF) >= (b & 0xFFFF) };
    V_CMPX_GE_U16 = c32 { |a, b| (a & 0xFFFF) >= (b & 0xFFFF) };
    V_CMP_F_I64 = c64 { |_, _| false };
    V_CMPX_F_I64 = c64 { |_, _| false };
    V_CMP_LT_I64 = c64 { |a, b| (a as i64) < (b as i64) };
    V_CMPX_LT_I64 = c64 { |a, b| (a as i64) < (b as i64) };
    V_CMP_EQ_I64 = c64 { |a, b| (a as i64) == (b as i64) };
    V_CMPX_EQ_I64 = c64 { |a, b| (a as i64) == (b as i64) };
    V_CMP_LE_I64 = c64 { |a, b| (a as i64) <= (b as i64) };
    V_CMPX_LE_I64 = c64 { |a, b| (a as i64) <= (b as i64) };
    V_CMP_GT_I64 = c64 { |a, b| (a as i64) > (b as i64) };
    V_CMPX_GT_I64 = c64 { |a, b| (a as i64) > (b as i64) };
    V_CMP_NE_I64 = c64 { |a, b| (a as i64) != (b as i64) };
    V_CMPX_NE_I64 = c64 { |a, b| (a as i64) != (b as i64) };
    V_CMP_GE_I64 = c64 { |a, b| (a as i64) >= (b as i64) };
    V_CMPX_GE_I64 = c64 { |a, b| (a as i64) >= (b as i64) };
    V_CMP_T_I64 = c64 { |_, _| true };
    V_CMPX_T_I64 = c64 { |_, _| true };
    V_CMP_F_U64 = c64 { |_, _| false };
    V_CMPX_F_U64 = c64 { |_, _| false };
    V_CMP_LT_U64 = c64 { |a, b| a < b };
    V_CMPX_LT_U64 = c64 { |a, b| a < b };
    V_CMP_EQ_U64 = c64 { |a, b| a == b };
    V_CMPX_EQ_U64 = c64 { |a, b| a == b };
    V_CMP_LE_U64 = c64 { |a, b| a <= b };
    V_CMPX_LE_U64 = c64 { |a, b| a <= b };
    V_CMP_GT_U64 = c64 { |a, b| a > b };
    V_CMPX_GT_U64 = c64 { |a, b| a > b };
    V_CMP_NE_U64 = c64 { |a, b| a != b };
    V_CMPX_NE_U64 = c64 { |a, b| a != b };
    V_CMP_GE_U64 = c64 { |a, b| a >= b };
    V_CMPX_GE_U64 = c64 { |a, b| a >= b };
    V_CMP_T_U64 = c64 { |_, _| true };
    V_CMPX_T_U64 = c64 { |_, _| true };
    V_CMP_CLASS_F32 = c32 { |a, b| fp::class32(a) & b != 0 };
    V_CMP_CLASS_F16 = c32 { |a, b| fp::class16(a & 0xFFFF) & b != 0 };
    V_CMP_CLASS_F64 = class64 { |a, b| fp::class64(a) & b != 0 };
    V_CMPX_CLASS_F32 = c32 { |a, b| fp::class32(a) & b != 0 };
    V_CMPX_CLASS_F16 = c32 { |a, b| fp::class16(a & 0xFFFF) & b != 0 };
    V_CMPX_CLASS_F64 = class64 { |a, b| fp::class64(a) & b != 0 };
}

#[inline(always)]
fn float32(w: &mut Wave, s: &Step, f: impl Fn(f32, f32) -> bool) {
    cf32(w, s, |a, b| f(f32::from_bits(a), f32::from_bits(b)));
}

#[inline(always)]
fn float16(w: &mut Wave, s: &Step, f: impl Fn(f32, f32) -> bool) {
    cf16(w, s, f);
}

#[inline(always)]
fn float64(w: &mut Wave, s: &Step, f: impl Fn(f64, f64) -> bool) {
    let m = w.mode;
    c64(w, s, |a, b| f(f64::from_bits(fp::flush_in_f64(a, m)), f64::from_bits(fp::flush_in_f64(b, m))));
}

macro_rules! predicates {
    ($($name:ident |$a:ident, $b:ident| $e:expr;)*) => {
        $(#[inline(always)]
        fn $name<T: PartialOrd + Copy>($a: T, $b: T) -> bool {
            $e
        })*
    };
}

predicates! {
    lt |a, b| a < b;
    eq |a, b| a == b;
    le |a, b| a <= b;
    gt |a, b| a > b;
    lg |a, b| a.partial_cmp(&b).is_some_and(core::cmp::Ordering::is_ne);
    ge |a, b| a >= b;
    o |a, b| a.partial_cmp(&b).is_some();
    u |a, b| a.partial_cmp(&b).is_none();
    nge |a, b| !ge(a, b);
    nlg |a, b| !lg(a, b);
    ngt |a, b| !gt(a, b);
    nle |a, b| !le(a, b);
    neq |a, b| a != b;
    nlt |a, b| !lt(a, b);
}
