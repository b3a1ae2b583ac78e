// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations between lanes and between register files.

use softgpu_isa::{Fmt, Op, OpInfo};

use super::dpp::Dpp;
use super::encode::{VGPR0, Vector};
use super::entry::{Check, Entry};
use super::lab::{Lab, VGPRS};
use crate::wave::{M0, Wave};

const fn own(op: Op, check: fn(&mut Lab, &'static OpInfo)) -> Entry {
    Entry { op, check: Check::Own(check) }
}

pub(crate) const ENTRIES: &[Entry] = &[
    own(Op::V_NOP, nothing),
    own(Op::V_PIPEFLUSH, nothing),
    own(Op::V_READFIRSTLANE_B32, read_first),
    own(Op::V_READLANE_B32, read_lane),
    own(Op::V_WRITELANE_B32, write_lane),
    own(Op::V_PERMLANE16_B32, permute_rows),
    own(Op::V_PERMLANEX16_B32, permute_rows),
    own(Op::V_PERMLANE64_B32, swap_halves),
    own(Op::V_SWAP_B32, swap),
    own(Op::V_SWAP_B16, swap_sixteen_bits),
    own(Op::V_SWAPREL_B32, swap),
    own(Op::V_MOVRELD_B32, move_relative),
    own(Op::V_MOVRELS_B32, move_relative),
    own(Op::V_MOVRELSD_B32, move_relative),
    own(Op::V_MOVRELSD_2_B32, move_relative),
    own(Op::V_MOV_B32, dpp_move),
    own(Op::V_MQSAD_U32_U8, masked_sums),
];

fn nothing(lab: &mut Lab, row: &'static OpInfo) {
    for code in row.columns[0].codes {
        let w = lab.any_wave();
        let mut got = w.clone();
        lab.run(&mut got, &Vector::default().encode(row, code.fmt));
        lab.same(&w, &got, &"");
    }
}

fn active(w: &Wave, lane: usize) -> bool {
    w.exec() >> lane & 1 != 0
}

fn read_first(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..40 {
        let w = lab.any_wave();
        let (dst, register) = (lab.r.below(100), lab.r.below(VGPRS));
        let lane = (0..w.lanes()).find(|&lane| active(&w, lane)).unwrap_or(0);
        let mut want = w.clone();
        want.s[dst] = w.vgpr(register, lane);
        let fields = Vector { dst: dst as u32, src: [VGPR0 + register as u32, 0, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop1));
        lab.same(&want, &got, &lane);
    }
}

/// A lane number from a register or a constant.
fn lane_source(lab: &mut Lab, w: &mut Wave) -> (u32, usize) {
    if lab.r.one_in(2) {
        let n = lab.r.below(64);
        (128 + n as u32, n % w.lanes())
    } else {
        let index = lab.r.below(100);
        (index as u32, w.s[index] as usize % w.lanes())
    }
}

fn read_lane(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..40 {
        let mut w = lab.any_wave();
        let (code, lane) = lane_source(lab, &mut w);
        let (dst, register) = (lab.r.below(100), lab.r.below(VGPRS));
        let mut want = w.clone();
        want.s[dst] = w.vgpr(register, lane);
        let fields = Vector { dst: dst as u32, src: [VGPR0 + register as u32, code, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop3));
        lab.same(&want, &got, &lane);
    }
}

fn write_lane(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..40 {
        let mut w = lab.any_wave();
        let (code, lane) = lane_source(lab, &mut w);
        let (source, register) = (lab.r.below(100), lab.r.below(VGPRS));
        let mut want = w.clone();
        want.set_vgpr(register, lane, w.s[source]);
        let fields = Vector { dst: register as u32, src: [source as u32, code, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop3));
        lab.same(&want, &got, &lane);
    }
}

/// Each lane of a row reads the lane of its row (or of its neighbour row) that 4 bits of two scalars name. OP_SEL bit 0
/// reads inactive lanes too; bit 1 makes them read 0 instead of keeping the destination.
fn permute_rows(lab: &mut Lab, row: &'static OpInfo) {
    let across = if row.op == Op::V_PERMLANEX16_B32 { 16 } else { 0 };
    for turn in 0..60 {
        let mut w = lab.any_wave();
        let (dst, register) = (lab.r.below(VGPRS), lab.r.below(VGPRS));
        let (low, high) = (lab.r.below(50), 50 + lab.r.below(50));
        if turn % 3 == 0 {
            // Each lane of a row the one with its own number.
            (w.s[low], w.s[high]) = (0x7654_3210, 0xFEDC_BA98);
        }
        let op_sel = lab.r.next() & 3;
        let select = u64::from(w.s[low]) | u64::from(w.s[high]) << 32;
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| active(&w, lane)) {
            let from = (lane & !15 ^ across) + (select >> (4 * (lane & 15)) & 15) as usize;
            let value = match op_sel {
                _ if active(&w, from) || op_sel & 1 != 0 => w.vgpr(register, from),
                2.. => 0,
                _ => w.vgpr(dst, lane),
            };
            want.set_vgpr(dst, lane, value);
        }
        let fields = Vector {
            dst: dst as u32,
            src: [VGPR0 + register as u32, low as u32, high as u32],
            op_sel,
            ..Vector::default()
        };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop3));
        lab.same(&want, &got, &format!("select {select:#x} op_sel {op_sel}"));
    }
}

