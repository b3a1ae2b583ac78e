// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalar ALU: SOP1, SOP2, SOPC and the arithmetic of SOPK.

use super::entry::Entry;
use super::scalar::{Change, Scalars, scalars, test, value, with};

/// A result with SCC = not zero.
fn nonzero(x: u64) -> Change {
    with(x, x != 0)
}

fn low(x: u64) -> u64 {
    x & 0xFFFF_FFFF
}

fn word(x: i64) -> u64 {
    low(x as u64)
}

/// Position found, or -1.
fn found(k: Option<u32>) -> Change {
    value(k.map_or(0xFFFF_FFFF, u64::from))
}

fn sign_run(x: u64, bits: u32) -> Change {
    let sign = x >> (bits - 1) & 1;
    found((1..bits).find(|k| x >> (bits - 1 - k) & 1 != sign))
}

fn field(x: u64, offset: u32, width: u32, bits: u32) -> u64 {
    (0..width).filter(|k| offset + k < bits).fold(0, |r, k| r | (x >> (offset + k) & 1) << k)
}

/// The field as a signed number; beyond the top bit it continues with the sign.
fn signed_field(x: i64, offset: u32, width: u32) -> i64 {
    let wide = i128::from(x) >> offset;
    if width == 0 {
        return 0;
    }
    let width = width.min(64);
    let low = wide.rem_euclid(1 << width);
    (if low >> (width - 1) & 1 != 0 { low - (1 << width) } else { low }) as i64
}

fn quads(x: u64, bits: u32) -> impl Iterator<Item = (u32, bool)> {
    (0..bits / 4).map(move |k| (k, x >> (4 * k) & 15 != 0))
}

fn quadmask(x: u64, bits: u32) -> u64 {
    quads(x, bits).fold(0, |r, (k, on)| r | u64::from(on) << k)
}

fn whole_quads(x: u64, bits: u32) -> u64 {
    quads(x, bits).fold(0, |r, (k, on)| r | if on { 15 << (4 * k) } else { 0 })
}

fn save(c: &Scalars, exec: u64) -> Change {
    Change { value: Some(c.exec), exec: Some(exec), scc: Some(exec != 0) }
}

fn save32(c: &Scalars, exec: u64) -> Change {
    let exec = low(exec);
    Change { value: Some(low(c.exec)), exec: Some(exec), scc: Some(exec != 0) }
}

fn write(exec: u64) -> Change {
    Change { value: Some(exec), exec: Some(exec), scc: Some(exec != 0) }
}

fn shifted_sum(a: u32, b: u32, by: u32) -> Change {
    let sum = (u64::from(a) << by) + u64::from(b);
    with(low(sum), sum > 0xFFFF_FFFF)
}

/// SCC = signed overflow.
fn overflow(x: i64) -> Change {
    with(word(x), i32::try_from(x).is_err())
}

fn picked(first: bool, a: u32, b: u32) -> Change {
    with(if first { a } else { b }.into(), first)
}

fn set(old: u64, bit: u32, on: bool) -> Change {
    value(if on { old | 1 << bit } else { old & !(1 << bit) })
}

