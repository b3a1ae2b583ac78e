// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which memory of the device a checkpoint stores beside CRIU's images. CRIU copies one memfd after the other, by one thread; who
//! checkpoints a program copies them on all cores, and hashes what it copies.

use std::fmt;

/// The environment variable by which `libstasis_criu_beside.so` is told the file for the names of memory that CRIU is to leave out.
pub const REPORT_VARIABLE: &str = "STASIS_CRIU_BESIDE";

/// What the names of memory begin with that may be large: buffers, and pages of the program that it gave to the device.
const BEGINNINGS: [&str; 4] = ["softgpu:vram:", "softgpu:vram-public:", "softgpu:gtt:", "stasis-userptr:"];
/// Bytes of the smallest memory for which it is worth two more calls.
const LEAST: u64 = 256 << 10;

/// Whether memory of this name and size is stored beside CRIU's images.
#[must_use]
pub fn is_stored_beside(name: &str, bytes: u64) -> bool {
    bytes >= LEAST && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The name of a memfd, from what `/proc/PID/fd` links to.
#[must_use]
pub fn name_of_memfd(link: &str) -> Option<&str> {
    link.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")
}

/// A memory that CRIU left out: a line of the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// The memfd's inode: others may have its name.
    pub inode: u64,
    /// The memfd's name.
    pub name: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inode, self.name)
    }
}

impl LeftOut {
    /// Reads a line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (inode, name) = line.split_once(' ')?;
        Some(Self { inode: inode.parse().ok()?, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_stored_beside() {
        let is_beside = |link, bytes| name_of_memfd(link).is_some_and(|name| is_stored_beside(name, bytes));
        assert!(is_beside("/memfd:softgpu:vram:7:0123456789abcdef (deleted)", LEAST));
        assert!(is_beside("/memfd:stasis-userptr:0123456789abcdef (deleted)", LEAST));
        assert!(!is_beside("/memfd:softgpu:vram:7:0123456789abcdef (deleted)", LEAST - 1));
        for other in ["/memfd:softgpu:gate:1 (deleted)", "/memfd:vram (deleted)", "/softgpu:vram:7", ""] {
            assert!(!is_beside(other, LEAST), "{other}");
        }
    }
}
