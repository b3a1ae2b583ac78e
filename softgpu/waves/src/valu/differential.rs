// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every vector operation at every CPU level on random registers: the states must agree bit for bit.
#![allow(unsafe_code)]

use softgpu_isa::{Class, Flags, Op, OpInfo, rows};

use crate::env::{Env, Hot, Identity, Lds};
use crate::level::Level;
use crate::predecode::blank;
use crate::step::{Handler, Kind, Src, Step};
use crate::vm::Map;
use crate::wave::{EXEC, VCC, Wave};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    /// Bits that are often special as a float or an integer.
    fn value(&mut self) -> u32 {
        const SPECIAL: [u32; 20] = [
            0,
            0x8000_0000,
            0x3F80_0000,
            0xBF80_0000,
            0x7F80_0000,
            0xFF80_0000,
            1,
            0x8000_0001,
            0x007F_FFFF,
            0x7F7F_FFFF,
            u32::MAX >> 1,
            0x3C00_3C00,
            31,
            0x4F00_0000,
            0x7FC0_0001,
            0xFFC0_0123,
            0x7F80_0005,
            0xFF81_2345,
            0x7E01_FE02,
            0x7C03_FD04,
        ];
        match self.next() % 4 {
            0 => SPECIAL[self.next() as usize % SPECIAL.len()],
            1 => self.next() & 0x3F,
            2 => (self.next() & 0x03FF_FFFF) | 0x3E00_0000,
            _ => self.next(),
        }
    }
}

fn random_wave(r: &mut Random, halves: usize) -> Wave {
    let mut w = Wave::new(halves * 32, 40);
    for row in &mut w.v {
        for x in &mut row.0 {
            *x = r.value();
        }
    }
    for x in &mut w.s[..108] {
        *x = r.value();
    }
    w.s[VCC] = r.next();
    let full = r.next() & 1 == 0;
    w.s[EXEC] = if full { u32::MAX } else { r.next() };
    w.s[EXEC + 1] = if halves == 2 { r.next() } else { 0 };
    w
}

/// A step with operands as the row has them: registers, or one scalar among them.
fn step_for(row: &OpInfo, halves: usize, r: &mut Random) -> Step {
    let mut step = blank(0, 8);
    let scalar_at = r.next() as usize % 4;
    for (i, slot) in row.src.iter().enumerate().take(3) {
        let register = (4 + 8 * i) * halves;
        step.src[i] = match slot.class {
            Class::M => Src { kind: Kind::Scalar, mods: 0, index: VCC as u16, value: 0 },
            Class::S | Class::R => Src { kind: Kind::Scalar, mods: 0, index: 30, value: 0 },
            Class::X | Class::XM | Class::XN if scalar_at == i && slot.ty.dwords() == 1 => {
                Src { kind: Kind::Const, mods: 0, index: 0, value: r.value() }
            }
            _ => Src::vgpr(register),
        };
    }
    // Often the destination is also the first source.
    step.dst = if r.next() % 3 < 1 { (4 * halves) as u16 } else { (30 * halves) as u16 };
    step.sdst = if row.dst.is_empty() { EXEC as u16 } else { 20 };
    if row.any(Flags::READS_DST) && row.src.len() == 2 {
        step.src[2] = Src::vgpr(step.dst as usize);
    }
    step
}

fn run(handler: Handler, w: &Wave, step: &Step) -> Wave {
    let mut w = w.clone();
    let map = Map::default();
    let mut hot = Hot::new();
    let mut lds = Lds::new();
    let mut env = Env::new(&map, &mut lds, &mut hot, Identity::default());
    // SAFETY: the caller asks only for levels this CPU has.
    unsafe { handler(&mut w, &mut env, step) };
    w
}

fn check(op: Op, reference: &Wave, got: &Wave, what: &str) {
    for (k, (x, y)) in reference.v.iter().zip(&got.v).enumerate() {
        for lane in 0..32 {
            let (x, y) = (x.0[lane], y.0[lane]);
            assert_eq!(x, y, "{op:?} {what}: row {k} lane {lane}: {x:#x} {y:#x}");
        }
    }
    assert_eq!(reference.s, got.s, "{op:?} {what}: scalars");
}

#[test]
fn all_levels_agree_on_every_operation() {
    // AVX-512 is detected even though it is not the default.
    let levels: Vec<Level> =
        [Level::Avx2, Level::Avx512].into_iter().filter(|&level| level <= Level::best()).collect();
    let mut r = Random(0x1234_5678_9ABC_DEF1);
    let mut covered = 0;
    for row in rows() {
        let Some(base) = super::table_handler(Level::Baseline, row.op) else { continue };
        covered += 1;
        for trial in 0..24 {
            let halves = if trial % 4 == 3 { 2 } else { 1 };
            let w = random_wave(&mut r, halves);
            let step = step_for(row, halves, &mut r);
            let reference = run(base, &w, &step);
            for &level in &levels {
                if let Some(handler) = super::table_handler(level, row.op) {
                    check(row.op, &reference, &run(handler, &w, &step), &format!("{level:?}"));
                }
                if let Some(handler) = super::fast_handler(level, halves, row.op, &step) {
                    check(row.op, &reference, &run(handler, &w, &step), "fast");
                }
            }
        }
    }
    assert!(covered > 450, "only {covered} vector operations have handlers");
}

#[test]
fn every_operation_but_the_listed_ones_has_a_handler() {
    let mut missing: Vec<&str> = rows()
        .iter()
        .filter(|row| !row.any(Flags::HINT | Flags::CACHE | Flags::GDS_ONLY))
        .filter(|row| !matches!(row.name, "v_nop" | "v_pipeflush"))
        .filter(|row| {
            super::table_handler(Level::Baseline, row.op).is_none()
                && crate::salu::handler(row.op).is_none()
                && crate::mem::handler(Level::Baseline, row.op).is_none()
        })
        .map(|row| row.name)
        .collect();
    missing.sort_unstable();
    let known = [
        // Padding after the last instruction: executing it is an error.
        "s_code_end",
    ];
    assert_eq!(missing, known);
}
