// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dual issue: two operations in one instruction, which both read before either writes.
//!
//! Each half is compared with the definition of the operation alone.

use softgpu_isa::{Class, Flags, Fmt, Op, OpInfo, Ty, rows};

use super::FAMILIES;
use super::encode::{LITERAL, VGPR0, opcode};
use super::entry::Check;
use super::lab::Lab;
use super::lanes::{Definition, Lane, Out, finished, format};
use crate::step::Flow;
use crate::wave::{VCC, Wave};

/// Few registers, so that the halves often use the same ones.
const REGISTERS: usize = 6;

fn definition(op: Op) -> Definition {
    let mut entries = FAMILIES.iter().flat_map(|(_, entries)| *entries);
    let found = entries.find_map(|entry| match entry.check {
        Check::Lanes(definition) if entry.op == op => Some(definition),
        _ => None,
    });
    found.expect("a lane-wise definition")
}

/// One half of an instruction.
struct Half {
    row: &'static OpInfo,
    src0: u32,
    src1: u32,
    dst: usize,
}

impl Half {
    fn random(lab: &mut Lab, fmt: Fmt, dst: usize) -> Half {
        let candidates: Vec<&OpInfo> = rows().iter().filter(|row| opcode(row, fmt).is_some()).collect();
        let row = lab.r.pick(&candidates);
        let src0 = match lab.r.below(6) {
            0 => lab.r.below(100) as u32,
            1 => 128 + lab.r.below(65) as u32,
            2 => LITERAL,
            _ => VGPR0 + lab.r.below(REGISTERS) as u32,
        };
        Half { row, src0, src1: lab.r.below(REGISTERS) as u32, dst }
    }

    fn has_literal(&self) -> bool {
        self.src0 == LITERAL || self.row.src.iter().any(|slot| slot.class == Class::LIT)
    }

    /// The field of the second source: that of v_fmamk is its literal, and v_mov has none.
    fn vsrc1(&self) -> u32 {
        if self.row.src.len() > 1 { self.src1 } else { 0 }
    }

    fn result(&self, w: &Wave, lane: usize, literal: u32) -> u32 {
        let mut sources = [0u64; 3];
        for (i, slot) in self.row.src.iter().enumerate().take(3) {
            sources[i] = u64::from(match slot.class {
                Class::LIT => literal,
                Class::M => w.s[VCC] >> lane & 1,
                _ if i == 0 => match self.src0 {
                    LITERAL => literal,
                    VGPR0.. => w.vgpr((self.src0 - VGPR0) as usize, lane),
                    128.. => self.src0 - 128,
                    index => w.s[index as usize],
                },
                _ => w.vgpr(self.src1 as usize, lane),
            });
        }
        if self.row.any(Flags::READS_DST) {
            sources[2] = w.vgpr(self.dst, lane).into();
        }
        let vcc = w.s[VCC].into();
        let c = Lane { mode: w.mode, clamp: false, lane, neg: 0, op_sel_hi: 0, vcc };
        let Out::Bits(bits, _) = definition(self.row.op)(&c, sources) else { panic!("an exact result") };
        let ty = self.row.dst[0].ty;
        if ty == Ty::F32 {
            finished(format(ty).expect("a float"), bits, false, 0, w.mode) as u32
        } else {
            bits as u32
        }
    }
}

#[test]
fn dual_issue_halves_read_before_either_writes() {
    let mut lab = Lab::new();
    for _ in 0..4000 {
        let mut w = lab.wave(1);
        let dst_x = lab.r.below(REGISTERS);
        // The destinations are one even and one odd register.
        let dst_y = 2 * lab.r.below(REGISTERS / 2) + (dst_x + 1) % 2;
        let x = Half::random(&mut lab, Fmt::DualX, dst_x);
        let y = Half::random(&mut lab, Fmt::DualY, dst_y);
        for register in 0..REGISTERS {
            for lane in 0..32 {
                let value = lab.r.value(Ty::F32) as u32;
                w.set_vgpr(register, lane, value);
            }
        }
        let literal = lab.r.value(Ty::F32) as u32;
        let mut want = w.clone();
        for lane in (0..32).filter(|lane| w.exec() >> lane & 1 != 0) {
            want.set_vgpr(dst_x, lane, x.result(&w, lane, literal));
            want.set_vgpr(dst_y, lane, y.result(&w, lane, literal));
        }
        let [op_x, op_y] = [(&x, Fmt::DualX), (&y, Fmt::DualY)]
            .map(|(half, fmt)| opcode(half.row, fmt).expect("a dual operation"));
        let mut words = vec![
            0xC800_0000 | op_x << 22 | op_y << 17 | x.vsrc1() << 9 | x.src0,
            y.src0 | y.vsrc1() << 9 | (dst_y as u32 >> 1) << 17 | (dst_x as u32) << 24,
        ];
        if x.has_literal() || y.has_literal() {
            words.push(literal);
        }
        let mut got = w.clone();
        assert_eq!(lab.run(&mut got, &words), Flow::Next);
        let lane = (0..32).find(|&lane| (0..REGISTERS).any(|r| want.vgpr(r, lane) != got.vgpr(r, lane)));
        let before: Vec<u32> = (0..REGISTERS).map(|r| w.vgpr(r, lane.unwrap_or(0))).collect();
        let context = format!("{} :: {} MODE {:#x} {words:08x?} {before:x?}", x.row.name, y.row.name, w.mode);
        lab.same(&want, &got, &context);
    }
}
