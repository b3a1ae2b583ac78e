// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accesses to client memory: plain, unaligned and atomic, by address.
//!
//! INVARIANT: every function here is called only with a range that the held map lock says is mapped; the memory is
//! shared with other processes, so no reference to it is ever made and every access is a copy or an atomic.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

fn ptr<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies bytes out of shared memory.
pub(crate) fn read(address: u64, buffer: &mut [u8]) {
    // SAFETY: the caller checked address..address+len against the map whose lock it holds; the buffer is ours.
    unsafe { std::ptr::copy_nonoverlapping(ptr::<u8>(address), buffer.as_mut_ptr(), buffer.len()) }
}

/// Copies bytes into shared memory.
pub(crate) fn write(address: u64, bytes: &[u8]) {
    // SAFETY: as in `read`, checked for writing.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::<u8>(address), bytes.len()) }
}

/// Reads dwords, misaligned addresses allowed.
#[inline(always)]
pub(crate) fn read_dwords<const N: usize>(address: u64) -> [u32; N] {
    // SAFETY: as in `read`; [u32; N] has no invalid bit patterns.
    unsafe { ptr::<[u32; N]>(address).read_unaligned() }
}

/// Writes dwords, misaligned addresses allowed.
#[inline(always)]
pub(crate) fn write_dwords<const N: usize>(address: u64, value: [u32; N]) {
    // SAFETY: as in `write`.
    unsafe { ptr::<[u32; N]>(address).write_unaligned(value) }
}

/// Reads one byte.
#[inline(always)]
pub(crate) fn read_u8(address: u64) -> u8 {
    // SAFETY: as in `read`.
    unsafe { ptr::<u8>(address).read() }
}

/// Reads two bytes.
#[inline(always)]
pub(crate) fn read_u16(address: u64) -> u16 {
    // SAFETY: as in `read`.
    unsafe { ptr::<u16>(address).read_unaligned() }
}

/// Writes one byte.
#[inline(always)]
pub(crate) fn write_u8(address: u64, value: u8) {
    // SAFETY: as in `write`.
    unsafe { ptr::<u8>(address).write(value) }
}

/// Writes two bytes.
#[inline(always)]
pub(crate) fn write_u16(address: u64, value: u16) {
    // SAFETY: as in `write`.
    unsafe { ptr::<u16>(address).write_unaligned(value) }
}

/// Runs `f` on the atomic at `address`; `None` if it is misaligned.
#[inline(always)]
pub(crate) fn with_atomic_u32<R>(address: u64, f: impl FnOnce(&AtomicU32) -> R) -> Option<R> {
    if address & 3 != 0 {
        return None;
    }
    // SAFETY: checked for writing by the caller, aligned, and only ever accessed atomically during the call by us.
    Some(f(unsafe { AtomicU32::from_ptr(ptr(address)) }))
}

/// Runs `f` on the atomic at `address`; `None` if it is misaligned.
#[inline(always)]
pub(crate) fn with_atomic_u64<R>(address: u64, f: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
    if address & 7 != 0 {
        return None;
    }
    // SAFETY: as in `with_atomic_u32`.
    Some(f(unsafe { AtomicU64::from_ptr(ptr(address)) }))
}

/// Acquire load; a misaligned address is read bytewise.
pub(crate) fn load_acquire_u32(address: u64) -> u32 {
    with_atomic_u32(address, |a| a.load(Ordering::Acquire)).unwrap_or_else(|| read_dwords::<1>(address)[0])
}

/// Acquire load; a misaligned address is read bytewise.
pub(crate) fn load_acquire_u64(address: u64) -> u64 {
    with_atomic_u64(address, |a| a.load(Ordering::Acquire)).unwrap_or_else(|| {
        let [lo, hi] = read_dwords::<2>(address);
        u64::from(lo) | u64::from(hi) << 32
    })
}

/// Release store; a misaligned address is written bytewise.
pub(crate) fn store_release_u32(address: u64, value: u32) {
    if with_atomic_u32(address, |a| a.store(value, Ordering::Release)).is_none() {
        write_dwords(address, [value]);
    }
}

/// Release store; a misaligned address is written bytewise.
pub(crate) fn store_release_u64(address: u64, value: u64) {
    if with_atomic_u64(address, |a| a.store(value, Ordering::Release)).is_none() {
        write_dwords(address, [value as u32, (value >> 32) as u32]);
    }
}

/// Sequentially consistent add; `None` if misaligned.
pub(crate) fn fetch_add_u64(address: u64, value: u64) -> Option<u64> {
    with_atomic_u64(address, |a| a.fetch_add(value, Ordering::SeqCst))
}
