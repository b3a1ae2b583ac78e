// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workers that move chunks: one thread a core, each with one page-aligned buffer allocated and touched once.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::CHUNK_BYTES;
use crate::limit::{Limit, Stopped};

pub(super) const PAGE: u64 = 4096;

/// A page-aligned buffer of one chunk, as O_DIRECT wants it.
pub(super) struct ChunkBuffer {
    start: NonNull<u8>,
}

// SAFETY: the buffer is owned memory without thread affinity.
unsafe impl Send for ChunkBuffer {}

impl ChunkBuffer {
    fn layout() -> Layout {
        Layout::from_size_align(CHUNK_BYTES as usize, PAGE as usize)
            .expect("INVARIANT: 2 MiB at 4 KiB alignment is a valid layout")
    }

    pub(super) fn new() -> Self {
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { alloc_zeroed(Self::layout()) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(Self::layout())) }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `start` owns CHUNK_BYTES initialised bytes and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), CHUNK_BYTES as usize) }
    }
}

impl Drop for ChunkBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout()) }
    }
}

/// How many workers move `items` chunks.
fn workers(items: usize) -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(items).max(1)
}

/// Runs `work(index, buffer)` for every index below `items` on all cores; the first error, or `limit`, stops the rest.
pub(super) fn for_each<E: Send + From<Stopped>>(
    items: usize,
    limit: &Limit,
    work: impl Fn(usize, &mut ChunkBuffer) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let run = || -> Result<(), E> {
        let mut buffer = ChunkBuffer::new();
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
    let helpers = workers(items) - 1;
    if helpers == 0 {
        return run();
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..helpers).map(|_| scope.spawn(run)).collect();
        let own = run();
        handles.into_iter().map(|h| h.join().unwrap_or(Ok(()))).fold(own, Result::and)
    })
}

/// Opens `path` for bulk transfer: past the page cache where the file system can, else as it is.
pub(super) fn open_bulk(path: &Path, options: &OpenOptions) -> std::io::Result<File> {
    match options.clone().custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => options.open(path),
        other => other,
    }
}

/// Whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: every bit pattern is a u64; align_to splits at aligned places.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
    // Groups of 64 words OR-ed together vectorise and still stop early.
    head.iter().all(|b| *b == 0)
        && words.chunks(64).all(|group| group.iter().fold(0, |a, w| a | w) == 0)
        && tail.iter().all(|b| *b == 0)
}
