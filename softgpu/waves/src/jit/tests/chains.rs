// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nested conditions: blocks that are emitted together, with lanes that leave at each of them.

use softgpu_isa::{Fmt, Op};

use super::loops::{code, vop2};
use super::random::{self, Random, below};
use super::{Place, compare_programs, each_block, generates_code, lanes};
use crate::jit::generator::Wide;

/// The first scalar that keeps EXEC, two for each condition.
const KEPT: u32 = 40;

fn operations(r: &mut Random, words: &mut Vec<u32>) {
    use Op::*;
    const OPS: [Op; 7] =
        [V_FMAC_F32, V_ADD_F32, V_MUL_F32, V_ADD_NC_U32, V_XOR_B32, V_MAX_I32, V_CNDMASK_B32];
    for _ in 0..r.below(7) {
        let op = OPS[r.below(7) as usize];
        words.push(vop2(op, 1 + below(r, 6), 1 + below(r, 6), 1 + below(r, 6)));
    }
    if r.chance(3) {
        // A scalar that the operations read.
        words.push(0x7E00_0200 | (1 + below(r, 6)) << 17 | (KEPT + below(r, 12)));
    }
}

/// EXEC changes by a comparison; SCC is whether a lane is left.
fn change(r: &mut Random, words: &mut Vec<u32>, depth: u32, wide: bool) {
    use Op::*;
    const COMPARES: [Op; 4] = [V_CMP_GT_U32, V_CMP_NE_U32, V_CMP_LT_I32, V_CMP_GT_F32];
    const DIRECT: [Op; 2] = [V_CMPX_NE_U32, V_CMPX_LT_I32];
    let (a, b) = (1 + below(r, 6), 1 + below(r, 6));
    let kept = KEPT + 2 * depth;
    let keep =
        0xBE80_0000 | kept << 16 | code(if wide { S_MOV_B64 } else { S_MOV_B32 }, Fmt::Sop1) << 8 | 126;
    let compare = 0x7C00_0000 | code(COMPARES[r.below(4) as usize], Fmt::Vopc) << 17 | b << 9 | (256 + a);
    match r.below(8) {
        0 | 1 => {
            words.push(keep);
            words.push(0x7C00_0000 | code(DIRECT[r.below(2) as usize], Fmt::Vopc) << 17 | b << 9 | (256 + a));
        }
        2..5 => {
            let save = if wide { S_AND_SAVEEXEC_B64 } else { S_AND_SAVEEXEC_B32 };
            words.extend([compare, 0xBE80_0000 | kept << 16 | code(save, Fmt::Sop1) << 8 | 106]);
        }
        form => {
            let (and, and_not) = if wide { (S_AND_B64, S_AND_NOT1_B64) } else { (S_AND_B32, S_AND_NOT1_B32) };
            let (op, a, b) = match form {
                5 => (and, 126, 106),
                6 => (and, 106, 126),
                _ => (and_not, 126, 106),
            };
            words.extend([keep, compare, 0x8000_0000 | code(op, Fmt::Sop2) << 23 | 126 << 16 | b << 8 | a]);
        }
    }
}

fn program(r: &mut Random, wide: bool) -> Vec<u32> {
    let mut words = Vec::new();
    let mut open: Vec<(u32, Option<usize>)> = Vec::new();
    for _ in 0..3 + r.below(8) {
        operations(r, &mut words);
        if open.is_empty() || (open.len() < 6 && r.chance(2)) {
            let depth = open.len() as u32;
            change(r, &mut words, depth, wide);
            let branch = (!r.chance(4)).then_some(words.len());
            if branch.is_some() {
                let op = [Op::S_CBRANCH_EXECZ, Op::S_CBRANCH_EXECZ, Op::S_CBRANCH_VCCZ][r.below(3) as usize];
                words.push(0xBF80_0000 | code(op, Fmt::Sopp) << 16);
            }
            open.push((depth, branch));
        } else if let Some((depth, branch)) = open.pop() {
            close(&mut words, depth, branch, wide);
        }
    }
    while let Some((depth, branch)) = open.pop() {
        close(&mut words, depth, branch, wide);
        operations(r, &mut words);
    }
    words.push(random::END);
    words
}

/// The end of a condition: to here jumps who has no lane, and all lanes of before go on.
fn close(words: &mut Vec<u32>, depth: u32, branch: Option<usize>, wide: bool) {
    if let Some(at) = branch {
        words[at] |= (words.len() - at - 1) as u32;
    }
    let or = if wide { Op::S_OR_B64 } else { Op::S_OR_B32 };
    words.push(0x8000_0000 | code(or, Fmt::Sop2) << 23 | 126 << 16 | (KEPT + 2 * depth) << 8 | 126);
}

#[test]
fn nested_conditions_agree() {
    if !generates_code() {
        return;
    }
    let make = |r: &mut Random| {
        let lanes = lanes(r);
        (program(r, lanes == 64), lanes)
    };
    let has_chain = |place: &Place, words: &[u32]| {
        let mut has_chain = false;
        each_block(place, words, Wide::Y, |emitter, _| has_chain |= emitter.absorbed.contains(&true));
        has_chain
    };
    let (programs, chains) = compare_programs(0xC0DE_C4A1, make, has_chain);
    println!("{programs} programs, blocks of {chains} emitted together");
    assert!(programs > 20 && chains * 2 > programs, "{chains} of {programs}");
}