/// Lanes 0..32 and 32..64 change places; nothing happens in wave32.
fn swap_halves(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..30 {
        let w = lab.any_wave();
        let (dst, register) = (lab.r.below(VGPRS), lab.r.below(VGPRS));
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| w.halves == 2 && active(&w, lane)) {
            want.set_vgpr(dst, lane, w.vgpr(register, lane ^ 32));
        }
        let fields = Vector { dst: dst as u32, src: [VGPR0 + register as u32, 0, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop1));
        lab.same(&want, &got, &"");
    }
}

/// Offsets of source and destination in M0, small enough to stay in the register file.
fn relative(lab: &mut Lab, w: &mut Wave, row: &OpInfo) -> (usize, usize) {
    let (s, d) = (lab.r.below(8), lab.r.below(8));
    match row.op {
        Op::V_SWAPREL_B32 | Op::V_MOVRELSD_2_B32 => {
            w.s[M0] = s as u32 | (d as u32) << 16;
            (s, d)
        }
        _ => {
            w.s[M0] = s as u32;
            match row.op {
                Op::V_MOVRELS_B32 => (s, 0),
                Op::V_MOVRELD_B32 => (0, s),
                Op::V_MOVRELSD_B32 => (s, s),
                _ => (0, 0),
            }
        }
    }
}

fn swap(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..30 {
        let mut w = lab.any_wave();
        let (by_s, by_d) = relative(lab, &mut w, row);
        let (dst, source) = (lab.r.below(VGPRS - 8), lab.r.below(VGPRS - 8));
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| active(&w, lane)) {
            want.set_vgpr(dst + by_d, lane, w.vgpr(source + by_s, lane));
            want.set_vgpr(source + by_s, lane, w.vgpr(dst + by_d, lane));
        }
        let fields = Vector { dst: dst as u32, src: [VGPR0 + source as u32, 0, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop1));
        lab.same(&want, &got, &"");
    }
}

/// Sixteen bits change places; the other halves stay, also where both are in one register.
fn swap_sixteen_bits(lab: &mut Lab, row: &'static OpInfo) {
    for trial in 0..40 {
        let w = lab.any_wave();
        let (dst, source) = (lab.r.below(VGPRS), lab.r.below(VGPRS));
        let source = if trial % 4 == 0 { dst } else { source };
        let (to, from) = (16 * lab.r.below(2), 16 * lab.r.below(2));
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| active(&w, lane)) {
            let half = |register: usize, at: usize| w.vgpr(register, lane) >> at & 0xFFFF;
            let mut put = |register: usize, at: usize, value: u32| {
                let old = want.vgpr(register, lane);
                want.set_vgpr(register, lane, old & !(0xFFFF << at) | value << at);
            };
            put(dst, to, half(source, from));
            put(source, from, half(dst, to));
        }
        let high = |register: usize, at: usize| (register + 8 * at) as u32;
        let fields =
            Vector { dst: high(dst, to), src: [VGPR0 + high(source, from), 0, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop1));
        lab.same(&want, &got, &format!("v{dst} at {to}, v{source} at {from}"));
    }
}

