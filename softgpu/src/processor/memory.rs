// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's buffers in this process: host address = GPU address, one host mapping however many GPUs use it.
//!
//! Invariant: what lies in a range of this map is memory that cannot shrink (checked by its seals), mapped whole and
//! exactly there, until the last GPU has released it. Ranges of this process itself are never replaced.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::hardware::GpuMapping;

const PAGE: u64 = 4096;

/// What is mapped somewhere: a piece of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    device: u64,
    inode: u64,
    offset: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Range {
    piece: Piece,
    users: u32,
}

/// The identity mappings of one client, by first address.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    ranges: Mutex<BTreeMap<u64, Range>>,
}

impl HostMemory {
    /// Maps a buffer where its GPU address says, or counts one more user of the same mapping.
    ///
    /// # Errors
    /// `EINVAL` when the range is empty, misaligned, longer than its backing, taken (by another buffer or by this
    /// process), or when the backing could shrink; `ENOMEM` when the host is out of memory or mappings.
    pub(super) fn acquire(&self, mapping: &GpuMapping<'_>) -> Result<(), Errno> {
        let piece = examine(mapping)?;
        let mut ranges = self.ranges.lock();
        if let Some(range) = ranges.get_mut(&mapping.va) {
            if range.piece != piece {
                return Err(Errno::INVAL);
            }
            range.users += 1;
            return Ok(());
        }
        let length = usize::try_from(mapping.bytes).map_err(|_| Errno::INVAL)?;
        let address = usize::try_from(mapping.va).map_err(|_| Errno::INVAL)?;
        map_at(address, length, mapping.backing, mapping.offset).map_err(|error| match error {
            // Whoever asks for a taken or impossible address asks for something invalid.
            Errno::EXIST | Errno::PERM | Errno::ACCESS | Errno::OVERFLOW => Errno::INVAL,
            other => other,
        })?;
        ranges.insert(mapping.va, Range { piece, users: 1 });
        Ok(())
    }

    /// Gives one use of a mapping back; the last one unmaps it. The caller has made sure that nobody touches it.
    pub(super) fn release(&self, va: u64, bytes: u64) {
        let mut ranges = self.ranges.lock();
        let Some(range) = ranges.get_mut(&va).filter(|range| range.piece.bytes == bytes) else {
            tracing::error!(target: "processor", va, bytes, "release of a range that is not mapped");
            return;
        };
        range.users -= 1;
        if range.users == 0 {
            ranges.remove(&va);
            unmap_at(va, bytes);
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        for (&va, range) in self.ranges.get_mut().iter() {
            unmap_at(va, range.piece.bytes);
        }
    }
}

/// Checks a mapping's numbers against its backing.
fn examine(mapping: &GpuMapping<'_>) -> Result<Piece, Errno> {
    let &GpuMapping { va, bytes, offset, .. } = mapping;
    let aligned = va.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE);
    let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
    if !aligned || bytes == 0 || va == 0 || va.checked_add(bytes).is_none() {
        return Err(Errno::INVAL);
    }
    let stat = rustix::fs::fstat(mapping.backing)?;
    // Without the seal the client could truncate its memfd under a running wave: SIGBUS here.
    let seals = rustix::fs::fcntl_get_seals(mapping.backing).map_err(|_| Errno::INVAL)?;
    if !seals.contains(SealFlags::SHRINK) || u64::try_from(stat.st_size).map_or(true, |size| size < end) {
        return Err(Errno::INVAL);
    }
    Ok(Piece { device: stat.st_dev, inode: stat.st_ino, offset, bytes })
}

fn map_at(address: usize, length: usize, backing: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    // SAFETY: MAP_FIXED_NOREPLACE never replaces an existing mapping, so nothing of this process can be hit.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::without_provenance_mut(address),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE,
            backing,
            offset,
        )
    }?;
    debug_assert_eq!(mapped.addr(), address, "kernels since 4.17 know MAP_FIXED_NOREPLACE");
    Ok(())
}

fn unmap_at(va: u64, bytes: u64) {
    let (Ok(address), Ok(length)) = (usize::try_from(va), usize::try_from(bytes)) else { return };
    // SAFETY: only ranges that `map_at` made are passed here, once; the owner of the `Vm`s has removed them there
    // first, so no wave and no command processor can reach them.
    if let Err(error) = unsafe { rustix::mm::munmap(std::ptr::without_provenance_mut(address), length) } {
        tracing::error!(target: "processor", %error, va, bytes, "range not unmapped");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::hardware::PageAccess;

    const BASE: u64 = 17 << 40;

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn mapping(fd: &OwnedFd, va: u64, bytes: u64, offset: u64) -> GpuMapping<'_> {
        GpuMapping {
            va,
            bytes,
            offset,
            access: PageAccess { write: true, execute: false },
            backing: fd.as_fd(),
        }
    }

    #[test]
    fn acquire_same_piece_twice_is_one_mapping() {
        let (memory, fd) = (HostMemory::default(), memfd(8192, SealFlags::SHRINK));
        memory.acquire(&mapping(&fd, BASE, 8192, 0)).unwrap();
        memory.acquire(&mapping(&fd, BASE, 8192, 0)).unwrap();
        memory.release(BASE, 8192);
        assert_eq!(memory.acquire(&mapping(&fd, BASE, 4096, 0)), Err(Errno::INVAL), "still there");
        memory.release(BASE, 8192);
        memory.acquire(&mapping(&fd, BASE, 4096, 4096)).unwrap();
    }

    #[test]
    fn acquire_taken_or_impossible_address_is_einval() {
        let (memory, fd) = (HostMemory::default(), memfd(8192, SealFlags::SHRINK));
        let ours = (std::ptr::from_ref(&memory).addr() as u64) & !(PAGE - 1);
        for (va, bytes, offset) in [
            (ours, 4096, 0),
            (BASE + (1 << 30), 0, 0),
            (BASE + (1 << 30) + 1, 4096, 0),
            (BASE + (1 << 30), 8192, 4096),
            (BASE + (1 << 30), 4096, u64::MAX - 4095),
            (0, 4096, 0),
        ] {
            assert_eq!(
                memory.acquire(&mapping(&fd, va, bytes, offset)),
                Err(Errno::INVAL),
                "{va:#x} {bytes} {offset}"
            );
        }
    }

    #[test]
    fn acquire_unsealed_memory_is_einval() {
        let (memory, fd) = (HostMemory::default(), memfd(4096, SealFlags::GROW));
        assert_eq!(memory.acquire(&mapping(&fd, BASE + (1 << 31), 4096, 0)), Err(Errno::INVAL));
    }
}
