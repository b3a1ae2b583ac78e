// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of a client's memory its GPUs have written, for a client that asks. No hardware tells this: it is there under a switch only
//! (`SOFTGPU_WRITES`).
//!
//! INVARIANT: a store through a mapping of the client's memory in this process is told by the next answer for its address, or all of
//! the range is told. A mapping that was taken away takes its stores with it: the ranges that it was part of count as written whole.
#![cfg_attr(test, allow(unsafe_code))]

use std::collections::BTreeMap;
use std::ops::Range;

use kfd::transport::wire::{MAX_RANGES, MAX_UNITS};
use kfd::written::{Units, WrittenPages};
use nix::errno::Errno;

use super::memory::PAGE;

/// What is known of a client's memory; nothing before it has asked.
#[derive(Debug, Default)]
pub(super) struct WrittenRanges {
    known: Option<Known>,
}

#[derive(Debug)]
struct Known {
    pages: WrittenPages,
    /// The bytes of the ranges of the last question, by address, but for those of which something was unmapped since then.
    whole: BTreeMap<u64, u64>,
}

impl WrittenRanges {
    /// Answers a question; `mapped` says what of a range is mapped here.
    ///
    /// # Errors
    /// As [`super::ClientGpus::written`].
    pub(super) fn take(
        &mut self,
        ranges: &[(u64, u64)],
        unit: u64,
        mapped: impl Fn(u64, u64) -> Vec<Range<u64>>,
    ) -> Result<Vec<Units>, Errno> {
        // Whatever fails, nothing is known any more.
        let before = self.known.take();
        if ranges.len() > MAX_RANGES || unit == 0 || !unit.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let (mut least, mut all) = (0, 0u64);
        for (va, bytes) in ranges {
            let end = va.checked_add(*bytes).filter(|end| *va >= least && end.is_multiple_of(PAGE));
            least = end.filter(|_| va.is_multiple_of(PAGE)).ok_or(Errno::EINVAL)?;
            all = all.saturating_add(bytes.div_ceil(unit));
        }
        if all > MAX_UNITS {
            return Err(Errno::EINVAL);
        }
        let Known { pages, whole } = match before {
            Some(known) => known,
            None => Known { pages: WrittenPages::new()?, whole: BTreeMap::new() },
        };
        let look = pages.look()?;
        let answer = |&(va, bytes): &(u64, u64)| {
            let units = bytes.div_ceil(unit);
            let is_known = whole.get(&va) == Some(&bytes);
            let mut written = if is_known { Units::none(units) } else { Units::all(units) };
            let parts = mapped(va, va + bytes);
            parts.iter().try_for_each(|part| look.take(part, va, unit, &mut written)).map(|()| written)
        };
        let answers = ranges.iter().map(answer).collect::<Result<_, Errno>>()?;
        drop(look);
        self.known = Some(Known { pages, whole: ranges.iter().copied().collect() });
        Ok(answers)
    }

