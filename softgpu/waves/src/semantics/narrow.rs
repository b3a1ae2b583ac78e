// SPDX-License-Identifier: MIT OR Apache-2.0
//! 16-bit integer and bit operations: the other half of the destination is kept.

use super::entry::Entry;
use super::lanes::lanes;

fn sat(x: i64) -> u16 {
    x.clamp(-0x8000, 0x7FFF) as i16 as u16
}

fn satu(x: i64) -> u16 {
    x.clamp(0, 0xFFFF) as u16
}

fn median<T: Ord + Copy>(a: T, b: T, c: T) -> T {
    let mut all = [a, b, c];
    all.sort_unstable();
    all[1]
}

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_MOV_B16 c (a: u16) a;
    V_NOT_B16 c (a: u16) u16::MAX - a;
    V_AND_B16 c (a: u16, b: u16) a & b;
    V_OR_B16 c (a: u16, b: u16) a | b;
    V_XOR_B16 c (a: u16, b: u16) a ^ b;
    V_LSHLREV_B16 c (a: u16, b: u16) (u32::from(b) << (a % 16)) as u16;
    V_LSHRREV_B16 c (a: u16, b: u16) b >> (a % 16);
    V_ASHRREV_I16 c (a: u16, b: i16) i32::from(b).div_euclid(1 << (a % 16)) as i16;
    V_ADD_NC_U16 c (a: u16, b: u16) if c.clamp { satu(i64::from(a) + i64::from(b)) } else { a.wrapping_add(b) };
    V_SUB_NC_U16 c (a: u16, b: u16) if c.clamp { satu(i64::from(a) - i64::from(b)) } else { a.wrapping_sub(b) };
    V_ADD_NC_I16 c (a: i16, b: i16) if c.clamp { sat(i64::from(a) + i64::from(b)) } else { a.wrapping_add(b) as u16 };
    V_SUB_NC_I16 c (a: i16, b: i16) if c.clamp { sat(i64::from(a) - i64::from(b)) } else { a.wrapping_sub(b) as u16 };
    V_MUL_LO_U16 c (a: u16, b: u16) (u32::from(a) * u32::from(b)) as u16;
    V_MAD_U16 c (a: u16, b: u16, d: u16) {
        let r = i64::from(a) * i64::from(b) + i64::from(d);
        if c.clamp { satu(r) } else { r as u16 }
    };
    V_MAD_I16 c (a: i16, b: i16, d: i16) {
        let r = i64::from(a) * i64::from(b) + i64::from(d);
        if c.clamp { sat(r) } else { r as u16 }
    };
    V_MAX_U16 c (a: u16, b: u16) if a >= b { a } else { b };
    V_MIN_U16 c (a: u16, b: u16) if a < b { a } else { b };
    V_MAX_I16 c (a: i16, b: i16) if a >= b { a } else { b };
    V_MIN_I16 c (a: i16, b: i16) if a < b { a } else { b };
    V_MAX3_U16 c (a: u16, b: u16, d: u16) a.max(b).max(d);
    V_MIN3_U16 c (a: u16, b: u16, d: u16) a.min(b).min(d);
    V_MED3_U16 c (a: u16, b: u16, d: u16) median(a, b, d);
    V_MAX3_I16 c (a: i16, b: i16, d: i16) a.max(b).max(d);
    V_MIN3_I16 c (a: i16, b: i16, d: i16) a.min(b).min(d);
    V_MED3_I16 c (a: i16, b: i16, d: i16) median(a, b, d);
    V_CNDMASK_B16 c (a: u16, b: u16, m: bool) if m { b } else { a };
    V_MAD_U32_U16 c (a: u16, b: u16, d: u32) {
        let r = u64::from(a) * u64::from(b) + u64::from(d);
        if c.clamp { r.min(u32::MAX.into()) as u32 } else { r as u32 }
    };
    V_MAD_I32_I16 c (a: i16, b: i16, d: i32) {
        let r = i64::from(a) * i64::from(b) + i64::from(d);
        if c.clamp { r.clamp(i32::MIN.into(), i32::MAX.into()) as i32 } else { r as i32 }
    };
};
