// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address space of one client process on one GPU: what is mapped, with which permission.
//!
//! INVARIANT: a GPU virtual address is the same host virtual address in this process; memory in a mapped interval is
//! backed by host memory for as long as the interval is mapped. Workers hold the map's read lock while they touch
//! memory and release it at every quantum, so `unmap` returns only when no worker can still access the range.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};

use crate::exception::{AccessKind, Cause};
use crate::mem::raw;
use crate::program::Cache;
use crate::store::Store;
use crate::trap::{Messages, TrapHandler};

/// What a GPU may do with an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Loads.
    pub read: bool,
    /// Stores and atomics.
    pub write: bool,
    /// Instruction fetch.
    pub execute: bool,
}

impl Access {
    /// Loads and stores.
    pub const READ_WRITE: Access = Access { read: true, write: true, execute: false };
    /// Everything.
    pub const ALL: Access = Access { read: true, write: true, execute: true };

    fn allows(self, kind: AccessKind) -> bool {
        match kind {
            AccessKind::Read => self.read,
            AccessKind::Write => self.write,
            AccessKind::Execute => self.execute,
        }
    }
}

/// A range that overlaps one already mapped, or is empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Range {start:#x}..{end:#x} is empty or overlaps a mapped one")]
pub struct Overlap {
    /// First byte of the refused range.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
}

/// An access that the map does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("No {access:?} access at {address:#x} (not present: {not_present})")]
pub struct MemoryFault {
    /// First byte that is not accessible.
    pub address: u64,
    /// What was attempted.
    pub access: AccessKind,
    /// Nothing is mapped there; else it is mapped, but not for such an access.
    pub not_present: bool,
}

impl From<MemoryFault> for Cause {
    fn from(f: MemoryFault) -> Cause {
        Cause::MemoryViolation { address: f.address, access: f.access, not_present: f.not_present }
    }
}

/// Is told when a GPU first accesses a mapping.
pub trait FirstTouch: std::fmt::Debug + Send + Sync {
    /// Whether it has been told, or need not be.
    fn is_over(&self) -> bool;

    /// The mapping is about to be accessed. Called before the access, possibly by several threads at once, each of which
    /// goes on when its call returns.
    ///
    /// # Safety
    /// The mapping's range is mapped until this returns, as [`Vm::map`] says.
    unsafe fn touch(&self);
}

#[derive(Clone, Debug)]
struct Interval {
    start: u64,
    end: u64,
    access: Access,
    watch: Option<Arc<dyn FirstTouch>>,
}

impl Interval {
    /// Whether its first access has to be told.
    fn is_watched(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| !watch.is_over())
    }
}

/// The permission intervals, sorted and disjoint.
#[derive(Debug, Default)]
pub(crate) struct Map {
    intervals: Vec<Interval>,
    /// Grows with every change.
    pub(crate) generation: u64,
    /// Where waves of this address space go that trap.
    pub(crate) trap: TrapHandler,
    /// Who is told of what they send and where they fault.
    pub(crate) messages: Option<Arc<dyn Messages>>,
}

impl Map {
    /// The intervals that have a byte of `range`.
    fn overlapping(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.intervals.partition_point(|i| i.end <= range.start);
        let behind = self.intervals.partition_point(|i| i.start < range.end);
        // An empty range inside an interval has none of its bytes.
        first..if range.is_empty() { first } else { behind }
    }

    /// The widest range around `address` in which `kind` is allowed.
    pub(crate) fn range_around(&self, address: u64, kind: AccessKind) -> Result<(u64, u64), MemoryFault> {
        let k = self.intervals.partition_point(|i| i.end <= address);
        let fault = |not_present| MemoryFault { address, access: kind, not_present };
        let hit = self.intervals.get(k).filter(|i| i.start <= address).ok_or(fault(true))?;
        if !hit.access.allows(kind) {
            return Err(fault(false));
        }
        if let Some(watch) = hit.watch.as_ref().filter(|watch| !watch.is_over()) {
            // SAFETY: the interval is in the map, and a borrow of the map exists only under its lock.
            unsafe { watch.touch() };
        }
        let (mut start, mut end) = (hit.start, hit.end);
        for i in &self.intervals[k + 1..] {
            if i.start != end || !i.access.allows(kind) || i.is_watched() {
                break;
            }
            end = i.end;
        }
        for i in self.intervals[..k].iter().rev() {
            if i.end != start || !i.access.allows(kind) || i.is_watched() {
                break;
            }
            start = i.start;
        }
        Ok((start, end))
    }

