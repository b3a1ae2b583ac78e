// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's buffers in this process: host address = GPU address, one host mapping however many GPUs use it.
//!
//! INVARIANT: what lies in a range of this map is memory that cannot shrink (checked by its seals), mapped exactly
//! there until the last GPU has released it. Ranges of this process itself are never replaced. A range is cut where a
//! GPU's mapping begins or ends, so that every mapping is a whole number of ranges; an address stands for one page of
//! one file, for all GPUs that map it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use kfd::written::Units;
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use parking_lot::{Condvar, Mutex, MutexGuard};
use softgpu_waves::{Access, FirstTouch, Vm};

use super::with_client;
use super::written::WrittenRanges;
use crate::hardware::GpuMapping;
use crate::reaper::unmap_soon;

pub(super) const PAGE: u64 = 4096;

/// What is mapped somewhere: a piece of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    device: u64,
    inode: u64,
    offset: u64,
    bytes: u64,
}

impl Piece {
    /// Whether this piece at `va` and `other` at `other_va` have the same page of the same file at every address.
    fn agrees(&self, va: u64, other: &Self, other_va: u64) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
            && self.offset.wrapping_sub(va) == other.offset.wrapping_sub(other_va)
    }
}

#[derive(Debug)]
struct Range {
    piece: Piece,
    users: u32,
}

/// Ranges by first address; they never overlap.
type Ranges = BTreeMap<u64, Range>;

/// Mappings that are about to be unmapped, by address: nothing else can be mapped there before they are gone.
#[derive(Debug, Default)]
struct Leaving {
    ranges: Mutex<BTreeMap<u64, u64>>,
    gone: Condvar,
}

impl Leaving {
    /// Unmaps a range, behind the answer if it is large ([`unmap_soon`]).
    fn unmap(self: &Arc<Self>, va: u64, bytes: u64) {
        self.ranges.lock().insert(va, bytes);
        let leaving = Arc::clone(self);
        unmap_soon(bytes, move || {
            unmap_at(va, bytes);
            leaving.ranges.lock().remove(&va);
            leaving.gone.notify_all();
        });
    }

    /// Whether anything of a range is about to be unmapped.
    fn is_in(&self, va: u64, end: u64) -> bool {
        has_part_of(&self.ranges.lock(), va, end)
    }

    /// Waits until nothing of a range is about to be unmapped.
    fn wait(&self, va: u64, end: u64) {
        let mut ranges = self.ranges.lock();
        while has_part_of(&ranges, va, end) {
            self.gone.wait(&mut ranges);
        }
    }
}

/// Whether any of these, by address, of which none overlap, is in a range.
fn has_part_of(ranges: &BTreeMap<u64, u64>, va: u64, end: u64) -> bool {
    // The only one that can reach into it from before is the last one that begins before its end.
    ranges.range(..end).next_back().is_some_and(|(start, bytes)| start + bytes > va)
}

/// The identity mappings of one client.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    ranges: Mutex<Ranges>,
    /// Locked after `ranges`.
    written: Mutex<WrittenRanges>,
    leaving: Arc<Leaving>,
    /// Whether the client is this process.
    with_client: bool,
}

impl HostMemory {
    /// For a client in this process, whose own mappings and reservations are at the same addresses.
    pub(super) fn with_client() -> Self {
        Self {
            ranges: Mutex::default(),
            written: Mutex::default(),
            leaving: Arc::default(),
            with_client: true,
        }
    }

    /// Maps a buffer where its GPU address says, and lets the GPU of `vm` have `access` to it.
    ///
    /// # Errors
    /// As for [`HostMemory::acquire`]; `EINVAL` when the GPU has something mapped there.
    pub(super) fn grant(
        &self,
        vm: &Vm,
        mapping: &GpuMapping<'_>,
        access: Access,
        watch: Option<Arc<dyn FirstTouch>>,
    ) -> Result<(), Errno> {
        self.acquire(mapping)?;
        let range = mapping.va..mapping.va.wrapping_add(mapping.bytes);
        // SAFETY: the client's memory was mapped there just now, readable and writable; `revoke` unmaps it after
        // the GPU has lost its access, and no Rust reference to it exists.
        let granted = unsafe { vm.map_watched(range, access, watch) };
        granted.map_err(|_| {
            self.release(mapping.va, mapping.bytes);
            Errno::EINVAL
        })
    }

