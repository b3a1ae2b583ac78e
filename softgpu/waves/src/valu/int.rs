// SPDX-License-Identifier: MIT OR Apache-2.0
//! 32-bit and 64-bit integer and bit operations.

use super::masks::*;
use super::sad;
use super::shapes::*;
use super::shapes64::*;
use crate::level::lane_table;
use crate::step::Step;
use crate::wave::Wave;

lane_table! {
    /// Integer handlers.
    table:
    V_MOV_B32 = u1 { |a| a };
    V_NOT_B32 = u1 { |a| !a };
    V_BFREV_B32 = u1 { |a| a.reverse_bits() };
    V_CLZ_I32_U32 = u1 { |a| if a == 0 { u32::MAX } else { a.leading_zeros() } };
    V_CTZ_I32_B32 = u1 { |a| if a == 0 { u32::MAX } else { a.trailing_zeros() } };
    V_CLS_I32 = u1 { cls };
    V_AND_B32 = u2 { |a, b| a & b };
    V_OR_B32 = u2 { |a, b| a | b };
    V_XOR_B32 = u2 { |a, b| a ^ b };
    V_XNOR_B32 = u2 { |a, b| !(a ^ b) };
    V_LSHLREV_B32 = u2 { |a, b| b << (a & 31) };
    V_LSHRREV_B32 = u2 { |a, b| b >> (a & 31) };
    V_ASHRREV_I32 = u2 { |a, b| ((b as i32) >> (a & 31)) as u32 };
    V_ADD_NC_U32 = add_u32;
    V_SUB_NC_U32 = sub_u32;
    V_SUBREV_NC_U32 = subrev_u32;
    V_ADD_NC_I32 = add_i32;
    V_SUB_NC_I32 = sub_i32;
    V_MIN_I32 = u2 { |a, b| (a as i32).min(b as i32) as u32 };
    V_MAX_I32 = u2 { |a, b| (a as i32).max(b as i32) as u32 };
    V_MIN_U32 = u2 { |a, b| a.min(b) };
    V_MAX_U32 = u2 { |a, b| a.max(b) };
    V_MIN3_I32 = u3 { |a, b, c| (a as i32).min(b as i32).min(c as i32) as u32 };
    V_MAX3_I32 = u3 { |a, b, c| (a as i32).max(b as i32).max(c as i32) as u32 };
    V_MED3_I32 = u3 { |a, b, c| med3(a as i32, b as i32, c as i32) as u32 };
    V_MIN3_U32 = u3 { |a, b, c| a.min(b).min(c) };
    V_MAX3_U32 = u3 { |a, b, c| a.max(b).max(c) };
    V_MED3_U32 = u3 { med3 };
    V_MAXMIN_U32 = u3 { |a, b, c| a.max(b).min(c) };
    V_MINMAX_U32 = u3 { |a, b, c| a.min(b).max(c) };
    V_MAXMIN_I32 = u3 { |a, b, c| (a as i32).max(b as i32).min(c as i32) as u32 };
    V_MINMAX_I32 = u3 { |a, b, c| (a as i32).min(b as i32).max(c as i32) as u32 };
    V_MUL_LO_U32 = u2 { |a, b| a.wrapping_mul(b) };
    V_MUL_HI_U32 = u2 { |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32 };
    V_MUL_HI_I32 = u2 { |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32 };
    V_MUL_I32_I24 = mul_i24;
    V_MUL_HI_I32_I24 = u2 { |a, b| ((i64::from(s24(a)) * i64::from(s24(b))) >> 32) as u32 };
    V_MUL_U32_U24 = mul_u24;
    V_MUL_HI_U32_U24 = u2 { |a, b| ((u64::from(a & 0xFF_FFFF) * u64::from(b & 0xFF_FFFF)) >> 32) as u32 };
    V_MAD_I32_I24 = mad_i24;
    V_MAD_U32_U24 = mad_u24;
    V_BFE_U32 = u3 { |a, b, c| (a >> (b & 31)) & (((1u64 << (c & 31)) - 1) as u32) };
    V_BFE_I32 = u3 { bfe_i32 };
    V_BFI_B32 = u3 { |a, b, c| (a & b) | (!a & c) };
    V_BFM_B32 = u2 { |a, b| ((1u32 << (a & 31)) - 1) << (b & 31) };
    V_BCNT_U32_B32 = u2 { |a, b| a.count_ones().wrapping_add(b) };
    V_MBCNT_LO_U32_B32 = mbcnt_lo;
    V_MBCNT_HI_U32_B32 = mbcnt_hi;
    V_ALIGNBIT_B32 = u3 { |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32 };
    V_ALIGNBYTE_B32 = u3 { |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> ((c & 3) * 8)) as u32 };
    V_PERM_B32 = u3 { perm };
    V_XOR3_B32 = u3 { |a, b, c| a ^ b ^ c };
    V_OR3_B32 = u3 { |a, b, c| a | b | c };
    V_AND_OR_B32 = u3 { |a, b, c| a & b | c };
    V_LSHL_OR_B32 = u3 { |a, b, c| a << (b & 31) | c };
    V_LSHL_ADD_U32 = u3 { |a, b, c| (a << (b & 31)).wrapping_add(c) };
    V_ADD_LSHL_U32 = u3 { |a, b, c| a.wrapping_add(b) << (c & 31) };
    V_ADD3_U32 = u3 { |a, b, c| a.wrapping_add(b).wrapping_add(c) };
    V_XAD_U32 = u3 { |a, b, c| (a ^ b).wrapping_add(c) };
    V_LERP_U8 = u3 { lerp };
    V_SAD_U8 = sad::sad_u8;
    V_SAD_HI_U8 = sad::sad_hi_u8;
    V_SAD_U16 = sad::sad_u16;
    V_SAD_U32 = sad::sad_u32;
    V_MSAD_U8 = sad::msad_u8;
    V_CNDMASK_B32 = select;
    V_CNDMASK_B16 = select16;
    V_ADD_CO_U32 = add_co;
    V_SUB_CO_U32 = sub_co;
    V_SUBREV_CO_U32 = subrev_co;
    V_ADD_CO_CI_U32 = add_co_ci;
    V_SUB_CO_CI_U32 = sub_co_ci;
    V_SUBREV_CO_CI_U32 = subrev_co_ci;
    V_LSHLREV_B64 = shift_left64;
    V_LSHRREV_B64 = q2 { |a, b| b >> (a & 63) };
    V_ASHRREV_I64 = q2 { |a, b| ((b as i64) >> (a & 63)) as u64 };
    V_MAD_U64_U32 = mad_u64;
    V_MAD_I64_I32 = mad_i64;
    V_QSAD_PK_U16_U8 = sad::qsad { false };
    V_MQSAD_PK_U16_U8 = sad::qsad { true };
    V_MQSAD_U32_U8 = sad::mqsad_wide;
}

