// SPDX-License-Identifier: MIT OR Apache-2.0
//! SOP2, SOPC and the arithmetic of SOPK.

use super::scalar_table;
use crate::step::Step;
use crate::valu::shapes::{scalar, scalar64};
use crate::wave::Wave;

scalar_table! {
    /// Two-operand scalar handlers.
    table:
    S_ADD_U32 = c2 { |a, b| a.overflowing_add(b) };
    S_SUB_U32 = c2 { |a, b| a.overflowing_sub(b) };
    S_ADD_I32 = c2 { |a, b| signed((a as i32).overflowing_add(b as i32)) };
    S_SUB_I32 = c2 { |a, b| signed((a as i32).overflowing_sub(b as i32)) };
    S_ADDC_U32 = addc;
    S_SUBB_U32 = subb;
    S_ABSDIFF_I32 = z2 { |a, b| (a as i32).abs_diff(b as i32) };
    S_LSHL_B32 = z2 { |a, b| a << (b & 31) };
    S_LSHR_B32 = z2 { |a, b| a >> (b & 31) };
    S_ASHR_I32 = z2 { |a, b| ((a as i32) >> (b & 31)) as u32 };
    S_LSHL_B64 = shift64 { |a, b| a << (b & 63) };
    S_LSHR_B64 = shift64 { |a, b| a >> (b & 63) };
    S_ASHR_I64 = shift64 { |a, b| ((a as i64) >> (b & 63)) as u64 };
    S_LSHL1_ADD_U32 = c2 { |a, b| shift_add(a, b, 1) };
    S_LSHL2_ADD_U32 = c2 { |a, b| shift_add(a, b, 2) };
    S_LSHL3_ADD_U32 = c2 { |a, b| shift_add(a, b, 3) };
    S_LSHL4_ADD_U32 = c2 { |a, b| shift_add(a, b, 4) };
    S_MIN_I32 = c2 { |a, b| pick(a, b, (a as i32) < (b as i32)) };
    S_MIN_U32 = c2 { |a, b| pick(a, b, a < b) };
    S_MAX_I32 = c2 { |a, b| pick(a, b, (a as i32) >= (b as i32)) };
    S_MAX_U32 = c2 { |a, b| pick(a, b, a >= b) };
    S_AND_B32 = z2 { |a, b| a & b };
    S_AND_B64 = z264 { |a, b| a & b };
    S_OR_B32 = z2 { |a, b| a | b };
    S_OR_B64 = z264 { |a, b| a | b };
    S_XOR_B32 = z2 { |a, b| a ^ b };
    S_XOR_B64 = z264 { |a, b| a ^ b };
    S_NAND_B32 = z2 { |a, b| !(a & b) };
    S_NAND_B64 = z264 { |a, b| !(a & b) };
    S_NOR_B32 = z2 { |a, b| !(a | b) };
    S_NOR_B64 = z264 { |a, b| !(a | b) };
    S_XNOR_B32 = z2 { |a, b| !(a ^ b) };
    S_XNOR_B64 = z264 { |a, b| !(a ^ b) };
    S_AND_NOT1_B32 = z2 { |a, b| a & !b };
    S_AND_NOT1_B64 = z264 { |a, b| a & !b };
    S_OR_NOT1_B32 = z2 { |a, b| a | !b };
    S_OR_NOT1_B64 = z264 { |a, b| a | !b };
    S_BFE_U32 = z2 { |a, b| bfe(u64::from(a), b & 31, b >> 16 & 0x7F) as u32 };
    S_BFE_I32 = z2 { |a, b| bfe_signed(i64::from(a as i32), b & 31, b >> 16 & 0x7F) as u32 };
    S_BFE_U64 = shift64 { |a, b| bfe(a, b & 63, b >> 16 & 0x7F) };
    S_BFE_I64 = shift64 { |a, b| bfe_signed(a as i64, b & 63, b >> 16 & 0x7F) as u64 };
    S_BFM_B32 = s2 { |a, b| ((1u32 << (a & 31)) - 1) << (b & 31) };
    S_BFM_B64 = bfm64;
    S_MUL_I32 = s2 { |a, b| a.wrapping_mul(b) };
    S_MUL_HI_U32 = s2 { |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32 };
    S_MUL_HI_I32 = s2 { |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32 };
    S_CSELECT_B32 = cselect;
    S_CSELECT_B64 = cselect64;
    S_PACK_LL_B32_B16 = s2 { |a, b| (a & 0xFFFF) | b << 16 };
    S_PACK_LH_B32_B16 = s2 { |a, b| (a & 0xFFFF) | (b & 0xFFFF_0000) };
    S_PACK_HH_B32_B16 = s2 { |a, b| a >> 16 | (b & 0xFFFF_0000) };
    S_PACK_HL_B32_B16 = s2 { |a, b| a >> 16 | b << 16 };
    S_CMP_EQ_I32 = test { |a, b| a == b };
    S_CMP_LG_I32 = test { |a, b| a != b };
    S_CMP_GT_I32 = test { |a, b| (a as i32) > (b as i32) };
    S_CMP_GE_I32 = test { |a, b| (a as i32) >= (b as i32) };
    S_CMP_LT_I32 = test { |a, b| (a as i32) < (b as i32) };
    S_CMP_LE_I32 = test { |a, b| (a as i32) <= (b as i32) };
    S_CMP_EQ_U32 = test { |a, b| a == b };
    S_CMP_LG_U32 = test { |a, b| a != b };
    S_CMP_GT_U32 = test { |a, b| a > b };
    S_CMP_GE_U32 = test { |a, b| a >= b };
    S_CMP_LT_U32 = test { |a, b| a < b };
    S_CMP_LE_U32 = test { |a, b| a <= b };
    S_BITCMP0_B32 = test { |a, b| a >> (b & 31) & 1 == 0 };
    S_BITCMP1_B32 = test { |a, b| a >> (b & 31) & 1 != 0 };
    S_BITCMP0_B64 = test_bit64 { false };
    S_BITCMP1_B64 = test_bit64 { true };
    S_CMP_EQ_U64 = test64 { |a, b| a == b };
    S_CMP_LG_U64 = test64 { |a, b| a != b };
    S_MOVK_I32 = movk;
    S_CMOVK_I32 = cmovk;
    S_ADDK_I32 = addk;
    S_MULK_I32 = mulk;
    S_CMPK_EQ_I32 = testk { |a, k| a as i32 == k };
    S_CMPK_LG_I32 = testk { |a, k| a as i32 != k };
    S_CMPK_GT_I32 = testk { |a, k| a as i32 > k };
    S_CMPK_GE_I32 = testk { |a, k| a as i32 >= k };
    S_CMPK_LT_I32 = testk { |a, k| (a as i32) < k };
    S_CMPK_LE_I32 = testk { |a, k| a as i32 <= k };
    S_CMPK_EQ_U32 = testk { |a, k| a == k as u32 & 0xFFFF };
    S_CMPK_LG_U32 = testk { |a, k| a != k as u32 & 0xFFFF };
    S_CMPK_GT_U32 = testk { |a, k| a > k as u32 & 0xFFFF };
    S_CMPK_GE_U32 = testk { |a, k| a >= k as u32 & 0xFFFF };
    S_CMPK_LT_U32 = testk { |a, k| a < k as u32 & 0xFFFF };
    S_CMPK_LE_U32 = testk { |a, k| a <= k as u32 & 0xFFFF };
}

