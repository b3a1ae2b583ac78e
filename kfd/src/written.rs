// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which memory of this process was written since somebody last asked, as the kernel tells it page by page: userfaultfd(2) with
//! UFFD_FEATURE_WP_ASYNC, and ioctl PAGEMAP_SCAN (Documentation/admin-guide/mm/pagemap.rst), both since Linux 6.7.
//!
//! The first store to a page after a question costs a fault, which the kernel ends by itself: nobody waits for another thread.
//!
//! INVARIANT: what is not known counts as written.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::errno;
use crate::forks::Uninherited;
use crate::userfault::{FEATURE_WP_HUGETLBFS_SHMEM, FEATURE_WP_UNPOPULATED, open, protect, register};

// include/uapi/linux/userfaultfd.h
/// Stores to protected pages are noted by the kernel and go on. `/proc/PID/fdinfo` shows the features of a userfaultfd.
pub const FEATURE_WP_ASYNC: u64 = 1 << 15;
// include/uapi/linux/fs.h
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
/// Runs of written pages that one call tells.
const REGIONS: usize = 256;

mod command {
    use super::ScanArgument;

    nix::ioctl_readwrite!(scan, b'f', 16, ScanArgument);
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Which units of a range were written: one bit each, the lowest bit of the first word for the first unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units(pub Vec<u64>);

impl Units {
    /// So many units, none of which was written.
    #[must_use]
    pub fn none(units: u64) -> Self {
        Self(vec![0; usize::try_from(units.div_ceil(64)).unwrap_or(usize::MAX)])
    }

    /// So many units, all of which were written.
    #[must_use]
    pub fn all(units: u64) -> Self {
        let mut all = Self::none(units);
        all.set(0..units);
        all
    }

    /// Says that units were written; those behind the end are left out.
    pub fn set(&mut self, units: Range<u64>) {
        for unit in units {
            let word = usize::try_from(unit / 64).ok().and_then(|word| self.0.get_mut(word));
            let Some(word) = word else { break };
            *word |= 1 << (unit % 64);
        }
    }

    /// Whether a unit was written; one behind the end was.
    #[must_use]
    pub fn has(&self, unit: u64) -> bool {
        usize::try_from(unit / 64)
            .ok()
            .and_then(|word| self.0.get(word))
            .is_none_or(|word| word >> (unit % 64) & 1 != 0)
    }
}

/// What the kernel knows of the stores to some memory of this process. Forgotten when it is dropped, and in a child.
#[derive(Debug)]
pub struct WrittenPages {
    // Before the descriptor.
    _uninherited: Uninherited,
    fd: OwnedFd,
}

impl WrittenPages {
    /// Begins with nothing known.
    ///
    /// # Errors
    /// EINVAL where the kernel cannot tell (before Linux 6.7), EPERM and ENOSYS where the system does not allow it.
    pub fn new() -> Result<Self, Errno> {
        open(FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED | FEATURE_WP_HUGETLBFS_SHMEM)
            .map(|fd| Self { _uninherited: Uninherited::new(fd.as_fd()), fd })
    }

    /// Begins to ask.
    ///
    /// # Errors
    /// That of opening `/proc/self/pagemap`.
    pub fn look(&self) -> Result<Look<'_>, Errno> {
        let pagemap = File::open("/proc/self/pagemap");
        let pagemap = pagemap.map_err(|error| errno::of_io(&error).unwrap_or(Errno::EIO))?;
        Ok(Look { pages: self, pagemap })
    }
}

/// Questions to the kernel.
#[derive(Debug)]
pub struct Look<'p> {
    pages: &'p WrittenPages,
    pagemap: File,
}

