// SPDX-License-Identifier: MIT OR Apache-2.0
//! FLAT apertures and the swizzle of private memory.
//!
//! INVARIANT: dword `d` of a lane's private memory is at `flat_scratch + d * 4 * lanes + lane * 4`, whatever `d` is
//! (LLVM's "User Guide for AMDGPU Backend", "Flat Scratch"). Nothing bounds it: an offset behind the wave's slot reaches
//! the slots behind it, and faults only if nothing is mapped there.
#![allow(unsafe_code)]

use super::access::{Rows, gather, scatter};
use super::atomic::Atomic;
use super::global::{FLAG_D16_HI, atomic_lane};
use super::lds;
use crate::env::Env;
use crate::exception::AccessKind;
use crate::step::{FLAG_SADDR, FLAG_VADDR, Step};
use crate::valu::shapes::Lanes64;
use crate::vm::MemoryFault;
use crate::wave::{Lanes, Wave};

/// High dword of the LDS aperture.
pub(crate) const SHARED_BASE: u32 = 0x1_0000;
/// High dword of the private aperture.
pub(crate) const PRIVATE_BASE: u32 = 0x2_0000;

/// The place that a FLAT address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Global,
    Shared,
    Private,
}

impl Place {
    #[inline(always)]
    pub(crate) fn of(address: u64) -> Place {
        match (address >> 32) as u32 {
            SHARED_BASE => Place::Shared,
            PRIVATE_BASE => Place::Private,
            _ => Place::Global,
        }
    }
}

/// Whether an active lane points into an aperture.
#[inline(always)]
pub(crate) fn any_aperture(a: &Lanes64, mask: u32) -> bool {
    let mut hits = 0u32;
    for i in 0..32 {
        let high = (a[i] >> 32) as u32;
        hits |= u32::from(high == SHARED_BASE || high == PRIVATE_BASE) << i;
    }
    hits & mask != 0
}

/// The fault of an access that no address allows.
fn misaligned(offset: u32, kind: AccessKind) -> MemoryFault {
    MemoryFault {
        address: u64::from(PRIVATE_BASE) << 32 | u64::from(offset),
        access: kind,
        not_present: true,
    }
}

/// The GPU address of byte `offset` of a lane's private memory.
#[inline(always)]
fn swizzle(w: &Wave, offset: u32, lane: usize) -> u64 {
    let dword = u64::from(offset & !3) * w.lanes() as u64;
    w.flat_scratch.wrapping_add(dword + lane as u64 * 4 + u64::from(offset & 3))
}

fn place_byte(
    w: &Wave,
    env: &mut Env<'_>,
    address: u64,
    lane: usize,
    kind: AccessKind,
) -> Result<u64, MemoryFault> {
    let at = if Place::of(address) == Place::Private { swizzle(w, address as u32, lane) } else { address };
    if env.allows(at, at.wrapping_add(1), kind) { Ok(at) } else { Err(env.fault(at, 1, kind)) }
}

/// A FLAT load lane by lane and byte by byte, for waves whose lanes point into apertures.
pub(crate) fn load_lanes<const B: usize, const N: usize, const S: bool>(
    w: &Wave,
    env: &mut Env<'_>,
    a: &Lanes64,
    mask: u32,
    half: usize,
    out: &mut Rows<N>,
) -> Result<(), MemoryFault> {
    for i in (0..32).filter(|i| mask >> i & 1 != 0) {
        let mut bytes = [0u8; 16];
        for (j, byte) in bytes.iter_mut().enumerate().take(B) {
            let address = a[i].wrapping_add(j as u64);
            *byte = if Place::of(address) == Place::Shared {
                lds::read_byte(w, env, address as u32)
            } else {
                let at = place_byte(w, env, address, half * 32 + i, AccessKind::Read)?;
                // SAFETY: `place_byte` returns only an address that may be read; `env` holds the map's lock.
                unsafe { super::raw::read_u8(at) }
            };
        }
        for (k, row) in out.iter_mut().enumerate().take(B.div_ceil(4)) {
            let x = u32::from_le_bytes([bytes[4 * k], bytes[4 * k + 1], bytes[4 * k + 2], bytes[4 * k + 3]]);
            row[i] = match (B, S) {
                (1, true) => x as i8 as u32,
                (2, true) => x as i16 as u32,
                _ => x,
            };
        }
    }
    Ok(())
}

/// A FLAT store lane by lane.
pub(crate) fn store_lanes<const B: usize>(
    w: &Wave,
    env: &mut Env<'_>,
    a: &Lanes64,
    mask: u32,
    half: usize,
    data: [&Lanes; 4],
) -> Result<(), MemoryFault> {
    for i in (0..32).filter(|i| mask >> i & 1 != 0) {
        for j in 0..B {
            let address = a[i].wrapping_add(j as u64);
            let byte = (data[j / 4][i] >> (8 * (j % 4))) as u8;
            if Place::of(address) == Place::Shared {
                lds::write_byte(w, env, address as u32, byte);
            } else {
                let at = place_byte(w, env, address, half * 32 + i, AccessKind::Write)?;
                // SAFETY: `place_byte` returns only an address that may be written; `env` holds the map's lock.
                unsafe { super::raw::write_u8(at, byte) };
            }
        }
    }
    Ok(())
}

