// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a call that names a path really goes.

use std::ffi::CStr;

use nix::errno::Errno;
use nix::libc::{self, c_char, c_int};

use crate::descriptor;
use crate::path::{self, Meaning, PATH_BYTES, PathBuffer};
use crate::run::{self, Run};

/// What a path of the program names, if it concerns the driver.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nothing here may allocate")]
pub(super) enum Place {
    /// A device file; `path` is its name to the program, `placeholder` a regular file that stands for it.
    Device { run: &'static Run, path: PathBuffer, placeholder: PathBuffer },
    /// A file of the run's directory, which may be missing.
    File(PathBuffer),
}

impl Place {
    /// A path that the C library's functions take for it.
    pub(super) fn path(&self) -> *const c_char {
        match self {
            Self::Device { placeholder, .. } => placeholder.as_c_str().as_ptr(),
            Self::File(path) => path.as_c_str().as_ptr(),
        }
    }
}

/// Has `next` look at the file that a path names, wherever that is.
///
/// # Safety
/// As for [`of`].
pub(super) unsafe fn with<T>(path: *const c_char, next: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller's promise.
    let place = unsafe { of(path) };
    next(place.as_ref().map_or(path, Place::path))
}

/// As [`with`], of a path that may be relative to a directory.
///
/// # Safety
/// As for [`of`].
pub(super) unsafe fn with_at<T>(at: c_int, path: *const c_char, next: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller's promise.
    let place = unsafe { of_at(at, path) };
    next(place.as_ref().map_or(path, Place::path))
}

/// The place that `path` names; `None` if it is the C library's to look for. Leaves errno alone.
///
/// # Safety
/// `path` is null or ends with a zero byte.
pub(super) unsafe fn of(path: *const c_char) -> Option<Place> {
    if path.is_null() {
        return None;
    }
    let run = run::current()?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path::may_concern(bytes) { of_bytes(run, bytes) } else { None }
}

/// As [`of`], for a path that may be relative to the directory `at`.
///
/// # Safety
/// `path` is null or ends with a zero byte.
pub(super) unsafe fn of_at(at: c_int, path: *const c_char) -> Option<Place> {
    if path.is_null() {
        return None;
    }
    let run = run::current()?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    match bytes.first() {
        Some(b'/') if path::may_concern(bytes) => of_bytes(run, bytes),
        // Whatever else is in a directory of the run's is a file or a directory there.
        Some(b'/') => None,
        _ if path::is_device_name(bytes) => of_device(run, at, bytes),
        _ => None,
    }
}

/// The place of a device file in an open directory.
#[inline(never)] // As `of_bytes`.
fn of_device(run: &'static Run, at: c_int, name: &[u8]) -> Option<Place> {
    let mut buffer = [0; PATH_BYTES];
    let directory = descriptor::path(at, &mut buffer)?;
    let directory = directory.strip_prefix(&*run.directory).unwrap_or(directory);
    let directory = path::join(directory, b"/")?;
    of_bytes(run, path::join(directory.as_c_str().to_bytes(), name)?.as_c_str().to_bytes())
}

#[inline(never)] // A signal handler's stack may have no room for its paths, which most calls do not need.
fn of_bytes(run: &'static Run, bytes: &[u8]) -> Option<Place> {
    let in_run = |path: &PathBuffer| path::join(&run.directory, path.as_c_str().to_bytes());
    match path::meaning(bytes)? {
        Meaning::Kfd => {
            let path = path::join(b"/dev/kfd", b"")?;
            Some(Place::Device { run, placeholder: in_run(&path)?, path })
        }
        Meaning::Render(path) => {
            let placeholder = in_run(&path)?;
            Some(match kind(&placeholder) {
                Some(_) => Place::Device { run, path, placeholder },
                None => Place::File(placeholder),
            })
        }
        Meaning::Claimed(path) => Some(Place::File(in_run(&path)?)),
        Meaning::Shared(path) => {
            let ours = in_run(&path)?;
            // A directory that the host has, too, is the host's.
            let is_ours =
                kind(&ours).is_some_and(|kind| kind != libc::S_IFDIR || self::kind(&path).is_none());
            is_ours.then_some(Place::File(ours))
        }
    }
}

/// The type of a file, if there is one (`S_IFMT`). Leaves errno alone.
fn kind(path: &PathBuffer) -> Option<u32> {
    let errno = Errno::last_raw();
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the path ends with a zero byte; on x86-64 the kernel's struct is the C library's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_newfstatat,
            libc::AT_FDCWD,
            path.as_c_str().as_ptr(),
            status.as_mut_ptr(),
            flags,
        )
    };
    Errno::set_raw(errno);
    // SAFETY: the call succeeded, so that it has written the whole struct.
    (done == 0).then(|| unsafe { status.assume_init() }.st_mode & libc::S_IFMT)
}