impl Look<'_> {
    /// Adds to `units`, each of so many bytes from `from` on, those that were written in this range since it was last asked of, by stores through
    /// this process's mappings or by system calls that it made; and begins anew. Pages that were mapped since then count as written, and
    /// with them all of the range; what is not mapped does not.
    ///
    /// The kernel tells each store once, whoever asks: of a range one asks alone.
    ///
    /// # Errors
    /// EINVAL for a range that is not of whole pages, or has no memory that can be watched. Nothing is known of the range then.
    pub fn take(&self, range: &Range<u64>, from: u64, unit: u64, units: &mut Units) -> Result<(), Errno> {
        let number = |address: u64| address.saturating_sub(from) / unit.max(1);
        if range.is_empty() {
            return if range.start == range.end { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let mut set = |pages: Range<u64>| units.set(number(pages.start)..number(pages.end - 1) + 1);
        match self.scan(range, &mut set) {
            // Some of it is not watched.
            Err(Errno::EPERM) => {
                register(&self.pages.fd, range)?;
                protect(&self.pages.fd, range, true)?;
                set(range.clone());
                Ok(())
            }
            told => told,
        }
    }

    fn scan(&self, range: &Range<u64>, set: &mut impl FnMut(Range<u64>)) -> Result<(), Errno> {
        let mut regions = [Region::default(); REGIONS];
        let mut at = range.start;
        while at < range.end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                start: at,
                end: range.end,
                vec: regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: REGIONS as u64,
                // Both alone: then pages that the kernel has taken away since count as written, too.
                category_mask: PAGE_IS_WRITTEN,
                return_mask: PAGE_IS_WRITTEN,
                ..ScanArgument::default()
            };
            // SAFETY: both are the kernel's structs, readable and writable, and the vector is as long as it is told; no memory changes
            // but the protection of pages that are watched for this very question.
            let found = match unsafe { command::scan(self.pagemap.as_raw_fd(), &raw mut argument) } {
                Err(Errno::EINTR) => continue,
                found => usize::try_from(found?).unwrap_or(0),
            };
            regions.iter().take(found).for_each(|region| set(region.start..region.end));
            if argument.walk_end <= at {
                return Err(Errno::EIO);
            }
            at = argument.walk_end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
    use nix::fcntl::SealFlag;
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;
    const PAGES: u64 = 1200;

    struct Memory {
        map: MmapRaw,
        range: Range<u64>,
    }

    fn memory() -> Memory {
        let file = crate::linux::memfd("t", PAGES * PAGE, SealFlag::F_SEAL_SHRINK).unwrap();
        let map = MmapOptions::new().len((PAGES * PAGE) as usize).map_raw(&file).unwrap();
        let start = map.as_mut_ptr().expose_provenance() as u64;
        Memory { map, range: start..start + PAGES * PAGE }
    }

    fn take(written: &WrittenPages, range: &Range<u64>, unit: u64) -> Result<Units, Errno> {
        let mut units = Units::none((range.end - range.start).div_ceil(unit));
        written.look()?.take(range, range.start, unit, &mut units).map(|()| units)
    }

    impl Memory {
        fn word(&self, page: u64) -> &AtomicU64 {
            // SAFETY: inside of the mapping, which is accessed through atomics only.
            unsafe { &*self.map.as_mut_ptr().add((page * PAGE) as usize + 8).cast::<AtomicU64>() }
        }

        fn store(&self, page: u64) {
            self.word(page).fetch_add(1, Ordering::SeqCst);
        }
    }

    fn pages(units: &Units) -> Vec<u64> {
        (0..PAGES).filter(|page| units.has(*page)).collect()
    }

    #[test]
    fn first_question_knows_nothing_and_the_next_ones_what_was_stored() {
        let (memory, written) = (memory(), WrittenPages::new().unwrap());
        memory.store(3);
        assert_eq!(pages(&take(&written, &memory.range, PAGE).unwrap()).len() as u64, PAGES);
        assert_eq!(pages(&take(&written, &memory.range, PAGE).unwrap()), []);
        memory.store(3);
        memory.store(1199);
        assert_eq!(memory.word(7).load(Ordering::SeqCst), 0);
        assert_eq!(pages(&take(&written, &memory.range, PAGE).unwrap()), [3, 1199]);
        assert_eq!(pages(&take(&written, &memory.range, PAGE).unwrap()), []);
        memory.store(700);
        // 512 pages each.
        let units = take(&written, &memory.range, 2 << 20).unwrap();
        assert_eq!((units.has(0), units.has(1), units.has(2)), (false, true, false));
        memory.store(600);
        let mut units = Units::none(3);
        let part = memory.range.start + 590 * PAGE..memory.range.start + 610 * PAGE;
        written.look().unwrap().take(&part, memory.range.start, 2 << 20, &mut units).unwrap();
        assert_eq!(units, Units(vec![0b10]), "units are counted from where they are told to");
    }

    #[test]
    fn stores_of_the_kernel_and_of_other_threads_are_known() {
        let (memory, written) = (memory(), WrittenPages::new().unwrap());
        take(&written, &memory.range, PAGE).unwrap();
        std::thread::scope(|scope| drop(scope.spawn(|| memory.store(11)).join()));
        let file = File::open("/proc/self/exe").unwrap();
        let into = usize::try_from(memory.range.start + 20 * PAGE).unwrap();
        // SAFETY: two pages of the mapping, which nobody has a reference to.
        let read =
            unsafe { nix::libc::read(file.as_raw_fd(), std::ptr::with_exposed_provenance_mut(into), 8192) };
        assert_eq!(read, 8192);
        assert_eq!(pages(&take(&written, &memory.range, PAGE).unwrap()), [11, 20, 21]);
    }

    #[test]
    fn pages_that_were_taken_away_count_as_written_if_they_were() {
        let (memory, written) = (memory(), WrittenPages::new().unwrap());
        (0..PAGES).for_each(|page| memory.store(page));
        take(&written, &memory.range, PAGE).unwrap();
        memory.store(5);
        // SAFETY: of a file's mapping nothing is lost.
        unsafe { memory.map.unchecked_advise(UncheckedAdvice::DontNeed) }.unwrap();
        assert_eq!(memory.word(5).load(Ordering::SeqCst), 2);
        assert_eq!(memory.word(6).load(Ordering::SeqCst), 1);
        assert!(pages(&take(&written, &memory.range, PAGE).unwrap()).contains(&5));
        // SAFETY: as above.
        unsafe { memory.map.unchecked_advise(UncheckedAdvice::DontNeed) }.unwrap();
        memory.store(9);
        memory.map.advise(Advice::WillNeed).unwrap();
        let told = pages(&take(&written, &memory.range, PAGE).unwrap());
        assert!(told.contains(&9) && !told.contains(&10), "{told:?}");
    }

    #[test]
    fn new_mappings_are_not_known_and_what_is_not_mapped_has_no_stores() {
        let written = WrittenPages::new().unwrap();
        let (one, other) = (memory(), memory());
        take(&written, &one.range, PAGE).unwrap();
        assert_eq!(pages(&take(&written, &other.range, PAGE).unwrap()).len() as u64, PAGES);
        let range = one.range.clone();
        drop(one);
        assert_eq!(take(&written, &range, PAGE), Ok(Units::none(PAGES)));
        assert_eq!(take(&written, &(1..2), PAGE), Err(Errno::EINVAL));
        let mut units = Units::none(1);
        #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
        let reversed = written.look().unwrap().take(&(PAGE..0), 0, PAGE, &mut units);
        assert_eq!(reversed, Err(Errno::EINVAL));
    }

    #[test]
    fn what_one_knew_is_forgotten_with_it() {
        let (memory, one) = (memory(), WrittenPages::new().unwrap());
        take(&one, &memory.range, PAGE).unwrap();
        drop(one);
        let other = WrittenPages::new().unwrap();
        assert_eq!(pages(&take(&other, &memory.range, PAGE).unwrap()).len() as u64, PAGES);
        memory.store(4);
        assert_eq!(pages(&take(&other, &memory.range, PAGE).unwrap()), [4]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn exactly_the_pages_with_stores_are_told(rounds in prop::collection::vec(prop::collection::btree_set(0..PAGES, 0..700), 1..4)) {
            let (memory, written) = (memory(), WrittenPages::new().unwrap());
            take(&written, &memory.range, PAGE).unwrap();
            for stores in rounds {
                stores.iter().for_each(|page| memory.store(*page));
                prop_assert_eq!(pages(&take(&written, &memory.range, PAGE).unwrap()), stores.into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn units_are_a_set(from in 0u64..200, count in 0u64..200, probe in 0u64..300) {
            let mut units = Units::none(256);
            units.set(from..from + count);
            prop_assert_eq!(units.has(probe), probe >= 256 || (from..from + count).contains(&probe));
        }
    }
}
