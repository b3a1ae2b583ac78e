// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and stores of every address space: bytes between registers and the place that the address names.

use softgpu_isa::{Flags, Op, OpInfo};

use super::encode;
use super::entry::{Check, Entry};
use super::lab::{Lab, MEMORY};
use super::place::{Access, Cell};
use crate::step::Flow;
use crate::wave::Wave;

/// What a transfer's mnemonic says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub bytes: usize,
    pub signed: bool,
    pub d16: bool,
    pub high: bool,
}

impl Transfer {
    pub(crate) fn of(row: &OpInfo) -> Transfer {
        let name = row.name;
        let kind = name.split('_').rfind(|part| {
            let (first, rest) = part.split_at(1);
            matches!(first, "b" | "u" | "i") && rest.parse::<usize>().is_ok()
        });
        let kind = kind.expect("a width in the mnemonic");
        let bits: usize = kind[1..].parse().expect("a number");
        Transfer {
            bytes: bits / 8,
            signed: kind.starts_with('i'),
            d16: name.contains("d16"),
            high: name.contains("d16_hi"),
        }
    }
}

/// Memory and LDS as plain bytes.
pub(crate) struct World {
    pub memory: Vec<u8>,
    pub lds: Vec<u8>,
}

impl World {
    pub(crate) fn of(lab: &Lab) -> World {
        World { memory: lab.memory(), lds: lab.lds_bytes() }
    }
    pub(crate) fn read(&self, cell: Cell) -> u8 {
        match cell {
            Cell::Memory(at) => self.memory[at],
            Cell::Lds(at) => self.lds[at],
            Cell::Nowhere => 0,
        }
    }
    pub(crate) fn write(&mut self, cell: Cell, byte: u8) {
        match cell {
            Cell::Memory(at) => self.memory[at] = byte,
            Cell::Lds(at) => self.lds[at] = byte,
            Cell::Nowhere => {}
        }
    }
    pub(crate) fn number(&self, cells: &[Cell]) -> u64 {
        cells.iter().rev().fold(0, |x, &cell| x << 8 | u64::from(self.read(cell)))
    }
    pub(crate) fn put(&mut self, cells: &[Cell], x: u64) {
        for (j, &cell) in cells.iter().enumerate() {
            self.write(cell, (x >> (8 * j)) as u8);
        }
    }
    pub(crate) fn same(&self, lab: &Lab, row: &OpInfo, context: &str) {
        let now = World::of(lab);
        for (what, want, got) in [("memory", &self.memory, &now.memory), ("LDS", &self.lds, &now.lds)] {
            let first = (0..want.len()).find(|&k| want[k] != got[k]);
            assert!(first.is_none(), "{}: {what} at {:#x}: {context}", row.name, first.unwrap_or(0));
        }
    }
}

pub(crate) fn active(w: &Wave) -> impl Iterator<Item = usize> + use<> {
    let exec = w.exec();
    (0..w.lanes()).filter(move |lane| exec >> lane & 1 != 0)
}

/// A load or store of each lane's own bytes.
pub(crate) fn transfer(lab: &mut Lab, row: &'static OpInfo) {
    let t = Transfer::of(row);
    let trials = 40;
    for _ in 0..trials {
        let mut w = lab.any_wave();
        lab.fill();
        let access = Access::random(lab, &mut w, row, t.bytes, false);
        let mut world = World::of(lab);
        let mut want = w.clone();
        let words = t.bytes.div_ceil(4);
        // In each half of the wave all first addresses come before the second ones.
        let sets = [&access.cells, &access.second];
        let passes = [(0, 0), (0, 1), (1, 0), (1, 1)];
        for (half, set) in passes.into_iter().filter(|&(_, set)| !sets[set].is_empty()) {
            for lane in active(&w).filter(|lane| lane / 32 == half) {
                let cells = &sets[set][lane];
                if row.any(Flags::STORE) {
                    let data = if set == 0 { access.data } else { access.data2 };
                    for (j, &cell) in cells.iter().enumerate() {
                        let from = if t.high { j + 2 } else { j };
                        world.write(cell, (w.vgpr(data + from / 4, lane) >> (8 * (from % 4))) as u8);
                    }
                    continue;
                }
                for k in 0..words {
                    let part = &cells[4 * k..cells.len().min(4 * k + 4)];
                    let mut x = world.number(part) as u32;
                    if t.signed {
                        let shift = 32 - 8 * t.bytes;
                        x = ((x << shift) as i32 >> shift) as u32;
                    }
                    let register = access.dst + set * words + k;
                    let old = w.vgpr(register, lane);
                    let merged = match (t.d16, t.high) {
                        (true, true) => old & 0xFFFF | x << 16,
                        (true, false) => old & 0xFFFF_0000 | x & 0xFFFF,
                        _ => x,
                    };
                    want.set_vgpr(register, lane, merged);
                }
                if access.tfe {
                    want.set_vgpr(access.dst + words, lane, 0);
                }
            }
        }
        let context = format!("{:08x?} {t:?}", access.words);
        let mut got = w;
        assert_eq!(lab.run(&mut got, &access.words), Flow::Next, "{}: {:?}", row.name, got.cause);
        lab.same(&want, &got, &context);
        world.same(lab, row, &context);
    }
}