    pub(crate) fn check(&self, address: u64, len: u64, kind: AccessKind) -> Result<(), MemoryFault> {
        if len == 0 {
            return Ok(());
        }
        let (_, end) = self.range_around(address, kind)?;
        match address.checked_add(len) {
            Some(last) if last <= end => Ok(()),
            // The first byte behind the range is the one that faults.
            _ => self.range_around(end, kind).map(|_| ()).and(Err(MemoryFault {
                address: end,
                access: kind,
                not_present: true,
            })),
        }
    }

    /// The word of code at `address`.
    ///
    /// # Errors
    /// [`MemoryFault`]: it may not be executed.
    pub(crate) fn fetch(&self, address: u64) -> Result<u32, MemoryFault> {
        self.check(address, 4, AccessKind::Execute)?;
        // SAFETY: the range was checked just now. A borrow of the map exists only under its lock, so nothing is unmapped
        // meanwhile.
        Ok(unsafe { raw::read_dwords::<1>(address)[0] })
    }

    /// Whether the words of code from `address` on are `words`.
    pub(crate) fn holds(&self, address: u64, words: &[u32]) -> bool {
        let mut bytes = vec![0u8; words.len() * 4];
        if self.check(address, bytes.len() as u64, AccessKind::Execute).is_err() {
            return false;
        }
        // SAFETY: the range was checked just now. A borrow of the map exists only under its lock, so nothing is unmapped
        // meanwhile.
        unsafe { raw::read(address, &mut bytes) };
        bytes.chunks_exact(4).zip(words).all(|(found, word)| found == word.to_le_bytes())
    }
}

/// The most bytes that are moved while the map's lock is held once: well below a millisecond of work, which is how long
/// a change of the map may have to wait.
const PIECE: u64 = 1 << 20;

/// One (process, GPU) address space.
#[derive(Debug, Default)]
pub struct Vm {
    map: RwLock<Map>,
    /// What the GPU has in its instruction caches.
    programs: Cache,
}

impl Vm {
    /// An address space with nothing mapped.
    pub fn new() -> Arc<Vm> {
        Vm::with_store(None)
    }

    /// The same; code that is generated for its programs is kept in `store`.
    pub fn with_store(store: Option<Arc<Store>>) -> Arc<Vm> {
        Arc::new(Vm { programs: Cache::with_store(store), ..Vm::default() })
    }

    /// Allows `access` to `range`.
    ///
    /// # Errors
    /// [`Overlap`] if part of it is mapped already.
    ///
    /// # Safety
    /// Until [`Vm::unmap`] of it has returned, `range` is host memory at the same addresses that this process may read, and
    /// write if `access` or a later [`Vm::protect`] says so, and to which no Rust reference exists while kernels run.
    pub unsafe fn map(&self, range: Range<u64>, access: Access) -> Result<(), Overlap> {
        // SAFETY: the caller promises the same.
        unsafe { self.map_watched(range, access, None) }
    }

    /// As [`Vm::map`]; `watch` is told before anything accesses it.
    ///
    /// # Errors
    /// As for [`Vm::map`].
    ///
    /// # Safety
    /// As for [`Vm::map`].
    pub unsafe fn map_watched(
        &self,
        range: Range<u64>,
        access: Access,
        watch: Option<Arc<dyn FirstTouch>>,
    ) -> Result<(), Overlap> {
        let mut map = self.map.write();
        let inside = map.overlapping(&range);
        if range.is_empty() || !inside.is_empty() {
            return Err(Overlap { start: range.start, end: range.end });
        }
        map.generation += 1;
        map.intervals.insert(inside.start, Interval { start: range.start, end: range.end, access, watch });
        Ok(())
    }

    /// Takes away all access to `range`; returns when no worker can still touch it. Parts that are not mapped are fine.
    pub fn unmap(&self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let mut map = self.map.write();
        let inside = map.overlapping(&range);
        let (first, last) = (map.intervals[inside.clone()].first(), map.intervals[inside.clone()].last());
        let before =
            first.filter(|i| i.start < range.start).map(|i| Interval { end: range.start, ..i.clone() });
        let behind = last.filter(|i| i.end > range.end).map(|i| Interval { start: range.end, ..i.clone() });
        map.generation += 1;
        map.intervals.splice(inside, before.into_iter().chain(behind));
    }

