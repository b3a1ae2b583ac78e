// SPDX-License-Identifier: MIT OR Apache-2.0
//! LDS: loads and stores, counters, exchanges, the traversal stack, and the lane crossbar.

use softgpu_isa::{Op, OpInfo};

use super::encode;
use super::entry::{Check, Entry};
use super::lab::{LDS, Lab};
use super::memory::{World, active, transfer};
use super::place::Cell;
use crate::wave::{M0, Wave};

macro_rules! entries {
    ($($check:ident: $($op:ident)*;)*) => {
        &[$($(Entry { op: Op::$op, check: Check::Own($check) }),*),*]
    };
}

pub(crate) const ENTRIES: &[Entry] = entries! {
    transfer:
        DS_LOAD_U8 DS_LOAD_I8 DS_LOAD_U16 DS_LOAD_I16 DS_LOAD_B32 DS_LOAD_B64 DS_LOAD_B96 DS_LOAD_B128
        DS_LOAD_2ADDR_B32 DS_LOAD_2ADDR_STRIDE64_B32 DS_LOAD_2ADDR_B64 DS_LOAD_2ADDR_STRIDE64_B64
        DS_STORE_B8 DS_STORE_B16 DS_STORE_B32 DS_STORE_B64 DS_STORE_B96 DS_STORE_B128
        DS_STORE_2ADDR_B32 DS_STORE_2ADDR_STRIDE64_B32 DS_STORE_2ADDR_B64 DS_STORE_2ADDR_STRIDE64_B64
        DS_STORE_B8_D16_HI DS_STORE_B16_D16_HI DS_LOAD_U8_D16 DS_LOAD_U8_D16_HI DS_LOAD_I8_D16 DS_LOAD_I8_D16_HI
        DS_LOAD_U16_D16 DS_LOAD_U16_D16_HI;
    counter: DS_APPEND DS_CONSUME;
    by_lane: DS_LOAD_ADDTID_B32 DS_STORE_ADDTID_B32;
    conditional: DS_CONDXCHG32_RTN_B64;
    stack: DS_BVH_STACK_RTN_B32;
    permute: DS_PERMUTE_B32;
    backward_permute: DS_BPERMUTE_B32;
    swizzle: DS_SWIZZLE_B32;
};

fn dword(at: u32) -> Vec<Cell> {
    let inside = u64::from(at) + 4 <= u64::from(LDS);
    (0..4).map(|j| if inside { Cell::Lds(at as usize + j) } else { Cell::Nowhere }).collect()
}

/// One add or subtract of the number of active lanes; all of them get the old value.
fn counter(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..20 {
        let mut w = lab.any_wave();
        lab.fill();
        w.s[M0] = lab.r.next() & 0xFFFF_0FFC;
        let offset = lab.r.next() & 0xFFC;
        let mut world = World::of(lab);
        let cells = dword((w.s[M0] & 0xFFFF) + offset);
        let (old, lanes) = (world.number(&cells), active(&w).count() as u64);
        let new = if row.op == Op::DS_APPEND { old + lanes } else { old.wrapping_sub(lanes) };
        world.put(&cells, new);
        let mut want = w.clone();
        for lane in active(&w) {
            want.set_vgpr(24, lane, old as u32);
        }
        let mut got = w;
        lab.run(&mut got, &encode::ds(row, [0, 0, 0, 24], offset));
        lab.same(&want, &got, &"");
        world.same(lab, row, "");
    }
}

fn by_lane(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..20 {
        let mut w = lab.any_wave();
        lab.fill();
        w.s[M0] = lab.r.next() & 0xFFFF_1FFF;
        let offset = lab.r.next() & 0xFFF;
        let store = row.op == Op::DS_STORE_ADDTID_B32;
        let mut world = World::of(lab);
        let mut want = w.clone();
        for lane in active(&w) {
            let cells = dword((w.s[M0] & 0xFFFF) + offset + 4 * lane as u32);
            if store {
                world.put(&cells, w.vgpr(8, lane).into());
            } else {
                want.set_vgpr(24, lane, world.number(&cells) as u32);
            }
        }
        let mut got = w;
        lab.run(&mut got, &encode::ds(row, if store { [0, 8, 0, 0] } else { [0, 0, 0, 24] }, offset));
        lab.same(&want, &got, &"");
        world.same(lab, row, "");
    }
}

