// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lent pages that the program unmaps, or maps something else over.
//!
//! KFD learns of it by an MMU notifier (`amdgpu_amdkfd_evict_userptr`). It stops the queues; its worker asks for the pages of the
//! object again, gets EFAULT if one is missing, clears the page table entries of the whole object, and lets the queues go on
//! (`update_invalid_user_pages`, `validate_invalid_user_pages`). An access is a fault then. Here the client tells the device,
//! which unmaps the object from the GPUs.
//!
//! Of shared virtual memory the notifier ends the ranges where the pages are unmapped (`svm_range_unmap_from_cpu`), and so does
//! the device here when the client tells it.

use std::collections::BTreeSet;
use std::ops::Range;

use nix::errno::Errno;

use super::{Lent, Loan, User, page_range};
use crate::maps;
use crate::transport::soft::marshal::Memory;
use crate::transport::wire::LostPages;

/// What is no loan any longer.
#[derive(Debug, Default)]
pub(in crate::transport::soft) struct Forgotten {
    /// The objects that had some of the pages.
    objects: BTreeSet<u64>,
    /// The pages that GPUs could access as shared virtual memory.
    ranges: Vec<Range<usize>>,
    /// The loans by first address, for [`Forgotten::take_back`].
    loans: Vec<(usize, Loan)>,
}

impl Lent {
    /// Ends the loan of a range; the pages outside of it stay lent.
    pub fn forget(&mut self, range: &Range<usize>) -> Forgotten {
        let mut forgotten = Forgotten::default();
        let whole = self.cut_out(range);
        for start in self.starts(range) {
            let Some(loan) = self.loans.remove(&start) else { continue };
            forgotten.add(start, loan);
        }
        self.take_back_unused(&whole);
        forgotten
    }

    /// Ends the loan of pages that are no longer mapped, or not the lent ones: the program has unmapped or replaced them in a way
    /// that was not noticed. Looked for are those whose addresses the ioctl names, and all that are lent for shared virtual
    /// memory: programs do not give that back.
    ///
    /// # Errors
    /// Those of reading the maps.
    pub fn forget_lost(&mut self, memory: &Memory) -> Result<Forgotten, Errno> {
        let named = match *memory {
            Memory::Object { address, bytes, .. } | Memory::Range { address, bytes, .. } => {
                page_range(address, bytes).unwrap_or_default()
            }
            Memory::Buffer => 0..0,
            Memory::Freed { .. } => return Ok(Forgotten::default()),
        };
        let is_named = |start: usize, loan: &Loan| start < named.end && loan.end > named.start;
        let wanted = self.loans.iter().filter(|(start, loan)| loan.is_of_gpus() || is_named(**start, loan));
        let wanted: Vec<_> = wanted.map(|(start, loan)| (*start..loan.end, loan)).collect();
        let (Some((first, _)), Some((last, _))) = (wanted.first(), wanted.last()) else {
            return Ok(Forgotten::default());
        };
        let vmas = maps::in_range(&(first.start..last.end))?;
        let mut lost = Vec::new();
        for (range, loan) in wanted {
            let mut at = range.start;
            let from = vmas.partition_point(|vma| vma.range.end <= range.start);
            let inside = vmas.iter().skip(from).take_while(|vma| vma.range.start < range.end);
            for vma in inside.filter(|vma| loan.is_in(vma)) {
                lost.push(at..vma.range.start.max(range.start));
                at = vma.range.end.min(range.end);
            }
            lost.push(at..range.end);
        }
        let mut forgotten = Forgotten::default();
        for range in lost.iter().filter(|range| !range.is_empty()) {
            forgotten.extend(self.forget(range));
        }
        Ok(forgotten)
    }
}

impl Forgotten {
    fn add(&mut self, start: usize, mut loan: Loan) {
        // It is in the index no longer.
        loan.mark = None;
        if loan.is_of_gpus() {
            match self.ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = loan.end,
                None => self.ranges.push(start..loan.end),
            }
        }
        self.objects.extend(loan.users.iter().filter_map(|user| match user {
            User::Object(handle) => Some(*handle),
            User::Gpu(_) => None,
        }));
        self.loans.push((start, loan));
    }

    fn extend(&mut self, more: Self) {
        self.objects.extend(more.objects);
        self.ranges.extend(more.ranges);
        self.loans.extend(more.loans);
    }

    /// What the device is to be told.
    pub fn lost_pages(&self) -> impl Iterator<Item = LostPages> {
        let objects = self.objects.iter().map(|handle| LostPages::Object { handle: *handle });
        let ranges = self.ranges.iter();
        let ranges = ranges.map(|it| LostPages::Range { address: it.start as u64, bytes: it.len() as u64 });
        objects.chain(ranges)
    }

    /// Makes what is still mapped of the loans private again.
    ///
    /// # Errors
    /// The first errno, after all pages were tried.
    pub fn take_back(&self) -> Result<(), Errno> {
        self.loans.iter().map(|(start, loan)| loan.take_back(*start)).fold(Ok(()), Result::and)
    }
}
