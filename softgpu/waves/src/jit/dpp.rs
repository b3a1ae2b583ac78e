// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline DPP instructions. For AVX-512 a row of 16 lanes is one piece, so its pattern is one permutation of a register;
//! [`super::dpp_avx2`] has the code for two pieces.
//!
//! INVARIANT: the three steps of [`crate::valu::cross`] - prepare, operation, restore - are emitted together or not at
//! all, and EXEC is never changed meanwhile: the operation runs under a mask register of its own instead. Prepare fills
//! the spare register, with zeros where a lane has no source. The operation's step says which lanes must keep their
//! value, from the DPP control and EXEC ([`FLAG_DPP_MASK`]).

use iced_x86::{Code, Register};
use smallvec::smallvec;

use super::codes;
use super::dpp_avx2;
use super::floats::Floats;
use super::generator::{Access, Accesses, Emit, Gen, Wide};
use super::lane;
use crate::step::{FLAG_DPP_MASK, Step};
use crate::valu::cross::{self, DPP_BOUND_CTRL, DPP_FETCH_INACTIVE, DPP8};
use crate::wave::EXEC;

/// Lanes of a row and what a DPP instruction does to them.
pub(super) struct Pattern {
    /// The source lane of each lane; any number where there is none.
    pub lanes: [u32; 16],
    /// Lanes that have a source lane within the row.
    pub valid: u16,
    pub fetch_inactive: bool,
    /// Whether lanes without a source read zero; otherwise they keep their value.
    pub zero: bool,
    row_mask: u16,
    bank_mask: u16,
}

impl Pattern {
    /// From a step with the pattern and flags that [`cross::dpp_prepare`] takes.
    fn new(control: u32, flags: u16) -> Pattern {
        let eight = flags & DPP8 != 0;
        let mut pattern = Pattern {
            lanes: [0; 16],
            valid: 0,
            fetch_inactive: flags & DPP_FETCH_INACTIVE != 0,
            zero: eight || flags & DPP_BOUND_CTRL != 0,
            row_mask: if eight { 15 } else { flags >> 4 & 15 },
            bank_mask: if eight { 15 } else { flags & 15 },
        };
        for lane in 0..16 {
            let from = match eight {
                true => Some((lane & !7) + (control as usize >> (3 * (lane & 7)) & 7)),
                false => cross::dpp16_lane(control, lane),
            };
            if let Some(from) = from {
                // CAST: below 16.
                pattern.lanes[lane] = from as u32;
                pattern.valid |= 1 << lane;
            }
        }
        pattern
    }

    /// From the step before the operation.
    pub(super) fn of_prepare(s: &Step) -> Pattern {
        // CAST: predecode made it of unsigned bits.
        Pattern::new(s.imm as u32, s.flags)
    }

    /// From the operation's step.
    pub(super) fn of_operation(s: &Step) -> Pattern {
        // CAST: predecode put the control into the low half, the flags into the high one.
        Pattern::new(s.imm as u32 & 0xFFFF, (s.imm as u32 >> 16) as u16)
    }

    /// Lanes of row `c` that the row and bank masks enable.
    pub(super) fn written(&self, c: usize) -> u16 {
        let row = if self.row_mask >> c & 1 != 0 { u16::MAX } else { 0 };
        let banks = (0..4)
            .filter(|bank| self.bank_mask >> bank & 1 != 0)
            .fold(0, |set, bank| set | 0xF << (4 * bank));
        row & banks
    }

    /// Loads the lanes' numbers into a temporary.
    fn numbers(&self, g: &mut Gen) -> Register {
        let t = g.temporary();
        let lanes = g.asm.constants16(self.lanes);
        g.asm.op2(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512, t, lanes);
        t
    }

    /// `k` = lanes whose source lane may be read, within a region of any EXEC if `masked`.
    fn sources(&self, g: &mut Gen, k: Register, numbers: Register, c: usize) {
        constant_mask(g, k, self.valid);
        if g.masked && !self.fetch_inactive {
            let t = g.temporary();
            let exec = g.exec(c);
            g.asm.op2(Code::EVEX_Vpmovm2d_zmm_kr, t, exec);
            g.asm.op3(codes::PERMUTE.z, t, numbers, t);
            g.asm.op2(Code::EVEX_Vpmovd2m_kr_zmm, Register::K6, t);
            g.asm.op3(Code::VEX_Kandw_kr_kr_kr, k, k, Register::K6);
        }
    }
}