/// Median of three.
#[inline(always)]
pub(crate) fn med3<T: Ord + Copy>(a: T, b: T, c: T) -> T {
    a.min(b).max(a.max(b).min(c))
}

#[inline(always)]
fn s24(x: u32) -> i32 {
    (x << 8) as i32 >> 8
}

#[inline(always)]
fn cls(a: u32) -> u32 {
    let same = a ^ ((a as i32) >> 31) as u32;
    if same == 0 { u32::MAX } else { same.leading_zeros() }
}

#[inline(always)]
fn bfe_i32(a: u32, b: u32, c: u32) -> u32 {
    let (offset, width) = (b & 31, c & 31);
    let x = ((a as i32) >> offset) as u32;
    let shift = (32 - width) & 31;
    if width == 0 { 0 } else { ((x << shift) as i32 >> shift) as u32 }
}

#[inline(always)]
fn perm(a: u32, b: u32, sel: u32) -> u32 {
    let data = u64::from(a) << 32 | u64::from(b);
    let mut r = 0u32;
    for k in 0..4 {
        let s = sel >> (8 * k) & 0xFF;
        let plain = (data >> (8 * (s & 7))) as u32 & 0xFF;
        // 8..11: sign of bytes 1, 3, 5, 7; 12: zero; above: all ones.
        let sign = ((data >> ((2 * (s & 3) + 1) * 8 + 7)) as u32 & 1).wrapping_neg() & 0xFF;
        let byte = if s < 8 {
            plain
        } else if s < 12 {
            sign
        } else if s == 12 {
            0
        } else {
            0xFF
        };
        r |= byte << (8 * k);
    }
    r
}

#[inline(always)]
fn add_u32(w: &mut Wave, s: &Step) {
    if s.out == 0 { u2(w, s, |a, b| a.wrapping_add(b)) } else { u2(w, s, |a, b| a.saturating_add(b)) }
}

