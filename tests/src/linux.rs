// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls for which `nix` has no wrapper that serves the tests. Further calls are in `kfd::linux`.
//!
//! - setpriority(2): `nix` has none.
//! - setresuid(2) of one thread: the C library's, and so that of `nix`, changes all threads of the process.
#![allow(unsafe_code)]

use std::io;

use nix::errno::Errno;
use nix::libc;

/// Has the scheduler prefer this thread, as far as its user may ask for that (nice -20).
pub fn prefer() {
    // SAFETY: the call has no pointer.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// Gives this thread, and no other, the real, effective and saved user id `uid`.
///
/// # Errors
/// The system's answer.
pub fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: the call has no pointer. Other threads keep their user: this process trusts them as before.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    Ok(Errno::result(result).map(drop)?)
}