fn move_relative(lab: &mut Lab, row: &'static OpInfo) {
    for trial in 0..30 {
        let mut w = lab.any_wave();
        let (by_s, by_d) = relative(lab, &mut w, row);
        let (dst, source) = (lab.r.below(VGPRS - 8), lab.r.below(VGPRS - 8));
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| active(&w, lane)) {
            want.set_vgpr(dst + by_d, lane, w.vgpr(source + by_s, lane));
        }
        let fields = Vector { dst: dst as u32, src: [VGPR0 + source as u32, 0, 0], ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, if trial % 2 == 0 { Fmt::Vop1 } else { Fmt::Vop3 }));
        lab.same(&want, &got, &"");
    }
}

/// v_mov with every DPP16 pattern and with DPP8.
fn dpp_move(lab: &mut Lab, row: &'static OpInfo) {
    for trial in 0..300 {
        let w = lab.any_wave();
        let (dst, source) = (lab.r.below(VGPRS), lab.r.below(VGPRS));
        let dpp = Dpp::random(lab);
        let eight = trial % 4 == 0;
        let select = lab.r.next() & 0xFF_FFFF;
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| active(&w, lane)) {
            if eight {
                let from = lane / 8 * 8 + (select >> (3 * (lane % 8)) & 7) as usize;
                let readable = active(&w, from) || dpp.fetch;
                want.set_vgpr(dst, lane, if readable { w.vgpr(source, from) } else { 0 });
            } else if dpp.enables(&w, lane) {
                want.set_vgpr(dst, lane, dpp.source(&w, lane).map_or(0, |from| w.vgpr(source, from)));
            }
        }
        let fields = Vector { dst: dst as u32, src: [VGPR0 + source as u32, 0, 0], ..Vector::default() };
        let words = if eight {
            let marker = 233 + u32::from(dpp.fetch);
            vec![0x7E00_0200 | (dst as u32) << 17 | marker, source as u32 | select << 8]
        } else {
            dpp.encode(fields, row, Fmt::Vop1)
        };
        let mut got = w;
        lab.run(&mut got, &words);
        lab.same(&want, &got, &format!("{dpp:x?} {eight} {select:#x}"));
    }
}

/// Four masked sums of absolute differences of bytes, at byte offsets 0 to 3, added to four dwords.
fn masked_sums(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..30 {
        let w = lab.any_wave();
        let [a, b, c, d] = [0; 4].map(|_: i32| lab.r.below(VGPRS - 4));
        let clamp = lab.r.one_in(2);
        let mut want = w.clone();
        for lane in (0..w.lanes()).filter(|&lane| active(&w, lane)) {
            let data = u64::from(w.vgpr(a, lane)) | u64::from(w.vgpr(a + 1, lane)) << 32;
            let reference = w.vgpr(b, lane).to_le_bytes();
            for k in 0..4 {
                let bytes = ((data >> (8 * k)) as u32).to_le_bytes();
                let apart = bytes.iter().zip(&reference).filter(|(_, y)| **y != 0);
                let sum: u64 = apart.map(|(x, y)| u64::from(x.abs_diff(*y))).sum();
                let total = sum + u64::from(w.vgpr(c + k, lane));
                want.set_vgpr(d + k, lane, if clamp { total.min(u32::MAX.into()) } else { total } as u32);
            }
        }
        let src = [a, b, c].map(|r| VGPR0 + r as u32);
        let fields = Vector { dst: d as u32, src, clamp, ..Vector::default() };
        let mut got = w;
        lab.run(&mut got, &fields.encode(row, Fmt::Vop3));
        lab.same(&want, &got, &format!("{fields:?}"));
    }
}
