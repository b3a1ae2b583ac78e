// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of files: attributes, status, seals, and who has them open.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
pub use nix::fcntl::SealFlag;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::moved;

/// Whether a file has an extended attribute of at least one byte.
///
/// # Errors
/// The errno of getxattr(2) but ENODATA and ENOTSUP, which stand for none; EINVAL for a path or name with a zero byte.
pub fn has_attribute(path: &Path, name: &str) -> Result<bool, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: both names are strings; a length of 0 asks only for the size, so that nothing is written.
    let bytes = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    match moved(bytes) {
        Ok(bytes) => Ok(bytes > 0),
        Err(Errno::ENODATA | Errno::ENOTSUP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The extended attribute of an open file, of which at most `most` bytes are wanted; none if there is none.
///
/// # Errors
/// The errno of fgetxattr(2) but ENODATA and ENOTSUP, which stand for none; ERANGE for a longer one, EINVAL for a name with a
/// zero byte.
pub fn attribute(fd: BorrowedFd<'_>, name: &str, most: usize) -> Result<Option<Vec<u8>>, Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let mut value = vec![0u8; most];
    // SAFETY: the name is a string, and `value` has as many bytes as the call may write.
    let bytes = unsafe { libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), most) };
    match moved(bytes) {
        Ok(bytes) => {
            value.truncate(bytes);
            Ok(Some(value))
        }
        Err(Errno::ENODATA | Errno::ENOTSUP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Gives an open file an extended attribute, in place of one of the same name.
///
/// # Errors
/// The errno of fsetxattr(2): ENOTSUP for a file that has none, as memfds before Linux 6.6. EINVAL for a name with a zero byte.
pub fn set_attribute(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<(), Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the name is a string, and the call reads as many bytes as `value` has.
    let result =
        unsafe { libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(result).map(drop)
}

/// How many pages of a part of a file, which are not read for this, are in the page cache or on the way there.
///
/// # Errors
/// The errno of cachestat(2) (include/uapi/linux/mman.h): ENOSYS before Linux 6.5, EPERM if the caller could not write the file.
pub fn cached_pages(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<u64, Errno> {
    /// On all CPUs (scripts/syscall.tbl).
    const CACHESTAT: libc::c_long = 451;
    /// `struct cachestat_range`: offset and length.
    #[repr(C)]
    struct Part(u64, u64);
    /// `struct cachestat`: pages that are cached, dirty, being written, evicted, and evicted a short time ago.
    #[repr(C)]
    #[derive(Default)]
    struct Pages(u64, u64, u64, u64, u64);
    let (part, mut pages) = (Part(offset, bytes), Pages::default());
    // SAFETY: the kernel reads the one struct and writes the other; both have its layout.
    let result = unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), &raw const part, &raw mut pages, 0) };
    Errno::result(result)?;
    Ok(pages.0)
}

/// What statx(2) says of an open file: the fields that `mask` asks for, if the file system has them.
///
/// # Errors
/// The errno of statx(2).
pub fn statx(fd: BorrowedFd<'_>, mask: u32) -> Result<libc::statx, Errno> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let path = c"".as_ptr();
    // SAFETY: the path is a string, and the kernel writes one struct into the local.
    let result = unsafe { libc::statx(fd.as_raw_fd(), path, libc::AT_EMPTY_PATH, mask, found.as_mut_ptr()) };
    Errno::result(result)?;
    // SAFETY: zero is a value of each of the struct's fields, and the kernel wrote the others.
    Ok(unsafe { found.assume_init() })
}

/// A zeroed memfd of `bytes` bytes with these seals, close-on-exec.
///
/// # Errors
/// The errno of memfd_create(2), ftruncate(2) or fcntl(2), EOVERFLOW if `bytes` exceeds `i64`.
pub fn memfd(name: &str, bytes: u64, seals: SealFlag) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    nix::unistd::ftruncate(&fd, i64::try_from(bytes).map_err(|_| Errno::EOVERFLOW)?)?;
    if !seals.is_empty() {
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    }
    Ok(fd)
}

/// The seals of a memfd.
///
/// # Errors
/// EINVAL for another file.
pub fn seals(fd: impl AsFd) -> Result<SealFlag, Errno> {
    fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain)
}

/// Whether anybody has the file of a read-only descriptor open to write it: the kernel gives no read lease then (`fs/locks.c`,
/// `check_conflicting_open`). It does not count the descriptor that a memfd was made with. True, too, where it gives no leases of
/// such files.
pub fn has_writer(read_only: impl AsFd) -> bool {
    let fd = read_only.as_fd().as_raw_fd();
    // SAFETY: a lease names no memory.
    let lease = |kind: libc::c_int| Errno::result(unsafe { libc::fcntl(fd, libc::F_SETLEASE, kind) });
    if lease(libc::F_RDLCK).is_err() {
        return true;
    }
    // A lease has its holder signalled when another opens the file.
    let _ = lease(libc::F_UNLCK);
    false
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;

    use super::super::duplicate;
    use super::*;

    #[test]
    fn a_memfd_keeps_its_attribute_through_every_descriptor() {
        let file = memfd("attributes", 0, SealFlag::empty()).unwrap();
        assert_eq!(attribute(file.as_fd(), "user.test", 8), Ok(None));
        set_attribute(file.as_fd(), "user.test", b"four").unwrap();
        let twin = duplicate(&file).unwrap();
        assert_eq!(attribute(twin.as_fd(), "user.test", 8), Ok(Some(b"four".to_vec())));
        assert_eq!(attribute(twin.as_fd(), "user.test", 2), Err(Errno::ERANGE));
    }

    #[test]
    fn a_file_has_a_writer_until_the_last_duplicate_is_closed() {
        let made = memfd("open", 0, SealFlag::empty()).unwrap();
        let reopen =
            |mode| open(format!("/proc/self/fd/{}", made.as_raw_fd()).as_str(), mode, Mode::empty()).unwrap();
        let ours = reopen(OFlag::O_RDONLY);
        assert!(!has_writer(&ours));
        let writer = reopen(OFlag::O_RDWR);
        let twin = duplicate(&writer).unwrap();
        assert!(has_writer(&ours));
        drop(writer);
        assert!(has_writer(&ours));
        drop(twin);
        assert!(!has_writer(&ours));
    }
}
