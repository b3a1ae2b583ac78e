// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells a restored copy of a process from the process itself, without anyone's help.
//!
//! The inode of a pidfd is unique per boot (pidfs, Linux 6.9 and newer); CRIU creates a new task, so a restored copy
//! has another one, while everything in its memory is as it was. The boot id covers images moved to another machine.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

/// Which life of this process it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    pid: Pid,
    pidfs_inode: u64,
    boot_id: String,
}

impl Incarnation {
    /// Reads the identity of the calling process.
    ///
    /// # Errors
    /// When `pidfd_open` (Linux 5.3) or `/proc/sys/kernel/random/boot_id` is not to be had.
    pub fn current() -> io::Result<Self> {
        let pid = getpid();
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let pidfs_inode = rustix::fs::fstat(pidfd.as_fd())?.st_ino;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { pid, pidfs_inode, boot_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_is_stable_within_a_process() {
        assert_eq!(Incarnation::current().unwrap(), Incarnation::current().unwrap());
    }
}
