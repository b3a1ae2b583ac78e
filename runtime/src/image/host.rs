// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process memory that an image is made of or fills, and the mapping through which an image in memory is overwritten.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kfd::linux;
use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use queues::words::size;

use crate::linux::pages::HugePages;

/// Bytes hashed at a time: they stay in a core's cache between the copy and the hash, and fill all lanes of BLAKE3.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// A range of process memory that is written to or filled from an image: a buffer's host mapping.
///
/// INVARIANT: `address..address + bytes` stays mapped (readable for writing an image, writable for filling from one)
/// while the value is in use; whoever makes one promises that.
#[derive(Clone, Copy, Debug)]
pub struct HostRange {
    address: NonNull<u8>,
    bytes: u64,
    /// Picoseconds that a byte read takes beyond what the memory itself takes.
    read_cost: u64,
}

// SAFETY: a HostRange is a promise about an address range, not an owner; the workers only copy bytes through it with
// raw pointers, and the maker promises that it stays mapped.
unsafe impl Send for HostRange {}
// SAFETY: it gives out no reference; threads that use it at once are given disjoint chunks.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// Names `bytes` bytes at `address`.
    ///
    /// # Safety
    /// The range must stay mapped with the access the operation needs for as long as the value is used, and nothing
    /// else may write it meanwhile in a way that matters (torn bytes are copied as they are).
    #[must_use]
    pub unsafe fn new(address: NonNull<u8>, bytes: u64) -> Self {
        Self { address, bytes, read_cost: 0 }
    }

    /// Names `bytes` bytes at the address `va`; `None` for a null address.
    ///
    /// # Safety
    /// As for [`HostRange::new`].
    #[must_use]
    pub(crate) unsafe fn at_address(va: u64, bytes: u64) -> Option<Self> {
        let address = NonNull::new(ptr::with_exposed_provenance_mut(size(va)))?;
        // SAFETY: the caller promises it.
        Some(unsafe { Self::new(address, bytes) })
    }

    /// The same, of which a byte read takes this many picoseconds more: a software device's aperture, which would
    /// otherwise be as fast as memory ([`kfd::Transport::aperture_read_cost`]).
    #[must_use]
    pub fn with_read_cost(self, picoseconds: u64) -> Self {
        Self { read_cost: picoseconds, ..self }
    }

    /// `bytes` bytes of it from `offset` on.
    ///
    /// # Panics
    /// When they are not in it.
    pub(super) fn part(&self, offset: u64, bytes: u64) -> Self {
        let start = self.at(offset, size(bytes));
        // The start of a range is no null pointer, and a place in it is none.
        Self { address: NonNull::new(start).unwrap_or(self.address), bytes, read_cost: self.read_cost }
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where byte `offset` is. Callers stay within the extent (`chunk_ranges`, or what `Image::fill` checked).
    ///
    /// # Panics
    /// When they do not: what is done with the address would touch memory that nobody promised.
    fn at(&self, offset: u64, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length as u64).is_some_and(|end| end <= self.bytes));
        self.address.as_ptr().wrapping_add(size(offset))
    }

    /// Copies bytes from `offset` on out of it.
    ///
    /// # Panics
    /// When they are not in it.
    pub(crate) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        spend(self.read_cost.saturating_mul(into.len() as u64));
        // SAFETY: `new` promises the range; callers stay within `bytes`. A plain copy of memory others may write is a
        // torn read at worst: the device is stopped while images are made.
        unsafe { ptr::copy_nonoverlapping(self.at(offset, into.len()), into.as_mut_ptr(), into.len()) }
    }

    pub(super) fn copy_in(&self, offset: u64, from: &[u8]) {
        // SAFETY: `new` promises that the range is writable, and `at` that it is kept to; `from` is a Rust slice elsewhere.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.at(offset, from.len()), from.len()) }
    }

    pub(crate) fn zero(&self, offset: u64, bytes: u64) {
        let bytes = size(bytes);
        // SAFETY: `new` promises that the range is writable, and `at` that it is kept to.
        unsafe { ptr::write_bytes(self.at(offset, bytes), 0, bytes) }
    }

    /// Whether all of these bytes are zero; looks no further than a little beyond the first that is not.
    pub(super) fn is_zero(&self, offset: u64, bytes: u64) -> bool {
        /// Words OR-ed together before a look at the result: that vectorises.
        const GROUP: usize = 64;
        let cost = self.read_cost.saturating_mul(8 * GROUP as u64);
        let start = self.at(offset, size(bytes));
        let (words, tail) = (size(bytes) / 8, size(bytes) % 8);
        for group in (0..words).step_by(GROUP) {
            let mut any = 0;
            spend(cost);
            for word in group..words.min(group + GROUP) {
                // SAFETY: within the range that `new` promises; the read needs no alignment.
                any |= unsafe { start.add(word * 8).cast::<u64>().read_unaligned() };
            }
            if any != 0 {
                return false;
            }
        }
        // SAFETY: the last bytes of the range that `new` promises, which `at` has checked.
        (0..tail).all(|byte| unsafe { start.add(words * 8 + byte).read() } == 0)
    }

    /// Whether a transfer past the page cache can go straight to these bytes.
    pub(super) fn is_aligned(&self, offset: u64, bytes: u64, to: u64) -> bool {
        (self.address.as_ptr().addr() as u64).wrapping_add(offset).is_multiple_of(to)
            && bytes.is_multiple_of(to)
    }

    /// Fills `bytes` bytes from `file`.
    ///
    /// # Errors
    /// What the system says; `EFAULT` for device memory that no transfer can reach. `UnexpectedEof` for a short file.
    pub(super) fn read_from(&self, file: &File, place: u64, offset: u64, bytes: usize) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let into = self.at(offset + done as u64, bytes - done);
            // SAFETY: `new` promises that the range is writable; the kernel checks it besides.
            match unsafe { linux::pread(file.as_fd(), into, bytes - done, place + done as u64) } {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => done += got,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Has whole pages of this range be given their memory at once ([`HugePages::populate`]).
    pub(super) fn populate(&self, offset: u64, bytes: u64, huge: &HugePages) {
        // SAFETY: `new` promises the pages.
        unsafe { huge.populate(self.at(offset, size(bytes)), size(bytes)) }
    }
}

