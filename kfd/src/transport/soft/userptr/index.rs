// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where pages of this process are lent, for calls that unmap memory: nearly all of them are of other memory, and must cost
//! next to nothing.
//!
//! INVARIANT: a reader takes no lock and allocates nothing, so that a signal handler may read. It never misses a loan that
//! was made before it began. While the index changes it may see one that there is not.
//!
//! The ranges are an array in ascending order under a sequence number, which is odd while they change. A full array is
//! followed by one of twice the size; the smaller one stays, since a reader may be in it.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use parking_lot::Mutex;

/// Ranges in the first array.
const FIRST: usize = 64;
/// Arrays: the last one has more ranges than a process may have mappings.
const ARRAYS: usize = 20;
/// How often a reader begins again when the index changes meanwhile.
const ATTEMPTS: usize = 4;

static INDEX: Index = Index::new();

/// Whether a page of a range may be lent by a [`Lent`](super::Lent) that is indexed. Takes two loads for a range that is not
/// between the first and the last of these pages.
pub fn has_page_of(range: &Range<usize>) -> bool {
    INDEX.touches(range)
}

/// A range that is in the index, unless it is empty.
#[derive(Debug)]
pub(super) struct Mark(Range<usize>);

impl Mark {
    /// Enters a range that overlaps no other one.
    pub(super) fn new(range: &Range<usize>) -> Self {
        INDEX.change(|ranges| {
            let at = ranges.partition_point(|known| known.start < range.start);
            ranges.insert(at, range.clone());
        });
        Self(range.clone())
    }

    /// Cuts it in two at `at`, which lies inside, in one step.
    pub(super) fn cut(mut self, at: usize) -> [Self; 2] {
        let whole = std::mem::take(&mut self.0);
        let parts = [whole.start..at, at..whole.end];
        INDEX.change(|ranges| {
            if let Some(place) = ranges.iter().position(|known| *known == whole) {
                ranges.splice(place..=place, parts.iter().cloned());
            }
        });
        parts.map(Self)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        INDEX.change(|ranges| {
            if let Some(at) = ranges.iter().position(|known| *known == self.0) {
                ranges.remove(at);
            }
        });
    }
}

struct Index {
    /// What was published last.
    ranges: Mutex<Vec<Range<usize>>>,
    /// The first address in any range, and one past the last.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    sequence: AtomicUsize,
    /// Which array is in use, and how many ranges are in it.
    array: AtomicUsize,
    count: AtomicUsize,
    arrays: [OnceLock<Box<[AtomicUsize]>>; ARRAYS],
}

impl Index {
    const fn new() -> Self {
        Self {
            ranges: Mutex::new(Vec::new()),
            lowest: AtomicUsize::new(usize::MAX),
            highest: AtomicUsize::new(0),
            sequence: AtomicUsize::new(0),
            array: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            arrays: [const { OnceLock::new() }; ARRAYS],
        }
    }

    fn touches(&self, range: &Range<usize>) -> bool {
        // ORDERING: Relaxed, here and below. A thread that unmaps memory which another thread has registered learns of that
        // from the program, with an ordering of the program's own.
        let outside = range.end <= self.lowest.load(Ordering::Relaxed)
            || range.start >= self.highest.load(Ordering::Relaxed);
        if outside {
            return false;
        }
        for _ in 0..ATTEMPTS {
            // ORDERING: Acquire pairs with the release at the end of `change`. The fence keeps the loads of the array before the
            // second load of the number, and pairs with the fence in `change`.
            let before = self.sequence.load(Ordering::Acquire);
            let found = self.search(range);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return found;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// The first range that ends behind the start of `range` decides.
    fn search(&self, range: &Range<usize>) -> bool {
        let Some(array) = self.arrays.get(self.array.load(Ordering::Relaxed)).and_then(OnceLock::get) else {
            return false;
        };
        let word = |at: usize| array.get(at).map_or(usize::MAX, |word| word.load(Ordering::Relaxed));
        let (mut low, mut high) = (0, self.count.load(Ordering::Relaxed));
        while low < high {
            let middle = low.midpoint(high);
            if word(2 * middle + 1) <= range.start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low < self.count.load(Ordering::Relaxed) && word(2 * low) < range.end
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Range<usize>>)) {
        let mut ranges = self.ranges.lock();
        change(&mut ranges);
        let number = (0..ARRAYS).find(|number| ranges.len() <= FIRST << number).unwrap_or(ARRAYS - 1);
        let used = self.array.load(Ordering::Relaxed).max(number);
        let empty = || (0..2 * (FIRST << used)).map(|_| AtomicUsize::new(0)).collect();
        let array = self.arrays[used].get_or_init(empty);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // ORDERING: Release: a reader that sees any store below sees the odd number when it looks again.
        fence(Ordering::Release);
        self.array.store(used, Ordering::Relaxed);
        self.count.store(ranges.len(), Ordering::Relaxed);
        for (range, words) in ranges.iter().zip(array.chunks_exact(2)) {
            words[0].store(range.start, Ordering::Relaxed);
            words[1].store(range.end, Ordering::Relaxed);
        }
        self.lowest.store(ranges.first().map_or(usize::MAX, |range| range.start), Ordering::Relaxed);
        self.highest.store(ranges.last().map_or(0, |range| range.end), Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn enter(index: &Index, range: Range<usize>) {
        index.change(|ranges| {
            ranges.push(range);
            ranges.sort_by_key(|range| range.start);
        });
    }

    #[test]
    fn ranges_are_found_by_any_of_their_pages_and_gaps_are_not() {
        let index = Index::new();
        assert!(!index.touches(&(0..usize::MAX)));
        for at in [50, 10, 30] {
            enter(&index, at..at + 10);
        }
        for at in 0..80 {
            let wanted = [10..20, 30..40, 50..60].iter().any(|range| range.contains(&at));
            assert_eq!(index.touches(&(at..at + 1)), wanted, "{at}");
        }
        assert!(index.touches(&(0..11)) && index.touches(&(20..31)) && index.touches(&(0..100)));
        assert!(!index.touches(&(20..30)) && !index.touches(&(60..90)) && !index.touches(&(0..10)));
        index.change(|ranges| ranges.truncate(1));
        assert!(!index.touches(&(20..90)) && index.touches(&(19..90)));
    }

    #[test]
    fn ranges_beyond_the_first_array_are_found() {
        let index = Index::new();
        for at in 0..10 * FIRST {
            enter(&index, 100 * at..100 * at + 1);
        }
        assert!((0..10 * FIRST).all(|at| index.touches(&(100 * at..100 * at + 1))));
        assert!((0..10 * FIRST).all(|at| !index.touches(&(100 * at + 1..100 * at + 100))));
        index.change(Vec::clear);
        assert!(!index.touches(&(0..usize::MAX)));
    }

    #[test]
    fn range_that_stays_is_found_while_others_come_and_go() {
        let (index, over) = (Index::new(), AtomicBool::new(false));
        enter(&index, 500..501);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000 {
                    enter(&index, 10 * (round % 40)..10 * (round % 40) + 5);
                    index.change(|ranges| *ranges = ranges.split_off(1));
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                assert!(index.touches(&(500..501)));
                assert!(!index.touches(&(501..600)));
            }
        });
    }
}
