// SPDX-License-Identifier: MIT OR Apache-2.0
//! Topology files: how a machine of the software device that is described in a file is named.
//!
//! INVARIANT: the name says path and contents, `PATH#HASH`, so that an edited file is another machine: another socket,
//! another softgpud, and a greeting that the old one refuses.

use std::io;
use std::path::{Path, PathBuf};

/// What a device list must end in to be a file's path.
pub const EXTENSION: &str = ".toml";

/// The largest topology file that is read, bytes. No machine needs a tenth of it.
pub const MAX_FILE_BYTES: u64 = 256 << 10;

/// Digits of the hash in a name.
const HASH_DIGITS: usize = 16;

/// A topology file by name: where it is and, if that is known, what it holds.
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

/// What tells one file's contents from another's.
#[must_use]
pub fn hash(contents: &[u8]) -> u64 {
    fnv1a(contents)
}

/// Reads a topology file.
///
/// # Errors
/// What the system says, and `InvalidData` for what is no regular file, for more than [`MAX_FILE_BYTES`] or for text that
/// is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    use io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let mut text = String::new();
    // An open of a FIFO waits otherwise. It means nothing to a regular file.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
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

/// The one path by which a file is known, without links and dots, and as text.
///
/// # Errors
/// What the system says, and `InvalidData` for a path that is not UTF-8.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    let path = std::fs::canonicalize(path)?;
    match path.to_str() {
        Some(text) if text.ends_with(EXTENSION) => Ok(path),
        // A link `a.toml` to a file of another name: what is opened is still told by its ending.
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "the file itself must end in .toml")),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "its path is not UTF-8")),
    }
}

/// FNV-1a, 64 bits: short, the same everywhere, and nobody gains by a collision.
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
