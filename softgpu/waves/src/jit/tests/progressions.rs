// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses that are computed for the first lane only, around a multiple of 4 GiB, where low halves of neighbouring lanes carry
//! differently.

use std::num::NonZeroUsize;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use softgpu_isa::{Fmt, Op};

use super::loops::{COUNTER, STEP, code, end_loop, operation, turns_at_once, vop2};
use super::random::{self, DATA_BYTES, Random, below, index, long_address};
use super::{BYTES, Place, compare_programs_in, each_block, generates_code};
use crate::jit::generator::Wide;
use crate::vm::{Access, Vm};

/// Memory whose data has a multiple of 4 GiB where many waves have lanes on both sides.
fn place() -> Place {
    let before = BYTES as u64 - DATA_BYTES + 1024 + 76;
    let (bytes, protection) =
        (NonZeroUsize::new(BYTES * 2).expect("some"), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    for multiple in 0x1000..0x2000u64 {
        let at = (multiple << 32) - before;
        let page = at & !0xFFF;
        let hint = NonZeroUsize::new(page as usize);
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is at the place that the mapping gets, which stays until the process ends.
        if unsafe { mmap_anonymous(hint, bytes, protection, flags) }.is_err() {
            continue;
        }
        let vm = Vm::new();
        // SAFETY: the memory was mapped just now, for this only.
        unsafe { vm.map(at..at + BYTES as u64, Access::ALL) }.expect("a range of memory");
        return Place { vm, at };
    }
    panic!("no memory around a multiple of 4 GiB");
}

/// Operations that read, or overwrite, parts of addresses and their carries.
fn operations(r: &mut Random, words: &mut Vec<u32>) {
    use Op::*;
    const OPS: [Op; 5] = [V_ADD_F32, V_ADD_NC_U32, V_XOR_B32, V_MAX_I32, V_CNDMASK_B32];
    for _ in 0..r.below(5) {
        let op = OPS[r.below(5) as usize];
        words.push(vop2(op, 1 + below(r, 11), below(r, 12), 1 + below(r, 11)));
    }
    if r.chance(3) {
        // A register of the carries.
        words.push(0x7E00_0200 | (1 + below(r, 11)) << 17 | 106);
    }
    if r.chance(4) {
        words.push(0x7E00_0400 | (40 + below(r, 4)) << 17 | (256 + below(r, 12)));
    }
}

fn program(r: &mut Random) -> Vec<u32> {
    use Op::*;
    const ACCESSES: [Op; 5] =
        [GLOBAL_LOAD_B32, GLOBAL_LOAD_B64, GLOBAL_STORE_B32, GLOBAL_STORE_B64, GLOBAL_LOAD_B128];
    let mut words = Vec::new();
    for _ in 0..1 + r.below(3) {
        let mut addresses = Vec::new();
        for _ in 0..1 + r.below(2) {
            let at = [2, 6, 10][r.below(3) as usize];
            words.extend(index(r, at));
            let mut sum = long_address(r, at);
            if r.chance(3) {
                // Something reads the carries of the low halves.
                let to = [1, 4, 5, 8, 9][r.below(5) as usize];
                sum.insert(sum.len() - 1, vop2(V_CNDMASK_B32, to, below(r, 12), 1 + below(r, 11)));
            }
            words.extend(sum);
            operations(r, &mut words);
            addresses.push(at);
        }
        for _ in 0..1 + r.below(4) {
            let op = ACCESSES[r.below(5) as usize];
            let address = addresses[r.below(addresses.len() as u64) as usize];
            words.push(0xDC02_0000 | code(op, Fmt::Global) << 18 | (r.below(16) as u32 * 4));
            words.push(below(r, 8) << 24 | 124 << 16 | below(r, 8) << 8 | address);
            operations(r, &mut words);
        }
    }
    words.push(random::END);
    words
}

/// A loop through addresses that are sums of 64 bits: indices of 32 bits, which may exceed those in the middle of a wave.
fn loop_program(r: &mut Random) -> Vec<u32> {
    use Op::*;
    const BASE: u32 = 36;
    let (scale, is_high) = (below(r, 4), r.chance(3));
    // v8 = the index, v9 = 0
    let mut words = vec![0x7E10_0300, 0x3610_10FF, 0x3FF, 0x7E12_0280];
    words.extend([
        0xBE80_0000 | COUNTER << 16 | (129 + below(r, 32)),
        0xBE80_0000 | STEP << 16 | (129 + below(r, 40)),
    ]);
    let bias = if is_high { 0u32.wrapping_sub(64 * (1 + below(r, 40))) } else { 0 };
    words.extend([0x4A10_10FF, bias]);
    // s[36:37] = where the data would be if the index began at zero
    for (op, to, from, by) in [
        (S_SUB_U32, BASE, 20, bias << scale),
        (S_SUBB_U32, BASE + 1, 21, (u64::from(bias) << scale >> 32) as u32),
    ] {
        words.extend([0x8000_0000 | code(op, Fmt::Sop2) << 23 | to << 16 | 255 << 8 | from, by]);
    }
    let start = words.len();
    words.extend([0xD400_0000 | code(V_LSHLREV_B64, Fmt::Vop3) << 16 | 10, (128 + scale) | (256 + 8) << 9]);
    words.extend([
        0xD400_0000 | code(V_ADD_CO_U32, Fmt::Vop3sd) << 16 | 106 << 8 | 10,
        BASE | (256 + 10) << 9,
    ]);
    words.push(code(V_ADD_CO_CI_U32, Fmt::Vop2) << 25 | 11 << 17 | 11 << 9 | (BASE + 1));
    for _ in 0..1 + r.below(2) {
        words.push(0xDC02_0000 | code(GLOBAL_LOAD_B32, Fmt::Global) << 18 | (4 * below(r, 8)));
        words.push((4 + below(r, 3)) << 24 | 124 << 16 | 10);
    }
    for _ in 0..3 + r.below(5) {
        words.push(operation(r));
    }
    words.push(code(V_ADD_NC_U32, Fmt::Vop2) << 25 | 8 << 17 | 8 << 9 | STEP);
    end_loop(&mut words, start);
    words
}

#[test]
fn loops_around_4_gib_agree() {
    if !generates_code() {
        return;
    }
    let is_special = |place: &Place, words: &[u32]| {
        [Wide::Z, Wide::Y].iter().any(|&wide| turns_at_once(place, words, wide) > 1)
    };
    let (programs, special) =
        compare_programs_in(&place(), 0x1009_4000, |r| (loop_program(r), 32), is_special);
    println!("{programs} programs, {special} of them several turns at a time");
    assert!(special * 2 > programs, "{special} of {programs} go several turns at a time");
}

/// Whether a program's code computes first lanes only.
fn has_progressions(place: &Place, words: &[u32], wide: Wide) -> bool {
    let mut has_some = false;
    each_block(place, words, wide, |emitter, block| {
        let number = emitter.leaders.binary_search(&block.start).expect("a block");
        has_some |= emitter.progressions(number, block.start, block.end).contains(&true);
    });
    has_some
}

#[test]
fn addresses_around_4_gib_agree() {
    if !generates_code() {
        return;
    }
    let is_special = |place: &Place, words: &[u32]| {
        [Wide::Z, Wide::Y].iter().any(|&wide| has_progressions(place, words, wide))
    };
    let (programs, special) = compare_programs_in(&place(), 0xADD2_4000, |r| (program(r), 32), is_special);
    println!("{programs} programs, {special} of them with addresses of first lanes");
    assert!(special * 4 > programs, "{special} of {programs} have addresses of first lanes");
}
