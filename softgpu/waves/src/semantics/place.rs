// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of a memory instruction's lanes: one random instruction of any address space, and the bytes that each
//! lane names.
//!
//! The name of a row says what is transferred, and the bytes say where. Both are computed here from the definitions
//! alone.

use softgpu_isa::{Fmt, OpInfo};

use super::encode::{self, Buffer, Flat, NULL};
use super::lab::{LDS, Lab, MEMORY};
use crate::wave::Wave;

/// The place of one byte of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Offset in the mapped memory.
    Memory(usize),
    /// Offset in LDS.
    Lds(usize),
    /// Outside: a read gives 0, a write does nothing.
    Nowhere,
}

/// An instruction and the addresses of its lanes.
pub(crate) struct Access {
    pub words: Vec<u32>,
    /// Bytes of each active lane, in order.
    pub cells: Vec<Vec<Cell>>,
    /// The second bytes of the two-address forms.
    pub second: Vec<Vec<Cell>>,
    pub data: usize,
    pub data2: usize,
    pub dst: usize,
    /// Whether the old value is returned.
    pub returns: bool,
    /// Whether a status dword follows the loaded data.
    pub tfe: bool,
    /// The format number of a typed access with a format of its own.
    pub format: u32,
}

const ADDRESS: usize = 0;
const DATA: usize = 8;
const DATA2: usize = 16;
const DST: usize = 24;
/// Bytes of private memory per lane; the private memory of the waves starts in the middle of the mapped memory.
const PRIVATE: u32 = 128;

fn memory(at: u64, base: u64, len: usize) -> Vec<Cell> {
    (0..len).map(|j| Cell::Memory((at - base) as usize + j)).collect()
}

fn lds(at: u32, len: usize) -> Vec<Cell> {
    // An access that is partly outside is outside.
    let inside = u64::from(at) + len as u64 <= u64::from(LDS);
    (0..len).map(|j| if inside { Cell::Lds(at as usize + j) } else { Cell::Nowhere }).collect()
}

/// Bytes of private memory are interleaved by dwords.
fn private(w: &Wave, base: u64, offset: u32, lane: usize, len: usize) -> Vec<Cell> {
    (0..len as u32)
        .map(|j| {
            let at = offset + j;
            let dword = u64::from(at / 4) * 4 * w.lanes() as u64 + 4 * lane as u64;
            Cell::Memory((w.flat_scratch + dword + u64::from(at % 4) - base) as usize)
        })
        .collect()
}

impl Access {
    fn new(w: &Wave) -> Access {
        Access {
            words: Vec::new(),
            cells: vec![Vec::new(); w.lanes()],
            second: Vec::new(),
            data: DATA,
            data2: DATA2,
            dst: DST,
            returns: true,
            tfe: false,
            format: 0,
        }
    }

    /// A random access of `len` bytes per lane, aligned if it is `atomic`.
    pub(crate) fn random(
        lab: &mut Lab,
        w: &mut Wave,
        row: &'static OpInfo,
        len: usize,
        atomic: bool,
    ) -> Access {
        match row.columns[0].codes[0].fmt {
            Fmt::Ds => Access::ds(lab, w, row, len, atomic),
            Fmt::Scratch => Access::scratch(lab, w, row, len),
            Fmt::Global => Access::global(lab, w, row, len, atomic),
            Fmt::Flat => Access::flat(lab, w, row, len, atomic),
            _ => Access::buffer(lab, w, row, len, atomic),
        }
    }

    fn ds(lab: &mut Lab, w: &mut Wave, row: &'static OpInfo, len: usize, atomic: bool) -> Access {
        let mut access = Access::new(w);
        let two = row.name.contains("2addr");
        let unit = len as u32 * if row.name.contains("stride64") { 64 } else { 1 };
        let pattern = lab.r.below(4);
        let offset = if pattern == 3 { lab.r.next() & 0xFFFF } else { lab.r.next() & 0x1F0F };
        let offset = if atomic && !two { offset & !7 } else { offset };
        let start = lab.r.below(2048) as u32 & !7;
        for lane in 0..w.lanes() {
            let address = match pattern {
                0 => start + (lane * len) as u32,
                1 => start,
                2 => lab.r.below(LDS as usize) as u32 & !(len as u32).next_power_of_two().saturating_sub(1),
                _ => lab.r.below(LDS as usize + 64) as u32,
            };
            let address = if atomic { address & !7 } else { address };
            w.set_vgpr(ADDRESS, lane, address);
            if two {
                access.cells[lane] = lds(address + (offset & 0xFF) * unit, len);
            } else {
                access.cells[lane] = lds(address + offset, len);
            }
        }
        if two {
            access.second =
                (0..w.lanes()).map(|lane| lds(w.vgpr(ADDRESS, lane) + (offset >> 8) * unit, len)).collect();
        }
        access.returns = !row.dst.is_empty();
        let used = |k: usize, register: usize| {
            if row.src.get(k).is_some_and(|slot| slot.class == softgpu_isa::Class::V) {
                register as u32
            } else {
                0
            }
        };
        let dst = if access.returns { DST as u32 } else { 0 };
        access.words = encode::ds(row, [used(0, ADDRESS), used(1, DATA), used(2, DATA2), dst], offset);
        access
    }

