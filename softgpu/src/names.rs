// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of the device's memory, as `/proc` shows them.
//!
//! A name ends with a colon and 16 random hex digits, so that it is the name of one memory on this machine. By its name
//! memory is found again after CRIU has restored the client: CRIU keeps the names of memfds and not their inodes.
//!
//! INVARIANT: in a process of the server's own every name begins with `softgpu`, by which clients know the memory that
//! they were given. A process that has a device of its own ([`crate::in_process`]) has the device's memory beside what
//! a client was given; there the names begin otherwise, since no name could tell the two apart.

use std::borrow::Cow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

const OF_SERVERS: &str = "softgpu";
/// What names begin with in a process that has a device of its own.
pub(crate) const IN_PROCESS: &str = "own-gpu";

static IS_IN_PROCESS: AtomicBool = AtomicBool::new(false);

/// Names all memory from now on as that of a process that has a device of its own.
pub(crate) fn be_in_process() {
    // ORDERING: Relaxed, since whoever makes the first device has the names that its memory gets.
    IS_IN_PROCESS.store(true, Ordering::Relaxed);
}

/// What names begin with here.
pub(crate) fn prefix() -> &'static str {
    if IS_IN_PROCESS.load(Ordering::Relaxed) { IN_PROCESS } else { OF_SERVERS }
}

/// A name for new memory that is called `name` in a server; no other memory has it.
///
/// # Errors
/// The errno of getrandom(2).
pub(crate) fn unique(name: &str) -> Result<String, Errno> {
    let name = match name.strip_prefix(OF_SERVERS) {
        Some(rest) if prefix() != OF_SERVERS => Cow::Owned(format!("{}{rest}", prefix())),
        _ => Cow::Borrowed(name),
    };
    kfd::linux::unique_name(&format!("{name}:"))
}

/// The name that a memfd was made with; `None` for other files.
pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn unique_adds_sixteen_digits_that_are_new_each_time() {
        let (first, second) = (unique("softgpu:gtt:7").unwrap(), unique("softgpu:gtt:7").unwrap());
        assert_ne!(first, second);
        let digits = first.strip_prefix("softgpu:gtt:7:").unwrap();
        assert!(digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{digits}");
    }

    #[test]
    fn of_gives_the_name_of_a_memfd_and_of_no_other_file() {
        let fd = kfd::linux::memfd("some:name", 0, kfd::linux::SealFlag::empty()).unwrap();
        assert_eq!(of(fd.as_fd()).as_deref(), Some("some:name"));
        assert_eq!(of(std::fs::File::open("/dev/null").unwrap().as_fd()), None);
    }
}