    /// A mapping is taken away.
    pub(super) fn unmapped(&mut self, va: u64, bytes: u64) {
        let Some(Known { whole, .. }) = &mut self.known else { return };
        let end = va.saturating_add(bytes);
        // They do not overlap.
        while let Some((&last, _)) =
            whole.range(..end).next_back().filter(|(start, bytes)| *start + **bytes > va)
        {
            whole.remove(&last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use memmap2::{MmapOptions, MmapRaw};
    use nix::fcntl::SealFlag;
    use queues::words::size;

    use super::*;

    const PAGES: u64 = 64;
    const UNIT: u64 = 8 * PAGE;

    /// Pages of a file of the client's, mapped somewhere.
    fn mapped() -> (MmapRaw, u64) {
        let file = kfd::linux::memfd("t", PAGES * PAGE, SealFlag::F_SEAL_SHRINK).unwrap();
        let map = MmapOptions::new().len(size(PAGES * PAGE)).map_raw(&file).unwrap();
        let va = map.as_mut_ptr().expose_provenance() as u64;
        (map, va)
    }

    fn store(map: &MmapRaw, page: u64) {
        // SAFETY: inside of the mapping, which is accessed through atomics only.
        unsafe { &*map.as_mut_ptr().add(size(page * PAGE)).cast::<AtomicU64>() }.store(1, Ordering::SeqCst);
    }

    fn all_of(va: u64, end: u64) -> Vec<Range<u64>> {
        std::iter::once(va..end).collect()
    }

    #[test]
    fn answer_has_the_stores_since_the_last_one_and_all_of_what_is_new() {
        let ((map, va), mut ranges) = (mapped(), WrittenRanges::default());
        let question = [(va, PAGES * PAGE)];
        let all = Ok(vec![Units::all(PAGES / 8)]);
        assert_eq!(ranges.take(&question, UNIT, all_of), all);
        store(&map, 0);
        store(&map, 31);
        assert_eq!(ranges.take(&question, UNIT, all_of), Ok(vec![Units(vec![0b1001])]));
        // Parts of it may be mapped by themselves, or not at all.
        store(&map, 9);
        store(&map, 40);
        let parts = |va, _| vec![va..va + 10 * PAGE, va + 39 * PAGE..va + 41 * PAGE];
        assert_eq!(ranges.take(&question, UNIT, parts), Ok(vec![Units(vec![0b10_0010])]));
        // What was not asked of the last time is not known.
        let halves = [(va, 32 * PAGE), (va + 32 * PAGE, 32 * PAGE)];
        assert_eq!(ranges.take(&halves, UNIT, all_of), Ok(vec![Units::all(4), Units::all(4)]));
        assert_eq!(ranges.take(&halves[..1], UNIT, all_of), Ok(vec![Units::none(4)]));
        assert_eq!(ranges.take(&halves, UNIT, all_of), Ok(vec![Units::none(4), Units::all(4)]));
    }

    #[test]
    fn range_of_which_something_was_unmapped_counts_as_written() {
        let ((_map, va), mut ranges) = (mapped(), WrittenRanges::default());
        let halves = [(va, 32 * PAGE), (va + 32 * PAGE, 32 * PAGE)];
        let ask = |ranges: &mut WrittenRanges| ranges.take(&halves, UNIT, all_of).unwrap();
        ask(&mut ranges);
        for (from, bytes, first, second) in [
            (va + 31 * PAGE, PAGE, true, false),
            (va + 32 * PAGE, PAGE, false, true),
            (va + 31 * PAGE, 2 * PAGE, true, true),
            (va - PAGE, PAGE, false, false),
            (va + 64 * PAGE, PAGE, false, false),
            (0, u64::MAX, true, true),
        ] {
            ranges.unmapped(from, bytes);
            let of = |is_all: bool| if is_all { Units::all(4) } else { Units::none(4) };
            assert_eq!(ask(&mut ranges), [of(first), of(second)], "{from:#x} {bytes:#x}");
        }
    }

    #[test]
    fn question_that_makes_no_sense_is_refused_and_all_counts_as_written_after_it() {
        let ((_map, va), mut ranges) = (mapped(), WrittenRanges::default());
        let good = [(va, PAGES * PAGE)];
        for (question, unit) in [
            (vec![(va, PAGE)], 0),
            (vec![(va, PAGE)], 100),
            (vec![(va + 1, PAGE)], UNIT),
            (vec![(va, PAGE + 1)], UNIT),
            (vec![(u64::MAX - PAGE + 1, PAGE)], UNIT),
            (vec![(va, 2 * PAGE), (va + PAGE, PAGE)], UNIT),
            (vec![(va + PAGE, PAGE), (va, PAGE)], UNIT),
            (vec![(0, 1 << 62)], PAGE),
            (vec![(0, 0); MAX_RANGES + 1], PAGE),
        ] {
            ranges.take(&good, UNIT, all_of).unwrap();
            assert_eq!(ranges.take(&question, unit, all_of), Err(Errno::EINVAL), "{question:x?}");
            assert_eq!(ranges.take(&good, UNIT, all_of), Ok(vec![Units::all(PAGES / 8)]));
        }
        let nothing = |_, _| Vec::new();
        assert_eq!(ranges.take(&[(PAGE, PAGE)], UNIT, nothing), Ok(vec![Units::all(1)]));
        assert_eq!(ranges.take(&[(PAGE, PAGE)], UNIT, nothing), Ok(vec![Units::none(1)]));
    }
}