/// A dword per lane at a scalar base, the immediate and 4 bytes a lane.
fn by_lane(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..20 {
        let mut w = lab.any_wave();
        lab.fill();
        let imm = (lab.r.below(0x2000) as i32 - 0x1000) & !3;
        let at = lab.r.below(1024) * 4;
        w.set_s64(40, (lab.base + at as u64).wrapping_sub(imm as i64 as u64));
        let store = row.any(Flags::STORE);
        let words = encode::Flat {
            address: 0,
            data: if store { 8 } else { 0 },
            dst: if store { 0 } else { 24 },
            saddr: 40,
            offset: imm,
            glc: false,
            sve: false,
        }
        .encode(row);
        let mut world = World::of(lab);
        let mut want = w.clone();
        for lane in active(&w) {
            let cells: Vec<Cell> = (0..4).map(|j| Cell::Memory(at + 4 * lane + j)).collect();
            if store {
                world.put(&cells, w.vgpr(8, lane).into());
            } else {
                want.set_vgpr(24, lane, world.number(&cells) as u32);
            }
        }
        let mut got = w;
        lab.run(&mut got, &words);
        lab.same(&want, &got, &format!("{words:08x?}"));
        world.same(lab, row, "");
    }
}

/// Scalar loads: base pair, immediate and register; the low two bits of the address are ignored.
fn scalar(lab: &mut Lab, row: &'static OpInfo) {
    let n = usize::from(row.dst[0].ty.dwords());
    for _ in 0..40 {
        let mut w = lab.any_wave();
        lab.fill();
        let imm = lab.r.below(4096) as i32 - 2048;
        let register = lab.r.one_in(2);
        let by = lab.r.below(4096) as u32;
        w.s[70] = by;
        let total = i64::from(imm) + if register { i64::from(by) } else { 0 };
        let at = lab.r.below(MEMORY / 2) as u64;
        w.set_s64(40, (lab.base + at).wrapping_sub(total as u64));
        let words = encode::smem(row, 16, 40, if register { 70 } else { encode::NULL }, imm);
        let world = World::of(lab);
        let mut want = w.clone();
        for k in 0..n {
            let cells: Vec<Cell> = (0..4).map(|j| Cell::Memory((at as usize & !3) + 4 * k + j)).collect();
            want.s[16 + k] = world.number(&cells) as u32;
        }
        let mut got = w;
        lab.run(&mut got, &words);
        lab.same(&want, &got, &format!("{words:08x?}"));
    }
}

