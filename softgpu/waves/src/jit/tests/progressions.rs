// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses that are computed for the first lane only, around a multiple of 4 GiB, where low halves of neighbouring lanes carry
//! differently.

use std::num::NonZeroUsize;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use softgpu_isa::{Fmt, Op};

use super::loops::{code, vop2};
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
