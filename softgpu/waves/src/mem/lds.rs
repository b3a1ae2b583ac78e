// SPDX-License-Identifier: MIT OR Apache-2.0
//! LDS loads, stores, atomics, and the lane crossbar (permute, bpermute, swizzle).
//!
//! INVARIANT: reads outside the workgroup's LDS give 0, writes outside are dropped. A workgroup's waves run on one
//! thread at a time, so LDS needs no host atomics.

use super::access::Rows;
use super::atomic::Atomic;
use super::global::{finish_load, lane_value, put_lane};
use super::pattern;
use crate::env::{Env, Lds};
use crate::step::{Flow, Step};
use crate::valu::shapes::put;
use crate::wave::{Lanes, M0, Wave};

/// The instruction returns the old value.
pub(crate) const FLAG_RETURN: u16 = 1;

/// Whether `len` bytes at `address` are inside LDS.
#[inline(always)]
fn inside(w: &Wave, address: u32, len: u32) -> bool {
    u64::from(address) + u64::from(len) <= u64::from(w.lds_bytes)
}

pub(crate) fn read_byte(w: &Wave, env: &Env<'_>, address: u32) -> u8 {
    if !inside(w, address, 1) {
        return 0;
    }
    (env.lds[(address >> 2) as usize & 0x3FFF] >> (8 * (address & 3))) as u8
}

pub(crate) fn write_byte(w: &Wave, env: &mut Env<'_>, address: u32, value: u8) {
    if inside(w, address, 1) {
        let shift = 8 * (address & 3);
        let dword = &mut env.lds[(address >> 2) as usize & 0x3FFF];
        *dword = *dword & !(0xFF << shift) | u32::from(value) << shift;
    }
}

pub(crate) fn read_u32(w: &Wave, env: &Env<'_>, address: u32) -> u32 {
    if address & 3 == 0 {
        return if inside(w, address, 4) { env.lds[(address >> 2) as usize & 0x3FFF] } else { 0 };
    }
    if !inside(w, address, 4) {
        return 0;
    }
    u32::from_le_bytes(core::array::from_fn(|j| read_byte(w, env, address.wrapping_add(j as u32))))
}

pub(crate) fn write_u32(w: &Wave, env: &mut Env<'_>, address: u32, value: u32) {
    if !inside(w, address, 4) {
        return;
    }
    if address & 3 == 0 {
        env.lds[(address >> 2) as usize & 0x3FFF] = value;
    } else {
        for (j, byte) in value.to_le_bytes().into_iter().enumerate() {
            write_byte(w, env, address.wrapping_add(j as u32), byte);
        }
    }
}

/// Not inlined: otherwise the compiler splits the stores into parts from which the CPU cannot forward to later loads.
#[inline(never)]
fn addresses(w: &Wave, s: &Step, half: usize, offset: u32) -> Lanes {
    let v = &w.v[s.src[0].index as usize + half].0;
    let mut a = [0u32; 32];
    for i in 0..32 {
        a[i] = v[i].wrapping_add(offset);
    }
    a
}

/// Whether all active lanes are dword-aligned and inside. Inactive lanes get the address of the first active one.
#[inline(always)]
fn easy(w: &Wave, a: &mut Lanes, mask: u32, len: u32) -> bool {
    if mask != u32::MAX {
        let first = a[mask.trailing_zeros() as usize & 31];
        for i in 0..32 {
            a[i] = if mask >> i & 1 != 0 { a[i] } else { first };
        }
    }
    let Some(limit) = w.lds_bytes.checked_sub(len) else { return false };
    pattern::aligned_below(a, limit)
}

/// 16 dwords at `from[i] + 4 * k`, all aligned and inside: broadcast, run or gather.
#[inline(always)]
fn read16(lds: &Lds, from: &[u32; 16], k: usize) -> [u32; 16] {
    let at = (from[0] >> 2) as usize + k;
    if pattern::equal16(from) {
        return [lds[at & 0x3FFF]; 16];
    }
    if let (true, Some(words)) =
        (pattern::run16::<4>(from), lds.get(at..).and_then(|rest| rest.first_chunk::<16>()))
    {
        return *words;
    }
    gather16(lds, from, k)
}

/// Not inlined: otherwise the compiler gathers first and tests for the pattern afterwards.
#[inline(never)]
fn gather16(lds: &Lds, from: &[u32; 16], k: usize) -> [u32; 16] {
    let mut r = [0u32; 16];
    for i in 0..16 {
        r[i] = lds[((from[i] >> 2) as usize + k) & 0x3FFF];
    }
    r
}

