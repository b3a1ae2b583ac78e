// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/self/maps`, cut to a range of addresses: `proc_pid_maps(5)`.

use std::ops::Range;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;
use nix::sys::stat::{major, minor};

use crate::errno;

/// The part of a mapping that lies in the range asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// Addresses of the part.
    pub range: Range<usize>,
    /// Access that the process has.
    pub prot: ProtFlags,
    /// Whether writes stay in this process.
    pub private: bool,
    /// Whether it is shared memory without a file (`MAP_SHARED | MAP_ANONYMOUS`).
    pub anonymous: bool,
    /// Offset in the file at `range.start`.
    pub offset: u64,
    /// Major and minor number of the device that the file is on; 0 for memory without a file.
    pub device: (u64, u64),
    /// The file on that device; 0 for memory without a file.
    pub inode: u64,
    /// The name of a memfd.
    pub memfd: Option<String>,
}

impl Vma {
    /// Whether it is of a memfd whose name begins so.
    #[must_use]
    pub fn is_named(&self, beginning: &str) -> bool {
        self.memfd.as_ref().is_some_and(|name| name.starts_with(beginning))
    }
}

/// A device number as the maps print it.
#[must_use]
pub fn device(dev: u64) -> (u64, u64) {
    (major(dev), minor(dev))
}

/// The mappings that overlap `range`, ascending, cut to it.
///
/// # Errors
/// Those of reading `/proc/self/maps`.
pub fn in_range(range: &Range<usize>) -> Result<Vec<Vma>, Errno> {
    let text =
        std::fs::read("/proc/self/maps").map_err(|error| errno::of_io(&error).unwrap_or(Errno::EIO))?;
    // A file name need not be UTF-8.
    let text = String::from_utf8_lossy(&text);
    let reached = |vma: &Vma| vma.range.start < range.end;
    let vmas = text.lines().filter_map(parse).take_while(reached);
    Ok(vmas.filter_map(|vma| cut(vma, range)).collect())
}

fn cut(vma: Vma, range: &Range<usize>) -> Option<Vma> {
    let start = vma.range.start.max(range.start);
    let end = vma.range.end.min(range.end);
    let offset = vma.offset.checked_add((start - vma.range.start) as u64)?;
    (start < end).then_some(Vma { range: start..end, offset, ..vma })
}

/// `start-end perms offset major:minor inode name`, numbers hexadecimal but for the inode.
fn parse(line: &str) -> Option<Vma> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?.as_bytes();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let name = words.next().unwrap_or_default();
    let mut prot = ProtFlags::empty();
    for (letter, flag) in
        [(b'r', ProtFlags::PROT_READ), (b'w', ProtFlags::PROT_WRITE), (b'x', ProtFlags::PROT_EXEC)]
    {
        prot.set(flag, permissions.contains(&letter));
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Vma {
        range: usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?,
        prot,
        private: permissions.contains(&b'p'),
        // The kernel's name for it (`shmem_zero_setup`); the device itself is not mapped shared under this name.
        anonymous: permissions.contains(&b's') && name == "/dev/zero" && words.next() == Some("(deleted)"),
        offset,
        device: (number(major)?, number(minor)?),
        inode,
        memfd: name.strip_prefix("/memfd:").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_and_cut_keep_the_offset_in_step() {
        let line = "7f0000000000-7f0000004000 rw-s 00001000 00:01 77   /memfd:stasis-userptr (deleted)";
        let vma = cut(parse(line).unwrap(), &(0x7f00_0000_1000..0x7f00_0000_2000)).unwrap();
        assert!(vma.is_named("stasis-userptr") && !vma.is_named("softgpu"));
        assert_eq!(vma.range, 0x7f00_0000_1000..0x7f00_0000_2000);
        assert_eq!((vma.offset, vma.device, vma.inode), (0x2000, (0, 1), 77));
        assert_eq!((vma.prot, vma.private), (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, false));
        assert_eq!(cut(vma, &(0..0x1000)), None);
    }
}