    /// Revokes the GPU's access to what it was granted, or to a part of it.
    pub(super) fn revoke(&self, vm: &Vm, va: u64, bytes: u64) {
        vm.unmap(va..va.saturating_add(bytes));
        self.release(va, bytes);
    }

    /// Maps a buffer where its GPU address says, and counts one more user where it is mapped already.
    ///
    /// # Errors
    /// `EINVAL` when the range is empty, misaligned, longer than its backing, taken (by other memory or by this
    /// process), or when the backing could shrink; `ENOMEM` when the host is out of memory or mappings.
    fn acquire(&self, mapping: &GpuMapping<'_>) -> Result<(), Errno> {
        let piece = examine(mapping)?;
        let (va, end) = (mapping.va, mapping.va + mapping.bytes);
        let mut ranges = self.ranges.lock();
        // Nothing begins to leave while they are locked; while one waits, other addresses can be mapped.
        while self.leaving.is_in(va, end) {
            MutexGuard::unlocked(&mut ranges, || self.leaving.wait(va, end));
        }
        let mut before =
            ranges.range(..end).rev().take_while(|(start, range)| **start + range.piece.bytes > va);
        if !before.all(|(start, range)| range.piece.agrees(*start, &piece, va)) {
            return Err(Errno::EINVAL);
        }
        cut(&mut ranges, va);
        cut(&mut ranges, end);
        let gaps = gaps(&ranges, va, end);
        for (done, &(start, bytes)) in gaps.iter().enumerate() {
            if let Err(error) = self.map_gap(start, bytes, mapping) {
                gaps[..done].iter().for_each(|&(start, bytes)| self.unmap(start, bytes));
                return Err(error);
            }
        }
        ranges.range_mut(va..end).for_each(|(_, range)| range.users += 1);
        for (start, bytes) in gaps {
            let piece = Piece { offset: piece.offset + (start - va), bytes, ..piece };
            ranges.insert(start, Range { piece, users: 1 });
        }
        Ok(())
    }

    /// Ends one use of a mapping, or of a part of one; ranges without users are unmapped. The caller has made sure that
    /// nothing accesses them.
    fn release(&self, va: u64, bytes: u64) {
        let mut ranges = self.ranges.lock();
        let end = va.saturating_add(bytes);
        cut(&mut ranges, va);
        cut(&mut ranges, end);
        let mut released = 0;
        for (_, range) in ranges.range_mut(va..end) {
            range.users -= 1;
            released += range.piece.bytes;
        }
        for (start, range) in ranges.extract_if(va..end, |_, range| range.users == 0) {
            self.unmap(start, range.piece.bytes);
        }
        if released != bytes {
            tracing::error!(target: "processor", va, bytes, released, "release of a range that is not mapped");
        }
    }
}

/// Makes a boundary between ranges at `at`, if it lies inside one.
fn cut(ranges: &mut Ranges, at: u64) {
    let Some((&start, range)) = ranges.range_mut(..at).next_back() else { return };
    let front = at - start;
    if front >= range.piece.bytes {
        return;
    }
    let users = range.users;
    let piece = Piece { offset: range.piece.offset + front, bytes: range.piece.bytes - front, ..range.piece };
    range.piece.bytes = front;
    ranges.insert(at, Range { piece, users });
}

/// What of `va..end` is in no range, as address and bytes; no range crosses either end.
fn gaps(ranges: &Ranges, va: u64, end: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = va;
    for (&start, range) in ranges.range(va..end) {
        if start > at {
            found.push((at, start - at));
        }
        at = start + range.piece.bytes;
    }
    if at < end {
        found.push((at, end - at));
    }
    found
}

/// What of `va..end` is mapped.
fn mapped_parts(ranges: &Ranges, va: u64, end: u64) -> Vec<std::ops::Range<u64>> {
    let before = ranges.range(..va).next_back().filter(|(start, range)| **start + range.piece.bytes > va);
    let inside = before.into_iter().chain(ranges.range(va..end));
    inside.map(|(start, range)| (*start).max(va)..(start + range.piece.bytes).min(end)).collect()
}

impl HostMemory {
    /// Maps the part of a buffer that belongs at `start`.
    fn map_gap(&self, start: u64, bytes: u64, mapping: &GpuMapping<'_>) -> Result<(), Errno> {
        let length = usize::try_from(bytes).map_err(|_| Errno::EINVAL)?;
        let address = usize::try_from(start).map_err(|_| Errno::EINVAL)?;
        let offset = mapping.offset + (start - mapping.va);
        let mapped = match self.with_client {
            true => with_client::map(address, length, mapping.backing, offset),
            false => map_at(address, length, mapping.backing, offset),
        };
        mapped.map_err(|error| match error {
            // An address that is taken or impossible is an invalid argument of the client.
            Errno::EEXIST | Errno::EPERM | Errno::EACCES | Errno::EOVERFLOW => Errno::EINVAL,
            other => other,
        })
    }