/// One dword per lane.
#[inline(always)]
fn read_row(lds: &Lds, a: &Lanes, k: usize, r: &mut Lanes) {
    let [lower, upper] = pattern::halves(a);
    r[..16].copy_from_slice(&read16(lds, lower, k));
    r[16..].copy_from_slice(&read16(lds, upper, k));
}

#[cold]
#[inline(never)]
fn read_lanes<const B: usize, const N: usize, const S: bool>(
    w: &Wave,
    env: &Env<'_>,
    a: &Lanes,
    mask: u32,
) -> Rows<N> {
    let mut rows: Rows<N> = [[0; 32]; N];
    for i in (0..32).filter(|i| mask >> i & 1 != 0) {
        match B {
            1 => {
                let x = read_byte(w, env, a[i]);
                rows[0][i] = if S { x as i8 as u32 } else { u32::from(x) };
            }
            2 => {
                let x =
                    u16::from_le_bytes([read_byte(w, env, a[i]), read_byte(w, env, a[i].wrapping_add(1))]);
                let x = if inside(w, a[i], 2) { x } else { 0 };
                rows[0][i] = if S { x as i16 as u32 } else { u32::from(x) };
            }
            _ => {
                // An access that is only partly inside reads 0 as a whole.
                let ok = inside(w, a[i], B as u32);
                for (k, row) in rows.iter_mut().enumerate() {
                    row[i] = if ok { read_u32(w, env, a[i].wrapping_add(4 * k as u32)) } else { 0 };
                }
            }
        }
    }
    rows
}

#[inline(always)]
fn read_rows<const B: usize, const N: usize, const S: bool>(
    w: &Wave,
    env: &Env<'_>,
    a: &mut Lanes,
    mask: u32,
) -> Rows<N> {
    if B < 4 || !easy(w, a, mask, B as u32) {
        return read_lanes::<B, N, S>(w, env, a, mask);
    }
    let mut rows: Rows<N> = [[0; 32]; N];
    for (k, row) in rows.iter_mut().enumerate() {
        read_row(env.lds, a, k, row);
    }
    rows
}

/// ds_load of `B` bytes.
#[inline(always)]
pub(crate) fn load<const B: usize, const N: usize, const S: bool>(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
) -> Flow {
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        if mask == 0 {
            continue;
        }
        let mut a = addresses(w, s, half, s.imm as u32);
        let rows = read_rows::<B, N, S>(w, env, &mut a, mask);
        finish_load::<B, N>(w, s, half, &rows);
    }
    Flow::Next
}

/// Byte offsets of a two-address instruction.
fn two_offsets(s: &Step, bytes: u32) -> [u32; 2] {
    let unit = bytes * if s.flags & super::flags::FLAG_STRIDE64 != 0 { 64 } else { 1 };
    [(s.imm as u32 & 0xFF) * unit, (s.imm as u32 >> 8 & 0xFF) * unit]
}

/// ds_load_2addr of two `B`-byte values.
#[inline(always)]
pub(crate) fn load2<const B: usize, const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let [near, far] = two_offsets(s, B as u32);
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        if mask == 0 {
            continue;
        }
        let mut a = addresses(w, s, half, near);
        let mut b = addresses(w, s, half, far);
        let first = read_rows::<B, N, false>(w, env, &mut a, mask);
        let second = read_rows::<B, N, false>(w, env, &mut b, mask);
        for k in 0..N {
            put(w, s.dst as usize + k * w.halves, half, &first[k]);
            put(w, s.dst as usize + (N + k) * w.halves, half, &second[k]);
        }
    }
    Flow::Next
}

