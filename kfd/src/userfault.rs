// SPDX-License-Identifier: MIT OR Apache-2.0
//! Write protection of pages of one process, lifted by another one that learns of the first store (userfaultfd(2)).
//!
//! INVARIANT: a store to a protected page waits until the protection is lifted or the descriptor is closed by everybody;
//! so a process that ends without lifting it stops nobody.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

// include/uapi/linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const USER_MODE_ONLY: libc::c_int = 1;
const FEATURES: u64 = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM;
/// Since Linux 6.4: private pages that were never touched are protected, too.
pub(crate) const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub(crate) const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;

/// The commands.
mod command {
    use super::{Api, Register, WriteProtect};

    nix::ioctl_readwrite!(api, 0xaa, 0x3f, Api);
    nix::ioctl_readwrite!(register, 0xaa, 0x00, Register);
    nix::ioctl_readwrite!(write_protect, 0xaa, 0x06, WriteProtect);
}

#[repr(C)]
#[derive(Debug)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Debug)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Debug)]
struct WriteProtect {
    start: u64,
    bytes: u64,
    mode: u64,
}

/// Pages of a process whose first stores can be awaited.
#[derive(Debug)]
pub struct WatchedPages {
    fd: OwnedFd,
    range: Range<u64>,
}

/// Has pages of this process watched by whoever gets the descriptor, close-on-exec; none is protected yet.
///
/// # Errors
/// EPERM and ENOSYS where the system does not allow it, EINVAL for a kernel that cannot protect shared memory so
/// (before Linux 5.19) and for a range that is not mapped, or not of whole pages.
pub fn watch(range: &Range<u64>) -> Result<OwnedFd, Errno> {
    let fd = open(FEATURES | FEATURE_WP_UNPOPULATED).or_else(|_| open(FEATURES))?;
    register(&fd, range)?;
    Ok(fd)
}

/// Has the stores to a range that is mapped be known to `fd`.
pub(crate) fn register(fd: &OwnedFd, range: &Range<u64>) -> Result<(), Errno> {
    let bytes = range.end.saturating_sub(range.start);
    let mut register = Register { start: range.start, bytes, mode: REGISTER_MODE_WP, ioctls: 0 };
    // SAFETY: the struct is the kernel's, readable and writable; registering changes no memory.
    unsafe { command::register(fd.as_raw_fd(), &raw mut register) }.map(drop)
}

/// A descriptor with these features of this process's memory, for stores that are no system call's.
pub(crate) fn open(features: u64) -> Result<OwnedFd, Errno> {
    let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
    // SAFETY: the call takes no pointer.
    let number = Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
    let number = libc::c_int::try_from(number).map_err(|_| Errno::EBADF)?;
    // SAFETY: the descriptor was just made, and is nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let mut api = Api { api: UFFD_API, features, ioctls: 0 };
    // SAFETY: the struct is the kernel's, readable and writable.
    unsafe { command::api(fd.as_raw_fd(), &raw mut api) }?;
    Ok(fd)
}

impl WatchedPages {
    /// Takes over what [`watch`] made for this range, in whatever process.
    #[must_use]
    pub fn new(fd: OwnedFd, range: Range<u64>) -> Self {
        Self { fd, range }
    }

    /// Protects the pages against stores, or lets stores go on.
    ///
    /// # Errors
    /// ENOENT when the pages are no longer mapped, ESRCH when their process is gone.
    pub fn protect(&self, protected: bool) -> Result<(), Errno> {
        protect(&self.fd, &self.range, protected)
    }

    /// Waits until a store waits for the protection to be lifted.
    ///
    /// # Errors
    /// EINVAL if the descriptor is none of [`watch`]'s, EIO for an event of another kind.
    pub fn wait(&self) -> Result<(), Errno> {
        let mut message = [0; MESSAGE_BYTES];
        let read = crate::linux::retry(|| nix::unistd::read(&self.fd, &mut message))?;
        if read == MESSAGE_BYTES && message[0] == EVENT_PAGEFAULT { Ok(()) } else { Err(Errno::EIO) }
    }
}

/// Protects pages that `fd` knows against stores, or lets stores go on.
pub(crate) fn protect(fd: &OwnedFd, range: &Range<u64>, protected: bool) -> Result<(), Errno> {
    let mode = if protected { WRITEPROTECT_MODE_WP } else { 0 };
    let bytes = range.end.saturating_sub(range.start);
    let mut argument = WriteProtect { start: range.start, bytes, mode };
    loop {
        // SAFETY: the struct is the kernel's, readable and writable; the protection is that of another process'
        // pages, or of pages whose owner asked for it.
        match unsafe { command::write_protect(fd.as_raw_fd(), &raw mut argument) } {
            Ok(_) => return Ok(()),
            // The other process is changing its mappings.
            Err(Errno::EAGAIN | Errno::EINTR) => std::thread::yield_now(),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use memmap2::MmapOptions;

    use super::*;

    #[test]
    fn store_to_protected_pages_waits_until_it_is_let_go_on() {
        let memory = crate::linux::memfd("t", 8192, nix::fcntl::SealFlag::F_SEAL_SHRINK).unwrap();
        let pages = MmapOptions::new().len(8192).map_raw(&memory).unwrap();
        let start = pages.as_mut_ptr().expose_provenance() as u64;
        let range = start..start + 8192;
        let watched = Arc::new(WatchedPages::new(watch(&range).unwrap(), range));
        // SAFETY: the pages are mapped for the whole test, and accessed through atomics only.
        let word = unsafe { &*pages.as_mut_ptr().cast::<AtomicU64>() };
        word.store(1, Ordering::SeqCst);
        for value in 2..20 {
            watched.protect(true).unwrap();
            let stored = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    word.store(value, Ordering::SeqCst);
                    stored.store(true, Ordering::SeqCst);
                });
                watched.wait().unwrap();
                std::thread::sleep(Duration::from_millis(2));
                assert!(!stored.load(Ordering::SeqCst) && word.load(Ordering::SeqCst) == value - 1);
                watched.protect(false).unwrap();
            });
            assert_eq!(word.load(Ordering::SeqCst), value);
        }
        drop(pages);
        assert_eq!(watched.protect(true), Err(Errno::ENOENT));
    }

    #[test]
    fn pages_that_are_not_mapped_cannot_be_watched() {
        assert!(watch(&(4096..8192)).is_err());
        assert!(watch(&(1..2)).is_err());
    }
}