    /// Changes the permission of whatever is mapped in `range`, in one step: at no time is it not mapped. Returns when
    /// no worker acts under the old permission any more.
    pub fn protect(&self, range: Range<u64>, access: Access) {
        let mut map = self.map.write();
        let inside = map.overlapping(&range);
        let mut changed = Vec::with_capacity(inside.len() + 2);
        for i in &map.intervals[inside.clone()] {
            let (start, end) = (i.start.max(range.start), i.end.min(range.end));
            if i.start < start {
                changed.push(Interval { end: start, ..i.clone() });
            }
            changed.push(Interval { start, end, access, watch: i.watch.clone() });
            if i.end > end {
                changed.push(Interval { start: end, ..i.clone() });
            }
        }
        map.generation += 1;
        map.intervals.splice(inside, changed);
    }

    /// Whether `len` bytes at `address` allow `kind`.
    ///
    /// # Errors
    /// [`MemoryFault`] names the first byte that does not.
    pub fn check(&self, address: u64, len: u64, kind: AccessKind) -> Result<(), MemoryFault> {
        self.map.read().check(address, len, kind)
    }

    /// Invalidates the GPU's instruction caches: from here on it executes what memory holds. Until then code that it has
    /// executed may run as it was, whatever was written to it since.
    pub fn invalidate_instructions(&self) {
        self.programs.invalidate();
    }

    pub(crate) fn programs(&self) -> &Cache {
        &self.programs
    }

    pub(crate) fn lock(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read()
    }

    /// Sets who is told of messages and faults of waves of this address space from now on.
    pub fn set_messages(&self, messages: Arc<dyn Messages>) {
        self.map.write().messages = Some(messages);
    }

    /// Sets where waves of this address space go that trap from now on.
    pub fn set_trap_handler(&self, handler: TrapHandler) {
        self.map.write().trap = handler;
    }

    /// Copies bytes out of GPU memory.
    ///
    /// # Errors
    /// [`MemoryFault`]; then `buffer` is unchanged.
    pub fn read_bytes(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryFault> {
        let map = self.map.read();
        map.check(address, buffer.len() as u64, AccessKind::Read)?;
        // SAFETY: checked for reading just now, under the lock that is held.
        unsafe { raw::read(address, buffer) };
        Ok(())
    }

    /// Copies bytes into GPU memory.
    ///
    /// # Errors
    /// [`MemoryFault`]; then nothing is written.
    pub fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let map = self.map.read();
        map.check(address, bytes.len() as u64, AccessKind::Write)?;
        // SAFETY: checked for writing just now, under the lock that is held.
        unsafe { raw::write(address, bytes) };
        Ok(())
    }

    /// Copies bytes within GPU memory, front to back in pieces of 1 MiB, at the host's copying speed. Ranges that
    /// overlap are copied well if they are shorter than that or `dst` is the lower one.
    ///
    /// # Errors
    /// [`MemoryFault`]; then the pieces before the one that faults have been copied.
    pub fn copy(&self, dst: u64, src: u64, bytes: u64) -> Result<(), MemoryFault> {
        self.in_pieces(bytes, |map, done, piece| {
            let (dst, src) = (dst.wrapping_add(done), src.wrapping_add(done));
            map.check(src, piece, AccessKind::Read)?;
            map.check(dst, piece, AccessKind::Write)?;
            // SAFETY: both were checked just now, under the lock that the caller of this closure holds.
            unsafe { raw::copy(dst, src, piece as usize) };
            Ok(())
        })
    }

    /// Repeats the four bytes of `value`, the lowest first, over `bytes` bytes of any alignment, in pieces as
    /// [`Vm::copy`].
    ///
    /// # Errors
    /// [`MemoryFault`]; then the pieces before the one that faults have been filled.
    pub fn fill32(&self, dst: u64, value: u32, bytes: u64) -> Result<(), MemoryFault> {
        self.in_pieces(bytes, |map, done, piece| {
            let dst = dst.wrapping_add(done);
            map.check(dst, piece, AccessKind::Write)?;
            // Pieces are multiples of 4 bytes: the value stays in phase.
            // SAFETY: checked for writing just now, under the lock that the caller of this closure holds.
            unsafe { raw::fill(dst, value, piece as usize) };
            Ok(())
        })
    }

