// SPDX-License-Identifier: MIT OR Apache-2.0
//! LDS operations on data structures: conditional exchange, and the traversal stack of ray tracing.
//!
//! INVARIANT: lanes act in lane order; reads outside the workgroup's LDS give 0, writes outside are dropped.

use super::lds::{read_u32, write_u32};
use crate::env::Env;
use crate::step::{Flow, Step};
use crate::wave::Wave;

/// ds_condxchg32_rtn_b64: each dword of the data replaces the one in LDS if its top bit is set, without that bit. Returns
/// the old pair.
pub(crate) fn conditional_exchange(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let base = w.v[s.src[0].index as usize + half].0[i].wrapping_add(s.imm as u32) & 0xFFF8;
            let data = [0, 1].map(|k| w.v[s.src[1].index as usize + k * w.halves + half].0[i]);
            for (k, x) in data.into_iter().enumerate() {
                let at = base + 4 * k as u32;
                let old = read_u32(w, env, at);
                if x >> 31 != 0 {
                    write_u32(w, env, at, x & 0x7FFF_FFFF);
                }
                w.v[s.dst as usize + k * w.halves + half].0[i] = old;
            }
        }
    }
    Flow::Next
}

/// A node pointer that names no node.
const INVALID: u32 = u32::MAX;
/// The bit of a stack address where the base begins, in dwords of LDS; the bits below are the index of the next free
/// entry.
const BASE_SHIFT: u32 = 18;
/// Bytes between entries of one lane's stack: the stacks of 32 lanes are interleaved.
const ENTRY_BYTES: u32 = 128;

/// ds_bvh_stack_rtn_b32: pushes the valid ones of the first three node pointers in data1; returns the fourth, or pops
/// an entry if the fourth is invalid. A pointer equal to the last visited node (data0) ends the pushing and is not
/// valid.
///
/// The stack has 8, 16, 32 or 64 entries (offset1 bits 5:4) and wraps: a deep push overwrites the oldest entry, and a
/// popped entry becomes invalid, so that a pop beyond the last entry gives an invalid pointer. The pseudocode of the
/// ISA document reads the entry before it decrements the index, which would never return a pushed entry; here the index
/// is always that of the next free entry.
pub(crate) fn bvh(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let entries = 8u32 << (s.imm as u32 >> 12 & 3);
    let row = s.src[0].index as usize;
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let address = w.v[row + half].0[i];
            let base = address >> BASE_SHIFT;
            let mut index = address & ((1 << BASE_SHIFT) - 1);
            let last = w.v[s.src[1].index as usize + half].0[i];
            let nodes: [u32; 4] =
                core::array::from_fn(|k| w.v[s.src[2].index as usize + k * w.halves + half].0[i]);
            let place = |index: u32| (base * 4).wrapping_add(index % entries * ENTRY_BYTES);
            let valid = |node: u32| node != INVALID && node != last;
            for &node in &nodes[..3] {
                if valid(node) {
                    write_u32(w, env, place(index), node);
                    index = (index + 1) % entries;
                } else if node == last {
                    break;
                }
            }
            let result = if valid(nodes[3]) {
                nodes[3]
            } else {
                index = index.wrapping_sub(1) % entries;
                let top = read_u32(w, env, place(index));
                write_u32(w, env, place(index), INVALID);
                top
            };
            w.v[row + half].0[i] = base << BASE_SHIFT | index;
            w.v[s.dst as usize + half].0[i] = result;
        }
    }
    Flow::Next
}
