// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares: the mask gets a bit per active lane; the CMPX forms write it to EXEC.

use super::entry::Entry;
use super::exact::{F16, F32, F64, Format};
use super::lanes::{Lane, lanes};

/// Order of two floats, `None` if one is a NaN.
fn order(f: Format, flush: bool, a: u64, b: u64) -> Option<std::cmp::Ordering> {
    let mask = (f.sign() << 1).wrapping_sub(1);
    let [a, b] = [a, b].map(|x| if flush { f.flush(x & mask) } else { x & mask });
    if f.is_nan(a) || f.is_nan(b) {
        return None;
    }
    // As signed magnitudes both zeros are 0.
    let key = |x: u64| if x & f.sign() != 0 { -((x & (f.sign() - 1)) as i64) } else { x as i64 };
    Some(key(a).cmp(&key(b)))
}

fn f16(c: &Lane, a: u64, b: u64) -> Option<std::cmp::Ordering> {
    order(F16, c.wide().flush_in, a, b)
}

fn f32(c: &Lane, a: u64, b: u64) -> Option<std::cmp::Ordering> {
    order(F32, c.f32().flush_in, a, b)
}

fn f64(c: &Lane, a: u64, b: u64) -> Option<std::cmp::Ordering> {
    order(F64, c.wide().flush_in, a, b)
}

/// The class bits of v_cmp_class: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
fn class(f: Format, x: u64, wanted: u32) -> bool {
    let negative = x & f.sign() != 0;
    let bit = if f.is_nan(x) {
        if x & f.quiet() == 0 { 0 } else { 1 }
    } else if f.is_infinite(x) {
        if negative { 2 } else { 9 }
    } else if f.is_zero(x) {
        if negative { 5 } else { 6 }
    } else if f.is_denormal(x) {
        if negative { 4 } else { 7 }
    } else if negative {
        3
    } else {
        8
    };
    wanted >> bit & 1 != 0
}

macro_rules! compares {
    ($($op:ident $cmpx:ident $c:ident ($($arg:ident: $ty:ty),*) $e:expr;)*) => {
        lanes! {
            $($op $c ($($arg: $ty),*) $e;
            $cmpx $c ($($arg: $ty),*) $e;)*
        }
    };
}

