// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the server leaves the client's streams, and how an executor ends.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};

/// Puts `/dev/null` where stdin, stdout and (unless `keep_stderr`) stderr are.
///
/// # Errors
/// What `open` or `dup2` say.
pub(super) fn null_stdio(keep_stderr: bool) -> Result<(), Errno> {
    let null = open("/dev/null", OFlag::O_RDWR, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    if keep_stderr { Ok(()) } else { dup2_stderr(&null) }
}

/// Ends the process as a killed one ends: all threads at the same time (`exit_group`), and no destructor under one that
/// is still executing waves. A process that waits for this one may see the leader ended and its threads still
/// running, for as long as the kernel needs to end them.
pub(super) fn end_all_threads() -> ! {
    kfd::linux::exit_now(0)
}
