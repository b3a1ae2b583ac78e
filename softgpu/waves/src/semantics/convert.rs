// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversions between numbers.

use super::entry::Entry;
use super::exact::{self, F16, F32, F64, Mode, NEAREST};
use super::lanes::{Lane, lanes};

fn wide(x: u32) -> f64 {
    f64::from_bits(exact::convert(F32, F64, x.into(), NEAREST))
}

/// Toward zero, saturating; NaN gives 0.
fn integer(x: f64, least: i64, most: i64) -> i64 {
    if x.is_nan() {
        0
    } else if x <= least as f64 {
        least
    } else if x >= most as f64 {
        most
    } else {
        x.trunc() as i64
    }
}

fn i32_of(x: f64) -> i32 {
    integer(x, i32::MIN.into(), i32::MAX.into()) as i32
}

fn u32_of(x: f64) -> u32 {
    integer(x, 0, u32::MAX.into()) as u32
}

fn i16_of(x: f64) -> u16 {
    integer(x, -0x8000, 0x7FFF) as i16 as u16
}

fn u16_of(x: f64) -> u16 {
    integer(x, 0, 0xFFFF) as u16
}

/// -1..=1 to -32767..=32767.
fn snorm(x: f64) -> u16 {
    if x.is_nan() { 0 } else { (x.clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16 as u16 }
}

/// 0..=1 to 0..=65535.
fn unorm(x: f64) -> u16 {
    if x.is_nan() { 0 } else { (x.clamp(0.0, 1.0) * 65535.0).round_ties_even() as u16 }
}

fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn toward_zero(x: u32) -> u16 {
    exact::convert(F32, F16, x.into(), Mode { round: 3, ..NEAREST }) as u16
}

/// As the rounding field of one format with the flushing of two.
fn between(c: &Lane, from_f32: bool) -> Mode {
    let (narrow, wide) = (c.f32(), c.wide());
    if from_f32 {
        Mode { flush_in: narrow.flush_in, ..wide }
    } else {
        Mode { flush_in: wide.flush_in, ..narrow }
    }
}

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_CVT_F32_I32 c (a: i32) exact::from_integer(F32, a.into(), c.f32());
    V_CVT_F32_U32 c (a: u32) exact::from_integer(F32, a.into(), c.f32());
    V_CVT_F64_I32 c (a: i32) f64::from(a);
    V_CVT_F64_U32 c (a: u32) f64::from(a);
    V_CVT_I32_F32 c (a: u32) i32_of(wide(a));
    V_CVT_U32_F32 c (a: u32) u32_of(wide(a));
    V_CVT_I32_F64 c (a: f64) i32_of(a);
    V_CVT_U32_F64 c (a: f64) u32_of(a);
    V_CVT_NEAREST_I32_F32 c (a: u32) i32_of((wide(a) + 0.5).floor());
    V_CVT_FLOOR_I32_F32 c (a: u32) i32_of(wide(a).floor());
    V_CVT_OFF_F32_I4 c (a: u32) {
        let n = (a % 16) as i32;
        (if n >= 8 { n - 16 } else { n }) as f32 / 16.0
    };
    V_CVT_F32_UBYTE0 c (a: u32) a.to_le_bytes()[0] as f32;
    V_CVT_F32_UBYTE1 c (a: u32) a.to_le_bytes()[1] as f32;
    V_CVT_F32_UBYTE2 c (a: u32) a.to_le_bytes()[2] as f32;
    V_CVT_F32_UBYTE3 c (a: u32) a.to_le_bytes()[3] as f32;
    V_CVT_F16_F32 c (a: u64) exact::convert(F32, F16, a, between(c, true));
    V_CVT_F32_F16 c (a: u64) exact::convert(F16, F32, a & 0xFFFF, between(c, false));
    V_CVT_F32_F64 c (a: u64) exact::convert(F64, F32, a, between(c, false));
    V_CVT_F64_F32 c (a: u64) exact::convert(F32, F64, a, between(c, true));
    V_CVT_F16_U16 c (a: u16) exact::from_integer(F16, a.into(), c.wide());
    V_CVT_F16_I16 c (a: i16) exact::from_integer(F16, a.into(), c.wide());
    V_CVT_U16_F16 c (a: u64) u16_of(exact::wide16(a));
    V_CVT_I16_F16 c (a: u64) i16_of(exact::wide16(a));
    V_CVT_I32_I16 c (a: i16) i32::from(a);
    V_CVT_U32_U16 c (a: u16) u32::from(a);
    V_CVT_PK_RTZ_F16_F32 c (a: u32, b: u32) pair(toward_zero(a), toward_zero(b));
    V_CVT_PK_I16_F32 c (a: u32, b: u32) pair(i16_of(wide(a)), i16_of(wide(b)));
    V_CVT_PK_U16_F32 c (a: u32, b: u32) pair(u16_of(wide(a)), u16_of(wide(b)));
    V_CVT_PK_NORM_I16_F32 c (a: u32, b: u32) pair(snorm(wide(a)), snorm(wide(b)));
    V_CVT_PK_NORM_U16_F32 c (a: u32, b: u32) pair(unorm(wide(a)), unorm(wide(b)));
    V_CVT_PK_NORM_I16_F16 c (a: u64, b: u64) pair(snorm(exact::wide16(a)), snorm(exact::wide16(b)));
    V_CVT_PK_NORM_U16_F16 c (a: u64, b: u64) pair(unorm(exact::wide16(a)), unorm(exact::wide16(b)));
    V_CVT_NORM_I16_F16 c (a: u64) snorm(exact::wide16(a));
    V_CVT_NORM_U16_F16 c (a: u64) unorm(exact::wide16(a));
    V_CVT_PK_U16_U32 c (a: u32, b: u32) pair(a.min(0xFFFF) as u16, b.min(0xFFFF) as u16);
    V_CVT_PK_I16_I32 c (a: i32, b: i32) {
        let narrow = |x: i32| x.clamp(-0x8000, 0x7FFF) as i16 as u16;
        pair(narrow(a), narrow(b))
    };
    V_CVT_PK_U8_F32 c (a: u32, b: u32, d: u32) {
        let mut bytes = d.to_le_bytes();
        bytes[b as usize % 4] = integer(wide(a).round_ties_even(), 0, 255) as u8;
        u32::from_le_bytes(bytes)
    };
    V_SAT_PK_U8_I16 c (a: u32) {
        let narrow = |x: u32| (x as u16 as i16).clamp(0, 255) as u16;
        narrow(a) | narrow(a >> 16) << 8
    };
};
