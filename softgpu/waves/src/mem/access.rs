// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gather and scatter of one half wave: one range check for all lanes, then the cheapest access pattern.
//!
//! INVARIANT: memory is accessed only after `Env::allows` has allowed a range that contains the access; a scatter
//! checks every lane before it writes the first.
#![allow(unsafe_code)]

use super::{pattern, raw};
use crate::env::Env;
use crate::exception::AccessKind;
use crate::valu::shapes::Lanes64;
use crate::vm::MemoryFault;
use crate::wave::Lanes;

/// `N` dwords per lane, register-major.
pub(crate) type Rows<const N: usize> = [Lanes; N];

/// Gives inactive lanes the address of the first active one, so that whole-half loops stay in range.
#[inline(always)]
fn settle(a: &mut Lanes64, mask: u32) {
    if mask != u32::MAX {
        let first = a[mask.trailing_zeros() as usize & 31];
        for i in 0..32 {
            a[i] = if mask >> i & 1 != 0 { a[i] } else { first };
        }
    }
}

/// Whether lanes are `B` bytes apart, and whether all are equal.
#[inline(always)]
fn spacing<const B: usize>(a: &Lanes64) -> (bool, bool) {
    // Counting keeps the tests in vector registers; the compiler would split an OR of differences into scalar compares.
    let (mut gaps, mut unequal) = (0u64, 0u64);
    for i in 0..32 {
        gaps += u64::from(a[i] != a[0].wrapping_add((i * B) as u64));
        unequal += u64::from(a[i] != a[0]);
    }
    (gaps == 0, unequal == 0)
}

/// Whether all lanes' `len` bytes lie in the allowed range around the first lane.
#[inline(always)]
fn in_one_range(env: &mut Env<'_>, a: &Lanes64, len: u64, kind: AccessKind) -> bool {
    let Some((start, end)) = env.range_of(a[0], kind) else { return false };
    let Some(last) = end.checked_sub(len) else { return false };
    let mut outside = 0u64;
    for &x in a {
        outside += u64::from((x < start) | (x > last));
    }
    outside == 0
}

/// Reads `B` bytes (1, 2, 4, 8, 12 or 16) as dwords; `S` sign-extends the short ones.
///
/// # Safety
/// `B` bytes at `address` are mapped readable for the call.
#[inline(always)]
unsafe fn read_one<const B: usize, const S: bool>(address: u64) -> [u32; 4] {
    // SAFETY: each arm reads `B` bytes, which the caller says are readable.
    unsafe {
        match B {
            1 if S => [raw::read_u8(address) as i8 as u32, 0, 0, 0],
            1 => [u32::from(raw::read_u8(address)), 0, 0, 0],
            2 if S => [raw::read_u16(address) as i16 as u32, 0, 0, 0],
            2 => [u32::from(raw::read_u16(address)), 0, 0, 0],
            4 => [raw::read_dwords::<1>(address)[0], 0, 0, 0],
            8 => {
                let [x, y] = raw::read_dwords(address);
                [x, y, 0, 0]
            }
            12 => {
                let [x, y, z] = raw::read_dwords(address);
                [x, y, z, 0]
            }
            _ => raw::read_dwords(address),
        }
    }
}

/// Writes the low `B` bytes (1, 2, 4, 8, 12 or 16) of the dwords.
///
/// # Safety
/// `B` bytes at `address` are mapped writable for the call.
#[inline(always)]
unsafe fn write_one<const B: usize>(address: u64, v: [u32; 4]) {
    // SAFETY: each arm writes `B` bytes, which the caller says are writable.
    unsafe {
        match B {
            1 => raw::write_u8(address, v[0] as u8),
            2 => raw::write_u16(address, v[0] as u16),
            4 => raw::write_dwords(address, [v[0]]),
            8 => raw::write_dwords(address, [v[0], v[1]]),
            12 => raw::write_dwords(address, [v[0], v[1], v[2]]),
            _ => raw::write_dwords(address, v),
        }
    }
}

