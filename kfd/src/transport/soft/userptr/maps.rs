// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/self/maps`, cut to a range of addresses.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::ProtFlags;

/// The part of a mapping that lies in the range asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vma {
    pub range: Range<usize>,
    pub prot: ProtFlags,
    /// Whether writes stay in this process.
    pub private: bool,
    /// Offset in the file at `range.start`.
    pub offset: u64,
    pub device: (u32, u32),
    pub inode: u64,
}

/// A device number as the maps print it.
pub(super) fn device(dev: u64) -> (u32, u32) {
    (rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// The mappings that overlap `range`, ascending, cut to it.
pub(super) fn in_range(range: &Range<usize>) -> Result<Vec<Vma>, Errno> {
    let text = std::fs::read("/proc/self/maps")
        .map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
    // A file name need not be UTF-8.
    let text = String::from_utf8_lossy(&text);
    let vmas = text.lines().filter_map(parse).filter_map(|vma| cut(vma, range));
    Ok(vmas.collect())
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
    let mut prot = ProtFlags::empty();
    for (letter, flag) in [(b'r', ProtFlags::READ), (b'w', ProtFlags::WRITE), (b'x', ProtFlags::EXEC)] {
        prot.set(flag, permissions.contains(&letter));
    }
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some(Vma {
        range: usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?,
        prot,
        private: permissions.contains(&b'p'),
        offset,
        device: (number(major)?, number(minor)?),
        inode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_and_cut_keep_the_offset_in_step() {
        let line = "7f0000000000-7f0000004000 rw-s 00001000 00:01 77   /memfd:stasis-userptr (deleted)";
        let vma = cut(parse(line).unwrap(), &(0x7f00_0000_1000..0x7f00_0000_2000)).unwrap();
        assert_eq!(vma.range, 0x7f00_0000_1000..0x7f00_0000_2000);
        assert_eq!((vma.offset, vma.device, vma.inode), (0x2000, (0, 1), 77));
        assert_eq!((vma.prot, vma.private), (ProtFlags::READ | ProtFlags::WRITE, false));
        assert_eq!(cut(vma, &(0..0x1000)), None);
    }
}