    fn set_pair(w: &mut Wave, register: usize, lane: usize, value: u64) {
        w.set_vgpr(register, lane, value as u32);
        w.set_vgpr(register + 1, lane, (value >> 32) as u32);
    }

    /// A byte offset in the first half of the mapped memory for each lane, in one of a few patterns.
    fn offsets(lab: &mut Lab, lanes: usize, len: usize, atomic: bool) -> Vec<u64> {
        let pattern = lab.r.below(4);
        let start = lab.r.below(1024) as u64 & !15;
        let stride = lab.r.below(64) as u64;
        (0..lanes)
            .map(|lane| {
                let at = match pattern {
                    0 => start + (lane * len) as u64,
                    1 => start,
                    2 => start + lane as u64 * stride,
                    _ => lab.r.below(MEMORY / 4) as u64,
                };
                if atomic { at & !7 } else { at }
            })
            .collect()
    }

    fn global(lab: &mut Lab, w: &mut Wave, row: &'static OpInfo, len: usize, atomic: bool) -> Access {
        let mut access = Access::new(w);
        let imm = lab.r.below(0x2000) as i32 - 0x1000;
        let imm = if atomic { imm & !7 } else { imm };
        let scalar = lab.r.one_in(2);
        // Room for negative immediates.
        let origin = lab.base + MEMORY as u64 / 4;
        let offsets = Access::offsets(lab, w.lanes(), len, atomic);
        let base = origin.wrapping_sub(imm as i64 as u64);
        if scalar {
            w.set_s64(40, base);
        }
        for (lane, &offset) in offsets.iter().enumerate() {
            if scalar {
                w.set_vgpr(ADDRESS, lane, offset as u32);
            } else {
                Access::set_pair(w, ADDRESS, lane, base + offset);
            }
            access.cells[lane] = memory(origin + offset, lab.base, len);
        }
        access.returns = !row.any(softgpu_isa::Flags::ATOMIC) || lab.r.one_in(2);
        let has_data = row.src.get(1).is_some_and(|slot| slot.class == softgpu_isa::Class::V);
        access.words = Flat {
            address: ADDRESS as u32,
            data: if has_data { DATA as u32 } else { 0 },
            dst: if row.dst.is_empty() || !access.returns { 0 } else { DST as u32 },
            saddr: if scalar { 40 } else { NULL },
            offset: imm,
            glc: access.returns && row.any(softgpu_isa::Flags::ATOMIC),
            sve: false,
        }
        .encode(row);
        access
    }

    fn flat(lab: &mut Lab, w: &mut Wave, row: &'static OpInfo, len: usize, atomic: bool) -> Access {
        let mut access = Access::new(w);
        let imm = lab.r.below(0x1000) as i32;
        let imm = if atomic { imm & !7 } else { imm };
        Access::own_memory(lab, w);
        let apertures = lab.r.one_in(2);
        let offsets = Access::offsets(lab, w.lanes(), len, atomic);
        for (lane, &offset) in offsets.iter().enumerate() {
            let place = if apertures { lab.r.below(3) } else { 0 };
            let target = match place {
                0 => {
                    access.cells[lane] = memory(lab.base + offset, lab.base, len);
                    lab.base + offset
                }
                1 => {
                    let at = lab.r.below(LDS as usize - 16) as u32;
                    let at = if atomic { at & !7 } else { at };
                    access.cells[lane] = lds(at, len);
                    1 << 48 | u64::from(at)
                }
                _ => {
                    let at = lab.r.below(PRIVATE as usize - 16) as u32;
                    let at = if atomic { at & !3 } else { at };
                    access.cells[lane] = private(w, lab.base, at, lane, len);
                    2 << 48 | u64::from(at)
                }
            };
            Access::set_pair(w, ADDRESS, lane, target.wrapping_sub(imm as u64));
        }
        access.returns = !row.any(softgpu_isa::Flags::ATOMIC) || lab.r.one_in(2);
        let has_data = row.src.get(1).is_some_and(|slot| slot.class == softgpu_isa::Class::V);
        access.words = Flat {
            address: ADDRESS as u32,
            data: if has_data { DATA as u32 } else { 0 },
            dst: if row.dst.is_empty() || !access.returns { 0 } else { DST as u32 },
            saddr: NULL,
            offset: imm,
            glc: access.returns && row.any(softgpu_isa::Flags::ATOMIC),
            sve: false,
        }
        .encode(row);
        access
    }

    /// Private memory in the second half of what is mapped.
    fn own_memory(lab: &Lab, w: &mut Wave) {
        w.flat_scratch = lab.base + MEMORY as u64 / 2;
    }

