// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branches, calls and returns: the next instruction, and the registers that change.

use softgpu_isa::{Op, OpInfo};

use super::encode;
use super::entry::{Check, Entry};
use super::lab::Lab;
use crate::step::Flow;
use crate::wave::{EXEC, M0, VCC, Wave};

const fn own(op: Op, check: fn(&mut Lab, &'static OpInfo)) -> Entry {
    Entry { op, check: Check::Own(check) }
}

pub(crate) const ENTRIES: &[Entry] = &[
    own(Op::S_BRANCH, branch),
    own(Op::S_CBRANCH_SCC0, branch),
    own(Op::S_CBRANCH_SCC1, branch),
    own(Op::S_CBRANCH_VCCZ, branch),
    own(Op::S_CBRANCH_VCCNZ, branch),
    own(Op::S_CBRANCH_EXECZ, branch),
    own(Op::S_CBRANCH_EXECNZ, branch),
    own(Op::S_CBRANCH_CDBGSYS, branch),
    own(Op::S_CBRANCH_CDBGUSER, branch),
    own(Op::S_CBRANCH_CDBGSYS_OR_USER, branch),
    own(Op::S_CBRANCH_CDBGSYS_AND_USER, branch),
    own(Op::S_GETPC_B64, jump),
    own(Op::S_SETPC_B64, jump),
    own(Op::S_SWAPPC_B64, jump),
    own(Op::S_CALL_B64, jump),
    own(Op::S_RFE_B64, return_from_trap),
    own(Op::S_SUBVECTOR_LOOP_BEGIN, subvector),
    own(Op::S_SUBVECTOR_LOOP_END, subvector),
    own(Op::S_MOVRELS_B32, move_relative),
    own(Op::S_MOVRELS_B64, move_relative),
    own(Op::S_MOVRELD_B32, move_relative),
    own(Op::S_MOVRELD_B64, move_relative),
    own(Op::S_MOVRELSD_2_B32, move_relative),
];

const HERE: u64 = 0x12_3456_7800;

fn mask(w: &Wave, index: usize) -> u64 {
    u64::from(w.s[index]) | if w.halves == 2 { u64::from(w.s[index + 1]) << 32 } else { 0 }
}

fn taken(w: &Wave, op: Op) -> bool {
    match op {
        Op::S_BRANCH => true,
        Op::S_CBRANCH_SCC0 => !w.scc(),
        Op::S_CBRANCH_SCC1 => w.scc(),
        Op::S_CBRANCH_VCCZ => mask(w, VCC) == 0,
        Op::S_CBRANCH_VCCNZ => mask(w, VCC) != 0,
        Op::S_CBRANCH_EXECZ => mask(w, EXEC) == 0,
        Op::S_CBRANCH_EXECNZ => mask(w, EXEC) != 0,
        // No debugger is attached.
        _ => false,
    }
}

fn branch(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..60 {
        let mut w = lab.any_wave();
        w.pc = HERE;
        if lab.r.one_in(3) {
            w.s[VCC] = 0;
        }
        let imm = lab.r.next() & 0xFFFF;
        let mut got = w.clone();
        let flow = lab.run(&mut got, &encode::scalar(row, 0, [0; 2], imm));
        assert_eq!(flow == Flow::Jump, taken(&w, row.op), "{}: {flow:?}", row.name);
        assert!(flow == Flow::Jump || flow == Flow::Next);
        lab.same(&w, &got, &"");
    }
}

fn jump(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..40 {
        let mut w = lab.any_wave();
        w.pc = HERE;
        let (dst, source) = (2 * lab.r.below(50), 2 * lab.r.below(50));
        let mut want = w.clone();
        if row.op != Op::S_SETPC_B64 {
            want.set_s64(dst, HERE + 4);
        }
        let mut got = w.clone();
        let has_destination = !row.dst.is_empty();
        let words = encode::scalar(row, if has_destination { dst as u32 } else { 0 }, [source as u32, 0], 5);
        let flow = lab.run(&mut got, &words);
        let expected = match row.op {
            Op::S_GETPC_B64 => Flow::Next,
            Op::S_CALL_B64 => Flow::Jump,
            _ => {
                want.pc = w.s64(source) & !3;
                assert_eq!(got.pc, want.pc, "{}", row.name);
                Flow::Indirect
            }
        };
        assert_eq!(flow, expected, "{}", row.name);
        lab.same(&want, &got, &"");
    }
}

/// s_rfe_b64 is legal in a trap handler only; it ends the handler.
fn return_from_trap(lab: &mut Lab, row: &'static OpInfo) {
    const PRIV: u32 = 1 << 5;
    for trial in 0..20 {
        let mut w = lab.any_wave();
        w.pc = lab.base;
        w.status = if trial % 2 == 0 { PRIV | 1 << 13 } else { 1 << 13 };
        let mut got = w.clone();
        let flow = lab.run(&mut got, &encode::scalar(row, 0, [6, 0], 0));
        if trial % 2 == 0 {
            // In a trap handler the wave stops there.
            let mut handler = w.clone();
            handler.in_handler = true;
            assert_eq!(lab.run(&mut handler, &encode::scalar(row, 0, [6, 0], 0)), Flow::Stop);
            assert_eq!((handler.leave, &handler.cause), (Some(w.s64(6) & !3), &None));
        }
        if trial % 2 == 0 {
            assert_eq!((flow, got.status, got.pc), (Flow::Indirect, 1 << 13, w.s64(6) & !3));
        } else {
            assert_eq!(flow, Flow::Stop);
            let cause = super::lab::cause(&got);
            assert!(matches!(cause, crate::exception::Cause::IllegalInstruction { .. }), "{cause:?}");
        }
    }
}

/// A loop body runs once for each half that has active lanes, with only that half active; after the loop EXEC is
/// restored.
fn subvector(lab: &mut Lab, row: &'static OpInfo) {
    let [begin, end] = [Op::S_SUBVECTOR_LOOP_BEGIN, Op::S_SUBVECTOR_LOOP_END]
        .map(|op| encode::scalar(softgpu_isa::info(op), 20, [0; 2], 3));
    let mut w = lab.wave(1);
    let words = encode::scalar(row, 20, [0; 2], 3);
    assert!(lab.try_run(&mut w, &words).is_none(), "legal in wave32");
    for _ in 0..60 {
        let mut w = lab.wave(2);
        for half in 0..2 {
            if lab.r.one_in(3) {
                w.s[EXEC + half] = 0;
            }
        }
        let exec = w.exec();
        let mut got = w.clone();
        let mut bodies = Vec::new();
        if lab.run(&mut got, &begin) == Flow::Next {
            loop {
                bodies.push(got.exec());
                assert!(bodies.len() <= 2);
                if lab.run(&mut got, &end) == Flow::Next {
                    break;
                }
            }
        }
        let halves = [exec & 0xFFFF_FFFF, exec & !0xFFFF_FFFF];
        let expected: Vec<u64> = halves.into_iter().filter(|&half| half != 0).collect();
        assert_eq!(bodies, expected);
        assert_eq!(got.exec(), exec);
        got.s[20] = w.s[20];
        lab.same(&w, &got, &"");
    }
}

/// Moves between registers whose numbers M0 is added to.
fn move_relative(lab: &mut Lab, row: &'static OpInfo) {
    let wide = row.name.ends_with("b64");
    for _ in 0..40 {
        let mut w = lab.any_wave();
        let (s, d) = (2 * lab.r.below(16), 2 * lab.r.below(16));
        let (by_s, by_d) = match row.op {
            Op::S_MOVRELS_B32 | Op::S_MOVRELS_B64 => (s, 0),
            Op::S_MOVRELD_B32 | Op::S_MOVRELD_B64 => (0, d),
            _ => (s, d),
        };
        w.s[M0] = match row.op {
            Op::S_MOVRELSD_2_B32 => s as u32 | (d as u32) << 16,
            _ => (by_s + by_d) as u32,
        };
        let (source, dst) = (2 * lab.r.below(30), 2 * lab.r.below(30));
        let mut want = w.clone();
        for k in 0..if wide { 2 } else { 1 } {
            want.s[dst + by_d + k] = w.s[source + by_s + k];
        }
        let mut got = w;
        lab.run(&mut got, &encode::scalar(row, dst as u32, [source as u32, 0], 0));
        lab.same(&want, &got, &"");
    }
}
