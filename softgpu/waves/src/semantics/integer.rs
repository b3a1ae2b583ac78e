// SPDX-License-Identifier: MIT OR Apache-2.0
//! 32-bit and 64-bit integer and bit operations of the vector ALU.

use super::entry::Entry;
use super::lanes::lanes;

fn sat32(x: i128) -> u32 {
    x.clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32
}

fn satu32(x: u128) -> u32 {
    x.min(u32::MAX.into()) as u32
}

fn s24(x: u32) -> i128 {
    let low = i128::from(x & 0xFF_FFFF);
    if low >= 1 << 23 { low - (1 << 24) } else { low }
}

fn u24(x: u32) -> u128 {
    u128::from(x & 0xFF_FFFF)
}

fn bytes(x: u32) -> [u32; 4] {
    x.to_le_bytes().map(u32::from)
}

fn sad(a: u32, b: u32) -> u32 {
    bytes(a).into_iter().zip(bytes(b)).map(|(x, y)| x.abs_diff(y)).sum()
}

fn masked_sad(a: u32, b: u32) -> u32 {
    bytes(a).into_iter().zip(bytes(b)).map(|(x, y)| if y == 0 { 0 } else { x.abs_diff(y) }).sum()
}

fn accumulated(clamp: bool, d: u32, c: u32) -> u32 {
    if clamp { satu32(u128::from(d) + u128::from(c)) } else { d.wrapping_add(c) }
}

fn four_sums(clamp: bool, a: u64, b: u32, c: u64, sum: fn(u32, u32) -> u32) -> u64 {
    let mut r = 0;
    for k in 0..4 {
        let total = u64::from(sum((a >> (8 * k)) as u32, b)) + (c >> (16 * k) & 0xFFFF);
        r |= (if clamp { total.min(0xFFFF) } else { total % 0x1_0000 }) << (16 * k);
    }
    r
}

fn median<T: Ord + Copy>(a: T, b: T, c: T) -> T {
    let mut all = [a, b, c];
    all.sort_unstable();
    all[1]
}

fn permuted(a: u32, b: u32, select: u32) -> u32 {
    let data: Vec<u8> = b.to_le_bytes().into_iter().chain(a.to_le_bytes()).collect();
    let sign = |byte: u8| if byte >= 0x80 { 0xFF } else { 0 };
    u32::from_le_bytes(select.to_le_bytes().map(|by| match by {
        0..=7 => data[by as usize],
        8 => sign(data[1]),
        9 => sign(data[3]),
        10 => sign(data[5]),
        11 => sign(data[7]),
        12 => 0,
        _ => 0xFF,
    }))
}

fn field(a: u32, offset: u32, width: u32) -> u32 {
    (0..width).filter(|k| offset + k < 32).fold(0, |r, k| r | (a >> (offset + k) & 1) << k)
}

