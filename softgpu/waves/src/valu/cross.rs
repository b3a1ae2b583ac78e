// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data movement between lanes and between the scalar and vector files: readlane, permlane, DPP, swaps, relative moves.

use super::shapes::{fetch, put, scalar};
use crate::env::Env;
use crate::level::Level;
use crate::step::{Flow, Handler, OUT_HIGH, Step, mods};
use crate::wave::{EXEC, Lanes, M0, Row, Wave};
use softgpu_isa::Op;

/// Handlers of cross-lane operations; all of them run at every level.
pub(crate) fn table(_level: Level, op: Op) -> Option<Handler> {
    Some(match op {
        Op::V_READFIRSTLANE_B32 => read_first as Handler,
        Op::V_READLANE_B32 => read_lane as Handler,
        Op::V_WRITELANE_B32 => write_lane as Handler,
        Op::V_PERMLANE16_B32 => permlane16 as Handler,
        Op::V_PERMLANEX16_B32 => permlanex16 as Handler,
        Op::V_PERMLANE64_B32 => permlane64 as Handler,
        Op::V_SWAP_B32 => swap as Handler,
        Op::V_SWAP_B16 => swap_halves as Handler,
        Op::V_SWAPREL_B32 => swap_relative as Handler,
        Op::V_MOVRELD_B32 => move_relative_dst as Handler,
        Op::V_MOVRELS_B32 => move_relative_src as Handler,
        Op::V_MOVRELSD_B32 => move_relative_both as Handler,
        Op::V_MOVRELSD_2_B32 => move_relative_two as Handler,
        _ => return None,
    })
}

fn read_first(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let exec = w.exec();
    let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
    read(w, s, lane)
}

fn read_lane(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let lane = scalar(w, &s.src[1]) as usize & (w.lanes() - 1);
    read(w, s, lane)
}

fn read(w: &mut Wave, s: &Step, lane: usize) -> Flow {
    let source = &s.src[0];
    let value = if source.is_vgpr() {
        w.v[source.index as usize + lane / 32].0[lane % 32]
    } else {
        scalar(w, source)
    };
    w.s[s.dst as usize] = value;
    Flow::Next
}

fn write_lane(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let value = scalar(w, &s.src[0]);
    let lane = scalar(w, &s.src[1]) as usize & (w.lanes() - 1);
    w.v[s.dst as usize + lane / 32].0[lane % 32] = value;
    Flow::Next
}

/// The selection of each lane of a row by the lane with its own number.
const IN_ORDER: (u32, u32) = (0x7654_3210, 0xFEDC_BA98);

fn permute_rows(w: &mut Wave, s: &Step, across: usize) -> Flow {
    let lo = scalar(w, &s.src[1]);
    let hi = scalar(w, &s.src[2]);
    // Predecode leaves op_sel in the flags: bit 0 reads inactive lanes, bit 1 makes them read zero.
    let (fetch_inactive, zero) = (s.flags & 1 != 0, s.flags & 2 != 0);
    for half in 0..w.halves {
        let mut t = [0u32; 32];
        let source = *fetch(w, &s.src[0], half, &mut t);
        let exec = w.exec_half(half);
        if (lo, hi) == IN_ORDER && (exec == u32::MAX || fetch_inactive) {
            // What reductions do.
            put(w, s.dst as usize, half, &core::array::from_fn(|i| source[i ^ across]));
            continue;
        }
        let old = w.v[s.dst as usize + half].0;
        let r = core::array::from_fn(|i| {
            let pick = if i & 15 < 8 { lo >> (4 * (i & 7)) } else { hi >> (4 * (i & 7)) } as usize & 15;
            let lane = ((i & 16) ^ across) + pick;
            if exec >> lane & 1 != 0 || fetch_inactive {
                source[lane]
            } else if zero {
                0
            } else {
                old[i]
            }
        });
        put(w, s.dst as usize, half, &r);
    }
    Flow::Next
}

fn permlane16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    permute_rows(w, s, 0)
}

fn permlanex16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    permute_rows(w, s, 16)
}

fn permlane64(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    if w.halves == 2 {
        let source = s.src[0].index as usize;
        let (lo, hi) = (w.v[source].0, w.v[source + 1].0);
        put(w, s.dst as usize, 0, &hi);
        put(w, s.dst as usize, 1, &lo);
    }
    Flow::Next
}

fn exchange(w: &mut Wave, a: usize, b: usize) {
    for half in 0..w.halves {
        let (x, y) = (w.v[a + half].0, w.v[b + half].0);
        put(w, a, half, &y);
        put(w, b, half, &x);
    }
}

fn swap(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    exchange(w, s.dst as usize, s.src[0].index as usize);
    Flow::Next
}

/// `x` with the half at `shift` replaced by the low bits of `y`.
fn with_half(x: u32, shift: u32, y: u32) -> u32 {
    x & !(0xFFFF << shift) | (y & 0xFFFF) << shift
}