    /// Which units of ranges were written since this was last asked ([`super::ClientGpus::written`]).
    pub(super) fn written(&self, ranges: &[(u64, u64)], unit: u64) -> Result<Vec<Units>, Errno> {
        if self.with_client {
            return Err(Errno::EOPNOTSUPP);
        }
        let mapped = self.ranges.lock();
        self.written.lock().take(ranges, unit, |va, end| mapped_parts(&mapped, va, end))
    }

    fn unmap(&self, va: u64, bytes: u64) {
        self.written.lock().unmapped(va, bytes);
        match self.with_client {
            true => with_client::unmap(va, bytes),
            false => self.leaving.unmap(va, bytes),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        for (va, range) in std::mem::take(self.ranges.get_mut()) {
            match self.with_client {
                true => with_client::unmap(va, range.piece.bytes),
                // At once: another client's memory in this process may be at the same addresses next.
                false => unmap_at(va, range.piece.bytes),
            }
        }
        self.leaving.wait(0, u64::MAX);
    }
}

/// Checks a mapping's numbers against its backing.
fn examine(mapping: &GpuMapping<'_>) -> Result<Piece, Errno> {
    let &GpuMapping { va, bytes, offset, .. } = mapping;
    let aligned = va.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE);
    let end = offset.checked_add(bytes).ok_or(Errno::EINVAL)?;
    if !aligned || bytes == 0 || va == 0 || va.checked_add(bytes).is_none() {
        return Err(Errno::EINVAL);
    }
    let stat = nix::sys::stat::fstat(mapping.backing)?;
    // Without the seal the client could truncate its memfd under a running wave: SIGBUS here.
    let seals = kfd::linux::seals(mapping.backing).map_err(|_| Errno::EINVAL)?;
    if !seals.contains(SealFlag::F_SEAL_SHRINK) || u64::try_from(stat.st_size).map_or(true, |size| size < end)
    {
        return Err(Errno::EINVAL);
    }
    Ok(Piece { device: stat.st_dev, inode: stat.st_ino, offset, bytes })
}

fn map_at(address: usize, length: usize, backing: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE | MapFlags::MAP_NORESERVE;
    let wanted = Some(NonZeroUsize::new(address).ok_or(Errno::EINVAL)?);
    let length = NonZeroUsize::new(length).ok_or(Errno::EINVAL)?;
    let offset = i64::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: MAP_FIXED_NOREPLACE never replaces an existing mapping, so no other mapping of this process is changed.
    let mapped = unsafe { mmap(wanted, length, rw, flags, backing, offset) }?;
    debug_assert_eq!(mapped.addr().get(), address, "kernels since 4.17 know MAP_FIXED_NOREPLACE");
    Ok(())
}

