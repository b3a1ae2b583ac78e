// SPDX-License-Identifier: MIT OR Apache-2.0
//! Untyped buffer loads, stores and atomics through a resource descriptor (RDNA3 ISA, "Vector Memory Buffer
//! Instructions").
//!
//! INVARIANT: lanes outside the descriptor's range read 0 and write nothing; lanes inside are checked as in any other
//! access.

use super::access::{Rows, gather, scatter};
use super::atomic::Atomic;
use super::flags::{FLAG_IDXEN, FLAG_OFFEN, FLAG_TFE};
use super::global::{atomic_lane, data_rows, finish_load, lane_value, put_lane};
use crate::env::Env;
use crate::step::{FLAG_GLC, Flow, Step, stop};
use crate::valu::shapes::{Lanes64, put, scalar};
use crate::wave::Wave;

/// Byte offset in a swizzled buffer: elements of neighbouring indices are adjacent.
fn swizzled(index: u64, offset: u64, stride: u64, element: u64, control: u32) -> u64 {
    let group = 8u64 << (control >> 21 & 3);
    let row = (index / group).wrapping_mul(stride).wrapping_add(offset / element * element);
    row.wrapping_mul(group).wrapping_add(index % group * element).wrapping_add(offset % element)
}

/// Addresses of a half, and the active lanes that are in range. `dst` names the data register, `src[1]` the scalar
/// offset, `src[2]` the resource.
pub(crate) fn addresses(w: &Wave, s: &Step, half: usize, len: u64, a: &mut Lanes64) -> u32 {
    let r = s.src[2].index as usize;
    let base = u64::from(w.s[r]) | u64::from(w.s[r + 1] & 0xFFFF) << 32;
    let stride = u64::from(w.s[r + 1] >> 16 & 0x3FFF);
    let records = u64::from(w.s[r + 2]);
    let control = w.s[r + 3];
    // Bytes of a swizzled buffer's elements; 0: the buffer is linear.
    let element = [0, 4, 8, 16][(w.s[r + 1] >> 30) as usize];
    let soffset = u64::from(scalar(w, &s.src[1]));
    let row = s.src[0].index as usize + half;
    let (idxen, offen) = (s.flags & FLAG_IDXEN != 0, s.flags & FLAG_OFFEN != 0);
    let offset_row = if idxen { row + w.halves } else { row };
    let mut valid = 0;
    for i in 0..32 {
        let mut index = if idxen { u64::from(w.v[row].0[i]) } else { 0 };
        if control >> 23 & 1 != 0 {
            index += (half * 32 + i) as u64;
        }
        let offset = s.imm as u64 + if offen { u64::from(w.v[offset_row].0[i]) } else { 0 };
        let raw = offset + soffset + len <= records;
        let ok = match control >> 28 & 3 {
            0 if stride != 0 => index < records && offset + len <= stride,
            1 if stride != 0 => index < records,
            2 => records != 0,
            _ if stride != 0 => index * stride + offset + soffset + len <= records,
            _ => raw,
        };
        let linear = index.wrapping_mul(stride).wrapping_add(offset);
        let inside = if element == 0 { linear } else { swizzled(index, offset, stride, element, control) };
        a[i] = base.wrapping_add(soffset).wrapping_add(inside);
        valid |= u32::from(ok) << i;
    }
    valid & w.exec_half(half)
}

/// A load of `B` bytes per lane.
#[inline(always)]
pub(crate) fn load<const B: usize, const N: usize, const S: bool, const RUN: u32>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    _: (),
) -> Flow {
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        let valid = addresses(w, s, half, B as u64, &mut a);
        let mut rows: Rows<N> = [[0; 32]; N];
        if let Err(fault) = gather::<B, N, S>(env, &mut a, valid, &mut rows) {
            return stop(w, fault);
        }
        for row in &mut rows {
            for (i, x) in row.iter_mut().enumerate() {
                *x = if valid >> i & 1 != 0 { *x } else { 0 };
            }
        }
        finish_load::<B, N>(w, s, half, &rows);
        if s.flags & FLAG_TFE != 0 {
            // No data was missing: the status is 0.
            put(w, s.dst as usize + N * w.halves, half, &[0; 32]);
        }
    }
    Flow::Next
}

/// A store of `B` bytes per lane.
#[inline(always)]
pub(crate) fn store<const B: usize, const RUN: u32>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    _: (),
) -> Flow {
    let mut data_step = *s;
    data_step.src[1] = crate::step::Src::vgpr(s.dst as usize);
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        let valid = addresses(w, s, half, B as u64, &mut a);
        let mut shifted = [0u32; 32];
        let data = data_rows::<B>(w, &data_step, 1, half, &mut shifted);
        if let Err(fault) = scatter::<B>(env, &mut a, valid, data) {
            return stop(w, fault);
        }
    }
    Flow::Next
}

/// An atomic; `sdst` holds the operation's number.
pub(crate) fn atomic(w: &mut Wave, env: &mut Env<'_>, s: &Step, wide: bool) -> Flow {
    let op = Atomic::from_number(s.sdst);
    let width = if wide { 2 } else { 1 };
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        let valid = addresses(w, s, half, 4 * width as u64, &mut a);
        let mask = w.exec_half(half);
        let row = s.dst as usize;
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let data = lane_value(w, row, half, i, wide);
            let other = match op {
                Atomic::CmpSwap | Atomic::FCmpSwap => lane_value(w, row + width * w.halves, half, i, wide),
                _ => 0,
            };
            let old = if valid >> i & 1 != 0 {
                match atomic_lane(env, op, wide, a[i], data, other) {
                    Ok(old) => old,
                    Err(fault) => return stop(w, fault),
                }
            } else {
                0
            };
            if s.flags & FLAG_GLC != 0 {
                put_lane(w, row, half, i, old, wide);
            }
        }
    }
    Flow::Next
}
