// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that somebody else wrote: opened without waiting, looked at before a byte is read, and never read beyond a
//! bound.
//!
//! An open of a FIFO waits for a writer, a read of `/dev/zero` never ends, and a length in a header is not the length
//! of a file. Whoever reads a file whose name came from a user or from another program opens it here.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use thiserror::Error;

/// What is done with a symbolic link at the end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// The file that it names is opened.
    Follow,
    /// It is refused.
    Refuse,
}

/// Why a file was not read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegularError {
    /// A system call failed.
    #[error("Cannot {act} {}", path.display())]
    Io {
        /// The call.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is something else at the path.
    #[error("{} is {found}, not a regular file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// It has more bytes than such a file may have.
    #[error("{} has {found} bytes, more than the {limit} that such a file may have", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most bytes.
        limit: u64,
        /// Its bytes, as far as they were counted.
        found: u64,
    },
    /// This process cannot have that much memory.
    #[error("No memory for the {bytes} bytes of {}", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
    /// It is not text.
    #[error("{} is not UTF-8 text: byte {offset} is not part of a character", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Bytes of text before it.
        offset: usize,
    },
}

impl RegularError {
    /// Whether there is no such file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Opens a regular file for reading, close-on-exec, without waiting for anybody.
///
/// # Errors
/// [`RegularError::Io`], [`RegularError::NotRegular`].
pub fn open(path: &Path, links: Links) -> Result<File, RegularError> {
    open_in(AT_FDCWD, path, path, links)
}

/// Opens the regular file `name` in a directory as [`open`] does, and follows no link; `path` is what errors call it.
///
/// # Errors
/// [`RegularError::Io`], [`RegularError::NotRegular`].
pub fn open_at(directory: impl AsFd, name: &Path, path: &Path) -> Result<File, RegularError> {
    open_in(directory.as_fd(), name, path, Links::Refuse)
}

fn open_in(directory: BorrowedFd<'_>, name: &Path, path: &Path, links: Links) -> Result<File, RegularError> {
    let not = |found| RegularError::NotRegular { path: path.into(), found };
    let io = |act| move |source| RegularError::Io { act, path: path.into(), source };
    // NONBLOCK: an open of a FIFO waits otherwise. It means nothing to a regular file.
    let mut flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlag::O_NOFOLLOW;
    }
    let file: File = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => file.into(),
        Err(Errno::ELOOP) if links == Links::Refuse => return Err(not("a symbolic link")),
        // What open says of a socket, and of a device that nobody drives.
        Err(Errno::ENXIO) => return Err(not("a socket or an absent device")),
        Err(errno) => return Err(io("open")(errno.into())),
    };
    let kind = file.metadata().map_err(io("stat"))?.file_type();
    match kind {
        _ if kind.is_file() => Ok(file),
        _ if kind.is_dir() => Err(not("a directory")),
        _ if kind.is_fifo() => Err(not("a FIFO")),
        _ if kind.is_char_device() || kind.is_block_device() => Err(not("a device")),
        _ => Err(not("none that can be read")),
    }
}

/// All bytes of a regular file with at most `limit` of them.
///
/// # Errors
/// Every [`RegularError`] but [`RegularError::NotText`].
pub fn read(path: &Path, limit: u64, links: Links) -> Result<Vec<u8>, RegularError> {
    read_rest(&mut open(path, links)?, path, limit)
}

/// The bytes from the position of `file` to its end, at most `limit`; `path` is what errors call it.
///
/// # Errors
/// Every [`RegularError`] but [`RegularError::NotRegular`] and [`RegularError::NotText`].
pub fn read_rest(file: &mut File, path: &Path, limit: u64) -> Result<Vec<u8>, RegularError> {
    let io = |act| move |source| RegularError::Io { act, path: path.into(), source };
    let too_long = |found| RegularError::TooLong { path: path.into(), limit, found };
    let memory = |bytes| RegularError::Memory { path: path.into(), bytes };
    // What it says of itself only spares growing: /proc says 0, and others may write to it.
    let length = file.metadata().map_err(io("stat"))?.len();
    let position = io::Seek::stream_position(file).map_err(io("seek in"))?;
    let expected = length.saturating_sub(position);
    if expected > limit {
        return Err(too_long(expected));
    }
    let mut bytes = Vec::new();
    let capacity = usize::try_from(expected).map_err(|_| memory(expected))?;
    bytes.try_reserve_exact(capacity).map_err(|_| memory(expected))?;
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    match read {
        Ok(_) if bytes.len() as u64 > limit => Err(too_long(bytes.len() as u64)),
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(memory(bytes.len() as u64)),
        Err(error) => Err(io("read")(error)),
    }
}

/// The text of a regular file with at most `limit` bytes.
///
/// # Errors
/// Every [`RegularError`].
pub fn read_text(path: &Path, limit: u64, links: Links) -> Result<String, RegularError> {
    let not_text = |error: std::string::FromUtf8Error| RegularError::NotText {
        path: path.into(),
        offset: error.utf8_error().valid_up_to(),
    };
    String::from_utf8(read(path, limit, links)?).map_err(not_text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn read_regular_file_returns_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!(read(&path, 4, Links::Refuse).unwrap(), b"text");
        assert_eq!(read_text(&path, 100, Links::Follow).unwrap(), "text");
    }

    #[test]
    fn read_of_a_file_that_says_it_is_empty_returns_its_bytes_within_the_limit() {
        let path = Path::new("/proc/self/status");
        assert!(read_text(path, 1 << 20, Links::Refuse).unwrap().starts_with("Name:"));
        let error = read(path, 3, Links::Refuse).unwrap_err();
        assert!(matches!(error, RegularError::TooLong { limit: 3, found: 4, .. }), "{error}");
    }

    #[test]
    fn read_longer_file_is_refused_with_both_lengths() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, 1 << 20, Links::Follow).unwrap_err().to_string();
        assert!(error.contains("1099511627776 bytes") && error.contains("1048576"), "{error}");
    }

    #[test]
    fn open_refuses_what_is_no_regular_file_and_waits_for_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        mkfifo(&path("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        fs::write(path("file"), "").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink(path("fifo"), path("link-to-fifo")).unwrap();
        for (name, links, said) in [
            ("fifo", Links::Follow, "a FIFO, not a regular file"),
            ("link-to-fifo", Links::Follow, "a FIFO"),
            ("socket", Links::Follow, "a socket"),
            ("link", Links::Refuse, "a symbolic link"),
            (".", Links::Follow, "a directory"),
            ("/dev/zero", Links::Follow, "a device"),
        ] {
            let error = open(&path(name), links).unwrap_err();
            assert!(error.to_string().contains(said), "{name}: {error}");
        }
        assert!(open(&path("link"), Links::Follow).is_ok());
        let opened = File::open(directory.path()).unwrap();
        assert!(open_at(&opened, Path::new("file"), &path("file")).is_ok());
        let error = open_at(&opened, Path::new("link"), &path("link")).unwrap_err();
        assert!(error.to_string().contains("/link is a symbolic link"), "{error}");
        assert!(open(&path("missing"), Links::Follow).unwrap_err().is_not_found());
    }

    #[test]
    fn read_text_names_the_first_byte_that_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bytes");
        fs::write(&path, b"ab\xff").unwrap();
        let error = read_text(&path, 100, Links::Follow).unwrap_err();
        assert!(matches!(error, RegularError::NotText { offset: 2, .. }), "{error}");
    }
}
