// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline DPP instructions for AVX2: a row of 16 lanes is two pieces, so a lane may come from the other piece.
//!
//! INVARIANT: as for [`super::dpp`]. A step that reads the other piece is emitted apart from the operations before and
//! after it ([`crosses`]): both pieces are complete when it reads them, and neither has been written again. The
//! operation runs under lanes in [`MASK`].

use iced_x86::{Code, Register};

use super::asm::Arg;
use super::codes::{self, AND, LOAD};
use super::dpp::Pattern;
use super::floats::Floats;
use super::generator::{Gen, MASK};
use super::lane;
use crate::step::Step;
use crate::valu::cross::DPP8;
use crate::wave::EXEC;

const BLEND: Code = Code::VEX_Vpblendd_ymm_ymm_ymmm256_imm8;

/// The lanes of one piece.
struct Part {
    /// The source lane within its piece.
    lanes: [u32; 8],
    /// Lanes whose source lane is in the other piece of the row.
    other: u8,
    /// Lanes that have a source lane.
    valid: u8,
}

impl Part {
    fn new(pattern: &Pattern, c: usize) -> Part {
        let mut part = Part { lanes: [0; 8], other: 0, valid: half(pattern.valid, c) };
        for lane in 0..8 {
            let from = pattern.lanes[8 * (c % 2) + lane] as usize;
            // CAST: below 8.
            part.lanes[lane] = (from % 8) as u32;
            if from / 8 != c % 2 && part.valid >> lane & 1 != 0 {
                part.other |= 1 << lane;
            }
        }
        part
    }

    fn numbers(&self, g: &mut Gen) -> Register {
        let t = g.temporary();
        let lanes = g.asm.constants(self.lanes);
        g.op2(LOAD, t, lanes);
        t
    }

    /// A temporary with the source lanes from this piece, `own`, and from the other one.
    fn permuted(&self, g: &mut Gen, numbers: Register, own: Register, other: Option<Register>) -> Register {
        let r = g.temporary();
        g.asm.op3(codes::PERMUTE.y, r, numbers, own);
        if let Some(other) = other {
            let t = g.temporary();
            g.asm.op3(codes::PERMUTE.y, t, numbers, other);
            g.asm.op4(BLEND, r, r, t, i32::from(self.other));
        }
        r
    }

    /// Ones in lanes whose source lane is active.
    fn active(&self, g: &mut Gen, numbers: Register, c: usize) -> Register {
        let other = (self.other != 0).then(|| {
            let t = g.temporary();
            g.spread(t, EXEC as u16, c ^ 1);
            t
        });
        self.permuted(g, numbers, MASK, other)
    }
}

/// The bits of 16 lanes that are piece `c`'s.
fn half(lanes: u16, c: usize) -> u8 {
    // CAST: one of the two bytes.
    (lanes >> (8 * (c % 2))) as u8
}

/// Ones in the lanes of `set`.
fn lanes_of(g: &mut Gen, set: u8) -> Arg {
    g.asm.constants(std::array::from_fn(|lane| if set >> lane & 1 != 0 { u32::MAX } else { 0 })).into()
}

/// Whether prepare, `s`, reads another piece than it writes.
pub(super) fn crosses(s: &Step) -> bool {
    let pattern = Pattern::of_prepare(s);
    (0..2).any(|c| Part::new(&pattern, c).other != 0)
}

/// The DPP view of source 0 into the spare register, all lanes.
pub(super) fn prepare(g: &mut Gen, s: &Step, c: usize) {
    let pattern = Pattern::of_prepare(s);
    let part = Part::new(&pattern, c);
    let own = g.source(&s.src[0], 0, c);
    let quad = s.flags & DPP8 == 0 && (0..=0xFF).contains(&s.imm);
    if quad && (!g.masked || pattern.fetch_inactive) {
        let r = g.temporary();
        g.asm.op3(Code::VEX_Vpshufd_ymm_ymmm256_imm8, r, own, s.imm);
        return all_lanes(g, s, c, r);
    }
    let other = (part.other != 0).then(|| g.source(&s.src[0], 0, c ^ 1));
    let numbers = part.numbers(g);
    let r = part.permuted(g, numbers, own, other);
    if part.valid != u8::MAX {
        let valid = lanes_of(g, part.valid);
        g.op3(AND, r, r, valid);
    }
    if g.masked && !pattern.fetch_inactive {
        let active = part.active(g, numbers, c);
        g.op3(AND, r, r, active);
    }
    all_lanes(g, s, c, r);
}

/// Makes `r` the destination, whatever EXEC is.
fn all_lanes(g: &mut Gen, s: &Step, c: usize, r: Register) {
    let masked = std::mem::replace(&mut g.masked, false);
    g.result(s.dst, 0, c, r);
    g.masked = masked;
}

/// The operation under its own mask instead of EXEC's.
pub(super) fn masked(g: &mut Gen, s: &Step, c: usize, floats: Floats) {
    let Some(plain) = lane::emitter(s, floats) else {
        g.exhausted = true;
        return;
    };
    let pattern = Pattern::of_operation(s);
    let part = Part::new(&pattern, c);
    let written = half(pattern.written(c / 2), c);
    let always = written & if pattern.zero { u8::MAX } else { part.valid };
    if !g.masked && always == u8::MAX {
        return plain(g, s, c);
    }
    let lanes = lanes_of(g, always);
    if g.masked {
        if !pattern.zero && !pattern.fetch_inactive {
            let numbers = part.numbers(g);
            let active = part.active(g, numbers, c);
            g.op3(AND, MASK, MASK, active);
            g.regs.release_temporaries();
        }
        g.op3(AND, MASK, MASK, lanes);
    } else {
        g.op2(LOAD, MASK, lanes);
    }
    let outer = std::mem::replace(&mut g.masked, true);
    plain(g, s, c);
    g.masked = outer;
    if outer {
        g.load_exec_mask(c);
    }
}
