// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accesses to client memory: plain, unaligned, atomic and in bulk, by address.
//!
//! INVARIANT: the memory is shared with other processes, so no reference to plain data in it is ever made, and every access
//! is a copy or an atomic.
//!
//! Every function here is unsafe, and its contract is the same: the bytes that it reads are mapped readable, those that it
//! writes are mapped writable, and they stay so for the call. The callers keep it by checking the range against
//! [`Map`](crate::vm::Map) while they hold the map's lock.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

fn ptr<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies bytes out of shared memory.
///
/// # Safety
/// `buffer.len()` bytes at `address` are mapped readable for the call.
pub(crate) unsafe fn read(address: u64, buffer: &mut [u8]) {
    // SAFETY: the caller says that the source is readable; the buffer is a Rust slice, which is never shared memory.
    unsafe { std::ptr::copy_nonoverlapping(ptr::<u8>(address), buffer.as_mut_ptr(), buffer.len()) }
}

/// Copies bytes into shared memory.
///
/// # Safety
/// `bytes.len()` bytes at `address` are mapped writable for the call.
pub(crate) unsafe fn write(address: u64, bytes: &[u8]) {
    // SAFETY: the caller says that the destination is writable; the bytes are a Rust slice, which is never shared memory.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::<u8>(address), bytes.len()) }
}

/// Reads dwords, misaligned addresses allowed.
///
/// # Safety
/// `4 * N` bytes at `address` are mapped readable for the call.
#[inline(always)]
pub(crate) unsafe fn read_dwords<const N: usize>(address: u64) -> [u32; N] {
    // SAFETY: the caller says that the bytes are readable; [u32; N] has no invalid bit patterns.
    unsafe { ptr::<[u32; N]>(address).read_unaligned() }
}

/// Writes dwords, misaligned addresses allowed.
///
/// # Safety
/// `4 * N` bytes at `address` are mapped writable for the call.
#[inline(always)]
pub(crate) unsafe fn write_dwords<const N: usize>(address: u64, value: [u32; N]) {
    // SAFETY: the caller says that the bytes are writable.
    unsafe { ptr::<[u32; N]>(address).write_unaligned(value) }
}

/// Reads one byte.
///
/// # Safety
/// The byte at `address` is mapped readable for the call.
#[inline(always)]
pub(crate) unsafe fn read_u8(address: u64) -> u8 {
    // SAFETY: the caller says that the bytes are readable; an integer has no invalid bit patterns.
    unsafe { ptr::<u8>(address).read() }
}

/// Reads two bytes.
///
/// # Safety
/// Two bytes at `address` are mapped readable for the call.
#[inline(always)]
pub(crate) unsafe fn read_u16(address: u64) -> u16 {
    // SAFETY: the caller says that the bytes are readable; an integer has no invalid bit patterns.
    unsafe { ptr::<u16>(address).read_unaligned() }
}

/// Writes one byte.
///
/// # Safety
/// The byte at `address` is mapped writable for the call.
#[inline(always)]
pub(crate) unsafe fn write_u8(address: u64, value: u8) {
    // SAFETY: the caller says that the bytes are writable.
    unsafe { ptr::<u8>(address).write(value) }
}

/// Writes two bytes.
///
/// # Safety
/// Two bytes at `address` are mapped writable for the call.
#[inline(always)]
pub(crate) unsafe fn write_u16(address: u64, value: u16) {
    // SAFETY: the caller says that the bytes are writable.
    unsafe { ptr::<u16>(address).write_unaligned(value) }
}

/// Runs `f` on the atomic at `address`; `None` if it is misaligned.
///
/// # Safety
/// Four bytes at `address` are mapped readable, and writable if `f` writes, for the call.
#[inline(always)]
pub(crate) unsafe fn with_atomic_u32<R>(address: u64, f: impl FnOnce(&AtomicU32) -> R) -> Option<R> {
    if address & 3 != 0 {
        return None;
    }
    // SAFETY: the caller says that it is mapped for what `f` does; it is aligned, and accessed only atomically.
    Some(f(unsafe { AtomicU32::from_ptr(ptr(address)) }))
}

/// Runs `f` on the atomic at `address`; `None` if it is misaligned.
///
/// # Safety
/// Eight bytes at `address` are mapped readable, and writable if `f` writes, for the call.
#[inline(always)]
pub(crate) unsafe fn with_atomic_u64<R>(address: u64, f: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
    if address & 7 != 0 {
        return None;
    }
    // SAFETY: the caller says that it is mapped for what `f` does; it is aligned, and accessed only atomically.
    Some(f(unsafe { AtomicU64::from_ptr(ptr(address)) }))
}

/// Acquire load; a misaligned address is read bytewise.
///
/// # Safety
/// Four bytes at `address` are mapped readable for the call.
pub(crate) unsafe fn load_acquire_u32(address: u64) -> u32 {
    // SAFETY: a load only reads, and the caller says that the four bytes are readable.
    let loaded = unsafe { with_atomic_u32(address, |a| a.load(Ordering::Acquire)) };
    // SAFETY: the caller says that the four bytes at `address` are readable.
    loaded.unwrap_or_else(|| unsafe { read_dwords::<1>(address)[0] })
}

