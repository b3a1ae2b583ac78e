// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `stat` family: a file of the device is a character device with the numbers that the driver's files have.

use std::ffi::CStr;

use nix::libc::{self, c_char, c_int, c_uint, dev_t};

use super::place::{self, Place};
use super::wrap::exports;
use crate::device;

/// Makes the status of a placeholder or of a memfd that of a character device.
fn make_device(status: &mut libc::stat, number: dev_t) {
    status.st_mode = status.st_mode & !(libc::S_IFMT | 0o777) | libc::S_IFCHR | 0o666;
    status.st_rdev = number;
    status.st_size = 0;
}

/// Has `next` look at what a place says, and corrects what it finds.
///
/// # Safety
/// `next` writes `status` if it answers 0.
unsafe fn look(
    place: Option<Place>,
    path: *const c_char,
    status: *mut libc::stat,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    let Some(place) = place else { return next(path) };
    let done = next(place.path());
    if let (0, Place::Device { run, path, .. }) = (done, &place) {
        // SAFETY: the caller's promise; the program's struct is not in use while it calls.
        make_device(unsafe { &mut *status }, run.number(path.as_c_str().to_bytes()));
    }
    done
}

/// As [`look`], for a path.
///
/// # Safety
/// As for [`look`] and [`place::of`].
unsafe fn look_path(
    path: *const c_char,
    status: *mut libc::stat,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { look(place::of(path), path, status, next) }
}

/// As [`look`], for a path relative to a descriptor, or for that itself.
///
/// # Safety
/// As for [`look`] and [`place::of`].
unsafe fn look_at(
    at: c_int,
    path: *const c_char,
    status: *mut libc::stat,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match is_empty(path) {
            true => look_descriptor(status, || next(path)),
            false => look(place::of_at(at, path), path, status, next),
        }
    }
}

/// Corrects what `next` finds of a descriptor.
///
/// # Safety
/// As for [`look`].
unsafe fn look_descriptor(status: *mut libc::stat, next: impl FnOnce() -> c_int) -> c_int {
    let done = next();
    if done == 0 {
        // SAFETY: the caller's promise; the program's struct is not in use while it calls.
        let status = unsafe { &mut *status };
        if let Some(opened) = device::find_status(status) {
            make_device(status, opened.number);
        }
    }
    done
}

/// Whether a path is the empty one, which means a descriptor.
///
/// # Safety
/// As for [`place::of`].
unsafe fn is_empty(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && unsafe { CStr::from_ptr(path) }.is_empty()
}

/// `statx`, whose struct is another one.
///
/// # Safety
/// As for [`look`] and [`place::of`].
unsafe fn look_extended(
    at: c_int,
    path: *const c_char,
    status: *mut libc::statx,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let place = unsafe { if is_empty(path) { None } else { place::of_at(at, path) } };
    let done = next(place.as_ref().map_or(path, Place::path));
    if done != 0 {
        return done;
    }
    let number = match &place {
        Some(Place::Device { run, path, .. }) => Some(run.number(path.as_c_str().to_bytes())),
        Some(Place::File(_)) => None,
        None => device::find(at).map(|opened| opened.number),
    };
    if let Some(number) = number {
        // SAFETY: the caller's promise; the program's struct is not in use while it calls.
        let status = unsafe { &mut *status };
        // CAST: the bits of a mode are the lower 16.
        status.stx_mode = (libc::S_IFCHR | 0o666) as u16;
        (status.stx_rdev_major, status.stx_rdev_minor) = (libc::major(number), libc::minor(number));
        status.stx_size = 0;
    }
    done
}

// The C library demands a path that ends with a zero byte, or a null pointer, and a struct
// that it writes if it answers 0. `stat64` is `stat` on x86-64.
exports! {
    fn stat(path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(path, status));
    fn stat64(path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(path, status));
    fn lstat(path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(path, status));
    fn lstat64(path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(path, status));
    fn fstat(fd: c_int, status: *mut libc::stat) -> c_int =
        |next| look_descriptor(status, || next(fd, status));
    fn fstat64(fd: c_int, status: *mut libc::stat) -> c_int =
        |next| look_descriptor(status, || next(fd, status));
    fn fstatat(at: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int =
        |next| look_at(at, path, status, |path| next(at, path, status, flags));
    fn fstatat64(at: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int =
        |next| look_at(at, path, status, |path| next(at, path, status, flags));
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx) -> c_int =
        |next| look_extended(at, path, status, |path| next(at, path, flags, mask, status));
    fn __xstat(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(version, path, status));
    fn __xstat64(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(version, path, status));
    fn __lxstat(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(version, path, status));
    fn __lxstat64(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int =
        |next| look_path(path, status, |path| next(version, path, status));
    fn __fxstat(version: c_int, fd: c_int, status: *mut libc::stat) -> c_int =
        |next| look_descriptor(status, || next(version, fd, status));
    fn __fxstat64(version: c_int, fd: c_int, status: *mut libc::stat) -> c_int =
        |next| look_descriptor(status, || next(version, fd, status));
    fn __fxstatat(version: c_int, at: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int =
        |next| look_at(at, path, status, |path| next(version, at, path, status, flags));
    fn __fxstatat64(version: c_int, at: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int =
        |next| look_at(at, path, status, |path| next(version, at, path, status, flags));
}