/// An atomic on private memory: no other lane can access it, so any order is correct.
#[allow(clippy::too_many_arguments)]
pub(crate) fn private_atomic(
    w: &Wave,
    env: &mut Env<'_>,
    op: Atomic,
    wide: bool,
    offset: u32,
    lane: usize,
    data: u64,
    other: u64,
) -> Result<u64, MemoryFault> {
    if offset & 3 != 0 {
        return Err(misaligned(offset, AccessKind::Write));
    }
    let lo = swizzle(w, offset, lane);
    if !wide {
        return atomic_lane(env, op, false, lo, data, other);
    }
    let hi = swizzle(w, offset.wrapping_add(4), lane);
    for at in [lo, hi] {
        if !env.allows(at, at.wrapping_add(4), AccessKind::Write) {
            return Err(env.fault(at, 4, AccessKind::Write));
        }
    }
    // SAFETY: `allows` said of both that they are writable, and what is writable is readable; `env` holds the map's lock.
    let ([low], [high]) = unsafe { (super::raw::read_dwords(lo), super::raw::read_dwords(hi)) };
    let old = u64::from(low) | u64::from(high) << 32;
    let new = op.apply64(old, data, other);
    // SAFETY: `allows` said of both that they are writable; `env` holds the map's lock.
    unsafe {
        super::raw::write_dwords(lo, [new as u32]);
        super::raw::write_dwords(hi, [(new >> 32) as u32]);
    }
    Ok(old)
}

/// Private byte offsets of a SCRATCH instruction.
#[inline(always)]
fn scratch_offsets(w: &Wave, s: &Step, half: usize) -> Lanes {
    let mut base = s.imm as u32;
    if s.flags & FLAG_SADDR != 0 {
        base = base.wrapping_add(w.s[s.src[2].index as usize]);
    }
    let mut a = [base; 32];
    if s.flags & FLAG_VADDR != 0 {
        let v = &w.v[s.src[0].index as usize + half].0;
        for i in 0..32 {
            a[i] = base.wrapping_add(v[i]);
        }
    }
    a
}

/// Host addresses of the dwords (or bytes in them) at `offset + add`.
#[inline(always)]
fn swizzled(w: &Wave, offsets: &Lanes, add: u32, half: usize) -> Lanes64 {
    let mut a = [0u64; 32];
    for i in 0..32 {
        a[i] = swizzle(w, offsets[i].wrapping_add(add), half * 32 + i);
    }
    a
}

#[inline(always)]
fn aligned(offsets: &Lanes, mask: u32, len: u32) -> bool {
    let mut bad = 0u32;
    for i in 0..32 {
        // A short access must stay inside its dword, and a longer one must start on a dword.
        bad |= u32::from(if len < 4 { (offsets[i] & 3) + len > 4 } else { offsets[i] & 3 != 0 }) << i;
    }
    bad & mask == 0
}

/// A SCRATCH load.
#[inline(always)]
pub(crate) fn scratch_load<const B: usize, const N: usize, const S: bool>(
    w: &Wave,
    env: &mut Env<'_>,
    s: &Step,
    half: usize,
    out: &mut Rows<N>,
) -> Result<(), MemoryFault> {
    let mask = w.exec_half(half);
    if mask == 0 {
        return Ok(());
    }
    let offsets = scratch_offsets(w, s, half);
    if !aligned(&offsets, mask, B as u32) {
        let a = core::array::from_fn(|i| u64::from(PRIVATE_BASE) << 32 | u64::from(offsets[i]));
        return load_lanes::<B, N, S>(w, env, &a, mask, half, out);
    }
    if B < 4 {
        return gather::<B, N, S>(env, &mut swizzled(w, &offsets, 0, half), mask, out);
    }
    for k in 0..B / 4 {
        let mut one: Rows<1> = [[0; 32]; 1];
        gather::<4, 1, false>(env, &mut swizzled(w, &offsets, 4 * k as u32, half), mask, &mut one)?;
        out[k] = one[0];
    }
    Ok(())
}

/// A SCRATCH store.
#[inline(always)]
pub(crate) fn scratch_store<const B: usize>(
    w: &Wave,
    env: &mut Env<'_>,
    s: &Step,
    half: usize,
) -> Result<(), MemoryFault> {
    let mask = w.exec_half(half);
    if mask == 0 {
        return Ok(());
    }
    let offsets = scratch_offsets(w, s, half);
    let first = s.src[1].index as usize + half;
    let mut shifted = w.v[first].0;
    if B <= 2 && s.flags & FLAG_D16_HI != 0 {
        for x in &mut shifted {
            *x >>= 16;
        }
    }
    let row = |k: usize| if k == 0 { &shifted } else { &w.v[first + k * w.halves].0 };
    if !aligned(&offsets, mask, B as u32) {
        let a = core::array::from_fn(|i| u64::from(PRIVATE_BASE) << 32 | u64::from(offsets[i]));
        let data = core::array::from_fn(|k| row(if k < B.div_ceil(4) { k } else { 0 }));
        return store_lanes::<B>(w, env, &a, mask, half, data);
    }
    if B < 4 {
        return scatter::<B>(env, &mut swizzled(w, &offsets, 0, half), mask, [&shifted; 4]);
    }
    for k in 0..B / 4 {
        scatter::<4>(env, &mut swizzled(w, &offsets, 4 * k as u32, half), mask, [row(k); 4])?;
    }
    Ok(())
}