/// Each dword of the data is stored, without its top bit, where that bit is set; the old pair is returned.
fn conditional(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..30 {
        let mut w = lab.any_wave();
        lab.fill();
        let offset = lab.r.next() & 0x3FF;
        for lane in 0..w.lanes() {
            let address = lab.r.below(LDS as usize) as u32;
            w.set_vgpr(0, lane, address);
        }
        let mut world = World::of(lab);
        let mut want = w.clone();
        for lane in active(&w) {
            let at = (w.vgpr(0, lane) + offset) & 0xFFF8;
            for k in 0..2 {
                let cells = dword(at + 4 * k as u32);
                want.set_vgpr(24 + k, lane, world.number(&cells) as u32);
                let data = w.vgpr(8 + k, lane);
                if data & 0x8000_0000 != 0 {
                    world.put(&cells, u64::from(data) & 0x7FFF_FFFF);
                }
            }
        }
        let mut got = w;
        lab.run(&mut got, &encode::ds(row, [0, 8, 0, 24], offset));
        lab.same(&want, &got, &"");
        world.same(lab, row, "");
    }
}

const INVALID: u32 = u32::MAX;

/// A traversal stack per lane: last in, first out; the stack wraps at its size.
fn stack(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..12 {
        let mut w = lab.any_wave();
        lab.fill();
        let size = lab.r.below(4);
        let entries = 8 << size;
        // 32 lanes interleaved; the stacks of the upper half of a wave64 follow.
        let base = |lane: usize| (lane % 32 + lane / 32 * entries * 32) % 1024;
        for lane in 0..w.lanes() {
            w.set_vgpr(0, lane, (base(lane) as u32) << 18);
        }
        let mut model: Vec<Vec<u32>> = vec![vec![INVALID; entries]; w.lanes()];
        let mut top = vec![0usize; w.lanes()];
        if w.lanes() == 64 && entries > 16 {
            // Both halves would need more LDS than the lab has.
            continue;
        }
        for lane in 0..w.lanes() {
            for k in 0..entries {
                lab.lds[base(lane) + 32 * k] = INVALID;
            }
        }
        for _ in 0..10 {
            let mut want = w.clone();
            for lane in 0..w.lanes() {
                let last = lab.r.below(4) as u32;
                w.set_vgpr(8, lane, if lab.r.one_in(3) { INVALID } else { last });
                want.set_vgpr(8, lane, w.vgpr(8, lane));
                for k in 0..4 {
                    let node = if lab.r.one_in(3) { INVALID } else { lab.r.below(12) as u32 };
                    w.set_vgpr(12 + k, lane, node);
                    want.set_vgpr(12 + k, lane, node);
                }
            }
            for lane in active(&w) {
                let last = w.vgpr(8, lane);
                let valid = |node: u32| node != INVALID && node != last;
                let (stack, top) = (&mut model[lane], &mut top[lane]);
                for k in 0..3 {
                    let node = w.vgpr(12 + k, lane);
                    if valid(node) {
                        stack[*top] = node;
                        *top = (*top + 1) % entries;
                    } else if node == last {
                        break;
                    }
                }
                let fourth = w.vgpr(15, lane);
                let result = if valid(fourth) {
                    fourth
                } else {
                    *top = (*top + entries - 1) % entries;
                    std::mem::replace(&mut stack[*top], INVALID)
                };
                want.set_vgpr(24, lane, result);
                want.set_vgpr(0, lane, (base(lane) as u32) << 18 | *top as u32);
            }
            lab.run(&mut w, &encode::ds(row, [0, 8, 12, 24], (size as u32) << 12));
            lab.same(&want, &w, &format!("{entries} entries"));
        }
    }
}