pub(crate) const ENTRIES: &[Entry] = lanes! {
    V_MOV_B32 c (a: u32) a;
    V_NOT_B32 c (a: u32) u32::MAX - a;
    V_BFREV_B32 c (a: u32) (0..32).fold(0u32, |r, k| r | (a >> k & 1) << (31 - k));
    V_CLZ_I32_U32 c (a: u32) (0..32).find(|k| a >> (31 - k) & 1 != 0).unwrap_or(-1i32);
    V_CTZ_I32_B32 c (a: u32) (0..32).find(|k| a >> k & 1 != 0).unwrap_or(-1i32);
    V_CLS_I32 c (a: u32) (1..32).find(|k| a >> (31 - k) & 1 != a >> 31).unwrap_or(-1i32);
    V_AND_B32 c (a: u32, b: u32) a & b;
    V_OR_B32 c (a: u32, b: u32) a | b;
    V_XOR_B32 c (a: u32, b: u32) (a | b) - (a & b);
    V_XNOR_B32 c (a: u32, b: u32) !((a | b) - (a & b));
    V_LSHLREV_B32 c (a: u32, b: u32) (u64::from(b) << (a % 32)) as u32;
    V_LSHRREV_B32 c (a: u32, b: u32) b >> (a % 32);
    V_ASHRREV_I32 c (a: u32, b: i32) i64::from(b).div_euclid(1 << (a % 32)) as i32;
    V_ADD_NC_U32 c (a: u32, b: u32) if c.clamp { satu32(u128::from(a) + u128::from(b)) } else { a.wrapping_add(b) };
    V_SUB_NC_U32 c (a: u32, b: u32) if c.clamp && b > a { 0 } else { a.wrapping_sub(b) };
    V_SUBREV_NC_U32 c (a: u32, b: u32) if c.clamp && a > b { 0 } else { b.wrapping_sub(a) };
    V_ADD_NC_I32 c (a: i32, b: i32) if c.clamp { sat32(i128::from(a) + i128::from(b)) } else { a.wrapping_add(b) as u32 };
    V_SUB_NC_I32 c (a: i32, b: i32) if c.clamp { sat32(i128::from(a) - i128::from(b)) } else { a.wrapping_sub(b) as u32 };
    V_MIN_I32 c (a: i32, b: i32) if a < b { a } else { b };
    V_MAX_I32 c (a: i32, b: i32) if a >= b { a } else { b };
    V_MIN_U32 c (a: u32, b: u32) if a < b { a } else { b };
    V_MAX_U32 c (a: u32, b: u32) if a >= b { a } else { b };
    V_MIN3_I32 c (a: i32, b: i32, d: i32) a.min(b).min(d);
    V_MAX3_I32 c (a: i32, b: i32, d: i32) a.max(b).max(d);
    V_MED3_I32 c (a: i32, b: i32, d: i32) median(a, b, d);
    V_MIN3_U32 c (a: u32, b: u32, d: u32) a.min(b).min(d);
    V_MAX3_U32 c (a: u32, b: u32, d: u32) a.max(b).max(d);
    V_MED3_U32 c (a: u32, b: u32, d: u32) median(a, b, d);
    V_MAXMIN_U32 c (a: u32, b: u32, d: u32) a.max(b).min(d);
    V_MINMAX_U32 c (a: u32, b: u32, d: u32) a.min(b).max(d);
    V_MAXMIN_I32 c (a: i32, b: i32, d: i32) a.max(b).min(d);
    V_MINMAX_I32 c (a: i32, b: i32, d: i32) a.min(b).max(d);
    V_MUL_LO_U32 c (a: u32, b: u32) (u64::from(a) * u64::from(b)) as u32;
    V_MUL_HI_U32 c (a: u32, b: u32) (u64::from(a) * u64::from(b) / (1 << 32)) as u32;
    V_MUL_HI_I32 c (a: i32, b: i32) (i64::from(a) * i64::from(b)).div_euclid(1 << 32) as i32;
    V_MUL_I32_I24 c (a: u32, b: u32) if c.clamp { sat32(s24(a) * s24(b)) } else { (s24(a) * s24(b)) as u32 };
    V_MUL_HI_I32_I24 c (a: u32, b: u32) (s24(a) * s24(b)).div_euclid(1 << 32) as i32;
    V_MUL_U32_U24 c (a: u32, b: u32) if c.clamp { satu32(u24(a) * u24(b)) } else { (u24(a) * u24(b)) as u32 };
    V_MUL_HI_U32_U24 c (a: u32, b: u32) (u24(a) * u24(b) / (1 << 32)) as u32;
    V_MAD_I32_I24 c (a: u32, b: u32, d: i32) {
        let r = s24(a) * s24(b) + i128::from(d);
        if c.clamp { sat32(r) } else { r as u32 }
    };
    V_MAD_U32_U24 c (a: u32, b: u32, d: u32) {
        let r = u24(a) * u24(b) + u128::from(d);
        if c.clamp { satu32(r) } else { r as u32 }
    };
    V_BFE_U32 c (a: u32, b: u32, d: u32) field(a, b % 32, d % 32);
    V_BFE_I32 c (a: u32, b: u32, d: u32) {
        let (offset, width) = (b % 32, d % 32);
        // Beyond bit 31 the field continues with the sign.
        let wide = i64::from(a as i32) >> offset;
        let low = wide.rem_euclid(1 << width);
        if width > 0 && low >> (width - 1) & 1 != 0 { (low - (1 << width)) as i32 } else { low as i32 }
    };
    V_BFI_B32 c (a: u32, b: u32, d: u32) (0..32).fold(0u32, |r, k| r | (if a >> k & 1 != 0 { b } else { d }) & 1 << k);
    V_BFM_B32 c (a: u32, b: u32) (((1u64 << (a % 32)) - 1) << (b % 32)) as u32;
    V_BCNT_U32_B32 c (a: u32, b: u32) (0..32).map(|k| a >> k & 1).sum::<u32>().wrapping_add(b);
    V_MBCNT_LO_U32_B32 c (a: u32, b: u32) {
        (0..32).filter(|&k| k < c.lane).map(|k| a >> k & 1).sum::<u32>().wrapping_add(b)
    };
    V_MBCNT_HI_U32_B32 c (a: u32, b: u32) {
        (0..32).filter(|&k| k + 32 < c.lane).map(|k| a >> k & 1).sum::<u32>().wrapping_add(b)
    };
    V_ALIGNBIT_B32 c (a: u32, b: u32, d: u32) ((u64::from(a) << 32 | u64::from(b)) >> (d % 32)) as u32;
    V_ALIGNBYTE_B32 c (a: u32, b: u32, d: u32) ((u64::from(a) << 32 | u64::from(b)) >> (d % 4 * 8)) as u32;
    V_PERM_B32 c (a: u32, b: u32, d: u32) permuted(a, b, d);
    V_XOR3_B32 c (a: u32, b: u32, d: u32) a ^ b ^ d;
    V_OR3_B32 c (a: u32, b: u32, d: u32) a | b | d;
    V_AND_OR_B32 c (a: u32, b: u32, d: u32) (a & b) | d;
    V_LSHL_OR_B32 c (a: u32, b: u32, d: u32) (u64::from(a) << (b % 32)) as u32 | d;
    V_LSHL_ADD_U32 c (a: u32, b: u32, d: u32) ((u64::from(a) << (b % 32)) + u64::from(d)) as u32;
    V_ADD_LSHL_U32 c (a: u32, b: u32, d: u32) ((u64::from(a) + u64::from(b)) << (d % 32)) as u32;
    V_ADD3_U32 c (a: u32, b: u32, d: u32) (u64::from(a) + u64::from(b) + u64::from(d)) as u32;
    V_XAD_U32 c (a: u32, b: u32, d: u32) (u64::from(a ^ b) + u64::from(d)) as u32;
    V_LERP_U8 c (a: u32, b: u32, d: u32) {
        let (x, y, z) = (bytes(a), bytes(b), bytes(d));
        u32::from_le_bytes([0, 1, 2, 3].map(|k| ((x[k] + y[k] + (z[k] & 1)) / 2) as u8))
    };
    V_SAD_U8 c (a: u32, b: u32, d: u32) accumulated(c.clamp, sad(a, b), d);
    V_SAD_HI_U8 c (a: u32, b: u32, d: u32) accumulated(c.clamp, sad(a, b) << 16, d);
    V_SAD_U16 c (a: u32, b: u32, d: u32) {
        accumulated(c.clamp, (a as u16).abs_diff(b as u16) as u32 + ((a >> 16) as u16).abs_diff((b >> 16) as u16) as u32, d)
    };
    V_SAD_U32 c (a: u32, b: u32, d: u32) accumulated(c.clamp, a.abs_diff(b), d);
    V_MSAD_U8 c (a: u32, b: u32, d: u32) accumulated(c.clamp, masked_sad(a, b), d);
    V_QSAD_PK_U16_U8 c (a: u64, b: u32, d: u64) four_sums(c.clamp, a, b, d, sad);
    V_MQSAD_PK_U16_U8 c (a: u64, b: u32, d: u64) four_sums(c.clamp, a, b, d, masked_sad);
    V_LSHLREV_B64 c (a: u32, b: u64) (u128::from(b) << (a % 64)) as u64;
    V_LSHRREV_B64 c (a: u32, b: u64) b >> (a % 64);
    V_ASHRREV_I64 c (a: u32, b: i64) i128::from(b).div_euclid(1 << (a % 64)) as i64;
    V_CNDMASK_B32 c (a: u32, b: u32, m: bool) if m { b } else { a };
};