pub(crate) const ENTRIES: &[Entry] = scalars! {
    S_ADD_U32 c (a: u32, b: u32) shifted_sum(a, b, 0);
    S_SUB_U32 c (a: u32, b: u32) with(a.wrapping_sub(b).into(), b > a);
    S_ADD_I32 c (a: i32, b: i32) overflow(i64::from(a) + i64::from(b));
    S_SUB_I32 c (a: i32, b: i32) overflow(i64::from(a) - i64::from(b));
    S_ADDC_U32 c (a: u32, b: u32) {
        let sum = u64::from(a) + u64::from(b) + u64::from(c.scc);
        with(low(sum), sum > 0xFFFF_FFFF)
    };
    S_SUBB_U32 c (a: u32, b: u32) {
        let r = i64::from(a) - i64::from(b) - i64::from(c.scc);
        with(word(r), r < 0)
    };
    S_ABSDIFF_I32 c (a: i32, b: i32) nonzero(low((i64::from(a) - i64::from(b)).unsigned_abs()));
    S_LSHL_B32 c (a: u32, b: u32) nonzero(low(u64::from(a) << (b % 32)));
    S_LSHR_B32 c (a: u32, b: u32) nonzero(u64::from(a) >> (b % 32));
    S_ASHR_I32 c (a: i32, b: u32) nonzero(word(i64::from(a) >> (b % 32)));
    S_LSHL_B64 c (a: u64, b: u32) nonzero((u128::from(a) << (b % 64)) as u64);
    S_LSHR_B64 c (a: u64, b: u32) nonzero(a >> (b % 64));
    S_ASHR_I64 c (a: i64, b: u32) nonzero((i128::from(a) >> (b % 64)) as u64);
    S_LSHL1_ADD_U32 c (a: u32, b: u32) shifted_sum(a, b, 1);
    S_LSHL2_ADD_U32 c (a: u32, b: u32) shifted_sum(a, b, 2);
    S_LSHL3_ADD_U32 c (a: u32, b: u32) shifted_sum(a, b, 3);
    S_LSHL4_ADD_U32 c (a: u32, b: u32) shifted_sum(a, b, 4);
    S_MIN_I32 c (a: u32, b: u32) picked((a as i32) < b as i32, a, b);
    S_MIN_U32 c (a: u32, b: u32) picked(a < b, a, b);
    S_MAX_I32 c (a: u32, b: u32) picked(a as i32 >= b as i32, a, b);
    S_MAX_U32 c (a: u32, b: u32) picked(a >= b, a, b);
    S_AND_B32 c (a: u64, b: u64) nonzero(low(a & b));
    S_AND_B64 c (a: u64, b: u64) nonzero(a & b);
    S_OR_B32 c (a: u64, b: u64) nonzero(low(a | b));
    S_OR_B64 c (a: u64, b: u64) nonzero(a | b);
    S_XOR_B32 c (a: u64, b: u64) nonzero(low(a ^ b));
    S_XOR_B64 c (a: u64, b: u64) nonzero(a ^ b);
    S_NAND_B32 c (a: u64, b: u64) nonzero(low(!(a & b)));
    S_NAND_B64 c (a: u64, b: u64) nonzero(!(a & b));
    S_NOR_B32 c (a: u64, b: u64) nonzero(low(!(a | b)));
    S_NOR_B64 c (a: u64, b: u64) nonzero(!(a | b));
    S_XNOR_B32 c (a: u64, b: u64) nonzero(low(!(a ^ b)));
    S_XNOR_B64 c (a: u64, b: u64) nonzero(!(a ^ b));
    S_AND_NOT1_B32 c (a: u64, b: u64) nonzero(low(a & !b));
    S_AND_NOT1_B64 c (a: u64, b: u64) nonzero(a & !b);
    S_OR_NOT1_B32 c (a: u64, b: u64) nonzero(low(a | !b));
    S_OR_NOT1_B64 c (a: u64, b: u64) nonzero(a | !b);
    S_BFE_U32 c (a: u64, b: u32) nonzero(field(a, b % 32, b >> 16 & 0x7F, 32));
    S_BFE_I32 c (a: i32, b: u32) nonzero(word(signed_field(a.into(), b % 32, b >> 16 & 0x7F)));
    S_BFE_U64 c (a: u64, b: u32) nonzero(field(a, b % 64, b >> 16 & 0x7F, 64));
    S_BFE_I64 c (a: i64, b: u32) nonzero(signed_field(a, b % 64, b >> 16 & 0x7F) as u64);
    S_BFM_B32 c (a: u32, b: u32) value(low(((1u64 << (a % 32)) - 1) << (b % 32)));
    S_BFM_B64 c (a: u32, b: u32) value((((1u128 << (a % 64)) - 1) << (b % 64)) as u64);
    S_MUL_I32 c (a: i32, b: i32) value(word(i64::from(a) * i64::from(b)));
    S_MUL_HI_U32 c (a: u32, b: u32) value((u64::from(a) * u64::from(b)) >> 32);
    S_MUL_HI_I32 c (a: i32, b: i32) value(word((i64::from(a) * i64::from(b)) >> 32));
    S_CSELECT_B32 c (a: u64, b: u64) value(if c.scc { a } else { b });
    S_CSELECT_B64 c (a: u64, b: u64) value(if c.scc { a } else { b });
    S_PACK_LL_B32_B16 c (a: u64, b: u64) value(a & 0xFFFF | (b & 0xFFFF) << 16);
    S_PACK_LH_B32_B16 c (a: u64, b: u64) value(a & 0xFFFF | (b >> 16 & 0xFFFF) << 16);
    S_PACK_HH_B32_B16 c (a: u64, b: u64) value(a >> 16 & 0xFFFF | (b >> 16 & 0xFFFF) << 16);
    S_PACK_HL_B32_B16 c (a: u64, b: u64) value(a >> 16 & 0xFFFF | (b & 0xFFFF) << 16);
    S_MOV_B32 c (a: u64) value(a);
    S_MOV_B64 c (a: u64) value(a);
    S_CMOV_B32 c (a: u64) value(if c.scc { a } else { c.old });
    S_CMOV_B64 c (a: u64) value(if c.scc { a } else { c.old });
    S_BREV_B32 c (a: u64) value((0..32).fold(0, |r, k| r | (a >> k & 1) << (31 - k)));
    S_BREV_B64 c (a: u64) value((0..64).fold(0, |r, k| r | (a >> k & 1) << (63 - k)));
    S_CTZ_I32_B32 c (a: u64) found((0..32).find(|k| a >> k & 1 != 0));
    S_CTZ_I32_B64 c (a: u64) found((0..64).find(|k| a >> k & 1 != 0));
    S_CLZ_I32_U32 c (a: u64) found((0..32).find(|k| a >> (31 - k) & 1 != 0));
    S_CLZ_I32_U64 c (a: u64) found((0..64).find(|k| a >> (63 - k) & 1 != 0));
    S_CLS_I32 c (a: u64) sign_run(a, 32);
    S_CLS_I32_I64 c (a: u64) sign_run(a, 64);
    S_SEXT_I32_I8 c (a: i8) value(word(a.into()));
    S_SEXT_I32_I16 c (a: i16) value(word(a.into()));
    S_BITSET0_B32 c (a: u32) set(c.old, a % 32, false);
    S_BITSET1_B32 c (a: u32) set(c.old, a % 32, true);
    S_BITSET0_B64 c (a: u32) set(c.old, a % 64, false);
    S_BITSET1_B64 c (a: u32) set(c.old, a % 64, true);
    S_BITREPLICATE_B64_B32 c (a: u64) value((0..64).fold(0, |r, k| r | (a >> (k / 2) & 1) << k));
    S_ABS_I32 c (a: i32) nonzero(i64::from(a).unsigned_abs());
    S_BCNT0_I32_B32 c (a: u32) nonzero((0..32).filter(|k| a >> k & 1 == 0).count() as u64);
    S_BCNT1_I32_B32 c (a: u32) nonzero((0..32).filter(|k| a >> k & 1 != 0).count() as u64);
    S_BCNT0_I32_B64 c (a: u64) nonzero((0..64).filter(|k| a >> k & 1 == 0).count() as u64);
    S_BCNT1_I32_B64 c (a: u64) nonzero((0..64).filter(|k| a >> k & 1 != 0).count() as u64);
    S_QUADMASK_B32 c (a: u64) nonzero(quadmask(a, 32));
    S_QUADMASK_B64 c (a: u64) nonzero(quadmask(a, 64));
    S_WQM_B32 c (a: u64) nonzero(whole_quads(a, 32));
    S_WQM_B64 c (a: u64) nonzero(whole_quads(a, 64));
    S_NOT_B32 c (a: u64) nonzero(low(!a));
    S_NOT_B64 c (a: u64) nonzero(!a);
    S_AND_SAVEEXEC_B32 c (a: u64) save32(c, a & c.exec);
    S_AND_SAVEEXEC_B64 c (a: u64) save(c, a & c.exec);
    S_OR_SAVEEXEC_B32 c (a: u64) save32(c, a | c.exec);
    S_OR_SAVEEXEC_B64 c (a: u64) save(c, a | c.exec);
    S_XOR_SAVEEXEC_B32 c (a: u64) save32(c, a ^ c.exec);
    S_XOR_SAVEEXEC_B64 c (a: u64) save(c, a ^ c.exec);
    S_NAND_SAVEEXEC_B32 c (a: u64) save32(c, !(a & c.exec));
    S_NAND_SAVEEXEC_B64 c (a: u64) save(c, !(a & c.exec));
    S_NOR_SAVEEXEC_B32 c (a: u64) save32(c, !(a | c.exec));
    S_NOR_SAVEEXEC_B64 c (a: u64) save(c, !(a | c.exec));
    S_XNOR_SAVEEXEC_B32 c (a: u64) save32(c, !(a ^ c.exec));
    S_XNOR_SAVEEXEC_B64 c (a: u64) save(c, !(a ^ c.exec));
    S_AND_NOT0_SAVEEXEC_B32 c (a: u64) save32(c, !a & c.exec);
    S_AND_NOT0_SAVEEXEC_B64 c (a: u64) save(c, !a & c.exec);
    S_OR_NOT0_SAVEEXEC_B32 c (a: u64) save32(c, !a | c.exec);
    S_OR_NOT0_SAVEEXEC_B64 c (a: u64) save(c, !a | c.exec);
    S_AND_NOT1_SAVEEXEC_B32 c (a: u64) save32(c, a & !c.exec);
    S_AND_NOT1_SAVEEXEC_B64 c (a: u64) save(c, a & !c.exec);
    S_OR_NOT1_SAVEEXEC_B32 c (a: u64) save32(c, a | !c.exec);
    S_OR_NOT1_SAVEEXEC_B64 c (a: u64) save(c, a | !c.exec);
    S_AND_NOT0_WREXEC_B32 c (a: u64) write(low(!a & c.exec));
    S_AND_NOT0_WREXEC_B64 c (a: u64) write(!a & c.exec);
    S_AND_NOT1_WREXEC_B32 c (a: u64) write(low(a & !c.exec));
    S_AND_NOT1_WREXEC_B64 c (a: u64) write(a & !c.exec);
    S_CMP_EQ_I32 c (a: i32, b: i32) test(a == b);
    S_CMPK_EQ_I32 c (a: i32) test(i64::from(a) == i64::from(c.imm));
    S_CMP_LG_I32 c (a: i32, b: i32) test(a != b);
    S_CMPK_LG_I32 c (a: i32) test(i64::from(a) != i64::from(c.imm));
    S_CMP_GT_I32 c (a: i32, b: i32) test(a > b);
    S_CMPK_GT_I32 c (a: i32) test(i64::from(a) > i64::from(c.imm));
    S_CMP_GE_I32 c (a: i32, b: i32) test(a >= b);
    S_CMPK_GE_I32 c (a: i32) test(i64::from(a) >= i64::from(c.imm));
    S_CMP_LT_I32 c (a: i32, b: i32) test(a < b);
    S_CMPK_LT_I32 c (a: i32) test(i64::from(a) < i64::from(c.imm));
    S_CMP_LE_I32 c (a: i32, b: i32) test(a <= b);
    S_CMPK_LE_I32 c (a: i32) test(i64::from(a) <= i64::from(c.imm));
    S_CMP_EQ_U32 c (a: u32, b: u32) test(a == b);
    S_CMPK_EQ_U32 c (a: u32) test(i64::from(a) == i64::from(c.imm as u16));
    S_CMP_LG_U32 c (a: u32, b: u32) test(a != b);
    S_CMPK_LG_U32 c (a: u32) test(i64::from(a) != i64::from(c.imm as u16));
    S_CMP_GT_U32 c (a: u32, b: u32) test(a > b);
    S_CMPK_GT_U32 c (a: u32) test(i64::from(a) > i64::from(c.imm as u16));
    S_CMP_GE_U32 c (a: u32, b: u32) test(a >= b);
    S_CMPK_GE_U32 c (a: u32) test(i64::from(a) >= i64::from(c.imm as u16));
    S_CMP_LT_U32 c (a: u32, b: u32) test(a < b);
    S_CMPK_LT_U32 c (a: u32) test(i64::from(a) < i64::from(c.imm as u16));
    S_CMP_LE_U32 c (a: u32, b: u32) test(a <= b);
    S_CMPK_LE_U32 c (a: u32) test(i64::from(a) <= i64::from(c.imm as u16));
    S_CMP_EQ_U64 c (a: u64, b: u64) test(a == b);
    S_CMP_LG_U64 c (a: u64, b: u64) test(a != b);
    S_BITCMP0_B32 c (a: u64, b: u32) test(a >> (b % 32) & 1 == 0);
    S_BITCMP1_B32 c (a: u64, b: u32) test(a >> (b % 32) & 1 == 1);
    S_BITCMP0_B64 c (a: u64, b: u32) test(a >> (b % 64) & 1 == 0);
    S_BITCMP1_B64 c (a: u64, b: u32) test(a >> (b % 64) & 1 == 1);
    S_MOVK_I32 c () value(word(c.imm.into()));
    S_CMOVK_I32 c () value(if c.scc { word(c.imm.into()) } else { c.old });
    S_ADDK_I32 c () overflow(i64::from(c.old as i32) + i64::from(c.imm));
    S_MULK_I32 c () value(word(i64::from(c.old as i32).wrapping_mul(c.imm.into())));
};
