// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of a process, as `/proc/PID/maps` lists them.

use std::path::PathBuf;

/// A mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// `7f00-7f10`.
    pub range: String,
    /// Whether writes reach the file (`s`).
    pub shared: bool,
    /// Whether it can be written.
    pub writable: bool,
    /// Device and inode, as stat says them; zeros for anonymous memory.
    pub id: (u64, u64),
    /// What is mapped.
    pub name: String,
}

impl Mapping {
    /// A line of `/proc/PID/maps`.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after.trim_start();
            word
        };
        let (range, rights, _, device, inode) = (word(), word(), word(), word(), word());
        let (major, minor) = device.split_once(':')?;
        let part = |hex: &str| u64::from_str_radix(hex, 16).ok();
        Some(Self {
            range: range.to_owned(),
            shared: rights.ends_with('s'),
            writable: rights.get(1..2) == Some("w"),
            id: (nix::sys::stat::makedev(part(major)?, part(minor)?), inode.parse().ok()?),
            name: rest.to_owned(),
        })
    }

    /// `mapping 7f00-7f10`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("mapping {}", self.range)
    }

    /// Where `/proc` has the file behind it; needs the privilege to look (`CAP_CHECKPOINT_RESTORE`).
    #[must_use]
    pub fn link(&self, pid: i32) -> Option<PathBuf> {
        // The link's name has no leading zeros, which `maps` may have.
        let (start, end) = self.range.split_once('-')?;
        let short = |hex: &str| u64::from_str_radix(hex, 16).ok();
        Some(format!("/proc/{pid}/map_files/{:x}-{:x}", short(start)?, short(end)?).into())
    }
}
