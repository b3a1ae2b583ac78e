// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a process whose device cannot come back, and of which a complete checkpoint exists.
//!
//! Its threads wait at a gate that nobody will open. `exit` runs handlers and destructors, which may wait there too, so
//! the process ends without them (`_exit`).

use std::os::fd::AsFd;
use std::time::Duration;

use kfd::linux::{exit_now, poll};
use nix::poll::{PollFd, PollFlags};
use nix::sys::stat::{FileStat, SFlag, fstat};

use crate::checkpoint::Rescue;

/// With which status it ends: `EX_TEMPFAIL` of sysexits.h, for trying again is what helps.
pub(super) const STATUS: i32 = 75;
/// TIMEOUT: how long standard error may take to accept a line.
const LAST_LINE: Duration = Duration::from_secs(1);

/// Says so on standard error, in one line, and ends the process.
pub(super) fn end(rescue: &Rescue) -> ! {
    let pid = std::process::id();
    tracing::error!(target: "checkpoint", status = STATUS, %rescue, "a stranded process ends");
    say(
        std::io::stderr(),
        &format!("stasis: process {pid} ends with status {STATUS}: its render files are gone; {rescue}\n"),
    );
    // Every thread ends at once, and nothing of this process runs.
    exit_now(STATUS)
}

/// Writes a line where it can be read at once. A file that the process has open must stay as long as it was at the
/// checkpoint: CRIU would not restore it.
fn say(to: impl AsFd, line: &str) {
    let is_file = |stat: FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    if fstat(&to).is_ok_and(is_file) {
        return;
    }
    let mut fds = [PollFd::new(to.as_fd(), PollFlags::POLLOUT)];
    if matches!(poll(&mut fds, Some(LAST_LINE)), Ok(1)) {
        // Whether somebody reads it does not matter to the process.
        let _ = nix::unistd::write(&to, line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn last_line_goes_to_a_pipe_that_is_read_and_to_no_file() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        say(&writer, "last\n");
        let mut text = [0; 5];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"last\n");
        let file = tempfile::tempfile().unwrap();
        say(&file, "last\n");
        assert_eq!(file.metadata().unwrap().len(), 0);
        // A pipe that is full and not read costs a second, not the end.
        kfd::linux::set_nonblocking(&writer, true).unwrap();
        while nix::unistd::write(&writer, &[0; 4096]).is_ok() {}
        kfd::linux::set_nonblocking(&writer, false).unwrap();
        say(&writer, "last\n");
    }
}
