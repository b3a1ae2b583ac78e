// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ioctl` and `fork`.

use std::ffi::c_void;

use kfd::sys::{AMDKFD_IOCTL_BASE, DRM_IOCTL_BASE, ioc_type};
use nix::errno::Errno;
use nix::libc::{self, c_int, c_ulong, pid_t};

use super::wrap::exports;
use crate::busy;
use crate::device;
use crate::errno;
use crate::run;

/// Whether the kernel answers a command for every file, before a driver sees it (`do_vfs_ioctl`).
fn is_for_every_file(command: c_ulong) -> bool {
    matches!(command, libc::FIOCLEX | libc::FIONCLEX | libc::FIONBIO | libc::FIOASYNC)
}

/// Whether a command has the type byte of one of the two drivers.
fn is_drivers(command: u32) -> bool {
    matches!(ioc_type(command), AMDKFD_IOCTL_BASE | DRM_IOCTL_BASE)
}

exports! {
    fn ioctl(fd: c_int, command: c_ulong; arg: *mut c_void) -> c_int = |next| {
        match device::find(fd).filter(|_| !is_for_every_file(command)) {
            // CAST: the kernel takes the lower 32 bits of a command.
            None if is_drivers(command as u32) && run::current().is_some() && device::is_of_another_process(fd) => {
                errno::result(Err(Errno::EBADF))
            }
            None => next(fd, command, arg),
            // CAST: the kernel takes the lower 32 bits of a command.
            // SAFETY: the driver demands of the argument what the file does.
            Some(opened) => errno::result(busy::inside(|| unsafe {
                opened.file.ioctl(command as u32, arg).map(|value| c_int::try_from(value).unwrap_or(c_int::MAX))
            })),
        }
    };

    fn fork() -> pid_t = |next| device::fork(next);
}