/// Acquire load; a misaligned address is read bytewise.
///
/// # Safety
/// Eight bytes at `address` are mapped readable for the call.
pub(crate) unsafe fn load_acquire_u64(address: u64) -> u64 {
    // SAFETY: a load only reads, and the caller says that the eight bytes are readable.
    let loaded = unsafe { with_atomic_u64(address, |a| a.load(Ordering::Acquire)) };
    loaded.unwrap_or_else(|| {
        // SAFETY: the caller says that the eight bytes at `address` are readable.
        let [lo, hi] = unsafe { read_dwords::<2>(address) };
        u64::from(lo) | u64::from(hi) << 32
    })
}

/// Release store; a misaligned address is written bytewise.
///
/// # Safety
/// Four bytes at `address` are mapped writable for the call.
pub(crate) unsafe fn store_release_u32(address: u64, value: u32) {
    // SAFETY: the caller says that the four bytes are writable, by an atomic store or by parts.
    unsafe {
        if with_atomic_u32(address, |a| a.store(value, Ordering::Release)).is_none() {
            write_dwords(address, [value]);
        }
    }
}

/// Release store; a misaligned address is written bytewise.
///
/// # Safety
/// Eight bytes at `address` are mapped writable for the call.
pub(crate) unsafe fn store_release_u64(address: u64, value: u64) {
    // SAFETY: the caller says that the eight bytes are writable, by an atomic store or by parts.
    unsafe {
        if with_atomic_u64(address, |a| a.store(value, Ordering::Release)).is_none() {
            write_dwords(address, [value as u32, (value >> 32) as u32]);
        }
    }
}

/// Sequentially consistent add; `None` if misaligned.
///
/// # Safety
/// Eight bytes at `address` are mapped writable for the call.
pub(crate) unsafe fn fetch_add_u64(address: u64, value: u64) -> Option<u64> {
    // SAFETY: the caller says that the eight bytes are writable, which on x86-64 makes them readable.
    unsafe { with_atomic_u64(address, |a| a.fetch_add(value, Ordering::SeqCst)) }
}

/// From this size on, bulk accesses bypass the caches: the data is not read again soon, and a store through the caches
/// would fetch every line before overwriting it.
const STREAMED: usize = 512 << 10;

/// Copies bytes from shared to shared memory. For ranges that overlap the result is the same as of a copy through a
/// buffer.
///
/// # Safety
/// `bytes` bytes at `src` are mapped readable, and as many at `dst` writable, for the call.
pub(crate) unsafe fn copy(dst: u64, src: u64, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMED && dst.abs_diff(src) >= bytes as u64 {
        // SAFETY: the caller says that the source is readable and the destination writable; the ranges are further apart than
        // they are long, so they do not overlap.
        return unsafe { stream::copy(dst, src, bytes) };
    }
    // SAFETY: the caller says that the source is readable and the destination writable. Other processes may change the
    // bytes meanwhile; they are only moved, and bytes have no invalid values.
    unsafe { std::ptr::copy(ptr::<u8>(src), ptr::<u8>(dst), bytes) }
}

/// Writes the bytes of `value`, the lowest first, over and over; neither address nor length need be even.
///
/// # Safety
/// `bytes` bytes at `dst` are mapped writable for the call.
pub(crate) unsafe fn fill(dst: u64, value: u32, bytes: usize) {
    let head = bytes.min((dst.wrapping_neg() & 15) as usize);
    let (aligned, rest) = (dst.wrapping_add(head as u64), bytes - head);
    let in_phase = value.rotate_right(8 * (head as u32 & 3));
    let body = rest & !15;
    // SAFETY: head, body and what is left are the parts, one after the other, of what the caller says is writable.
    unsafe {
        fill_bytes(dst, value, head);
        fill_blocks(aligned, in_phase, body);
        // The body is a multiple of 4 bytes: the tail continues with the same byte of the value.
        fill_bytes(aligned.wrapping_add(body as u64), in_phase, rest - body);
    }
}

/// # Safety
/// `bytes` bytes at `dst` are mapped writable for the call.
unsafe fn fill_bytes(dst: u64, value: u32, bytes: usize) {
    for (at, byte) in (0..bytes as u64).zip(value.to_le_bytes().into_iter().cycle()) {
        // SAFETY: `at` is less than `bytes`.
        unsafe { write_u8(dst.wrapping_add(at), byte) };
    }
}

/// `dst` and `bytes` are multiples of 16.
///
/// # Safety
/// `bytes` bytes at `dst` are mapped writable for the call.
unsafe fn fill_blocks(dst: u64, value: u32, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMED {
        // SAFETY: the caller says that `bytes` bytes are writable and that address and length are multiples of 16.
        return unsafe { stream::fill(dst, value, bytes) };
    }
    for at in (0..bytes as u64).step_by(16) {
        // SAFETY: `bytes` is a multiple of 16, so that 16 bytes from `at` lie below it.
        unsafe { write_dwords(dst.wrapping_add(at), [value; 4]) };
    }
}

