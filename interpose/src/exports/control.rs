// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ioctl`.

use std::ffi::c_void;

use nix::libc::{self, c_int, c_ulong};

use super::wrap::exports;
use crate::busy;
use crate::device;
use crate::errno;

/// Whether the kernel answers a command for every file, before a driver sees it (`do_vfs_ioctl`).
fn is_for_every_file(command: c_ulong) -> bool {
    matches!(command, libc::FIOCLEX | libc::FIONCLEX | libc::FIONBIO | libc::FIOASYNC)
}

exports! {
    fn ioctl(fd: c_int, command: c_ulong; arg: *mut c_void) -> c_int = |next| {
        match device::find(fd).filter(|_| !is_for_every_file(command)) {
            None => next(fd, command, arg),
            // CAST: the kernel takes the lower 32 bits of a command.
            // SAFETY: the driver demands of the argument what the file does.
            Some(opened) => errno::result(busy::inside(|| unsafe {
                opened.file.ioctl(command as u32, arg).map(|value| c_int::try_from(value).unwrap_or(c_int::MAX))
            })),
        }
    };
}