    fn in_pieces(
        &self,
        bytes: u64,
        mut act: impl FnMut(&Map, u64, u64) -> Result<(), MemoryFault>,
    ) -> Result<(), MemoryFault> {
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(PIECE);
            // The lock is released between the pieces, so that a change of the map need not wait for all of them.
            act(&self.map.read(), done, piece)?;
            done += piece;
        }
        Ok(())
    }

    /// Acquire load of an aligned u32 (a misaligned address is read bytewise).
    ///
    /// # Errors
    /// [`MemoryFault`].
    pub fn read_u32(&self, address: u64) -> Result<u32, MemoryFault> {
        let map = self.map.read();
        map.check(address, 4, AccessKind::Read)?;
        // SAFETY: checked for reading just now, under the lock that is held.
        Ok(unsafe { raw::load_acquire_u32(address) })
    }

    /// Acquire load of an aligned u64.
    ///
    /// # Errors
    /// [`MemoryFault`].
    pub fn read_u64(&self, address: u64) -> Result<u64, MemoryFault> {
        let map = self.map.read();
        map.check(address, 8, AccessKind::Read)?;
        // SAFETY: checked for reading just now, under the lock that is held.
        Ok(unsafe { raw::load_acquire_u64(address) })
    }

    /// Release store of an aligned u32.
    ///
    /// # Errors
    /// [`MemoryFault`].
    pub fn write_u32(&self, address: u64, value: u32) -> Result<(), MemoryFault> {
        let map = self.map.read();
        map.check(address, 4, AccessKind::Write)?;
        // SAFETY: checked for writing just now, under the lock that is held.
        unsafe { raw::store_release_u32(address, value) };
        Ok(())
    }

    /// Release store of an aligned u64.
    ///
    /// # Errors
    /// [`MemoryFault`].
    pub fn write_u64(&self, address: u64, value: u64) -> Result<(), MemoryFault> {
        let map = self.map.read();
        map.check(address, 8, AccessKind::Write)?;
        // SAFETY: checked for writing just now, under the lock that is held.
        unsafe { raw::store_release_u64(address, value) };
        Ok(())
    }

    /// Stores a u64 as the host does: wherever something is mapped, whatever the GPU itself may do there.
    ///
    /// # Errors
    /// [`MemoryFault`]: nothing is mapped there.
    pub fn host_store_u64(&self, address: u64, value: u64) -> Result<(), MemoryFault> {
        let map = self.map.read();
        let k = map.intervals.partition_point(|i| i.end <= address);
        let inside = map.intervals.get(k).is_some_and(|i| i.start <= address && i.end - address >= 8);
        if !inside {
            return Err(MemoryFault { address, access: AccessKind::Write, not_present: true });
        }
        // SAFETY: inside what is mapped, under the lock that is held.
        unsafe { raw::store_release_u64(address, value) };
        Ok(())
    }

    /// Atomic wrapping add to a u64, sequentially consistent; returns the old value.
    ///
    /// # Errors
    /// [`MemoryFault`], also for a misaligned address.
    pub fn atomic_add_u64(&self, address: u64, value: u64) -> Result<u64, MemoryFault> {
        let map = self.map.read();
        map.check(address, 8, AccessKind::Write)?;
        // SAFETY: checked for writing just now, under the lock that is held.
        let added = unsafe { raw::fetch_add_u64(address, value) };
        added.ok_or(MemoryFault { address, access: AccessKind::Write, not_present: false })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 24;

    fn access(number: u8) -> Access {
        Access { read: true, write: number & 1 != 0, execute: number & 2 != 0 }
    }

    proptest! {
        #[test]
        fn every_byte_has_the_access_that_it_was_given_last(
            steps in prop::collection::vec((0..3u8, 0..BYTES, 0..BYTES, 0..4u8), 0..60),
        ) {
            let mut memory = [0u8; BYTES];
            let base = memory.as_mut_ptr().expose_provenance() as u64;
            let (vm, mut model) = (Vm::new(), [None; BYTES]);
            for (step, from, to, number) in steps {
                let range = base + from as u64..base + to as u64;
                let bytes = from..to.max(from);
                match step {
                    0 => {
                        let is_free = from < to && model[bytes.clone()].iter().all(Option::is_none);
                        // SAFETY: bytes of the array, which has no reference while a program runs: none does.
                        let mapped = unsafe { vm.map(range, access(number)) };
                        prop_assert_eq!(mapped.is_ok(), is_free);
                        if is_free {
                            model[bytes].fill(Some(access(number)));
                        }
                    }
                    1 => {
                        vm.unmap(range);
                        model[bytes].fill(None);
                    }
                    _ => {
                        vm.protect(range, access(number));
                        model[bytes].iter_mut().flatten().for_each(|given| *given = access(number));
                    }
                }
                for (at, given) in (base..).zip(&model) {
                    for kind in [AccessKind::Read, AccessKind::Write, AccessKind::Execute] {
                        let found = vm.check(at, 1, kind).is_ok();
                        prop_assert_eq!(found, given.is_some_and(|given: Access| given.allows(kind)));
                    }
                }
            }
        }
    }
}
