// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an open descriptor names, as `/proc` has it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::Write;

use nix::errno::Errno;
use nix::libc::{self, c_int};

/// The path of an open file, or of the current directory (`AT_FDCWD`); no more of it than `buffer` holds. Leaves errno alone
/// and allocates nothing.
pub(crate) fn path(fd: c_int, buffer: &mut [u8]) -> Option<&[u8]> {
    let mut link = [0_u8; 32];
    match fd {
        libc::AT_FDCWD => write!(&mut link[..], "/proc/self/cwd\0"),
        fd => write!(&mut link[..], "/proc/self/fd/{fd}\0"),
    }
    .ok()?;
    let link = CStr::from_bytes_until_nul(&link).ok()?;
    let errno = Errno::last_raw();
    // SAFETY: the link ends with a zero byte, and the buffer has as many bytes as the call is told.
    let length = unsafe {
        let (at, into) = (libc::AT_FDCWD, buffer.as_mut_ptr());
        libc::syscall(libc::SYS_readlinkat, at, link.as_ptr(), into, buffer.len())
    };
    Errno::set_raw(errno);
    buffer.get(..usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn path_is_that_of_the_file_and_errno_stays() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let wanted = file.path().canonicalize().unwrap();
        let mut buffer = [0; 4096];
        Errno::set_raw(77);
        assert_eq!(path(file.as_raw_fd(), &mut buffer), Some(wanted.as_os_str().as_encoded_bytes()));
        let here = std::env::current_dir().unwrap();
        assert_eq!(path(libc::AT_FDCWD, &mut buffer), Some(here.as_os_str().as_encoded_bytes()));
        Errno::set_raw(77);
        assert_eq!(path(-1, &mut buffer), None);
        assert_eq!(Errno::last_raw(), 77);
        assert_eq!(path(file.as_raw_fd(), &mut [0; 4]).map(<[u8]>::len), Some(4));
    }
}