fn signed((value, overflow): (i32, bool)) -> (u32, bool) {
    (value as u32, overflow)
}

fn shift_add(a: u32, b: u32, by: u32) -> (u32, bool) {
    let sum = (u64::from(a) << by) + u64::from(b);
    (sum as u32, sum >> 32 != 0)
}

fn pick(a: u32, b: u32, first: bool) -> (u32, bool) {
    (if first { a } else { b }, first)
}

fn bfe(a: u64, offset: u32, width: u32) -> u64 {
    let x = a >> offset;
    if width >= 64 { x } else { x & ((1 << width) - 1) }
}

fn bfe_signed(a: i64, offset: u32, width: u32) -> i64 {
    let x = a >> offset;
    match width {
        0 => 0,
        1..=63 => x << (64 - width) >> (64 - width),
        _ => x,
    }
}

fn s2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    w.s[s.dst as usize] = f(scalar(w, &s.src[0]), scalar(w, &s.src[1]));
}

/// SCC = result is not zero.
fn z2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    let r = f(scalar(w, &s.src[0]), scalar(w, &s.src[1]));
    w.s[s.dst as usize] = r;
    w.set_scc(r != 0);
}

/// SCC from the operation.
fn c2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> (u32, bool)) {
    let (r, scc) = f(scalar(w, &s.src[0]), scalar(w, &s.src[1]));
    w.s[s.dst as usize] = r;
    w.set_scc(scc);
}