    fn scratch(lab: &mut Lab, w: &mut Wave, row: &'static OpInfo, len: usize) -> Access {
        let mut access = Access::new(w);
        Access::own_memory(lab, w);
        let (vector, scalar) = (lab.r.one_in(2), lab.r.one_in(2));
        let imm = lab.r.below(24) as i32;
        let by = lab.r.below(24) as u32;
        if scalar {
            w.s[41] = by;
        }
        let base = imm as u32 + if scalar { by } else { 0 };
        let aligned = lab.r.one_in(2);
        for lane in 0..w.lanes() {
            let own = lab.r.below(64) as u32 & if aligned { !3 } else { u32::MAX };
            if vector {
                w.set_vgpr(ADDRESS, lane, own);
            }
            let at = base + if vector { own } else { 0 };
            access.cells[lane] = private(w, lab.base, at, lane, len);
        }
        let has_data = row.src.get(1).is_some_and(|slot| slot.class == softgpu_isa::Class::V);
        access.words = Flat {
            address: if vector { ADDRESS as u32 } else { 0 },
            data: if has_data { DATA as u32 } else { 0 },
            dst: if row.dst.is_empty() { 0 } else { DST as u32 },
            saddr: if scalar { 41 } else { NULL },
            offset: imm,
            glc: false,
            sve: vector,
        }
        .encode(row);
        access
    }

    /// A buffer: resource in s[48:51], scalar offset in s40.
    fn buffer(lab: &mut Lab, w: &mut Wave, row: &'static OpInfo, len: usize, atomic: bool) -> Access {
        let mut access = Access::new(w);
        let (offen, idxen) = (lab.r.one_in(2), lab.r.one_in(2));
        let align = |x: usize| if atomic { x & !7 } else { x };
        let imm = align(lab.r.below(64));
        let soffset = align(lab.r.below(64)) as u32;
        let stride = if lab.r.one_in(3) { 0 } else { align(16 + lab.r.below(64)) };
        let select = lab.r.below(4);
        let swizzle = if stride != 0 && lab.r.one_in(3) { 1 + lab.r.below(3) } else { 0 };
        // Elements as large as one access.
        let swizzle = if atomic && swizzle == 1 { 2 } else { swizzle };
        let element = [0, 4, 8, 16][swizzle];
        let stride = if swizzle != 0 { stride & !15 } else { stride };
        let group = lab.r.below(4);
        let add_tid = lab.r.one_in(4);
        let records = if lab.r.one_in(6) {
            0
        } else if stride != 0 && select < 2 {
            lab.r.below(48)
        } else {
            lab.r.below(4096)
        };
        w.s[40] = soffset;
        w.s[48] = lab.base as u32;
        w.s[49] = (lab.base >> 32) as u32 & 0xFFFF | (stride as u32) << 16 | (swizzle as u32) << 30;
        w.s[50] = records as u32;
        let formats = w.s[51] & 0x3_FFFF;
        w.s[51] = formats | (group as u32) << 21 | u32::from(add_tid) << 23 | (select as u32) << 28;
        for lane in 0..w.lanes() {
            let (index, offset) = (lab.r.below(64), align(lab.r.below(96)));
            let first = if idxen { index } else { offset };
            w.set_vgpr(ADDRESS, lane, first as u32);
            if idxen && offen {
                w.set_vgpr(ADDRESS + 1, lane, offset as u32);
            }
            let index = if idxen { index } else { 0 } + if add_tid { lane } else { 0 };
            let offset = imm + if offen { offset } else { 0 };
            let scalar = soffset as usize;
            let inside = match select {
                0 if stride != 0 => index < records && offset + len <= stride,
                1 if stride != 0 => index < records,
                2 => records != 0,
                _ => index * stride + offset + scalar + len <= records,
            };
            let at = if swizzle != 0 {
                let rows = 8 << group;
                let row = index / rows * stride + offset / element * element;
                row * rows + index % rows * element + offset % element
            } else {
                index * stride + offset
            };
            access.cells[lane] = if inside {
                (0..len).map(|j| Cell::Memory(scalar + at + j)).collect()
            } else {
                vec![Cell::Nowhere; len]
            };
        }
        access.returns = !row.any(softgpu_isa::Flags::ATOMIC) || lab.r.one_in(2);
        // Loads and returning atomics write the data register.
        access.dst = DATA;
        let load = row.any(softgpu_isa::Flags::LOAD);
        let has_status = load && !row.any(softgpu_isa::Flags::LDS) && row.name.starts_with("buffer");
        access.tfe = has_status && lab.r.one_in(5);
        access.format = lab.r.below(70) as u32;
        access.words = Buffer {
            address: if offen || idxen { ADDRESS as u32 } else { 0 },
            data: if row.any(softgpu_isa::Flags::LDS) { 0 } else { DATA as u32 },
            resource: 48,
            soffset: 40,
            offset: imm as u32,
            glc: access.returns && row.any(softgpu_isa::Flags::ATOMIC),
            offen,
            idxen,
            tfe: access.tfe,
            format: access.format,
        }
        .encode(row);
        access
    }
}