#[cold]
#[inline(never)]
fn check_lanes(
    env: &mut Env<'_>,
    a: &Lanes64,
    mask: u32,
    len: u64,
    kind: AccessKind,
) -> Result<(), MemoryFault> {
    for (i, &address) in a.iter().enumerate() {
        if mask >> i & 1 != 0 && !env.allows(address, address.wrapping_add(len), kind) {
            return Err(env.fault(address, len, kind));
        }
    }
    Ok(())
}

/// Addresses of lanes 0 and 16 when each 16 lanes are `B` bytes apart; `hi` is the row of high dwords, if there is one.
#[inline(always)]
pub(crate) fn runs<const B: u32>(base: u64, lo: &Lanes, hi: Option<&Lanes>) -> Option<[u64; 2]> {
    let [a, b] = pattern::halves(lo);
    if !pattern::run16::<B>(a) || !pattern::run16::<B>(b) {
        return None;
    }
    let mut start = [base.wrapping_add(u64::from(a[0])), base.wrapping_add(u64::from(b[0]))];
    if let Some(hi) = hi {
        let [a, b] = pattern::halves(hi);
        if !pattern::equal16(a) || !pattern::equal16(b) {
            return None;
        }
        start[0] = start[0].wrapping_add(u64::from(a[0]) << 32);
        start[1] = start[1].wrapping_add(u64::from(b[0]) << 32);
    }
    Some(start)
}

/// Loads two runs of 16 lanes, `N` dwords each; `false` if they are not both readable.
#[inline(always)]
pub(crate) fn read_runs<const N: usize>(env: &mut Env<'_>, start: [u64; 2], out: &mut Rows<N>) -> bool {
    let bytes = 64 * N as u64;
    if !start.iter().all(|&a| env.allows(a, a.wrapping_add(bytes), AccessKind::Read)) {
        return false;
    }
    for (k, a) in start.into_iter().enumerate() {
        if N == 1 {
            // SAFETY: 64 readable bytes, as `allows` said; `env` holds the map's lock.
            let words: [u32; 16] = unsafe { raw::read_dwords(a) };
            out[0][16 * k..16 * k + 16].copy_from_slice(&words);
        } else {
            for i in 0..16 {
                // SAFETY: one of 16 parts of the `64 * N` bytes that `allows` said are readable.
                let words: [u32; N] = unsafe { raw::read_dwords(a.wrapping_add((i * N * 4) as u64)) };
                for n in 0..N {
                    out[n][16 * k + i] = words[n];
                }
            }
        }
    }
    true
}

/// Stores two runs of 16 lanes; `false` (and nothing written) if they are not both writable.
#[inline(always)]
pub(crate) fn write_runs<const B: usize>(env: &mut Env<'_>, start: [u64; 2], data: [&Lanes; 4]) -> bool {
    let bytes = 16 * B as u64;
    if !start.iter().all(|&a| env.allows(a, a.wrapping_add(bytes), AccessKind::Write)) {
        return false;
    }
    for (k, a) in start.into_iter().enumerate() {
        if B == 4 {
            // SAFETY: 64 writable bytes, as `allows` said; `env` holds the map's lock.
            unsafe { raw::write_dwords(a, *pattern::halves(data[0])[k]) };
        } else {
            for i in 0..16 {
                let lane = 16 * k + i;
                let dwords = [data[0][lane], data[1][lane], data[2][lane], data[3][lane]];
                // SAFETY: one of 16 parts of the `16 * B` bytes that `allows` said are writable.
                unsafe { write_one::<B>(a.wrapping_add((i * B) as u64), dwords) };
            }
        }
    }
    true
}

/// Loads 32 adjacent lanes, `N` dwords each.
///
/// # Safety
/// `128 * N` bytes at `address` are mapped readable for the call.
#[inline(always)]
unsafe fn read_block<const N: usize>(address: u64, out: &mut Rows<N>) {
    let block: [[u32; N]; 32] = {
        let mut block = [[0u32; N]; 32];
        for (i, b) in block.iter_mut().enumerate() {
            // SAFETY: one of 32 parts of what the caller says is readable.
            *b = unsafe { raw::read_dwords(address.wrapping_add((i * N * 4) as u64)) };
        }
        block
    };
    for k in 0..N {
        for i in 0..32 {
            out[k][i] = block[i][k];
        }
    }
}