/// Bulk accesses past the caches, with SSE2, which every x86-64 has.
#[cfg(target_arch = "x86_64")]
mod stream {
    use std::arch::x86_64::*;

    use super::ptr;

    const LINE: usize = 64;
    const PAGE: usize = 4096;
    /// Pages that are copied at the same time: one page alone keeps too few of the memory's banks busy.
    const PAGES: usize = 4;
    const BLOCK: usize = PAGE * PAGES;

    /// # Safety
    /// `bytes` bytes at `src` are mapped readable, and as many at `dst` writable, for the call; the ranges do not overlap.
    pub(super) unsafe fn copy(dst: u64, src: u64, bytes: usize) {
        let head = bytes.min(dst.wrapping_neg() as usize & (LINE - 1));
        let whole = head + (bytes - head) / BLOCK * BLOCK;
        let (dst, src) = (ptr::<u8>(dst), ptr::<u8>(src));
        // SAFETY: everything stays below `bytes` from both addresses, and the caller says that so many bytes are mapped; a
        // prefetch may have any address. `dst + head` is at a line's start, and what is added to it is a multiple of a line.
        // Other processes may change the bytes meanwhile; they are only moved, and bytes have no invalid values.
        unsafe {
            std::ptr::copy_nonoverlapping(src, dst, head);
            for block in (head..whole).step_by(BLOCK) {
                for line in (0..PAGE).step_by(2 * LINE) {
                    for page in 0..PAGES {
                        let at = block + page * PAGE + line;
                        _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + 2 * LINE).cast());
                        _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + 3 * LINE).cast());
                        copy_line(dst.add(at), src.add(at));
                        copy_line(dst.add(at + LINE), src.add(at + LINE));
                    }
                }
            }
            // Streaming stores are ordered with nothing else: what follows must not overtake them.
            _mm_sfence();
            std::ptr::copy_nonoverlapping(src.add(whole), dst.add(whole), bytes - whole);
        }
    }

    /// # Safety
    /// 64 readable bytes at `src`, 64 writable ones at `dst`, which is a multiple of 64.
    #[inline(always)]
    unsafe fn copy_line(dst: *mut u8, src: *const u8) {
        let (dst, src) = (dst.cast::<__m128i>(), src.cast::<__m128i>());
        // SAFETY: the caller says that 64 bytes at `src` are readable, and 64 at `dst`, a multiple of 64, writable; SSE2 is
        // part of x86-64.
        unsafe {
            let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(src.add(part)));
            for (part, value) in parts.into_iter().enumerate() {
                _mm_stream_si128(dst.add(part), value);
            }
        }
    }

    /// # Safety
    /// `bytes` bytes at `dst` are mapped writable for the call; both are multiples of 16.
    pub(super) unsafe fn fill(dst: u64, value: u32, bytes: usize) {
        let dst = ptr::<__m128i>(dst);
        // SAFETY: the caller says that `bytes` bytes are writable; parts of 16 bytes at multiples of 16 stay below that.
        unsafe {
            let value = _mm_set1_epi32(value.cast_signed());
            for part in 0..bytes / 16 {
                _mm_stream_si128(dst.add(part), value);
            }
            // Streaming stores are ordered with nothing else: what follows must not overtake them.
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(buffer: &mut [u8]) -> u64 {
        buffer.as_mut_ptr().expose_provenance() as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn copy_and_fill_equal_their_definition(
            large: bool, extra in 0usize..40_000, dst_at in 0usize..70, src_at in 0usize..70, value: u32,
        ) {
            let bytes = if large { STREAMED + extra } else { extra };
            let mut src: Vec<u8> = (0..bytes + 70).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut dst = vec![0xee_u8; bytes + 140];
            let mut want = dst.clone();
            want[dst_at..dst_at + bytes].copy_from_slice(&src[src_at..src_at + bytes]);
            // SAFETY: both buffers are longer than their range.
            unsafe { copy(address(&mut dst) + dst_at as u64, address(&mut src) + src_at as u64, bytes) };
            prop_assert!(dst == want, "copy");
            for (place, byte) in want[dst_at..dst_at + bytes].iter_mut().zip(value.to_le_bytes().iter().cycle()) {
                *place = *byte;
            }
            // SAFETY: the buffer is longer than the range.
            unsafe { fill(address(&mut dst) + dst_at as u64, value, bytes) };
            prop_assert!(dst == want, "fill");
        }

        #[test]
        fn copy_within_a_buffer_is_as_through_another(
            bytes in 0usize..STREAMED + 5000, dst_at in 0usize..300, src_at in 0usize..300,
        ) {
            let mut buffer: Vec<u8> = (0..bytes + 300).map(|i| (i * 3 + i / 253) as u8).collect();
            let mut want = buffer.clone();
            want.copy_within(src_at..src_at + bytes, dst_at);
            let base = address(&mut buffer);
            // SAFETY: the buffer is longer than both ranges.
            unsafe { copy(base + dst_at as u64, base + src_at as u64, bytes) };
            prop_assert!(buffer == want);
        }
    }
}
