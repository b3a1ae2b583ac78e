// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reservation of the address window: inaccessible pages that hold the place of every buffer object.
//!
//! INVARIANT: every page of the window is either a buffer object's mapping or the reservation, never a hole another
//! mmap could fall into.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::context::registry::arena::{WINDOW_BASE, WINDOW_BYTES, WINDOWS, Window};

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
    let mut last = Errno::EXIST;
    for k in 0..WINDOWS {
        let window = Window { base: WINDOW_BASE + k * WINDOW_BYTES, bytes: WINDOW_BYTES };
        match place(window, MapFlags::FIXED_NOREPLACE) {
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
    // CAST: u64 and usize are the same here.
    let at = std::ptr::without_provenance_mut(window.base as usize);
    // SAFETY: the caller reserved it and nothing is in it but the reservation; failing leaves addresses unused.
    let _ = unsafe { rustix::mm::munmap(at, window.bytes as usize) };
}

/// Puts the reservation back over `[va, va + bytes)`.
///
/// # Errors
/// The errno of mmap.
///
/// # Safety
/// The range must be inside a window of this process and nothing may use what is mapped there.
pub unsafe fn put_back(va: u64, bytes: u64) -> Result<(), Errno> {
    place(Window { base: va, bytes }, MapFlags::FIXED)
}

fn place(window: Window, how: MapFlags) -> Result<(), Errno> {
    // CAST: u64 and usize are the same on every target that has this driver.
    let (wanted, len) = (std::ptr::without_provenance_mut(window.base as usize), window.bytes as usize);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | how;
    // SAFETY: FIXED_NOREPLACE replaces nothing; for FIXED `put_back`'s caller answers.
    let found = unsafe { rustix::mm::mmap_anonymous(wanted, len, ProtFlags::empty(), flags) }?;
    if found != wanted {
        // A kernel before 4.17 takes FIXED_NOREPLACE for a hint.
        // SAFETY: mapped just now by the call above.
        unsafe { rustix::mm::munmap(found, len) }?;
        return Err(Errno::EXIST);
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
        assert_eq!(place(first, MapFlags::FIXED_NOREPLACE), Err(Errno::EXIST));
        // SAFETY: both windows were reserved here and nothing is in them.
        unsafe {
            put_back(first.base + 4096, 8192).unwrap();
            for window in [first, second] {
                let at = std::ptr::without_provenance_mut(window.base as usize);
                rustix::mm::munmap(at, window.bytes as usize).unwrap();
            }
        }
    }

    #[test]
    fn check_names_a_foreign_mapping_and_spares_the_kept() {
        let window = reserve_any().unwrap();
        check(window, &[]).unwrap().unwrap();
        let (from, to) = (window.base + 8192, window.base + 12288);
        let at = std::ptr::without_provenance_mut(from as usize);
        // SAFETY: a page of the window reserved here, with nothing in it.
        unsafe { rustix::mm::mmap_anonymous(at, 4096, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) }
            .unwrap();
        let found = check(window, &[]).unwrap().unwrap_err();
        assert!(matches!(found, WindowError::Occupied { from: f, to: t, .. } if (f, t) == (from, to)));
        check(window, std::slice::from_ref(&(from..to))).unwrap().unwrap();
        release(window);
    }
}
