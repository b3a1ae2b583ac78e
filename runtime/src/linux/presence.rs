// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a process is still there, asked without opening a file.
//!
//! INVARIANT: nothing here opens a file. A process asks this while CRIU may freeze it at any instant, and a file of
//! `/proc/PID` that it had open then could not be opened at the restore, when that process is long gone.

use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Whether the process `pid` has ended, reaped or not. One whose first thread has ended counts as ended.
///
/// A later process of the same pid is taken for it. Where a filter forbids `process_vm_readv`, a process that has ended
/// counts as there until it is reaped. A caller that needs to know better reads `/proc` ([`super::process::Process`]).
pub fn has_ended(pid: i32) -> bool {
    // Other numbers stand for groups of processes.
    pid <= 0 || kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH) || has_no_memory(pid)
}

/// A process gives its memory back when it ends, before anybody reaps it: then `process_vm_readv` answers `ESRCH`,
/// whoever asks (`mm_access` in the kernel's `kernel/fork.c`).
fn has_no_memory(pid: i32) -> bool {
    let mut byte = [0u8];
    // Nothing is mapped there, so that nothing of the process is read.
    let remote = RemoteIoVec { base: 0, len: 1 };
    let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut byte)], &[remote]);
    read == Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn has_ended_tells_the_living_from_those_not_reaped_and_those_gone() {
        assert!(!has_ended(std::process::id().cast_signed()));
        assert!(!has_ended(1));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(!has_ended(pid));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !has_ended(pid) {
            assert!(Instant::now() < deadline, "a zombie counts as alive");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(pid));
        assert!(has_ended(i32::MAX) && has_ended(0));
    }
}