#[inline(always)]
fn sub_u32(w: &mut Wave, s: &Step) {
    if s.out == 0 { u2(w, s, |a, b| a.wrapping_sub(b)) } else { u2(w, s, |a, b| a.saturating_sub(b)) }
}

#[inline(always)]
fn subrev_u32(w: &mut Wave, s: &Step) {
    if s.out == 0 { u2(w, s, |a, b| b.wrapping_sub(a)) } else { u2(w, s, |a, b| b.saturating_sub(a)) }
}

#[inline(always)]
fn add_i32(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        u2(w, s, |a, b| a.wrapping_add(b));
    } else {
        u2(w, s, |a, b| (a as i32).saturating_add(b as i32) as u32);
    }
}

#[inline(always)]
fn sub_i32(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        u2(w, s, |a, b| a.wrapping_sub(b));
    } else {
        u2(w, s, |a, b| (a as i32).saturating_sub(b as i32) as u32);
    }
}

#[inline(always)]
fn saturate_i32(x: i64) -> u32 {
    x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32
}

#[inline(always)]
fn saturate_u32(x: u64) -> u32 {
    x.min(u64::from(u32::MAX)) as u32
}

#[inline(always)]
fn mul_i24(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        u2(w, s, |a, b| s24(a).wrapping_mul(s24(b)) as u32);
    } else {
        u2(w, s, |a, b| saturate_i32(i64::from(s24(a)) * i64::from(s24(b))));
    }
}

#[inline(always)]
fn mul_u24(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        u2(w, s, |a, b| (a & 0xFF_FFFF).wrapping_mul(b & 0xFF_FFFF));
    } else {
        u2(w, s, |a, b| saturate_u32(u64::from(a & 0xFF_FFFF) * u64::from(b & 0xFF_FFFF)));
    }
}

#[inline(always)]
fn mad_i24(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        u3(w, s, |a, b, c| (s24(a).wrapping_mul(s24(b)) as u32).wrapping_add(c));
    } else {
        u3(w, s, |a, b, c| saturate_i32(i64::from(s24(a)) * i64::from(s24(b)) + i64::from(c as i32)));
    }
}

#[inline(always)]
fn mad_u24(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        u3(w, s, |a, b, c| (a & 0xFF_FFFF).wrapping_mul(b & 0xFF_FFFF).wrapping_add(c));
    } else {
        u3(w, s, |a, b, c| saturate_u32(u64::from(a & 0xFF_FFFF) * u64::from(b & 0xFF_FFFF) + u64::from(c)));
    }
}

#[inline(always)]
fn lerp(a: u32, b: u32, c: u32) -> u32 {
    let mut r = 0;
    for k in 0..4 {
        let (x, y, z) = (a >> (8 * k) & 0xFF, b >> (8 * k) & 0xFF, c >> (8 * k) & 1);
        r |= ((x + y + z) >> 1) << (8 * k);
    }
    r
}

fn mbcnt(w: &mut Wave, s: &Step, word: usize) {
    for half in 0..w.halves {
        let (mut ta, mut tb) = ([0u32; 32], [0u32; 32]);
        let a = fetch(w, &s.src[0], half, &mut ta);
        let b = fetch(w, &s.src[1], half, &mut tb);
        let r = core::array::from_fn(|i| {
            let below = match half.cmp(&word) {
                core::cmp::Ordering::Less => 0,
                core::cmp::Ordering::Equal => (1u32 << i) - 1,
                core::cmp::Ordering::Greater => u32::MAX,
            };
            (a[i] & below).count_ones().wrapping_add(b[i])
        });
        put(w, s.dst as usize, half, &r);
    }
}

#[inline(always)]
fn mbcnt_lo(w: &mut Wave, s: &Step) {
    mbcnt(w, s, 0);
}

#[inline(always)]
fn mbcnt_hi(w: &mut Wave, s: &Step) {
    mbcnt(w, s, 1);
}

#[inline(always)]
fn add_with(a: u32, b: u32, c: u32) -> (u32, bool) {
    let partial = a.wrapping_add(b);
    let sum = partial.wrapping_add(c);
    (sum, (partial < a) | (sum < partial))
}

#[inline(always)]
fn sub_with(a: u32, b: u32, c: u32) -> (u32, bool) {
    let partial = a.wrapping_sub(b);
    (partial.wrapping_sub(c), (a < b) | (partial < c))
}

