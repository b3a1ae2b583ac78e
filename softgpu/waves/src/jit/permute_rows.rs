// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline v_permlane16 and v_permlanex16: lanes of a row of 16 from the same row, or from the other one of its 32 lanes.
//!
//! INVARIANT: the step is emitted apart from others, once for all pieces of 32 lanes: all of them are read before the first is
//! written. Results go to memory; no register has a piece of the destination afterwards.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::Arg;
use super::codes;
use super::generator::{Access, Accesses, Emit, Gen, Wide};
use crate::step::{Kind, Src, Step};
use crate::wave::EXEC;

/// Bits of the step's flags, from op_sel: inactive lanes are read; they are read as zero.
const FETCH_INACTIVE: u16 = 1;
const ZERO: u16 = 2;

/// How `step` is emitted, if it is one of these.
pub(super) fn emitter(step: &Step) -> Option<Emit> {
    let known = |s: &Src| matches!(s.kind, Kind::Scalar | Kind::Const | Kind::ConstSigned);
    let is_plain = step.out == 0 && step.src[0].kind == Kind::Vgpr && step.src[1..].iter().all(known);
    (is_one(step) && is_plain).then_some(emit as Emit)
}

pub(super) fn is_one(step: &Step) -> bool {
    matches!(step.op, Some(Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32))
}

/// What a step accesses when it is emitted for piece `c`: everything with the first of 32 lanes.
pub(super) fn accesses(g: &Gen, step: &Step, c: usize, masked: bool) -> Accesses {
    if !c.is_multiple_of(g.per_row()) {
        return Accesses::new();
    }
    let row = |row: u16, overwrites| {
        (c..c + g.per_row()).map(move |c| Access { piece: g.piece(row, 0, c), overwrites })
    };
    row(step.src[0].index, false).chain(row(step.dst, !masked)).collect()
}

fn emit(g: &mut Gen, s: &Step, c: usize) {
    if !c.is_multiple_of(g.per_row()) {
        return;
    }
    let sources: Vec<Register> = (c..c + g.per_row()).map(|c| g.source(&s.src[0], 0, c)).collect();
    for to in c..c + g.per_row() {
        let spill = g.regs.clean(g.piece(s.dst, 0, to));
        if let Some(spill) = spill.filter(|_| g.masked) {
            g.store(spill);
        }
    }
    match g.wide {
        Wide::Z => rows(g, s, c, &sources),
        Wide::Y => halves(g, s, c, &sources),
    }
    for to in c..c + g.per_row() {
        g.regs.drop_piece(g.piece(s.dst, 0, to));
    }
}

/// A register with `s` in all lanes, to be changed.
fn spread(g: &mut Gen, s: &Src) -> Register {
    if s.kind != Kind::Scalar {
        return g.constant(s.value);
    }
    let (t, from) = (g.temporary(), g.scalar(s.index));
    g.broadcast(t, from);
    t
}

/// Moves each lane's four bits to the lowest place.
fn numbers(g: &mut Gen, t: Register) {
    let by = g.constants_argument(|lane| 4 * (lane as u32 % 8));
    g.op3(codes::SHIFT_RIGHT, t, t, by);
}

fn crosses(s: &Step) -> bool {
    s.op == Some(Op::V_PERMLANEX16_B32)
}

/// Pieces that are rows of 16 lanes (AVX-512).
fn rows(g: &mut Gen, s: &Step, c: usize, sources: &[Register]) {
    let (k, active) = (Register::K5, Register::K6);
    let select = spread(g, &s.src[1]);
    let upper = spread(g, &s.src[2]);
    let place = g.asm.constant_once(0xFF00);
    g.asm.op2(Code::VEX_Kmovw_kr_km16, k, place);
    g.asm.masked(codes::MOVE.z, k, &[select.into(), upper.into()]);
    numbers(g, select);
    let t = upper;
    for to in 0..2 {
        let from = if crosses(s) { 1 - to } else { to };
        let place = g.place(g.piece(s.dst, 0, c + to));
        let store = Code::EVEX_Vmovdqa32_zmmm512_k1z_zmm;
        if !g.masked {
            g.asm.op3(codes::PERMUTE.z, t, select, sources[from]);
            g.asm.op2(store, place, t);
            continue;
        }
        let (written, read) = (g.exec(c + to), g.exec(c + from));
        let mut k = written;
        if s.flags & FETCH_INACTIVE == 0 {
            g.asm.op2(Code::EVEX_Vpmovm2d_zmm_kr, t, read);
            g.asm.op3(codes::PERMUTE.z, t, select, t);
            g.asm.op2(Code::EVEX_Vpmovd2m_kr_zmm, active, t);
            if s.flags & ZERO != 0 {
                g.asm.zeroed(codes::PERMUTE.z, active, &[t.into(), select.into(), sources[from].into()]);
                g.asm.masked(store, k, &[place.into(), t.into()]);
                continue;
            }
            g.asm.op3(Code::VEX_Kandw_kr_kr_kr, active, active, written);
            k = active;
        }
        g.asm.op3(codes::PERMUTE.z, t, select, sources[from]);
        g.asm.masked(store, k, &[place.into(), t.into()]);
    }
}

/// Pieces of 8 lanes, two a row (AVX2): the fourth bit of a lane's number says which.
fn halves(g: &mut Gen, s: &Step, c: usize, sources: &[Register]) {
    let selects = [spread(g, &s.src[1]), spread(g, &s.src[2])];
    selects.iter().for_each(|&select| numbers(g, select));
    let [r, t, which, active, other] = [0; 5].map(|_| g.temporary());
    // `to` = lanes of the two; it may be the first of them.
    let permute =
        |g: &mut Gen, to: Register, t: Register, select: Register, which: Register, from: [Register; 2]| {
            g.asm.op3(codes::PERMUTE.y, t, select, from[1]);
            g.asm.op3(codes::PERMUTE.y, to, select, from[0]);
            g.asm.op4(codes::BLEND_Y, to, to, t, which);
        };
    for to in 0..4 {
        let from = if crosses(s) { (to & 2) ^ 2 } else { to & 2 };
        let select = selects[to % 2];
        let place: Arg = g.place(g.piece(s.dst, 0, c + to)).into();
        g.op3(codes::LEFT_BY, which, select, 28);
        permute(g, r, t, select, which, [sources[from], sources[from + 1]]);
        if !g.masked {
            g.asm.op2(Code::VEX_Vmovdqa_ymmm256_ymm, place, r);
            continue;
        }
        if s.flags & FETCH_INACTIVE == 0 {
            g.spread(active, EXEC as u16, c + from);
            g.spread(other, EXEC as u16, c + from + 1);
            permute(g, active, t, select, which, [active, other]);
            if s.flags & ZERO != 0 {
                g.op3(codes::AND, r, r, active);
            }
        }
        g.spread(t, EXEC as u16, c + to);
        if s.flags & (FETCH_INACTIVE | ZERO) == 0 {
            g.op3(codes::AND, t, t, active);
        }
        g.asm.op3(Code::VEX_Vpmaskmovd_m256_ymm_ymm, place, t, r);
    }
}