#[inline(always)]
fn write_rows<const B: usize>(
    w: &Wave,
    env: &mut Env<'_>,
    a: &mut Lanes,
    mask: u32,
    row: usize,
    half: usize,
    hi: bool,
) {
    let first = row + half;
    if mask == 0 {
        return;
    }
    let is_easy = B >= 4 && easy(w, a, mask, B as u32);
    if B == 4 && mask == u32::MAX && is_easy {
        let rows = pattern::halves(a);
        if rows.iter().all(|half| pattern::run16::<4>(half)) {
            for (k, from) in rows.iter().enumerate() {
                let at = (from[0] >> 2) as usize;
                if let Some(d) = env.lds.get_mut(at..at + 16) {
                    d.copy_from_slice(&w.v[first].0[16 * k..16 * k + 16]);
                }
            }
            return;
        }
    }
    if is_easy {
        let mut left = mask;
        while left != 0 {
            let i = left.trailing_zeros() as usize & 31;
            left &= left - 1;
            for k in 0..B / 4 {
                env.lds[((a[i] >> 2) as usize + k) & 0x3FFF] = w.v[first + k * w.halves].0[i];
            }
        }
        return;
    }
    for i in (0..32).filter(|i| mask >> i & 1 != 0) {
        if !inside(w, a[i], B as u32) {
            continue;
        }
        let value = w.v[first].0[i] >> if hi { 16 } else { 0 };
        match B {
            1 => write_byte(w, env, a[i], value as u8),
            2 => {
                write_byte(w, env, a[i], value as u8);
                write_byte(w, env, a[i].wrapping_add(1), (value >> 8) as u8);
            }
            _ => {
                for k in 0..B / 4 {
                    write_u32(w, env, a[i].wrapping_add(4 * k as u32), w.v[first + k * w.halves].0[i]);
                }
            }
        }
    }
}

/// ds_store of `B` bytes.
#[inline(always)]
pub(crate) fn store<const B: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let hi = s.flags & super::global::FLAG_D16_HI != 0;
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let mut a = addresses(w, s, half, s.imm as u32);
        write_rows::<B>(w, env, &mut a, mask, s.src[1].index as usize, half, hi);
    }
    Flow::Next
}

/// ds_store_2addr.
#[inline(always)]
pub(crate) fn store2<const B: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        for (k, offset) in two_offsets(s, B as u32).into_iter().enumerate() {
            let mut a = addresses(w, s, half, offset);
            write_rows::<B>(w, env, &mut a, mask, s.src[1 + k].index as usize, half, false);
        }
    }
    Flow::Next
}

/// One lane of an LDS atomic; outside it reads 0 and does nothing. Misaligned addresses are aligned down.
pub(crate) fn atomic_at(
    w: &Wave,
    env: &mut Env<'_>,
    op: Atomic,
    wide: bool,
    address: u32,
    data: u64,
    other: u64,
) -> u64 {
    if wide {
        let address = address & !7;
        if !inside(w, address, 8) {
            return 0;
        }
        let old = u64::from(read_u32(w, env, address)) | u64::from(read_u32(w, env, address + 4)) << 32;
        let new = op.apply64(old, data, other);
        write_u32(w, env, address, new as u32);
        write_u32(w, env, address + 4, (new >> 32) as u32);
        old
    } else {
        let address = address & !3;
        if !inside(w, address, 4) {
            return 0;
        }
        let old = read_u32(w, env, address);
        write_u32(w, env, address, op.apply32(old, data as u32, other as u32));
        u64::from(old)
    }
}

/// An LDS atomic; `sdst` holds the operation's number.
pub(crate) fn atomic(w: &mut Wave, env: &mut Env<'_>, s: &Step, wide: bool) -> Flow {
    let op = Atomic::from_number(s.sdst);
    let two = matches!(op, Atomic::CmpSwap | Atomic::FCmpSwap | Atomic::MskOr | Atomic::Wrap);
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let a = addresses(w, s, half, s.imm as u32);
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let data = lane_value(w, s.src[1].index as usize, half, i, wide);
            let other = if two { lane_value(w, s.src[2].index as usize, half, i, wide) } else { 0 };
            let old = atomic_at(w, env, op, wide, a[i], data, other);
            if s.flags & FLAG_RETURN != 0 {
                put_lane(w, s.dst as usize, half, i, old, wide);
            }
        }
    }
    Flow::Next
}

/// ds_storexchg_2addr: swaps two values per lane.
pub(crate) fn exchange2(w: &mut Wave, env: &mut Env<'_>, s: &Step, wide: bool) -> Flow {
    let n = if wide { 2 } else { 1 };
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let v = w.v[s.src[0].index as usize + half].0;
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let mut old = [0u64; 2];
            let data = [1, 2].map(|k: usize| lane_value(w, s.src[k].index as usize, half, i, wide));
            for (k, offset) in two_offsets(s, 4 * n as u32).into_iter().enumerate() {
                old[k] = atomic_at(w, env, Atomic::Swap, wide, v[i].wrapping_add(offset), data[k], 0);
            }
            for (k, old) in old.into_iter().enumerate() {
                put_lane(w, s.dst as usize + k * n * w.halves, half, i, old, wide);
            }
        }
    }
    Flow::Next
}

