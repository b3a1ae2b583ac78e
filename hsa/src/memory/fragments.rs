// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small allocations of a GPU's memory: pages of chunks, so that the driver is asked once for many (as in AMD's runtime).
//!
//! INVARIANT: a page of a chunk is of one fragment at most. There are fragments only where there is one GPU: access is given by
//! whole buffers, and a fragment's neighbours are no business of another agent's.

use parking_lot::Mutex;
use stasis::Buffer;

use super::{Block, Origin, PAGE};
use crate::instance::Instance;
use crate::pools::{Place, Pool};

/// Pages of a chunk: 2 MiB, a large page of the GPU's.
const PAGES: usize = 512;
/// Pages of the largest fragment: what is larger is little of a chunk's use.
const LARGEST: usize = 64;

/// Which pages of a chunk are of fragments.
#[derive(Debug)]
struct Pages([bool; PAGES]);

impl Pages {
    /// Takes the first so many pages in a row that are free. Returns the first one's position.
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut free = 0;
        let end = self.0.iter().position(|is_used| {
            free = if *is_used { 0 } else { free + 1 };
            free == count
        })?;
        let first = end + 1 - count;
        self.0[first..=end].fill(true);
        Some(first)
    }

    fn give_back(&mut self, first: usize, count: usize) {
        self.0.iter_mut().skip(first).take(count).for_each(|is_used| *is_used = false);
    }

    fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }
}

/// A buffer that fragments are parts of.
#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    pages: Pages,
    /// Another process may have it: pages that are given back are not given out again.
    is_shared: bool,
}

/// The chunks of the GPU; at most one of them is empty.
#[derive(Debug, Default)]
pub struct Fragments(Mutex<Vec<Chunk>>);

fn pages_of(bytes: u64) -> usize {
    queues::words::size(bytes.div_ceil(PAGE))
}

impl Fragments {
    /// A fragment of a pool; `None` for what is to be a buffer of its own.
    pub fn alloc(&self, instance: &Instance, pool: Pool, bytes: u64) -> Option<Block> {
        let count = pages_of(bytes);
        if !(1..=LARGEST).contains(&count) || pool.place != Place::Vram || instance.agents.gpus().count() != 1
        {
            return None;
        }
        let mut chunks = self.0.lock();
        let own = chunks.iter_mut().filter(|chunk| !chunk.is_shared);
        let found = own.into_iter().find_map(|chunk| Some((chunk.pages.take(count)?, &chunk.buffer)));
        let (first, buffer) = if let Some((first, buffer)) = found {
            (first, buffer.clone())
        } else {
            // Without room for a chunk there may be some for the allocation.
            let buffer = pool.alloc(instance, PAGES * queues::words::size(PAGE)).ok()?;
            let mut pages = Pages([false; PAGES]);
            let first = pages.take(count)?;
            chunks.push(Chunk { buffer: buffer.clone(), pages, is_shared: false });
            (first, buffer)
        };
        let base = buffer.va() + first as u64 * PAGE;
        Some(Block { buffer: Some(buffer), is_fragment: true, ..Block::at(base, bytes, Origin::Pool(pool)) })
    }

    /// Gives a fragment's pages back, and the chunk if it is the second that is empty.
    pub fn free(&self, buffer: &Buffer, base: u64, bytes: u64) {
        let mut chunks = self.0.lock();
        let Some(at) = chunks.iter().position(|chunk| chunk.buffer.va() == buffer.va()) else { return };
        chunks[at].pages.give_back(pages_of(base - buffer.va()), pages_of(bytes));
        let is_empty = |chunk: &Chunk| chunk.pages.is_empty();
        let is_spare = chunks[at].is_shared || chunks.iter().filter(|chunk| is_empty(chunk)).count() > 1;
        // One that packets still use stays, and is taken from first.
        if is_empty(&chunks[at]) && is_spare && buffer.free().is_ok() {
            chunks.remove(at);
        }
    }

    /// Has no more fragments made of a buffer, which another process may have from now on.
    pub fn keep_apart(&self, buffer: &Buffer) {
        let mut chunks = self.0.lock();
        let of_buffer = chunks.iter_mut().filter(|chunk| chunk.buffer.va() == buffer.va());
        of_buffer.for_each(|chunk| chunk.is_shared = true);
    }

    /// Bytes of chunks that are of no fragment, and can be.
    pub fn unused(&self) -> u64 {
        let pages = |chunk: &Chunk| chunk.pages.0.iter().filter(|is_used| !**is_used).count() as u64;
        self.0.lock().iter().filter(|chunk| !chunk.is_shared).map(pages).sum::<u64>() * PAGE
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_of_one_fragment_and_found_again_when_given_back() {
        let mut pages = Pages([false; PAGES]);
        let taken: Vec<usize> = std::iter::from_fn(|| pages.take(3)).collect();
        assert_eq!(taken, (0..PAGES / 3).map(|nth| nth * 3).collect::<Vec<_>>());
        assert_eq!((pages.take(2), pages.take(1)), (Some(510), None));
        pages.give_back(3, 3);
        pages.give_back(9, 3);
        assert_eq!((pages.take(4), pages.take(2), pages.take(3)), (None, Some(3), Some(9)));
        pages.give_back(6, 3);
        assert_eq!(pages.take(4), Some(5), "the rest of one and all of the next");
        assert!(!pages.is_empty());
        pages.give_back(0, PAGES);
        assert!(pages.is_empty());
    }
}
