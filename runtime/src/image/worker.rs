// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workers that move chunks, each with one page-aligned buffer made when first needed, and the file they move them
//! to or from.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kfd::linux;
use memmap2::MmapMut;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use queues::words::size;
use stasis_protocol::{Limit, Stopped};

use super::CHUNK_BYTES;
use super::host::{HostRange, PIECE_BYTES};

pub(super) const PAGE: u64 = 4096;
/// What a buffer leaves to the rest of the process, which cannot do without the little that it asks for.
const SPARE: usize = 1 << 20;
/// With less memory than this, by a limit, a process has no threads but those that it cannot do without.
const AMPLE: u64 = 256 << 20;

/// A page-aligned buffer of one chunk, as O_DIRECT wants it.
#[derive(Debug, Default)]
pub struct ChunkBuffer {
    memory: Option<MmapMut>,
}

impl ChunkBuffer {
    /// The buffer; a page of it costs nothing before it is used, which an aligned allocation would.
    ///
    /// # Errors
    /// When there is no memory: a limit (RLIMIT_DATA, RLIMIT_AS) may leave the process less than a buffer for each
    /// worker.
    pub fn bytes(&mut self) -> io::Result<&mut [u8]> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => {
                let memory = MmapMut::map_anon(size(CHUNK_BYTES))?;
                drop(MmapMut::map_anon(SPARE)?);
                none.insert(memory)
            }
        };
        Ok(memory)
    }

    /// The hash of a part of a range, through a piece of this buffer: memory that is not ours is never borrowed.
    pub(super) fn hash(
        &mut self,
        hasher: &mut blake3::Hasher,
        range: &HostRange,
        offset: u64,
        bytes: u64,
    ) -> io::Result<()> {
        let piece = &mut self.bytes()?[..PIECE_BYTES];
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..size((PIECE_BYTES as u64).min(bytes - at))];
            range.copy_out(offset + at, piece);
            hasher.update(piece);
        }
        Ok(())
    }
}

/// Copies the start of a range and hashes the copy, piece by piece: each is in the cache when it is hashed.
pub(super) fn copy_and_hash(range: &HostRange, into: &mut [u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    for piece in into.chunks_mut(PIECE_BYTES) {
        range.copy_out(at, piece);
        hasher.update(piece);
        at += piece.len() as u64;
    }
    *hasher.finalize().as_bytes()
}

/// Whether no limit (RLIMIT_DATA, RLIMIT_AS) makes memory so scarce that a thread's stack would be missed elsewhere.
#[must_use]
pub fn memory_is_ample() -> bool {
    let limits = [Resource::RLIMIT_DATA, Resource::RLIMIT_AS].map(getrlimit);
    limits.into_iter().flatten().all(|(bytes, _)| bytes >= AMPLE)
}

/// Threads for each core that keep both a disk and an agent's engine busy, which transfer while their thread sleeps.
pub(super) const TRANSFER_THREADS: usize = 2;

/// The most workers of [`for_each`] that there are at a time.
pub(crate) fn most_workers() -> usize {
    if memory_is_ample() { cores() * TRANSFER_THREADS } else { 1 }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work(index, buffer)` for every index below `items` on `threads` threads for each core, or on as many as there
/// may be; the first error, or `limit`, stops the rest.
///
/// # Errors
/// The first error of `work`, or that `limit` has stopped it.
///
/// # Panics
/// When `work` panics.
pub fn for_each<E: Send + From<Stopped>>(
    items: usize,
    threads: usize,
    limit: &Limit,
    work: impl Fn(usize, &mut ChunkBuffer) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let run = || -> Result<(), E> {
        let mut buffer = ChunkBuffer::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= items {
                return Ok(());
            }
            if let Err(error) = limit.check().map_err(E::from).and_then(|()| work(index, &mut buffer)) {
                next.store(items, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    let helpers = (cores() * threads).min(items).max(1) - 1;
    if helpers == 0 || !memory_is_ample() {
        return run();
    }
    std::thread::scope(|scope| {
        // Where no thread can be had the others, this one at least, do all of the work.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, run).ok();
        let handles: Vec<_> = (0..helpers).map_while(spawn).collect();
        let own = run();
        // A chunk that was left out without a word would be missing for good.
        let joined = handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(own, Result::and)
    })
}

/// A file of bulk data: past the page cache where its file system can.
#[derive(Debug)]
pub(super) struct Bulk {
    file: File,
    in_memory: bool,
    direct: AtomicBool,
    /// The same file through the page cache, for what of it is there nevertheless.
    cached: Option<File>,
}

impl Bulk {
    pub(super) fn new(file: File) -> io::Result<Self> {
        // Memfds are of tmpfs, too.
        let in_memory = fstatfs(&file)?.filesystem_type() == TMPFS_MAGIC;
        Ok(Self { file, in_memory, direct: AtomicBool::new(false), cached: None })
    }

    /// A file to read from, past the page cache but for what is there already.
    pub(super) fn to_read(file: File) -> io::Result<Self> {
        let mut bulk = Self::new(file)?;
        bulk.set_direct(true)?;
        if bulk.is_direct() {
            // A flag such as O_DIRECT is the open file's. Without /proc all is read past the cache.
            bulk.cached = File::open(format!("/proc/self/fd/{}", bulk.file.as_raw_fd())).ok();
        }
        Ok(bulk)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn into_file(self) -> File {
        self.file
    }

    /// Whether its pages are memory that stays: there is no cache to go past.
    pub(super) fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// The file through the page cache; none where all is read that way.
    pub(super) fn cached(&self) -> Option<&File> {
        self.cached.as_ref()
    }

    /// From where these bytes come, which begin at a page: from the page cache if all of them are there. Kernels that do not tell
    /// (before 6.5) have them read from the disk.
    pub(super) fn source(&self, place: u64, bytes: usize) -> &File {
        let is_there = |file: &&File| {
            linux::cached_pages(file.as_fd(), place, bytes as u64) == Ok((bytes as u64).div_ceil(PAGE))
        };
        self.cached.as_ref().filter(is_there).unwrap_or(&self.file)
    }

    /// Threads for each core that keep it busy: a transfer past the page cache sleeps, a copy does not.
    pub(super) fn threads(&self) -> usize {
        if self.is_direct() { TRANSFER_THREADS } else { 1 }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// From now on past the page cache, or through it.
    pub(super) fn set_direct(&self, direct: bool) -> io::Result<()> {
        let flags = OFlag::from_bits_retain(fcntl(&self.file, FcntlArg::F_GETFL)?);
        let mut wanted = flags;
        wanted.set(OFlag::O_DIRECT, direct && !self.in_memory);
        let set = if wanted == flags { Ok(0) } else { fcntl(&self.file, FcntlArg::F_SETFL(wanted)) };
        let refused = set == Err(Errno::EINVAL) && direct;
        self.direct.store(wanted.contains(OFlag::O_DIRECT) && !refused, Ordering::Relaxed);
        if refused { Ok(()) } else { Ok(set.map(drop)?) }
    }

    /// Does a transfer; once more through the page cache if the file system takes O_DIRECT but not this transfer.
    fn transfer<T>(&self, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match act() {
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) && self.is_direct() => {
                self.set_direct(false)?;
                act()
            }
            other => other,
        }
    }

    pub(super) fn write(&self, bytes: &[u8], place: u64) -> io::Result<()> {
        self.transfer(|| self.file.write_all_at(bytes, place))
    }

    pub(super) fn read(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        self.transfer(|| self.source(place, bytes.len()).read_exact_at(bytes, place))
    }
}
