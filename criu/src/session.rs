// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions that CRIU can dump.

use nix::errno::Errno;
use nix::unistd::{Pid, getpid, getsid, setsid};
use stasis::criu::has_terminal;

/// Begins a session if the leader of this process's session is outside of its pid namespace, as it is for what
/// `unshare --pid --fork` starts: CRIU dumps no task of such a session (`dump_one_task` in its `cr-dump.c`). A process
/// with a terminal keeps it, and its session.
///
/// # Errors
/// EPERM for the leader of a process group.
pub fn begin_if_outside() -> Result<(), Errno> {
    // The kernel names no process of another namespace.
    let is_outside = getsid(None)? == Pid::from_raw(0);
    if is_outside && !has_terminal(getpid().as_raw()) {
        setsid()?;
    }
    Ok(())
}
