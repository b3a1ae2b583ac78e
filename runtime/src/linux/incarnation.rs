// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells a restored copy of a process from the process itself, without anyone's help.
//!
//! Each process that asks holds an empty memory file, the *witness*. CRIU makes memory files anew, so a restored copy's
//! witness has another inode and another time of birth, while everything in its memory is as it was. The time covers
//! images that are restored after a boot or on another machine, where an inode may come again.
//!
//! INVARIANT: to look opens no file. CRIU freezes a process wherever it is, and a file that is open for a moment only is
//! dumped like any other: one of `/proc`, or of a process that has ended, may not be there at the restore.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use kfd::linux::{SealFlag, memfd, statx};
use nix::libc::{STATX_BTIME, STATX_CTIME, STATX_INO};
use nix::unistd::{Pid, getpid};

/// Made once a process; a forked child has its parent's, and another pid.
static WITNESS: OnceLock<OwnedFd> = OnceLock::new();

/// Which life of this process it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    pid: Pid,
    inode: u64,
    /// When the witness was made, seconds and nanoseconds.
    born: (i64, u32),
}

impl Incarnation {
    /// The identity of the calling process.
    ///
    /// # Errors
    /// As the system refuses a memory file, at the first call.
    pub fn current() -> io::Result<Self> {
        let witness = match WITNESS.get() {
            Some(witness) => witness,
            None => {
                let made = make_witness()?;
                WITNESS.get_or_init(|| made)
            }
        };
        let found = statx(witness.as_fd(), STATX_INO | STATX_BTIME | STATX_CTIME)?;
        let has_birth = found.stx_mask & STATX_BTIME != 0;
        // Before Linux 5.18 tmpfs keeps no time of birth. Nothing changes the witness, so its last change is its first.
        let time = if has_birth { found.stx_btime } else { found.stx_ctime };
        Ok(Self { pid: getpid(), inode: found.stx_ino, born: (time.tv_sec, time.tv_nsec) })
    }
}

fn make_witness() -> io::Result<OwnedFd> {
    let fixed = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    Ok(memfd("stasis-witness", 0, fixed | SealFlag::F_SEAL_SEAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_is_stable_within_a_process() {
        assert_eq!(Incarnation::current().unwrap(), Incarnation::current().unwrap());
    }
}
