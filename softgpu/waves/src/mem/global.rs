// SPDX-License-Identifier: MIT OR Apache-2.0
//! GLOBAL, FLAT and SCRATCH loads, stores and atomics.
//!
//! The addresses of an instruction are computed for one half wave at a time. FLAT checks the apertures first
//! (`kfd_flat_memory.c`: LDS at 1<<48, private at 2<<48, 4 GiB each); SCRATCH swizzles dwords.
#![allow(unsafe_code)]

use super::access::{Rows, gather, read_runs, runs, scatter, write_runs};
use super::atomic::Atomic;
use super::flat;
use super::lds;
use crate::env::Env;
use crate::exception::AccessKind;
use crate::step::{FLAG_GLC, FLAG_SADDR, FLAG_VADDR, Flow, Step, stop};
use crate::valu::shapes::{Lanes64, put};
use crate::vm::MemoryFault;
use crate::wave::{Lanes, Wave};

/// The result of a load goes to the low half and keeps the high half.
pub(crate) const FLAG_D16: u16 = 8;
/// The result (or the stored value) is in the high half.
pub(crate) const FLAG_D16_HI: u16 = 16;

/// How an instruction forms its addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Flat,
    Scratch,
}

/// Addresses of GLOBAL and FLAT.
#[inline(always)]
pub(crate) fn addresses(w: &Wave, s: &Step, half: usize, a: &mut Lanes64) {
    let imm = s.imm as i64 as u64;
    if s.flags & FLAG_SADDR != 0 {
        let base = w.s64(s.src[2].index as usize).wrapping_add(imm);
        if s.flags & FLAG_VADDR != 0 {
            let v = &w.v[s.src[0].index as usize + half].0;
            for i in 0..32 {
                a[i] = base.wrapping_add(u64::from(v[i]));
            }
        } else {
            *a = [base; 32];
        }
    } else {
        let lo = &w.v[s.src[0].index as usize + half].0;
        let hi = &w.v[s.src[0].index as usize + w.halves + half].0;
        for i in 0..32 {
            a[i] = (u64::from(lo[i]) | u64::from(hi[i]) << 32).wrapping_add(imm);
        }
    }
}

/// Starts of the two runs of 16 lanes, when all lanes are active and each 16 are `B` bytes apart.
#[inline(always)]
fn full_runs<const B: u32>(w: &Wave, s: &Step, half: usize) -> Option<[u64; 2]> {
    if B < 4 || w.exec_half(half) != u32::MAX {
        return None;
    }
    let imm = s.imm as i64 as u64;
    let first = s.src[0].index as usize + half;
    match s.flags & (FLAG_SADDR | FLAG_VADDR) {
        FLAG_VADDR => runs::<B>(imm, &w.v[first].0, Some(&w.v[first + w.halves].0)),
        x if x == FLAG_SADDR | FLAG_VADDR => {
            let base = w.s64(s.src[2].index as usize).wrapping_add(imm);
            runs::<B>(base, &w.v[first].0, None)
        }
        _ => None,
    }
}

/// Writes loaded rows to the destination.
#[inline(always)]
pub(crate) fn finish_load<const B: usize, const N: usize>(
    w: &mut Wave,
    s: &Step,
    half: usize,
    rows: &Rows<N>,
) {
    if B <= 2 && s.flags & (FLAG_D16 | FLAG_D16_HI) != 0 {
        let old = w.v[s.dst as usize + half].0;
        let high = s.flags & FLAG_D16_HI != 0;
        let r = core::array::from_fn(|i| {
            let x = rows[0][i] & 0xFFFF;
            if high { old[i] & 0xFFFF | x << 16 } else { old[i] & 0xFFFF_0000 | x }
        });
        return put(w, s.dst as usize, half, &r);
    }
    for k in 0..N {
        put(w, s.dst as usize + k * w.halves, half, &rows[k]);
    }
}

/// Rows of a store's data operand `k`-th source; the unused ones repeat the first.
#[inline(always)]
pub(crate) fn data_rows<'a, const B: usize>(
    w: &'a Wave,
    s: &Step,
    source: usize,
    half: usize,
    shifted: &'a mut Lanes,
) -> [&'a Lanes; 4] {
    let first = s.src[source].index as usize + half;
    if B <= 2 && s.flags & FLAG_D16_HI != 0 {
        for i in 0..32 {
            shifted[i] = w.v[first].0[i] >> 16;
        }
        return [&*shifted; 4];
    }
    let row = |k: usize| &w.v[if k < B.div_ceil(4) { first + k * w.halves } else { first }].0;
    [row(0), row(1), row(2), row(3)]
}

