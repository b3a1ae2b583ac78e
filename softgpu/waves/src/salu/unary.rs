// SPDX-License-Identifier: MIT OR Apache-2.0
//! SOP1: moves, bit counting, EXEC manipulation, relative moves.

use super::scalar_table;
use crate::step::{Kind, Step};
use crate::valu::shapes::{scalar, scalar64};
use crate::wave::{EXEC, M0, Wave};

scalar_table! {
    /// One-operand scalar handlers.
    table:
    S_MOV_B32 = s1 { |a| a };
    S_MOV_B64 = s164 { |a| a };
    S_CMOV_B32 = cmov;
    S_CMOV_B64 = cmov64;
    S_BREV_B32 = s1 { |a| a.reverse_bits() };
    S_BREV_B64 = s164 { |a| a.reverse_bits() };
    S_CTZ_I32_B32 = s1 { |a| if a == 0 { u32::MAX } else { a.trailing_zeros() } };
    S_CTZ_I32_B64 = narrow { |a| if a == 0 { u32::MAX } else { a.trailing_zeros() } };
    S_CLZ_I32_U32 = s1 { |a| if a == 0 { u32::MAX } else { a.leading_zeros() } };
    S_CLZ_I32_U64 = narrow { |a| if a == 0 { u32::MAX } else { a.leading_zeros() } };
    S_CLS_I32 = s1 { |a| sign_run(i64::from(a as i32) as u64, 32) };
    S_CLS_I32_I64 = narrow { |a| sign_run(a, 0) };
    S_SEXT_I32_I8 = s1 { |a| a as i8 as u32 };
    S_SEXT_I32_I16 = s1 { |a| a as i16 as u32 };
    S_BITSET0_B32 = bitset { false };
    S_BITSET1_B32 = bitset { true };
    S_BITSET0_B64 = bitset64 { false };
    S_BITSET1_B64 = bitset64 { true };
    S_BITREPLICATE_B64_B32 = bitreplicate;
    S_ABS_I32 = z1 { |a| (a as i32).unsigned_abs() };
    S_BCNT0_I32_B32 = z1 { |a| a.count_zeros() };
    S_BCNT1_I32_B32 = z1 { |a| a.count_ones() };
    S_BCNT0_I32_B64 = narrow_z { |a| a.count_zeros() };
    S_BCNT1_I32_B64 = narrow_z { |a| a.count_ones() };
    S_QUADMASK_B32 = z1 { |a| quadmask(u64::from(a)) as u32 };
    S_QUADMASK_B64 = z164 { quadmask };
    S_WQM_B32 = z1 { |a| whole_quads(u64::from(a)) as u32 };
    S_WQM_B64 = z164 { whole_quads };
    S_NOT_B32 = z1 { |a| !a };
    S_NOT_B64 = z164 { |a| !a };
    S_AND_SAVEEXEC_B32 = saveexec { |a, e| a & e };
    S_OR_SAVEEXEC_B32 = saveexec { |a, e| a | e };
    S_XOR_SAVEEXEC_B32 = saveexec { |a, e| a ^ e };
    S_NAND_SAVEEXEC_B32 = saveexec { |a, e| !(a & e) };
    S_NOR_SAVEEXEC_B32 = saveexec { |a, e| !(a | e) };
    S_XNOR_SAVEEXEC_B32 = saveexec { |a, e| !(a ^ e) };
    S_AND_NOT0_SAVEEXEC_B32 = saveexec { |a, e| !a & e };
    S_OR_NOT0_SAVEEXEC_B32 = saveexec { |a, e| !a | e };
    S_AND_NOT1_SAVEEXEC_B32 = saveexec { |a, e| a & !e };
    S_OR_NOT1_SAVEEXEC_B32 = saveexec { |a, e| a | !e };
    S_AND_SAVEEXEC_B64 = saveexec64 { |a, e| a & e };
    S_OR_SAVEEXEC_B64 = saveexec64 { |a, e| a | e };
    S_XOR_SAVEEXEC_B64 = saveexec64 { |a, e| a ^ e };
    S_NAND_SAVEEXEC_B64 = saveexec64 { |a, e| !(a & e) };
    S_NOR_SAVEEXEC_B64 = saveexec64 { |a, e| !(a | e) };
    S_XNOR_SAVEEXEC_B64 = saveexec64 { |a, e| !(a ^ e) };
    S_AND_NOT0_SAVEEXEC_B64 = saveexec64 { |a, e| !a & e };
    S_OR_NOT0_SAVEEXEC_B64 = saveexec64 { |a, e| !a | e };
    S_AND_NOT1_SAVEEXEC_B64 = saveexec64 { |a, e| a & !e };
    S_OR_NOT1_SAVEEXEC_B64 = saveexec64 { |a, e| a | !e };
    S_AND_NOT0_WREXEC_B32 = wrexec { |a, e| !a & e };
    S_AND_NOT1_WREXEC_B32 = wrexec { |a, e| a & !e };
    S_AND_NOT0_WREXEC_B64 = wrexec64 { |a, e| !a & e };
    S_AND_NOT1_WREXEC_B64 = wrexec64 { |a, e| a & !e };
    S_MOVRELS_B32 = movrel { 1, true, false };
    S_MOVRELS_B64 = movrel { 2, true, false };
    S_MOVRELD_B32 = movrel { 1, false, true };
    S_MOVRELD_B64 = movrel { 2, false, true };
    S_MOVRELSD_2_B32 = movrel_two;
}

