// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reservation of the address window: inaccessible pages that hold the place of every buffer object.
//!
//! INVARIANT: every page of the window is either a buffer object's mapping or the reservation, never a hole another
//! mmap could fall into.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use queues::words::size;

use crate::context::registry::arena::{WINDOW_BASE, WINDOW_BYTES, WINDOWS, Window};

/// What the CPU may do with memory that is mapped in the window.
pub const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// Why no window could be reserved.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// All candidates are taken.
    #[error(
        "Cannot reserve 1 TiB of addresses: all {tried} windows from 16 TiB on are taken or refused (last: {errno}); \
         check `ulimit -v` and what is mapped there"
    )]
    Taken {
        /// Windows tried.
        tried: u64,
        /// Why the last one could not be had.
        errno: Errno,
    },
    /// Something else was mapped over the reservation.
    #[error(
        "The address window at {base:#x} is taken: something else is mapped at {from:#x}-{to:#x}; unmap that and try \
         again"
    )]
    Occupied {
        /// First address of the window.
        base: u64,
        /// First address of the foreign mapping.
        from: u64,
        /// First address after it.
        to: u64,
    },
}

/// Reserves the first free window.
///
/// # Errors
/// [`WindowError::Taken`].
pub fn reserve_any() -> Result<Window, WindowError> {
    let mut last = Errno::EEXIST;
    for k in 0..WINDOWS {
        let window = Window { base: WINDOW_BASE + k * WINDOW_BYTES, bytes: WINDOW_BYTES };
        match place(window, MapFlags::MAP_FIXED_NOREPLACE) {
            Ok(()) => return Ok(window),
            Err(errno) => last = errno,
        }
    }
    Err(WindowError::Taken { tried: WINDOWS, errno: last })
}

/// Makes sure that `window` holds nothing but the reservation and, at the addresses of `kept`, what is ours. Whoever
/// maps something there without asking would otherwise lose it to the next buffer object.
///
/// # Errors
/// [`WindowError::Occupied`]; a failure to read `/proc/self/maps`.
pub fn check(window: Window, kept: &[Range<u64>]) -> io::Result<Result<(), WindowError>> {
    let end = window.base + window.bytes;
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        let Some((from, to)) = range.split_once('-').and_then(|(from, to)| {
            Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
        }) else {
            continue;
        };
        let is_reservation = access == "---p" && fields.nth(2) == Some("0");
        let is_kept = kept.iter().any(|kept| kept.start <= from && to <= kept.end);
        if from < end && window.base < to && !is_reservation && !is_kept {
            return Ok(Err(WindowError::Occupied { base: window.base, from, to }));
        }
    }
    Ok(Ok(()))
}

/// Gives a window up in which nothing is mapped.
pub fn release(window: Window) {
    let Some(at) = NonNull::new(std::ptr::without_provenance_mut(size(window.base))) else { return };
    // SAFETY: the caller reserved it and nothing is in it but the reservation; failing leaves addresses unused.
    let _ = unsafe { munmap(at, size(window.bytes)) };
}

/// Puts the reservation back over `[va, va + bytes)`.
///
/// # Errors
/// The errno of mmap.
///
/// # Safety
/// The range must be inside a window of this process and nothing may use what is mapped there.
pub unsafe fn put_back(va: u64, bytes: u64) -> Result<(), Errno> {
    place(Window { base: va, bytes }, MapFlags::MAP_FIXED)
}

fn place(window: Window, how: MapFlags) -> Result<(), Errno> {
    // CAST: u64 and usize are the same on every target that has this driver.
    let (wanted, length) = (NonZeroUsize::new(size(window.base)), NonZeroUsize::new(size(window.bytes)));
    let (wanted, length) = wanted.zip(length).ok_or(Errno::EINVAL)?;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | how;
    // SAFETY: FIXED_NOREPLACE replaces nothing; for FIXED `put_back`'s caller answers.
    let found = unsafe { mmap_anonymous(Some(wanted), length, ProtFlags::PROT_NONE, flags) }?;
    if found.addr() != wanted {
        // A kernel before 4.17 takes FIXED_NOREPLACE for a hint.
        // SAFETY: mapped just now by the call above.
        unsafe { munmap(found, length.get()) }?;
        return Err(Errno::EEXIST);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_skips_a_taken_window() {
        // The harness may run tests side by side: only the relation between two reservations is asserted.
        let first = reserve_any().unwrap();
        let second = reserve_any().unwrap();
        assert!(second.base > first.base);
        assert_eq!(place(first, MapFlags::MAP_FIXED_NOREPLACE), Err(Errno::EEXIST));
        // SAFETY: both windows were reserved here and nothing is in them.
        unsafe {
            put_back(first.base + 4096, 8192).unwrap();
            for window in [first, second] {
                let at = NonNull::new(std::ptr::without_provenance_mut(window.base as usize)).unwrap();
                munmap(at, window.bytes as usize).unwrap();
            }
        }
    }

    #[test]
    fn check_names_a_foreign_mapping_and_spares_the_kept() {
        let window = reserve_any().unwrap();
        check(window, &[]).unwrap().unwrap();
        let (from, to) = (window.base + 8192, window.base + 12288);
        let (at, flags) = (NonZeroUsize::new(from as usize), MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED);
        let page = NonZeroUsize::new(4096).unwrap();
        // SAFETY: a page of the window reserved here, with nothing in it.
        unsafe { mmap_anonymous(at, page, ProtFlags::PROT_READ, flags) }.unwrap();
        let found = check(window, &[]).unwrap().unwrap_err();
        assert!(matches!(found, WindowError::Occupied { from: f, to: t, .. } if (f, t) == (from, to)));
        check(window, std::slice::from_ref(&(from..to))).unwrap().unwrap();
        release(window);
    }
}
