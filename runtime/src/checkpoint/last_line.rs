// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process says that ends because of its checkpoint.

use std::os::fd::AsFd;
use std::time::Duration;

use kfd::linux::poll;
use nix::poll::{PollFd, PollFlags};
use nix::sys::stat::{FileStat, SFlag, fstat};

/// TIMEOUT: how long standard error may take to accept a line.
const LAST_LINE: Duration = Duration::from_secs(1);

/// Writes a line where it can be read at once. A file that the process has open must stay as long as it was at the
/// checkpoint: CRIU would not restore it.
pub(super) fn say(to: impl AsFd, line: &str) {
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