fn sign_run(a: u64, skip: u32) -> u32 {
    let same = a ^ ((a as i64) >> 63) as u64;
    if same == 0 { u32::MAX } else { same.leading_zeros() - skip }
}

fn quadmask(a: u64) -> u64 {
    (0..16).fold(0, |r, k| r | u64::from(a >> (4 * k) & 15 != 0) << k)
}

fn whole_quads(a: u64) -> u64 {
    (0..16).fold(0, |r, k| r | if a >> (4 * k) & 15 != 0 { 15 << (4 * k) } else { 0 })
}

fn s1(w: &mut Wave, s: &Step, f: impl Fn(u32) -> u32) {
    w.s[s.dst as usize] = f(scalar(w, &s.src[0]));
}

fn z1(w: &mut Wave, s: &Step, f: impl Fn(u32) -> u32) {
    s1(w, s, &f);
    let r = w.s[s.dst as usize];
    w.set_scc(r != 0);
}

fn s164(w: &mut Wave, s: &Step, f: impl Fn(u64) -> u64) {
    let r = f(scalar64(w, &s.src[0]));
    w.set_s64(s.dst as usize, r);
}

fn z164(w: &mut Wave, s: &Step, f: impl Fn(u64) -> u64) {
    let r = f(scalar64(w, &s.src[0]));
    w.set_s64(s.dst as usize, r);
    w.set_scc(r != 0);
}

fn narrow(w: &mut Wave, s: &Step, f: impl Fn(u64) -> u32) {
    w.s[s.dst as usize] = f(scalar64(w, &s.src[0]));
}

fn narrow_z(w: &mut Wave, s: &Step, f: impl Fn(u64) -> u32) {
    let r = f(scalar64(w, &s.src[0]));
    w.s[s.dst as usize] = r;
    w.set_scc(r != 0);
}

fn cmov(w: &mut Wave, s: &Step) {
    if w.scc != 0 {
        s1(w, s, |a| a);
    }
}

fn cmov64(w: &mut Wave, s: &Step) {
    if w.scc != 0 {
        s164(w, s, |a| a);
    }
}

fn bitset(w: &mut Wave, s: &Step, on: bool) {
    let bit = 1u32 << (scalar(w, &s.src[0]) & 31);
    let d = &mut w.s[s.dst as usize];
    *d = if on { *d | bit } else { *d & !bit };
}

fn bitset64(w: &mut Wave, s: &Step, on: bool) {
    let bit = 1u64 << (scalar(w, &s.src[0]) & 63);
    let d = w.s64(s.dst as usize);
    w.set_s64(s.dst as usize, if on { d | bit } else { d & !bit });
}

fn bitreplicate(w: &mut Wave, s: &Step) {
    let a = scalar(w, &s.src[0]);
    let r = (0..32).fold(0u64, |r, k| r | if a >> k & 1 != 0 { 3 << (2 * k) } else { 0 });
    w.set_s64(s.dst as usize, r);
}

fn saveexec(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    let a = scalar(w, &s.src[0]);
    let exec = w.s[EXEC];
    let r = f(a, exec);
    w.s[s.dst as usize] = exec;
    w.s[EXEC] = r;
    w.set_scc(r != 0);
}

fn saveexec64(w: &mut Wave, s: &Step, f: impl Fn(u64, u64) -> u64) {
    let a = scalar64(w, &s.src[0]);
    let exec = w.s64(EXEC);
    let r = f(a, exec);
    w.set_s64(s.dst as usize, exec);
    w.set_s64(EXEC, r);
    w.set_scc(r != 0);
}

/// As saveexec, but the destination gets the new EXEC.
fn wrexec(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) {
    let r = f(scalar(w, &s.src[0]), w.s[EXEC]);
    w.s[s.dst as usize] = r;
    w.s[EXEC] = r;
    w.set_scc(r != 0);
}

fn wrexec64(w: &mut Wave, s: &Step, f: impl Fn(u64, u64) -> u64) {
    let r = f(scalar64(w, &s.src[0]), w.s64(EXEC));
    w.set_s64(s.dst as usize, r);
    w.set_s64(EXEC, r);
    w.set_scc(r != 0);
}

/// The scalar `by` registers after `index`; past the last SGPR the result is s0.
fn relative(index: u16, by: u32, n: usize) -> usize {
    let at = (index as usize).saturating_add(by as usize);
    if at + n <= 106 { at } else { 0 }
}

fn copy(w: &mut Wave, s: &Step, n: usize, source_by: u32, dst_by: Option<u32>) {
    let dst = dst_by.map_or(s.dst as usize, |by| relative(s.dst, by, n));
    for k in 0..n {
        let value = if s.src[0].kind == Kind::Scalar {
            w.s[if source_by == 0 { s.src[0].index as usize } else { relative(s.src[0].index, source_by, n) }
                + k]
        } else if k == 0 {
            scalar64(w, &s.src[0]) as u32
        } else {
            (scalar64(w, &s.src[0]) >> 32) as u32
        };
        w.s[dst + k] = value;
    }
}

fn movrel(w: &mut Wave, s: &Step, n: usize, source: bool, dst: bool) {
    let m0 = w.s[M0];
    copy(w, s, n, if source { m0 } else { 0 }, dst.then_some(m0));
}

fn movrel_two(w: &mut Wave, s: &Step) {
    let m0 = w.s[M0];
    copy(w, s, 1, m0 & 0x3FF, Some(m0 >> 16 & 0x3FF));
}
