// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that ask about a path and open nothing.

use std::ffi::CStr;

use nix::libc::{c_char, c_int, size_t, ssize_t};

use super::place;
use super::wrap::exports;
use crate::run;

/// As [`place::with`], of a function that answers an absolute path: one inside the run's directory becomes the path that the
/// program knows.
///
/// # Safety
/// As for [`place::of`]; `next` answers null or a path that it has written and that ends with a zero byte.
unsafe fn resolve(path: *const c_char, next: impl FnOnce(*const c_char) -> *mut c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { place::of(path) }) else { return next(path) };
    let found = next(place.path());
    let Some(run) = run::current().filter(|_| !found.is_null()) else { return found };
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(found) }.to_bytes_with_nul();
    if let Some(rest) = bytes.strip_prefix(&*run.directory).filter(|rest| rest.first() == Some(&b'/')) {
        let (from, length) = (rest.as_ptr(), rest.len());
        // SAFETY: both ranges lie in what `next` has written, and `copy` allows that they overlap.
        unsafe { std::ptr::copy(from, found.cast(), length) };
    }
    found
}

// The C library demands a path that ends with a zero byte, or a null pointer; realpath and
// its kin answer as `resolve` demands.
exports! {
    fn access(path: *const c_char, mode: c_int) -> c_int =
        |next| place::with(path, |path| next(path, mode));
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int =
        |next| place::with(path, |path| next(path, mode));
    fn eaccess(path: *const c_char, mode: c_int) -> c_int =
        |next| place::with(path, |path| next(path, mode));
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int =
        |next| place::with_at(at, path, |path| next(at, path, mode, flags));
    fn readlink(path: *const c_char, into: *mut c_char, bytes: size_t) -> ssize_t =
        |next| place::with(path, |path| next(path, into, bytes));
    fn __readlink_chk(path: *const c_char, into: *mut c_char, bytes: size_t, room: size_t) -> ssize_t =
        |next| place::with(path, |path| next(path, into, bytes, room));
    fn readlinkat(at: c_int, path: *const c_char, into: *mut c_char, bytes: size_t) -> ssize_t =
        |next| place::with_at(at, path, |path| next(at, path, into, bytes));
    fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char =
        |next| resolve(path, |path| next(path, into));
    fn __realpath_chk(path: *const c_char, into: *mut c_char, room: size_t) -> *mut c_char =
        |next| resolve(path, |path| next(path, into, room));
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char =
        |next| resolve(path, next);
}