pub(crate) const ENTRIES: &[Entry] = compares! {
    V_CMP_F_F16 V_CMPX_F_F16 c (_a: u64, _b: u64) false;
    V_CMP_LT_F16 V_CMPX_LT_F16 c (a: u64, b: u64) f16(c, a, b).is_some_and(|o| o.is_lt());
    V_CMP_EQ_F16 V_CMPX_EQ_F16 c (a: u64, b: u64) f16(c, a, b).is_some_and(|o| o.is_eq());
    V_CMP_LE_F16 V_CMPX_LE_F16 c (a: u64, b: u64) f16(c, a, b).is_some_and(|o| o.is_le());
    V_CMP_GT_F16 V_CMPX_GT_F16 c (a: u64, b: u64) f16(c, a, b).is_some_and(|o| o.is_gt());
    V_CMP_LG_F16 V_CMPX_LG_F16 c (a: u64, b: u64) f16(c, a, b).is_some_and(|o| o.is_ne());
    V_CMP_GE_F16 V_CMPX_GE_F16 c (a: u64, b: u64) f16(c, a, b).is_some_and(|o| o.is_ge());
    V_CMP_O_F16 V_CMPX_O_F16 c (a: u64, b: u64) f16(c, a, b).is_some();
    V_CMP_U_F16 V_CMPX_U_F16 c (a: u64, b: u64) f16(c, a, b).is_none();
    V_CMP_NGE_F16 V_CMPX_NGE_F16 c (a: u64, b: u64) !f16(c, a, b).is_some_and(|o| o.is_ge());
    V_CMP_NLG_F16 V_CMPX_NLG_F16 c (a: u64, b: u64) !f16(c, a, b).is_some_and(|o| o.is_ne());
    V_CMP_NGT_F16 V_CMPX_NGT_F16 c (a: u64, b: u64) !f16(c, a, b).is_some_and(|o| o.is_gt());
    V_CMP_NLE_F16 V_CMPX_NLE_F16 c (a: u64, b: u64) !f16(c, a, b).is_some_and(|o| o.is_le());
    V_CMP_NEQ_F16 V_CMPX_NEQ_F16 c (a: u64, b: u64) !f16(c, a, b).is_some_and(|o| o.is_eq());
    V_CMP_NLT_F16 V_CMPX_NLT_F16 c (a: u64, b: u64) !f16(c, a, b).is_some_and(|o| o.is_lt());
    V_CMP_T_F16 V_CMPX_T_F16 c (_a: u64, _b: u64) true;
    V_CMP_F_F32 V_CMPX_F_F32 c (_a: u64, _b: u64) false;
    V_CMP_LT_F32 V_CMPX_LT_F32 c (a: u64, b: u64) f32(c, a, b).is_some_and(|o| o.is_lt());
    V_CMP_EQ_F32 V_CMPX_EQ_F32 c (a: u64, b: u64) f32(c, a, b).is_some_and(|o| o.is_eq());
    V_CMP_LE_F32 V_CMPX_LE_F32 c (a: u64, b: u64) f32(c, a, b).is_some_and(|o| o.is_le());
    V_CMP_GT_F32 V_CMPX_GT_F32 c (a: u64, b: u64) f32(c, a, b).is_some_and(|o| o.is_gt());
    V_CMP_LG_F32 V_CMPX_LG_F32 c (a: u64, b: u64) f32(c, a, b).is_some_and(|o| o.is_ne());
    V_CMP_GE_F32 V_CMPX_GE_F32 c (a: u64, b: u64) f32(c, a, b).is_some_and(|o| o.is_ge());
    V_CMP_O_F32 V_CMPX_O_F32 c (a: u64, b: u64) f32(c, a, b).is_some();
    V_CMP_U_F32 V_CMPX_U_F32 c (a: u64, b: u64) f32(c, a, b).is_none();
    V_CMP_NGE_F32 V_CMPX_NGE_F32 c (a: u64, b: u64) !f32(c, a, b).is_some_and(|o| o.is_ge());
    V_CMP_NLG_F32 V_CMPX_NLG_F32 c (a: u64, b: u64) !f32(c, a, b).is_some_and(|o| o.is_ne());
    V_CMP_NGT_F32 V_CMPX_NGT_F32 c (a: u64, b: u64) !f32(c, a, b).is_some_and(|o| o.is_gt());
    V_CMP_NLE_F32 V_CMPX_NLE_F32 c (a: u64, b: u64) !f32(c, a, b).is_some_and(|o| o.is_le());
    V_CMP_NEQ_F32 V_CMPX_NEQ_F32 c (a: u64, b: u64) !f32(c, a, b).is_some_and(|o| o.is_eq());
    V_CMP_NLT_F32 V_CMPX_NLT_F32 c (a: u64, b: u64) !f32(c, a, b).is_some_and(|o| o.is_lt());
    V_CMP_T_F32 V_CMPX_T_F32 c (_a: u64, _b: u64) true;
    V_CMP_F_F64 V_CMPX_F_F64 c (_a: u64, _b: u64) false;
    V_CMP_LT_F64 V_CMPX_LT_F64 c (a: u64, b: u64) f64(c, a, b).is_some_and(|o| o.is_lt());
    V_CMP_EQ_F64 V_CMPX_EQ_F64 c (a: u64, b: u64) f64(c, a, b).is_some_and(|o| o.is_eq());
    V_CMP_LE_F64 V_CMPX_LE_F64 c (a: u64, b: u64) f64(c, a, b).is_some_and(|o| o.is_le());
    V_CMP_GT_F64 V_CMPX_GT_F64 c (a: u64, b: u64) f64(c, a, b).is_some_and(|o| o.is_gt());
    V_CMP_LG_F64 V_CMPX_LG_F64 c (a: u64, b: u64) f64(c, a, b).is_some_and(|o| o.is_ne());
    V_CMP_GE_F64 V_CMPX_GE_F64 c (a: u64, b: u64) f64(c, a, b).is_some_and(|o| o.is_ge());
    V_CMP_O_F64 V_CMPX_O_F64 c (a: u64, b: u64) f64(c, a, b).is_some();
    V_CMP_U_F64 V_CMPX_U_F64 c (a: u64, b: u64) f64(c, a, b).is_none();
    V_CMP_NGE_F64 V_CMPX_NGE_F64 c (a: u64, b: u64) !f64(c, a, b).is_some_and(|o| o.is_ge());
    V_CMP_NLG_F64 V_CMPX_NLG_F64 c (a: u64, b: u64) !f64(c, a, b).is_some_and(|o| o.is_ne());
    V_CMP_NGT_F64 V_CMPX_NGT_F64 c (a: u64, b: u64) !f64(c, a, b).is_some_and(|o| o.is_gt());
    V_CMP_NLE_F64 V_CMPX_NLE_F64 c (a: u64, b: u64) !f64(c, a, b).is_some_and(|o| o.is_le());
    V_CMP_NEQ_F64 V_CMPX_NEQ_F64 c (a: u64, b: u64) !f64(c, a, b).is_some_and(|o| o.is_eq());
    V_CMP_NLT_F64 V_CMPX_NLT_F64 c (a: u64, b: u64) !f64(c, a, b).is_some_and(|o| o.is_lt());
    V_CMP_T_F64 V_CMPX_T_F64 c (_a: u64, _b: u64) true;
    V_CMP_LT_I16 V_CMPX_LT_I16 c (a: i16, b: i16) a < b;
    V_CMP_EQ_I16 V_CMPX_EQ_I16 c (a: i16, b: i16) a == b;
    V_CMP_LE_I16 V_CMPX_LE_I16 c (a: i16, b: i16) a <= b;
    V_CMP_GT_I16 V_CMPX_GT_I16 c (a: i16, b: i16) a > b;
    V_CMP_NE_I16 V_CMPX_NE_I16 c (a: i16, b: i16) a != b;
    V_CMP_GE_I16 V_CMPX_GE_I16 c (a: i16, b: i16) a >= b;
    V_CMP_LT_U16 V_CMPX_LT_U16 c (a: u16, b: u16) a < b;
    V_CMP_EQ_U16 V_CMPX_EQ_U16 c (a: u16, b: u16) a == b;
    V_CMP_LE_U16 V_CMPX_LE_U16 c (a: u16, b: u16) a <= b;
    V_CMP_GT_U16 V_CMPX_GT_U16 c (a: u16, b: u16) a > b;
    V_CMP_NE_U16 V_CMPX_NE_U16 c (a: u16, b: u16) a != b;
    V_CMP_GE_U16 V_CMPX_GE_U16 c (a: u16, b: u16) a >= b;
    V_CMP_LT_I32 V_CMPX_LT_I32 c (a: i32, b: i32) a < b;
    V_CMP_EQ_I32 V_CMPX_EQ_I32 c (a: i32, b: i32) a == b;
    V_CMP_LE_I32 V_CMPX_LE_I32 c (a: i32, b: i32) a <= b;
    V_CMP_GT_I32 V_CMPX_GT_I32 c (a: i32, b: i32) a > b;
    V_CMP_NE_I32 V_CMPX_NE_I32 c (a: i32, b: i32) a != b;
    V_CMP_GE_I32 V_CMPX_GE_I32 c (a: i32, b: i32) a >= b;
    V_CMP_F_I32 V_CMPX_F_I32 c (_a: i32, _b: i32) false;
    V_CMP_T_I32 V_CMPX_T_I32 c (_a: i32, _b: i32) true;
    V_CMP_LT_U32 V_CMPX_LT_U32 c (a: u32, b: u32) a < b;
    V_CMP_EQ_U32 V_CMPX_EQ_U32 c (a: u32, b: u32) a == b;
    V_CMP_LE_U32 V_CMPX_LE_U32 c (a: u32, b: u32) a <= b;
    V_CMP_GT_U32 V_CMPX_GT_U32 c (a: u32, b: u32) a > b;
    V_CMP_NE_U32 V_CMPX_NE_U32 c (a: u32, b: u32) a != b;
    V_CMP_GE_U32 V_CMPX_GE_U32 c (a: u32, b: u32) a >= b;
    V_CMP_F_U32 V_CMPX_F_U32 c (_a: u32, _b: u32) false;
    V_CMP_T_U32 V_CMPX_T_U32 c (_a: u32, _b: u32) true;
    V_CMP_LT_I64 V_CMPX_LT_I64 c (a: i64, b: i64) a < b;
    V_CMP_EQ_I64 V_CMPX_EQ_I64 c (a: i64, b: i64) a == b;
    V_CMP_LE_I64 V_CMPX_LE_I64 c (a: i64, b: i64) a <= b;
    V_CMP_GT_I64 V_CMPX_GT_I64 c (a: i64, b: i64) a > b;
    V_CMP_NE_I64 V_CMPX_NE_I64 c (a: i64, b: i64) a != b;
    V_CMP_GE_I64 V_CMPX_GE_I64 c (a: i64, b: i64) a >= b;
    V_CMP_F_I64 V_CMPX_F_I64 c (_a: i64, _b: i64) false;
    V_CMP_T_I64 V_CMPX_T_I64 c (_a: i64, _b: i64) true;
    V_CMP_LT_U64 V_CMPX_LT_U64 c (a: u64, b: u64) a < b;
    V_CMP_EQ_U64 V_CMPX_EQ_U64 c (a: u64, b: u64) a == b;
    V_CMP_LE_U64 V_CMPX_LE_U64 c (a: u64, b: u64) a <= b;
    V_CMP_GT_U64 V_CMPX_GT_U64 c (a: u64, b: u64) a > b;
    V_CMP_NE_U64 V_CMPX_NE_U64 c (a: u64, b: u64) a != b;
    V_CMP_GE_U64 V_CMPX_GE_U64 c (a: u64, b: u64) a >= b;
    V_CMP_F_U64 V_CMPX_F_U64 c (_a: u64, _b: u64) false;
    V_CMP_T_U64 V_CMPX_T_U64 c (_a: u64, _b: u64) true;
    V_CMP_CLASS_F16 V_CMPX_CLASS_F16 c (a: u64, b: u32) class(F16, a & 0xFFFF, b);
    V_CMP_CLASS_F32 V_CMPX_CLASS_F32 c (a: u64, b: u32) class(F32, a, b);
    V_CMP_CLASS_F64 V_CMPX_CLASS_F64 c (a: u64, b: u32) class(F64, a, b);
};