fn z264(w: &mut Wave, s: &Step, f: impl Fn(u64, u64) -> u64) {
    let r = f(scalar64(w, &s.src[0]), scalar64(w, &s.src[1]));
    w.set_s64(s.dst as usize, r);
    w.set_scc(r != 0);
}

fn shift64(w: &mut Wave, s: &Step, f: impl Fn(u64, u32) -> u64) {
    let r = f(scalar64(w, &s.src[0]), scalar(w, &s.src[1]));
    w.set_s64(s.dst as usize, r);
    w.set_scc(r != 0);
}

fn addc(w: &mut Wave, s: &Step) {
    let sum = u64::from(scalar(w, &s.src[0])) + u64::from(scalar(w, &s.src[1])) + u64::from(w.scc);
    w.s[s.dst as usize] = sum as u32;
    w.set_scc(sum >> 32 != 0);
}

fn subb(w: &mut Wave, s: &Step) {
    let (a, b) = (u64::from(scalar(w, &s.src[0])), u64::from(scalar(w, &s.src[1])));
    let r = a.wrapping_sub(b).wrapping_sub(u64::from(w.scc));
    w.s[s.dst as usize] = r as u32;
    w.set_scc(r >> 32 != 0);
}

fn bfm64(w: &mut Wave, s: &Step) {
    let (a, b) = (scalar(w, &s.src[0]) & 63, scalar(w, &s.src[1]) & 63);
    w.set_s64(s.dst as usize, ((1u64 << a) - 1) << b);
}

fn cselect(w: &mut Wave, s: &Step) {
    let k = if w.scc != 0 { 0 } else { 1 };
    w.s[s.dst as usize] = scalar(w, &s.src[k]);
}

fn cselect64(w: &mut Wave, s: &Step) {
    let k = if w.scc != 0 { 0 } else { 1 };
    let r = scalar64(w, &s.src[k]);
    w.set_s64(s.dst as usize, r);
}

fn test(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> bool) {
    let r = f(scalar(w, &s.src[0]), scalar(w, &s.src[1]));
    w.set_scc(r);
}

fn test64(w: &mut Wave, s: &Step, f: impl Fn(u64, u64) -> bool) {
    let r = f(scalar64(w, &s.src[0]), scalar64(w, &s.src[1]));
    w.set_scc(r);
}

fn test_bit64(w: &mut Wave, s: &Step, set: bool) {
    let bit = scalar64(w, &s.src[0]) >> (scalar(w, &s.src[1]) & 63) & 1 != 0;
    w.set_scc(bit == set);
}

fn testk(w: &mut Wave, s: &Step, f: impl Fn(u32, i32) -> bool) {
    let r = f(scalar(w, &s.src[0]), s.imm);
    w.set_scc(r);
}

fn movk(w: &mut Wave, s: &Step) {
    w.s[s.dst as usize] = s.imm as u32;
}

fn cmovk(w: &mut Wave, s: &Step) {
    if w.scc != 0 {
        w.s[s.dst as usize] = s.imm as u32;
    }
}

fn addk(w: &mut Wave, s: &Step) {
    let (r, overflow) = (w.s[s.dst as usize] as i32).overflowing_add(s.imm);
    w.s[s.dst as usize] = r as u32;
    w.set_scc(overflow);
}

fn mulk(w: &mut Wave, s: &Step) {
    w.s[s.dst as usize] = w.s[s.dst as usize].wrapping_mul(s.imm as u32);
}