/// A load of `B` bytes per lane.
#[inline(always)]
pub(crate) fn load<const B: usize, const N: usize, const S: bool, const RUN: u32>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    space: Space,
) -> Flow {
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let mut rows: Rows<N> = [[0; 32]; N];
        if space == Space::Global
            && let Some(start) = full_runs::<RUN>(w, s, half)
            && read_runs::<N>(env, start, &mut rows)
        {
            finish_load::<B, N>(w, s, half, &rows);
            continue;
        }
        let result = match space {
            Space::Scratch => flat::scratch_load::<B, N, S>(w, env, s, half, &mut rows),
            _ => {
                let mut a = [0u64; 32];
                addresses(w, s, half, &mut a);
                if space == Space::Flat && flat::any_aperture(&a, mask) {
                    flat::load_lanes::<B, N, S>(w, env, &a, mask, half, &mut rows)
                } else {
                    gather::<B, N, S>(env, &mut a, mask, &mut rows)
                }
            }
        };
        if let Err(fault) = result {
            return stop(w, fault);
        }
        if mask != 0 {
            finish_load::<B, N>(w, s, half, &rows);
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
    space: Space,
) -> Flow {
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let mut shifted = [0u32; 32];
        if space == Space::Global
            && let Some(start) = full_runs::<RUN>(w, s, half)
            && write_runs::<B>(env, start, data_rows::<B>(w, s, 1, half, &mut shifted))
        {
            continue;
        }
        let result = match space {
            Space::Scratch => flat::scratch_store::<B>(w, env, s, half),
            _ => {
                let mut a = [0u64; 32];
                addresses(w, s, half, &mut a);
                let data = data_rows::<B>(w, s, 1, half, &mut shifted);
                if space == Space::Flat && flat::any_aperture(&a, mask) {
                    flat::store_lanes::<B>(w, env, &a, mask, half, data)
                } else {
                    scatter::<B>(env, &mut a, mask, data)
                }
            }
        };
        if let Err(fault) = result {
            return stop(w, fault);
        }
    }
    Flow::Next
}

/// One lane of an atomic on global memory.
pub(crate) fn atomic_lane(
    env: &mut Env<'_>,
    op: Atomic,
    wide: bool,
    address: u64,
    data: u64,
    other: u64,
) -> Result<u64, MemoryFault> {
    let len = if wide { 8 } else { 4 };
    if !env.allows(address, address.wrapping_add(len), AccessKind::Write) {
        return Err(env.fault(address, len, AccessKind::Write));
    }
    // SAFETY: `allows` said that `len` bytes are writable; `env` holds the map's lock.
    let old = unsafe {
        if wide {
            op.global64(address, data, other)
        } else {
            op.global32(address, data as u32, other as u32).map(u64::from)
        }
    };
    // A misaligned atomic faults although the memory is mapped.
    old.ok_or_else(|| env.fault(address, len, AccessKind::Write))
}

/// Dwords of lane `i` starting at `row`.
#[inline(always)]
pub(crate) fn lane_value(w: &Wave, row: usize, half: usize, i: usize, wide: bool) -> u64 {
    let lo = u64::from(w.v[row + half].0[i]);
    if wide { lo | u64::from(w.v[row + w.halves + half].0[i]) << 32 } else { lo }
}

/// Puts an atomic's old value into the destination.
#[inline(always)]
pub(crate) fn put_lane(w: &mut Wave, row: usize, half: usize, i: usize, value: u64, wide: bool) {
    w.v[row + half].0[i] = value as u32;
    if wide {
        let second = row + w.halves + half;
        w.v[second].0[i] = (value >> 32) as u32;
    }
}

/// A GLOBAL or FLAT atomic; `sdst` holds the operation's number.
pub(crate) fn atomic(w: &mut Wave, env: &mut Env<'_>, s: &Step, wide: bool, is_flat: bool) -> Flow {
    let op = Atomic::from_number(s.sdst);
    let width = if wide { 2 } else { 1 };
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let mut a = [0u64; 32];
        addresses(w, s, half, &mut a);
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let row = s.src[1].index as usize;
            let data = lane_value(w, row, half, i, wide);
            // The compare value follows the data.
            let other = match op {
                Atomic::CmpSwap | Atomic::FCmpSwap => lane_value(w, row + width * w.halves, half, i, wide),
                _ => 0,
            };
            let place = if is_flat { flat::Place::of(a[i]) } else { flat::Place::Global };
            let old = match place {
                flat::Place::Global => atomic_lane(env, op, wide, a[i], data, other),
                flat::Place::Shared => Ok(lds::atomic_at(w, env, op, wide, a[i] as u32, data, other)),
                flat::Place::Private => {
                    flat::private_atomic(w, env, op, wide, a[i] as u32, half * 32 + i, data, other)
                }
            };
            match old {
                Ok(old) if s.flags & FLAG_GLC != 0 => put_lane(w, s.dst as usize, half, i, old, wide),
                Ok(_) => {}
                Err(fault) => return stop(w, fault),
            }
        }
    }
    Flow::Next
}

/// Addresses of the ADDTID forms: a scalar base and the lane.
fn lane_addresses(w: &Wave, s: &Step, half: usize) -> Lanes64 {
    let base = if s.flags & FLAG_SADDR != 0 { w.s64(s.src[2].index as usize) } else { 0 };
    let base = base.wrapping_add(s.imm as i64 as u64);
    core::array::from_fn(|i| base.wrapping_add(4 * (half * 32 + i) as u64))
}

/// global_load_addtid_b32.
pub(crate) fn load_addtid(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        let mut rows: Rows<1> = [[0; 32]; 1];
        let mut a = lane_addresses(w, s, half);
        if let Err(fault) = gather::<4, 1, false>(env, &mut a, w.exec_half(half), &mut rows) {
            return stop(w, fault);
        }
        put(w, s.dst as usize, half, &rows[0]);
    }
    Flow::Next
}

/// global_store_addtid_b32.
pub(crate) fn store_addtid(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        let mut a = lane_addresses(w, s, half);
        let data = &w.v[s.src[1].index as usize + half].0;
        if let Err(fault) = scatter::<4>(env, &mut a, w.exec_half(half), [data; 4]) {
            return stop(w, fault);
        }
    }
    Flow::Next
}