fn swap_halves(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let (a, b) = (s.dst as usize, s.src[0].index as usize);
    let shift = |high: bool| if high { 16 } else { 0 };
    let at = (shift(s.out & OUT_HIGH != 0), shift(s.src[0].mods & mods::LO_FROM_HI != 0));
    for half in 0..w.halves {
        let (x, y) = (w.v[a + half].0, w.v[b + half].0);
        let first: Lanes = core::array::from_fn(|i| with_half(x[i], at.0, y[i] >> at.1));
        put(w, a, half, &first);
        // The two may be halves of one register.
        let rest = w.v[b + half].0;
        let second: Lanes = core::array::from_fn(|i| with_half(rest[i], at.1, x[i] >> at.0));
        put(w, b, half, &second);
    }
    Flow::Next
}

/// Row of the register `by` registers after that of `row`; registers that do not exist become v0.
fn relative(w: &Wave, row: usize, by: u32) -> usize {
    let register = (row / w.halves).wrapping_add(by as usize);
    if register < w.vgprs() { register * w.halves } else { 0 }
}

fn swap_relative(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let m0 = w.s[M0];
    let a = relative(w, s.dst as usize, m0 >> 16 & 0x3FF);
    let b = relative(w, s.src[0].index as usize, m0 & 0x3FF);
    exchange(w, a, b);
    Flow::Next
}

fn move_row(w: &mut Wave, s: &Step, source_by: Option<u32>, dst_by: u32) -> Flow {
    let dst = relative(w, s.dst as usize, dst_by);
    for half in 0..w.halves {
        let r: Lanes = match source_by {
            Some(by) if s.src[0].is_vgpr() => w.v[relative(w, s.src[0].index as usize, by) + half].0,
            _ => {
                let mut t = [0u32; 32];
                *fetch(w, &s.src[0], half, &mut t)
            }
        };
        put(w, dst, half, &r);
    }
    Flow::Next
}

fn move_relative_dst(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let m0 = w.s[M0];
    move_row(w, s, None, m0)
}

fn move_relative_src(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let m0 = w.s[M0];
    move_row(w, s, Some(m0), 0)
}

fn move_relative_both(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let m0 = w.s[M0];
    move_row(w, s, Some(m0), m0)
}

fn move_relative_two(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let m0 = w.s[M0];
    move_row(w, s, Some(m0 & 0x3FF), m0 >> 16 & 0x3FF)
}

/// Flag bits of a DPP step above its row and bank masks.
pub(crate) const DPP_BOUND_CTRL: u16 = 1 << 8;
pub(crate) const DPP_FETCH_INACTIVE: u16 = 1 << 9;
pub(crate) const DPP8: u16 = 1 << 10;

/// The source lane of `lane` (0..32) under a DPP16 pattern; `None` outside the row.
pub(crate) fn dpp16_lane(ctrl: u32, lane: usize) -> Option<usize> {
    let (row, i) = (lane & !15, lane & 15);
    let n = (ctrl & 15) as usize;
    let j = match ctrl {
        0..=0xFF => (i & !3) + (ctrl as usize >> (2 * (i & 3)) & 3),
        0x101..=0x10F => (i + n < 16).then_some(i + n)?,
        0x111..=0x11F => i.checked_sub(n)?,
        0x121..=0x12F => (i + 16 - n) & 15,
        0x140 => 15 - i,
        0x141 => (i & 8) | (7 - (i & 7)),
        0x150..=0x15F => n,
        0x160..=0x16F => i ^ n,
        _ => return None,
    };
    Some(row + j)
}

/// Puts the DPP view of source 0 into the spare register `dst`, and clears in EXEC the lanes that must not be written.
/// [`dpp_restore`] follows the instruction itself, unless the instruction writes EXEC.
pub(crate) fn dpp_prepare(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let (row_mask, bank_mask) = (u32::from(s.flags) >> 4 & 15, u32::from(s.flags) & 15);
    let zero = s.flags & (DPP_BOUND_CTRL | DPP8) != 0;
    for half in 0..w.halves {
        let source = w.v[s.src[0].index as usize + half].0;
        let exec = w.exec_half(half);
        let mut enabled = 0u32;
        let mut r = [0u32; 32];
        for (i, value) in r.iter_mut().enumerate() {
            let from = if s.flags & DPP8 != 0 {
                Some((i & !7) + (s.imm as usize >> (3 * (i & 7)) & 7))
            } else {
                dpp16_lane(s.imm as u32, i)
            };
            let from = from.filter(|&j| exec >> j & 1 != 0 || s.flags & DPP_FETCH_INACTIVE != 0);
            let row = half * 2 + i / 16;
            let masked_in =
                s.flags & DPP8 != 0 || (row_mask >> row & 1 != 0 && bank_mask >> ((i / 4) & 3) & 1 != 0);
            if let Some(j) = from {
                *value = source[j];
            }
            if masked_in && (from.is_some() || zero) {
                enabled |= 1 << i;
            }
        }
        w.v[s.dst as usize + half] = Row(r);
        w.dpp_exec[half] = exec;
        w.s[EXEC + half] = exec & enabled;
    }
    Flow::Next
}

/// Restores EXEC after a DPP instruction.
pub(crate) fn dpp_restore(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    for half in 0..w.halves {
        w.s[EXEC + half] = w.dpp_exec[half];
    }
    Flow::Next
}

/// Copies a register to a spare one in all lanes (VOPD whose halves read each other's destination).
pub(crate) fn copy_all(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        w.v[s.dst as usize + half] = w.v[s.src[0].index as usize + half];
    }
    Flow::Next
}