#[inline(always)]
fn add_clamped(a: u32, b: u32, c: u32) -> (u32, bool) {
    let (sum, over) = add_with(a, b, c);
    (if over { u32::MAX } else { sum }, over)
}

#[inline(always)]
fn sub_clamped(a: u32, b: u32, c: u32) -> (u32, bool) {
    let (d, under) = sub_with(a, b, c);
    (if under { 0 } else { d }, under)
}

#[inline(always)]
fn add_co(w: &mut Wave, s: &Step) {
    if s.out == 0 { carry(w, s, false, add_with) } else { carry(w, s, false, add_clamped) }
}

#[inline(always)]
fn sub_co(w: &mut Wave, s: &Step) {
    if s.out == 0 { carry(w, s, false, sub_with) } else { carry(w, s, false, sub_clamped) }
}

#[inline(always)]
fn subrev_co(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        carry(w, s, false, |a, b, c| sub_with(b, a, c));
    } else {
        carry(w, s, false, |a, b, c| sub_clamped(b, a, c));
    }
}

#[inline(always)]
fn add_co_ci(w: &mut Wave, s: &Step) {
    if s.out == 0 { carry(w, s, true, add_with) } else { carry(w, s, true, add_clamped) }
}

#[inline(always)]
fn sub_co_ci(w: &mut Wave, s: &Step) {
    if s.out == 0 { carry(w, s, true, sub_with) } else { carry(w, s, true, sub_clamped) }
}

#[inline(always)]
fn subrev_co_ci(w: &mut Wave, s: &Step) {
    if s.out == 0 {
        carry(w, s, true, |a, b, c| sub_with(b, a, c));
    } else {
        carry(w, s, true, |a, b, c| sub_clamped(b, a, c));
    }
}

/// 64-bit shift in 32-bit lanes: rows stay rows, which saves the interleaving.
#[inline(always)]
fn shift_left64(w: &mut Wave, s: &Step) {
    let source = s.src[1];
    if !source.is_vgpr() {
        return q2(w, s, |a, b| b << (a & 63));
    }
    for half in 0..w.halves {
        let (mut low, mut high) = ([0u32; 32], [0u32; 32]);
        {
            operand!(n, tn = w, s.src[0], half, false);
            let lo = &w.v[source.index as usize + half].0;
            let hi = &w.v[source.index as usize + w.halves + half].0;
            for i in 0..32 {
                let by = n[i] & 63;
                let left = |x: u32, by: u32| if by < 32 { x << (by & 31) } else { 0 };
                let carried =
                    if by.wrapping_sub(1) < 31 { lo[i] >> (32u32.wrapping_sub(by) & 31) } else { 0 };
                low[i] = left(lo[i], by);
                high[i] = if by < 32 { left(hi[i], by) | carried } else { lo[i] << (by & 31) };
            }
        }
        let second = s.dst as usize + w.halves;
        put(w, s.dst as usize, half, &low);
        put(w, second, half, &high);
    }
}

#[inline(always)]
fn mad_wide(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u64) -> (u64, bool)) {
    let mut masks = [0u32; 2];
    for half in 0..w.halves {
        let mut r = [0u64; 32];
        let mut m = 0;
        {
            let mut c = [0u64; 32];
            operand!(a, ta = w, s.src[0], half, false);
            operand!(b, tb = w, s.src[1], half, false);
            fetch64(w, &s.src[2], half, &mut c);
            for i in 0..32 {
                let (x, over) = f(a[i], b[i], c[i]);
                r[i] = x;
                m |= if over { 1 << i } else { 0 };
            }
        }
        masks[half] = m & w.exec_half(half);
        put64(w, s.dst as usize, half, &r);
    }
    put_mask(w, s.sdst as usize, masks);
}

#[inline(always)]
fn mad_u64(w: &mut Wave, s: &Step) {
    mad_wide(w, s, |a, b, c| {
        let r = (u64::from(a) * u64::from(b)).wrapping_add(c);
        (r, r < c)
    });
}

#[inline(always)]
fn mad_i64(w: &mut Wave, s: &Step) {
    mad_wide(w, s, |a, b, c| {
        let p = i64::from(a as i32) * i64::from(b as i32);
        let r = p.wrapping_add(c as i64);
        // Bit 64 of the sum of the sign-extended operands is the exact sum's sign.
        let overflow = ((p ^ r) & (c as i64 ^ r)) < 0;
        (r as u64, (r < 0) != overflow)
    });
}