fn constant_mask(g: &mut Gen, k: Register, lanes: u16) {
    let place = g.asm.constant_once(lanes.into());
    g.asm.op2(Code::VEX_Kmovw_kr_km16, k, place);
}

/// How the step `siblings[at]` of a DPP instruction is emitted, if all steps of the instruction are.
pub(super) fn emitter(siblings: &[Step], at: usize, wide: Wide, floats: Floats) -> Option<Emit> {
    // An instruction that writes EXEC has no step that restores it.
    let [_, operation, _] = siblings else { return None };
    let plain = lane::emitter(operation, floats)?;
    Some(match at {
        0 if wide == Wide::Y => dpp_avx2::prepare,
        0 => prepare,
        1 if operation.flags & FLAG_DPP_MASK != 0 => under(floats),
        1 => plain,
        _ => |_, _, _| {},
    })
}

/// The DPP view of source 0 into the spare register, all lanes.
fn prepare(g: &mut Gen, s: &Step, c: usize) {
    let pattern = Pattern::of_prepare(s);
    let a = g.source(&s.src[0], 0, c);
    let everything = pattern.valid == u16::MAX && (!g.masked || pattern.fetch_inactive);
    let quad = s.flags & DPP8 == 0 && (0..=0xFF).contains(&s.imm);
    if everything && quad {
        let d = g.destination(s.dst, 0, c, false);
        return g.asm.op3(Code::EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8, d, a, s.imm);
    }
    let numbers = pattern.numbers(g);
    if everything {
        let d = g.destination(s.dst, 0, c, false);
        return g.asm.op3(codes::PERMUTE.z, d, numbers, a);
    }
    pattern.sources(g, Register::K5, numbers, c);
    let d = g.destination(s.dst, 0, c, false);
    g.asm.zeroed(codes::PERMUTE.z, Register::K5, &[d.into(), numbers.into(), a.into()]);
}

/// The operation under its own mask instead of EXEC's.
fn masked(g: &mut Gen, s: &Step, c: usize, floats: Floats) {
    if g.wide == Wide::Y {
        return dpp_avx2::masked(g, s, c, floats);
    }
    let Some(plain) = lane::emitter(s, floats) else {
        g.exhausted = true;
        return;
    };
    let pattern = Pattern::of_operation(s);
    let written = pattern.written(c);
    let always = written & if pattern.zero { u16::MAX } else { pattern.valid };
    if !g.masked && always == u16::MAX {
        return plain(g, s, c);
    }
    let exec = g.exec(c);
    if !g.masked {
        constant_mask(g, exec, always);
    } else {
        let k = Register::K5;
        if pattern.zero {
            constant_mask(g, k, written);
        } else {
            let numbers = pattern.numbers(g);
            pattern.sources(g, k, numbers, c);
            constant_mask(g, Register::K6, written);
            g.asm.op3(Code::VEX_Kandw_kr_kr_kr, k, k, Register::K6);
        }
        g.asm.op3(Code::VEX_Kandw_kr_kr_kr, exec, exec, k);
        g.regs.release_temporaries();
    }
    let outer = std::mem::replace(&mut g.masked, true);
    plain(g, s, c);
    g.masked = outer;
    if outer {
        g.mask_in(exec, EXEC as u16, c);
    }
}

/// [`masked`] for each MODE: a function pointer has no room for an argument.
fn under(floats: Floats) -> Emit {
    macro_rules! each {
        ($($number:literal)*) => {
            match floats.number() {
                $($number => |g, s, c| masked(g, s, c, Floats::numbered($number)),)*
                _ => |g, s, c| masked(g, s, c, Floats::numbered(0)),
            }
        };
    }
    each!(1 2 3 4 5 6 7)
}

/// What the steps before and after the operation access for piece `c`.
pub(super) fn accesses(g: &Gen, s: &Step, c: usize) -> Accesses {
    if !s.src[0].is_vgpr() {
        return Accesses::new();
    }
    // All lanes are written.
    let access = |row: u16, overwrites| Access { piece: g.piece(row, 0, c), overwrites };
    let mut list: Accesses = smallvec![access(s.src[0].index, false), access(s.dst, true)];
    if g.wide == Wide::Y && dpp_avx2::crosses(s) {
        list.push(Access { piece: g.piece(s.src[0].index, 0, c ^ 1), overwrites: false });
    }
    list
}
