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
/// Pages that one word tells of.
const WORD: usize = 64;
/// Pages of the largest fragment: what is larger is little of a chunk's use.
const LARGEST: usize = 64;

/// Which pages of a chunk are of fragments: a bit each.
#[derive(Debug, Default)]
struct Pages([u64; PAGES / WORD]);

impl Pages {
    /// Takes the first so many pages in a row that are free. Returns the first one's position.
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut first = self.next(0, false);
        while first + count <= PAGES {
            let end = self.next(first, true);
            if end - first >= count {
                self.set(first, count, true);
                return Some(first);
            }
            first = self.next(end, false);
        }
        None
    }

    /// The first page from this one on that is used or not, as asked for; [`PAGES`] if there is none.
    fn next(&self, from: usize, used: bool) -> usize {
        let mut ignored = from % WORD;
        for (at, word) in self.0.iter().enumerate().skip(from / WORD) {
            let wanted = if used { *word } else { !word };
            let left = wanted >> ignored << ignored;
            if left != 0 {
                return at * WORD + queues::words::size(u64::from(left.trailing_zeros()));
            }
            ignored = 0;
        }
        PAGES
    }

    fn set(&mut self, first: usize, count: usize, used: bool) {
        let (mut at, end) = (first, (first + count).min(PAGES));
        while at < end {
            let bits = (end - at).min(WORD - at % WORD);
            let mask = u64::MAX >> (WORD - bits) << (at % WORD);
            let word = &mut self.0[at / WORD];
            *word = if used { *word | mask } else { *word & !mask };
            at += bits;
        }
    }

    fn give_back(&mut self, first: usize, count: usize) {
        self.set(first, count, false);
    }

    fn free(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_zeros())).sum()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
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
            let mut pages = Pages::default();
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
        if !chunks[at].pages.is_empty() {
            return;
        }
        let is_spare =
            chunks[at].is_shared || chunks.iter().filter(|chunk| chunk.pages.is_empty()).count() > 1;
        // One that packets still use stays, and is taken from first.
        if is_spare && buffer.free().is_ok() {
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
        let chunks = self.0.lock();
        let own = chunks.iter().filter(|chunk| !chunk.is_shared);
        own.map(|chunk| chunk.pages.free()).sum::<u64>() * PAGE
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn pages_are_of_one_fragment_and_found_again_when_given_back() {
        let mut pages = Pages::default();
        let taken: Vec<usize> = std::iter::from_fn(|| pages.take(3)).collect();
        assert_eq!(taken, (0..PAGES / 3).map(|nth| nth * 3).collect::<Vec<_>>());
        assert_eq!((pages.take(2), pages.take(1)), (Some(510), None));
        pages.give_back(3, 3);
        pages.give_back(9, 3);
        assert_eq!((pages.take(4), pages.take(2), pages.take(3)), (None, Some(3), Some(9)));
        pages.give_back(6, 3);
        assert_eq!(pages.take(4), Some(5), "the rest of one and all of the next");
        assert!(!pages.is_empty());
        assert_eq!(pages.free(), 0);
        pages.give_back(0, PAGES);
        assert!(pages.is_empty());
    }

    #[test]
    fn bits_are_those_of_a_list_of_pages() {
        proptest!(|(steps in vec((1..=LARGEST, 0..8_usize), 1..200))| {
            let (mut pages, mut list, mut taken) = (Pages::default(), [false; PAGES], Vec::new());
            for (count, choice) in steps {
                let expected = list.windows(count).position(|window| !window.contains(&true));
                match pages.take(count) {
                    found if choice < 5 => {
                        prop_assert_eq!(found, expected);
                        if let Some(first) = found {
                            list[first..first + count].fill(true);
                            taken.push((first, count));
                        }
                    }
                    found => {
                        // The one that was taken now, and another.
                        let other = (!taken.is_empty()).then(|| taken.swap_remove(choice % taken.len()));
                        for (first, count) in found.map(|first| (first, count)).into_iter().chain(other) {
                            pages.give_back(first, count);
                            list[first..first + count].fill(false);
                        }
                    }
                }
                prop_assert_eq!(pages.free(), list.iter().filter(|is_used| !**is_used).count() as u64);
            }
        });
    }
}
