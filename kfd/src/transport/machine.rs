// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of topology files, which describe a machine of the software device.
//!
//! INVARIANT: the name contains path and contents (`PATH#HASH`). An edited file is therefore another machine, with
//! another socket and another softgpud; the old softgpud refuses its name.

use std::io;
use std::path::{Path, PathBuf};

/// What a device list must end in to be a file's path.
pub const EXTENSION: &str = ".toml";

/// The largest topology file that is read, bytes; a real file needs less than a tenth.
pub const MAX_FILE_BYTES: u64 = 256 << 10;

/// Digits of the hash in a name.
const HASH_DIGITS: usize = 16;

/// The name of a topology file: its path and, if it is known, the hash of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName<'a> {
    /// The file.
    pub path: &'a str,
    /// [`hash`] of its contents.
    pub hash: Option<u64>,
}

impl<'a> FileName<'a> {
    /// Reads `PATH.toml` or `PATH.toml#HASH`; `None` for anything else, such as a list of targets.
    #[must_use]
    pub fn parse(devices: &'a str) -> Option<Self> {
        if devices.ends_with(EXTENSION) {
            return Some(Self { path: devices, hash: None });
        }
        let (path, digits) = devices.rsplit_once('#')?;
        let plain = digits.len() == HASH_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let hash = plain.then(|| u64::from_str_radix(digits, 16).ok())??;
        path.ends_with(EXTENSION).then_some(Self { path, hash: Some(hash) })
    }
}

/// The name of the machine that `path` describes with these contents.
#[must_use]
pub fn name(path: &str, contents: &[u8]) -> String {
    format!("{path}#{:016x}", hash(contents))
}

/// A hash of a file's contents.
#[must_use]
pub fn hash(contents: &[u8]) -> u64 {
    fnv1a(contents)
}

/// Reads a topology file.
///
/// # Errors
/// The error of the system, and `InvalidData` for anything but a regular file, for more than [`MAX_FILE_BYTES`], or for
/// text that is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    use io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let mut text = String::new();
    // Without the flag, opening a FIFO waits. For a regular file the flag has no effect.
    let flags = nix::libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    // CAST: usize is at most 64 bits.
    if text.len() as u64 > MAX_FILE_BYTES {
        let limit = format!("a topology file has at most {MAX_FILE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, limit));
    }
    Ok(text)
}

/// The canonical path of a file, without links and dots, as text.
///
/// # Errors
/// The error of the system, and `InvalidData` for a path that is not UTF-8.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    let path = std::fs::canonicalize(path)?;
    match path.to_str() {
        Some(text) if text.ends_with(EXTENSION) => Ok(path),
        // A link `a.toml` to a file with another ending keeps its own name, since the ending tells that it is a
        // topology file.
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "the file itself must end in .toml")),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "its path is not UTF-8")),
    }
}

/// FNV-1a, 64 bits. It need not resist attacks, since nobody gains by a collision.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_parse_are_inverse() {
        let name = name("/a b/#1.toml", b"pcie_p2p = true\n");
        let parsed = FileName { path: "/a b/#1.toml", hash: Some(hash(b"pcie_p2p = true\n")) };
        assert_eq!(FileName::parse(&name), Some(parsed));
        assert_eq!(FileName::parse("/x.toml"), Some(FileName { path: "/x.toml", hash: None }));
    }

    #[test]
    fn parse_takes_lists_and_other_endings_for_no_file() {
        for other in
            ["gfx1100", "gfx1100,gfx1100", "/x.tom", "/x.toml#12", "/x.toml#+123456789012345", "#", ""]
        {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn hash_is_the_published_function() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn read_refuses_what_is_too_large() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.toml");
        let most = usize::try_from(MAX_FILE_BYTES).unwrap();
        std::fs::write(&path, "#".repeat(most)).unwrap();
        assert_eq!(read(&path).unwrap().len(), most);
        std::fs::write(&path, "#".repeat(most + 1)).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
