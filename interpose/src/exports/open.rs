// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that open files and directories.

use nix::libc::{self, DIR, FILE, c_char, c_int, mode_t};

use super::place::{self, Place};
use super::wrap::exports;
use crate::device;
use crate::errno;

/// Opens what a place says, or has `next` open the path that it gets.
fn open_at(
    place: Option<Place>,
    path: *const c_char,
    flags: c_int,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    match place {
        None => next(path),
        // A path descriptor opens nothing.
        Some(Place::Device { run, path, .. }) if flags & libc::O_PATH == 0 => {
            errno::result(device::open(run, path.as_c_str().to_bytes(), flags))
        }
        Some(place) => next(place.path()),
    }
}

/// As [`open_at`], for a function that takes a path only.
///
/// # Safety
/// As for [`place::of`].
unsafe fn open_path(path: *const c_char, flags: c_int, next: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    open_at(unsafe { place::of(path) }, path, flags, next)
}

/// As [`open_at`], for a function that takes a directory, too.
///
/// # Safety
/// As for [`place::of`].
unsafe fn open_in(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    open_at(unsafe { place::of_at(at, path) }, path, flags, next)
}

// The C library demands a path that ends with a zero byte, or a null pointer.
exports! {
    fn open(path: *const c_char, flags: c_int; mode: mode_t) -> c_int =
        |next| open_path(path, flags, |path| next(path, flags, mode));
    fn open64(path: *const c_char, flags: c_int; mode: mode_t) -> c_int =
        |next| open_path(path, flags, |path| next(path, flags, mode));
    fn __open_2(path: *const c_char, flags: c_int) -> c_int =
        |next| open_path(path, flags, |path| next(path, flags));
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int =
        |next| open_path(path, flags, |path| next(path, flags));
    fn openat(at: c_int, path: *const c_char, flags: c_int; mode: mode_t) -> c_int =
        |next| open_in(at, path, flags, |path| next(at, path, flags, mode));
    fn openat64(at: c_int, path: *const c_char, flags: c_int; mode: mode_t) -> c_int =
        |next| open_in(at, path, flags, |path| next(at, path, flags, mode));
    fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int =
        |next| open_in(at, path, flags, |path| next(at, path, flags));
    fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int =
        |next| open_in(at, path, flags, |path| next(at, path, flags));
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE =
        |next| place::with(path, |path| next(path, mode));
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE =
        |next| place::with(path, |path| next(path, mode));
    fn opendir(path: *const c_char) -> *mut DIR =
        |next| place::with(path, next);
}