/// Scalar loads through a resource: dwords past its end read 0.
fn scalar_buffer(lab: &mut Lab, row: &'static OpInfo) {
    let n = usize::from(row.dst[0].ty.dwords());
    for _ in 0..40 {
        let mut w = lab.any_wave();
        lab.fill();
        let register = lab.r.one_in(2);
        let imm = lab.r.below(256);
        w.s[70] = lab.r.below(256) as u32;
        let offset = (imm + if register { w.s[70] as usize } else { 0 }) & !3;
        let (stride, records) = (lab.r.below(3) * 4, lab.r.below(128));
        w.s[40] = lab.base as u32;
        w.s[41] = (lab.base >> 32) as u32 & 0xFFFF | (stride as u32) << 16;
        w.s[42] = records as u32;
        let bytes = records * stride.max(1);
        let words = encode::smem(row, 16, 40, if register { 70 } else { encode::NULL }, imm as i32);
        let world = World::of(lab);
        let mut want = w.clone();
        for k in 0..n {
            let at = offset + 4 * k;
            let cells: Vec<Cell> = (0..4).map(|j| Cell::Memory(at + j)).collect();
            want.s[16 + k] = if at + 4 <= bytes { world.number(&cells) as u32 } else { 0 };
        }
        let mut got = w;
        lab.run(&mut got, &words);
        lab.same(&want, &got, &format!("{words:08x?} {bytes} bytes, stride {stride}"));
    }
}

macro_rules! entries {
    ($($check:ident: $($op:ident)*;)*) => {
        &[$($(Entry { op: Op::$op, check: Check::Own($check) }),*),*]
    };
}

pub(crate) const ENTRIES: &[Entry] = entries! {
    transfer:
        GLOBAL_LOAD_U8 GLOBAL_LOAD_I8 GLOBAL_LOAD_U16 GLOBAL_LOAD_I16 GLOBAL_LOAD_B32 GLOBAL_LOAD_B64 GLOBAL_LOAD_B96
        GLOBAL_LOAD_B128 GLOBAL_STORE_B8 GLOBAL_STORE_B16 GLOBAL_STORE_B32 GLOBAL_STORE_B64 GLOBAL_STORE_B96
        GLOBAL_STORE_B128 GLOBAL_LOAD_D16_U8 GLOBAL_LOAD_D16_I8 GLOBAL_LOAD_D16_B16 GLOBAL_LOAD_D16_HI_U8
        GLOBAL_LOAD_D16_HI_I8 GLOBAL_LOAD_D16_HI_B16 GLOBAL_STORE_D16_HI_B8 GLOBAL_STORE_D16_HI_B16
        FLAT_LOAD_U8 FLAT_LOAD_I8 FLAT_LOAD_U16 FLAT_LOAD_I16 FLAT_LOAD_B32 FLAT_LOAD_B64 FLAT_LOAD_B96
        FLAT_LOAD_B128 FLAT_STORE_B8 FLAT_STORE_B16 FLAT_STORE_B32 FLAT_STORE_B64 FLAT_STORE_B96 FLAT_STORE_B128
        FLAT_LOAD_D16_U8 FLAT_LOAD_D16_I8 FLAT_LOAD_D16_B16 FLAT_LOAD_D16_HI_U8 FLAT_LOAD_D16_HI_I8
        FLAT_LOAD_D16_HI_B16 FLAT_STORE_D16_HI_B8 FLAT_STORE_D16_HI_B16
        SCRATCH_LOAD_U8 SCRATCH_LOAD_I8 SCRATCH_LOAD_U16 SCRATCH_LOAD_I16 SCRATCH_LOAD_B32 SCRATCH_LOAD_B64
        SCRATCH_LOAD_B96 SCRATCH_LOAD_B128 SCRATCH_STORE_B8 SCRATCH_STORE_B16 SCRATCH_STORE_B32 SCRATCH_STORE_B64
        SCRATCH_STORE_B96 SCRATCH_STORE_B128 SCRATCH_LOAD_D16_U8 SCRATCH_LOAD_D16_I8 SCRATCH_LOAD_D16_B16
        SCRATCH_LOAD_D16_HI_U8 SCRATCH_LOAD_D16_HI_I8 SCRATCH_LOAD_D16_HI_B16 SCRATCH_STORE_D16_HI_B8
        SCRATCH_STORE_D16_HI_B16;
    by_lane: GLOBAL_LOAD_ADDTID_B32 GLOBAL_STORE_ADDTID_B32;
    scalar: S_LOAD_B32 S_LOAD_B64 S_LOAD_B128 S_LOAD_B256 S_LOAD_B512;
    scalar_buffer: S_BUFFER_LOAD_B32 S_BUFFER_LOAD_B64 S_BUFFER_LOAD_B128 S_BUFFER_LOAD_B256 S_BUFFER_LOAD_B512;
};