fn addresses(lab: &mut Lab, w: &mut Wave) -> u32 {
    for lane in 0..w.lanes() {
        let x = if lab.r.one_in(4) { lab.r.next() } else { 4 * lab.r.below(32) as u32 };
        w.set_vgpr(0, lane, x);
    }
    lab.r.below(128) as u32
}

/// Lanes send to the lane of their half that their address names; the value of the highest sender counts.
fn permute(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..30 {
        let mut w = lab.any_wave();
        let offset = addresses(lab, &mut w);
        let mut want = w.clone();
        let target = |lane: usize| lane / 32 * 32 + (w.vgpr(0, lane).wrapping_add(offset) / 4 % 32) as usize;
        for lane in active(&w) {
            let sender = active(&w).filter(|&from| target(from) == lane).last();
            want.set_vgpr(24, lane, sender.map_or(0, |from| w.vgpr(8, from)));
        }
        let mut got = w.clone();
        lab.run(&mut got, &encode::ds(row, [0, 8, 0, 24], offset));
        lab.same(&want, &got, &"");
    }
}

/// Lanes read the lane of their half that their address names; inactive lanes read as 0.
fn backward_permute(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..30 {
        let mut w = lab.any_wave();
        let offset = addresses(lab, &mut w);
        let mut want = w.clone();
        for lane in active(&w) {
            let from = lane / 32 * 32 + (w.vgpr(0, lane).wrapping_add(offset) / 4 % 32) as usize;
            want.set_vgpr(24, lane, if w.exec() >> from & 1 != 0 { w.vgpr(8, from) } else { 0 });
        }
        let mut got = w;
        lab.run(&mut got, &encode::ds(row, [0, 8, 0, 24], offset));
        lab.same(&want, &got, &"");
    }
}

/// The lane that lane `i` (of 32) reads under a swizzle pattern.
fn swizzled(pattern: u32, i: u32) -> u32 {
    match pattern {
        0xE000.. => {
            // FFT: the bits of the lane number are reversed and moved down past those that the mask keeps.
            let mask = pattern & 0x1F;
            let reversed = (0..5).fold(0, |r, k| r | (i >> k & 1) << (4 - k));
            (reversed >> mask.count_ones() | i & mask) & 31
        }
        0xC000.. => {
            // Rotation of the bits the mask leaves free.
            let (by, mask) = (pattern >> 5 & 0x1F, pattern & 0x1F);
            let turned = if pattern & 0x400 != 0 { i.wrapping_sub(by) } else { i + by };
            i & mask | turned & !mask & 31
        }
        0x8000.. => i & !3 | pattern >> (2 * (i & 3)) & 3,
        _ => (i & pattern & 31 | pattern >> 5 & 31) ^ pattern >> 10 & 31,
    }
}

fn swizzle(lab: &mut Lab, row: &'static OpInfo) {
    for trial in 0..80 {
        let w = lab.any_wave();
        let pattern = match trial % 4 {
            0 => lab.r.next() & 0x7FFF,
            1 => 0x8000 | lab.r.next() & 0xFF,
            2 => 0xC000 | lab.r.next() & 0x7FF,
            _ => 0xE000 | lab.r.pick(&[0, 0x10, 0x18, 0x1C, 0x1E, 0x1F]),
        };
        let mut want = w.clone();
        for lane in active(&w) {
            let from = lane / 32 * 32 + swizzled(pattern, (lane % 32) as u32) as usize;
            want.set_vgpr(24, lane, if w.exec() >> from & 1 != 0 { w.vgpr(0, from) } else { 0 });
        }
        let mut got = w;
        lab.run(&mut got, &encode::ds(row, [0, 0, 0, 24], pattern));
        lab.same(&want, &got, &format!("pattern {pattern:#x}"));
    }
}
