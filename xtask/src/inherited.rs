// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that the caller of this process forgot to close.
//!
//! INVARIANT: no program that a subcommand starts inherits more than the three standard streams. CRIU looks up the
//! mount of every file of a process, and refuses one whose mount is in another namespace: so a CI runner that leaks a
//! single descriptor into its sandbox would make every dump fail.
//!
//! `nix` does not wrap close_range(2).
#![allow(unsafe_code)]

use std::io;

use nix::libc;

/// Marks every descriptor beyond standard error close-on-exec.
///
/// # Errors
/// What `close_range` says; a kernel before 5.11 does not know the flag.
pub(crate) fn close_on_exec() -> io::Result<()> {
    // CAST: the flag is 4.
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: the call closes no descriptor. Programs that are started later do not inherit them; this process passes
    // none on purpose.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