fn unmap_at(va: u64, bytes: u64) {
    let (Ok(address), Ok(length)) = (usize::try_from(va), usize::try_from(bytes)) else { return };
    let Some(start) = NonNull::new(std::ptr::without_provenance_mut(address)) else { return };
    // SAFETY: only ranges that `map_at` made are passed here, once; the owner of the `Vm`s has removed them there
    // first, so no wave and no command processor can reach them.
    if let Err(error) = unsafe { munmap(start, length) } {
        tracing::error!(target: "processor", %error, va, bytes, "range not unmapped");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use queues::words::size;

    use super::*;
    use crate::hardware::PageAccess;

    const BASE: u64 = 17 << 40;

    fn memfd(bytes: u64, seals: SealFlag) -> OwnedFd {
        kfd::linux::memfd("t", bytes, seals).unwrap()
    }

    fn mapping(fd: &OwnedFd, va: u64, bytes: u64, offset: u64) -> GpuMapping<'_> {
        GpuMapping {
            va,
            bytes,
            offset,
            access: PageAccess { read: true, write: true, execute: false },
            backing: fd.as_fd(),
        }
    }

    #[test]
    fn acquire_same_piece_twice_is_one_mapping() {
        let (memory, fd) = (HostMemory::default(), memfd(8192, SealFlag::F_SEAL_SHRINK));
        memory.acquire(&mapping(&fd, BASE, 8192, 0)).unwrap();
        memory.acquire(&mapping(&fd, BASE, 8192, 0)).unwrap();
        memory.release(BASE, 8192);
        assert_eq!(memory.acquire(&mapping(&fd, BASE, 4096, 4096)), Err(Errno::EINVAL), "still there");
        memory.release(BASE, 8192);
        memory.acquire(&mapping(&fd, BASE, 4096, 4096)).unwrap();
    }

    #[test]
    fn address_of_a_large_mapping_that_is_given_back_later_can_be_taken_at_once() {
        const LARGE: u64 = 64 << 20;
        crate::reaper::turn_on();
        let memory = HostMemory::default();
        let fd = memfd(LARGE, SealFlag::F_SEAL_SHRINK);
        for at in [0, LARGE / 2, 0, LARGE - PAGE] {
            let va = BASE + (1 << 33) + at;
            memory.acquire(&mapping(&fd, va, LARGE, 0)).unwrap();
            memory.release(va, LARGE);
        }
        drop(memory);
        map_at(size(BASE + (1 << 33)), size(LARGE), fd.as_fd(), 0).unwrap();
        unmap_at(BASE + (1 << 33), LARGE);
    }

    #[test]
    fn acquire_taken_or_impossible_address_is_einval() {
        let (memory, fd) = (HostMemory::default(), memfd(8192, SealFlag::F_SEAL_SHRINK));
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
                Err(Errno::EINVAL),
                "{va:#x} {bytes} {offset}"
            );
        }
    }

    #[test]
    fn acquire_unsealed_memory_is_einval() {
        let (memory, fd) = (HostMemory::default(), memfd(4096, SealFlag::F_SEAL_GROW));
        assert_eq!(memory.acquire(&mapping(&fd, BASE + (1 << 31), 4096, 0)), Err(Errno::EINVAL));
    }

    /// Each range's first page from `BASE`, its pages and its users.
    fn shape(memory: &HostMemory) -> Vec<(u64, u64, u32)> {
        let ranges = memory.ranges.lock();
        let row =
            |(start, range): (&u64, &Range)| ((start - BASE_2) / PAGE, range.piece.bytes / PAGE, range.users);
        ranges.iter().map(row).collect()
    }

    const BASE_2: u64 = BASE + (1 << 32);

    #[test]
    fn parts_of_a_mapping_are_acquired_and_released_on_their_own() {
        let (memory, fd) = (HostMemory::default(), memfd(4 * PAGE, SealFlag::F_SEAL_SHRINK));
        memory.acquire(&mapping(&fd, BASE_2, 3 * PAGE, 0)).unwrap();
        memory.acquire(&mapping(&fd, BASE_2 + PAGE, 3 * PAGE, PAGE)).unwrap();
        assert_eq!(shape(&memory), [(0, 1, 1), (1, 2, 2), (3, 1, 1)]);
        assert_eq!(memory.acquire(&mapping(&fd, BASE_2 + 2 * PAGE, PAGE, 0)), Err(Errno::EINVAL));
        memory.release(BASE_2 + PAGE, PAGE);
        memory.release(BASE_2 + 2 * PAGE, 2 * PAGE);
        assert_eq!(shape(&memory), [(0, 1, 1), (1, 1, 1), (2, 1, 1)]);
        memory.release(BASE_2 + PAGE, PAGE);
        let other = memfd(PAGE, SealFlag::F_SEAL_SHRINK);
        memory.acquire(&mapping(&other, BASE_2 + PAGE, PAGE, 0)).unwrap();
        memory.release(BASE_2, 3 * PAGE);
        assert_eq!(shape(&memory), []);
    }

    #[test]
    fn acquire_that_fails_half_way_leaves_nothing() {
        let (memory, fd) = (HostMemory::default(), memfd(4 * PAGE, SealFlag::F_SEAL_SHRINK));
        let (in_the_way, at) = (HostMemory::default(), BASE_2 + (1 << 20));
        in_the_way.acquire(&mapping(&fd, at + 2 * PAGE, PAGE, 0)).unwrap();
        memory.acquire(&mapping(&fd, at + PAGE, PAGE, PAGE)).unwrap();
        assert_eq!(memory.acquire(&mapping(&fd, at, 3 * PAGE, 0)), Err(Errno::EINVAL));
        assert_eq!(shape(&memory), [(257, 1, 1)]);
        in_the_way.acquire(&mapping(&fd, at, PAGE, 0)).expect("free again");
    }
}