/// ds_append and ds_consume: one add for the whole wave, the old value to all active lanes.
pub(crate) fn append(w: &mut Wave, env: &mut Env<'_>, s: &Step, consume: bool) -> Flow {
    let address = (w.s[M0] & 0xFFFF).wrapping_add(s.imm as u32);
    let count = u64::from(w.exec().count_ones());
    let op = if consume { Atomic::Sub } else { Atomic::Add };
    let old = atomic_at(w, env, op, false, address, count, 0);
    for half in 0..w.halves {
        put(w, s.dst as usize, half, &[old as u32; 32]);
    }
    Flow::Next
}

/// ds_load_addtid and ds_store_addtid: address = offset + M0 + 4 * lane.
pub(crate) fn addtid(w: &mut Wave, env: &mut Env<'_>, s: &Step, is_store: bool) -> Flow {
    let base = (w.s[M0] & 0xFFFF).wrapping_add(s.imm as u32);
    for half in 0..w.halves {
        let mask = w.exec_half(half);
        let mut a: Lanes = core::array::from_fn(|i| base.wrapping_add(4 * (half * 32 + i) as u32));
        if is_store {
            write_rows::<4>(w, env, &mut a, mask, s.src[1].index as usize, half, false);
        } else {
            let rows = read_rows::<4, 1, false>(w, env, &mut a, mask);
            put(w, s.dst as usize, half, &rows[0]);
        }
    }
    Flow::Next
}

/// ds_bpermute: each lane reads the lane its address names; disabled source lanes read as 0. Halves of a wave64 are
/// separate: the crossbar is 32 lanes wide on gfx11.
pub(crate) fn bpermute(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        let a = addresses(w, s, half, s.imm as u32);
        let data = w.v[s.src[1].index as usize + half].0;
        let exec = w.exec_half(half);
        let r = core::array::from_fn(|i| {
            let from = (a[i] >> 2) as usize & 31;
            if exec >> from & 1 != 0 { data[from] } else { 0 }
        });
        put(w, s.dst as usize, half, &r);
    }
    Flow::Next
}

/// ds_permute: each lane sends to the lane that its address names. Of several senders the highest lane's value remains;
/// lanes without a sender get 0.
pub(crate) fn permute(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    for half in 0..w.halves {
        let a = addresses(w, s, half, s.imm as u32);
        let data = w.v[s.src[1].index as usize + half].0;
        let exec = w.exec_half(half);
        let mut r = [0u32; 32];
        for i in (0..32).filter(|i| exec >> i & 1 != 0) {
            r[(a[i] >> 2) as usize & 31] = data[i];
        }
        put(w, s.dst as usize, half, &r);
    }
    Flow::Next
}

/// ds_swizzle: fixed patterns by the offset field.
pub(crate) fn swizzle(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let pattern = s.imm as u32 & 0xFFFF;
    for half in 0..w.halves {
        let data = w.v[s.src[0].index as usize + half].0;
        let exec = w.exec_half(half);
        let r = core::array::from_fn(|i| {
            let from = if pattern >= 0xE000 {
                // FFT: the bits of the lane number are reversed and moved down; the mask keeps the bits above them.
                let mask = pattern as usize & 0x1F;
                let reversed = (i as u32).reverse_bits() as usize >> 27;
                (i & mask | reversed >> mask.count_ones()) & 31
            } else if pattern >= 0xC000 {
                let (by, mask) = (pattern as usize >> 5 & 0x1F, pattern as usize & 0x1F);
                let turned = if pattern & 0x400 != 0 { i.wrapping_sub(by) } else { i + by };
                (i & mask) | (turned & !mask & 31)
            } else if pattern & 0x8000 != 0 {
                (i & !3) | (pattern as usize >> (2 * (i & 3)) & 3)
            } else {
                let (and, or, xor) =
                    (pattern as usize & 31, pattern as usize >> 5 & 31, pattern as usize >> 10 & 31);
                ((i & and) | or) ^ xor
            };
            if exec >> from & 1 != 0 { data[from] } else { 0 }
        });
        put(w, s.dst as usize, half, &r);
    }
    Flow::Next
}