/// Loads `B` bytes of each lane in `mask`; other lanes of `out` are arbitrary. `a` is clobbered.
///
/// # Errors
/// The fault of the first active lane (in lane order) that is not readable.
#[inline(always)]
pub(crate) fn gather<const B: usize, const N: usize, const S: bool>(
    env: &mut Env<'_>,
    a: &mut Lanes64,
    mask: u32,
    out: &mut Rows<N>,
) -> Result<(), MemoryFault> {
    if mask == 0 {
        return Ok(());
    }
    settle(a, mask);
    let (run, equal) = spacing::<B>(a);
    if B >= 4 && run && env.allows(a[0], a[0].wrapping_add(32 * B as u64), AccessKind::Read) {
        const { assert!(B < 4 || B == 4 * N) };
        // SAFETY: `32 * B` readable bytes, as `allows` said, and `B` is `4 * N`; `env` holds the map's lock.
        unsafe {
            if B == 4 {
                out[0] = raw::read_dwords(a[0]);
            } else {
                read_block::<N>(a[0], out);
            }
        }
        return Ok(());
    }
    if !in_one_range(env, a, B as u64, AccessKind::Read) {
        check_lanes(env, a, mask, B as u64, AccessKind::Read)?;
    }
    // Each active lane's bytes are readable, and `settle` gave the others an active lane's address.
    if equal {
        // SAFETY: all lanes have an active lane's address, whose `B` bytes were checked readable; `env` holds the map's lock.
        let v = unsafe { read_one::<B, S>(a[0]) };
        for k in 0..N {
            out[k] = [v[k]; 32];
        }
        return Ok(());
    }
    for i in 0..32 {
        // SAFETY: the lane has its own address or, if it is inactive, that of an active lane; the `B` bytes of every
        // active lane were checked readable; `env` holds the map's lock.
        let v = unsafe { read_one::<B, S>(a[i]) };
        for k in 0..N {
            out[k][i] = v[k];
        }
    }
    Ok(())
}

/// Stores `B` bytes of each lane in `mask`, lowest lane first.
///
/// # Errors
/// The fault of the first active lane that is not writable; then nothing is written.
#[inline(always)]
pub(crate) fn scatter<const B: usize>(
    env: &mut Env<'_>,
    a: &mut Lanes64,
    mask: u32,
    data: [&Lanes; 4],
) -> Result<(), MemoryFault> {
    if mask == 0 {
        return Ok(());
    }
    settle(a, mask);
    let (run, _) = spacing::<B>(a);
    if B >= 4
        && run
        && mask == u32::MAX
        && env.allows(a[0], a[0].wrapping_add(32 * B as u64), AccessKind::Write)
    {
        // SAFETY: lanes are `B` bytes apart, and `allows` said that all `32 * B` are writable; `env` holds the map's lock.
        unsafe {
            if B == 4 {
                raw::write_dwords(a[0], *data[0]);
            } else {
                for i in 0..32 {
                    write_one::<B>(a[i], [data[0][i], data[1][i], data[2][i], data[3][i]]);
                }
            }
        }
        return Ok(());
    }
    if !in_one_range(env, a, B as u64, AccessKind::Write) {
        check_lanes(env, a, mask, B as u64, AccessKind::Write)?;
    }
    let mut left = mask;
    while left != 0 {
        let i = left.trailing_zeros() as usize & 31;
        left &= left - 1;
        // SAFETY: lane `i` is active: its bytes are in the range of the first lane or were checked by themselves, and
        // `env` holds the map's lock.
        unsafe { write_one::<B>(a[i], [data[0][i], data[1][i], data[2][i], data[3][i]]) };
    }
    Ok(())
}
