// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameter interpolation: which lanes of each four the operands come from, their halves, and the roundings.

use softgpu_isa::{Fmt, Op, OpInfo, Ty};

use super::encode::{VGPR0, Vector};
use super::entry::{Check, Entry};
use super::exact::{self, F16, F32, Mode, NEAREST};
use super::lab::{Lab, VGPRS};
use super::lanes::{Lane, finished, format};
use crate::wave::Wave;

const fn own(op: Op) -> Entry {
    Entry { op, check: Check::Own(interpolation) }
}

pub(crate) const ENTRIES: &[Entry] = &[
    own(Op::V_INTERP_P10_F32),
    own(Op::V_INTERP_P2_F32),
    own(Op::V_INTERP_P10_F16_F32),
    own(Op::V_INTERP_P2_F16_F32),
    own(Op::V_INTERP_P10_RTZ_F16_F32),
    own(Op::V_INTERP_P2_RTZ_F16_F32),
];

/// Lane of each four that source `i` is read from, if it is a fixed one.
fn fixed(row: &OpInfo, i: usize) -> Option<usize> {
    match (row.name.contains("_p10_"), i) {
        (true, 0) => Some(1),
        (true, 2) => Some(0),
        (false, 0) => Some(2),
        _ => None,
    }
}

/// Source `i` for `lane` as f32: the half that op_sel says, negated, denormals flushed as MODE says.
fn operand(w: &Wave, row: &OpInfo, fields: &Vector, c: &Lane, i: usize, lane: usize) -> u64 {
    let from = fixed(row, i).map_or(lane, |k| lane / 4 * 4 + k);
    let x = u64::from(w.vgpr((fields.src[i] - VGPR0) as usize, from));
    let negative = u64::from(fields.neg >> i & 1);
    if row.src[i].ty == Ty::F16 {
        let half = (if fields.op_sel >> i & 1 != 0 { x >> 16 } else { x } & 0xFFFF) ^ negative << 15;
        return exact::convert(F16, F32, if c.wide().flush_in { F16.flush(half) } else { half }, NEAREST);
    }
    let x = x ^ negative << 31;
    if c.f32().flush_in { F32.flush(x) } else { x }
}

fn interpolation(lab: &mut Lab, row: &'static OpInfo) {
    let halves = row.name.contains("f16");
    for _ in 0..100 {
        let mut w = lab.any_wave();
        let registers = [0; 3].map(|_| lab.r.below(VGPRS));
        for (&register, slot) in registers.iter().zip(row.src) {
            for lane in 0..w.lanes() {
                let both = lab.r.value(slot.ty) as u32 | (lab.r.value(slot.ty) as u32) << 16;
                let value = if slot.ty == Ty::F16 { both } else { lab.r.value(slot.ty) as u32 };
                w.set_vgpr(register, lane, value);
            }
        }
        let dst = if lab.r.one_in(3) { registers[lab.r.below(3)] } else { lab.r.below(VGPRS) };
        let fields = Vector {
            dst: dst as u32,
            src: registers.map(|register| VGPR0 + register as u32),
            neg: lab.r.next() & 7,
            op_sel: if halves { lab.r.next() & 15 } else { 0 },
            clamp: lab.r.one_in(3),
            ..Vector::default()
        };
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| w.exec() >> lane & 1 != 0) {
            let old = w.vgpr(dst, lane);
            want.set_vgpr(dst, lane, result(&w, row, &fields, lane, old));
        }
        let mut got = w.clone();
        lab.run(&mut got, &fields.encode(row, Fmt::Vinterp));
        lab.same(&want, &got, &format!("{fields:?}, mode {:#x}", w.mode));
    }
}

fn result(w: &Wave, row: &'static OpInfo, fields: &Vector, lane: usize, old: u32) -> u32 {
    let c = Lane { mode: w.mode, clamp: fields.clamp, lane, neg: 0, op_sel_hi: 0, vcc: 0 };
    let sources = [0, 1, 2].map(|i| operand(w, row, fields, &c, i, lane));
    let to = format(row.dst[0].ty).expect("a float");
    let mode = if to == F32 { c.f32() } else { c.wide() };
    let round = if row.name.contains("_rtz_") { 3 } else { mode.round };
    // Denormals that MODE flushes in operands are flushed already.
    let mode = Mode { round, flush_in: false, ..mode };
    let bits = finished(to, exact::fma_into(F32, to, sources, mode), fields.clamp, 0, w.mode) as u32;
    match (to == F32, fields.op_sel & 8 != 0) {
        (true, _) => bits,
        (false, true) => old & 0xFFFF | bits << 16,
        (false, false) => old & 0xFFFF_0000 | bits & 0xFFFF,
    }
}