/// Waits for what reads cost by themselves: shortly by looking at the clock, long by sleeping.
fn spend(picoseconds: u64) {
    if picoseconds == 0 {
        return;
    }
    let cost = Duration::from_nanos(picoseconds / 1000);
    let end = Instant::now() + cost;
    std::thread::sleep(cost.saturating_sub(Duration::from_micros(100)));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// A file in memory, mapped to be written in parallel: `write` takes its inode's lock, a mapping does not.
///
/// INVARIANT: bytes are only touched after `take` had the kernel give them their memory, so a full file system is an
/// error and no signal; and every byte is taken once.
#[derive(Debug)]
pub(super) struct Mapping {
    memory: MmapRaw,
    /// Where the next bytes are taken.
    end: AtomicU64,
}

impl Mapping {
    /// Maps the first `bytes` of `file`, which is as long and this process's alone; bytes are taken from `end` on.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(super) fn of(file: &File, bytes: u64, end: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let memory = MmapOptions::new().len(bytes).map_raw(file)?;
        Ok(Self { memory, end: AtomicU64::new(end) })
    }

    /// The next `bytes` bytes: their offset in the file, and they themselves with memory behind them.
    ///
    /// The second is `ENOSPC` when the file system has no memory for them, `EINVAL` on kernels before 5.14.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn take(&self, bytes: usize) -> (u64, io::Result<&mut [u8]>) {
        let place = self.end.fetch_add(bytes as u64, Ordering::Relaxed);
        (place, self.populated(place, bytes))
    }

    #[allow(clippy::mut_from_ref)]
    fn populated(&self, place: u64, bytes: usize) -> io::Result<&mut [u8]> {
        let within = usize::try_from(place)
            .ok()
            .filter(|place| place.checked_add(bytes).is_some_and(|end| end <= self.memory.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        match self.memory.advise_range(Advice::PopulateRead, within, bytes) {
            // What would have been SIGBUS.
            Err(error) if error.raw_os_error() == Some(Errno::EFAULT as i32) => {
                return Err(Errno::ENOSPC.into());
            }
            other => other?,
        }
        let start = self.memory.as_mut_ptr().wrapping_add(within);
        // SAFETY: within our mapping, populated, and `take` gives no byte out twice; the file is ours alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }

    /// Where the next bytes would be taken.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }
}