/// Operations with a lane mask as a result.
pub(crate) const MASKS: &[Entry] = lanes! {
    V_ADD_CO_U32 c (a: u32, b: u32) {
        let r = u128::from(a) + u128::from(b);
        (if c.clamp { satu32(r) } else { r as u32 }, r >> 32 != 0)
    };
    V_SUB_CO_U32 c (a: u32, b: u32) {
        let r = i128::from(a) - i128::from(b);
        (if c.clamp && r < 0 { 0 } else { r as u32 }, r < 0)
    };
    V_SUBREV_CO_U32 c (a: u32, b: u32) {
        let r = i128::from(b) - i128::from(a);
        (if c.clamp && r < 0 { 0 } else { r as u32 }, r < 0)
    };
    V_ADD_CO_CI_U32 c (a: u32, b: u32, m: bool) {
        let r = u128::from(a) + u128::from(b) + u128::from(m);
        (if c.clamp { satu32(r) } else { r as u32 }, r >> 32 != 0)
    };
    V_SUB_CO_CI_U32 c (a: u32, b: u32, m: bool) {
        let r = i128::from(a) - i128::from(b) - i128::from(m);
        (if c.clamp && r < 0 { 0 } else { r as u32 }, r < 0)
    };
    V_SUBREV_CO_CI_U32 c (a: u32, b: u32, m: bool) {
        let r = i128::from(b) - i128::from(a) - i128::from(m);
        (if c.clamp && r < 0 { 0 } else { r as u32 }, r < 0)
    };
    V_MAD_U64_U32 c (a: u32, b: u32, d: u64) {
        let r = u128::from(a) * u128::from(b) + u128::from(d);
        (r as u64, r >> 64 != 0)
    };
    V_MAD_I64_I32 c (a: i32, b: i32, d: i64) {
        let r = i128::from(a) * i128::from(b) + i128::from(d);
        (r as u64, r >> 64 & 1 != 0)
    };
};
