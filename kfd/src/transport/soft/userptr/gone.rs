// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lent pages that the program unmaps, or maps something else over.
//!
//! KFD learns of it by an MMU notifier (`amdgpu_amdkfd_evict_userptr`). It stops the queues; its worker asks for the pages of the
//! object again, gets EFAULT if one is missing, clears the page table entries of the whole object, and lets the queues go on
//! (`update_invalid_user_pages`, `validate_invalid_user_pages`). An access is a fault then. Here the client tells the device,
//! which unmaps the object from the GPUs.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use nix::errno::Errno;

use super::{Lent, Loan, Mark, page_range};

/// What is no loan any longer.
#[derive(Debug, Default)]
pub(in crate::transport::soft) struct Forgotten {
    /// The objects that had the pages, for the device to be told.
    pub objects: BTreeSet<u64>,
    /// The loans by first address, for [`Forgotten::take_back`].
    loans: Vec<(usize, Loan)>,
}

impl Lent {
    /// Ends the loan of a range; the pages outside of it stay lent.
    pub fn forget(&mut self, range: &Range<usize>) -> Forgotten {
        let mut forgotten = Forgotten::default();
        for start in self.starts(range) {
            let Some(loan) = self.loans.remove(&start) else { continue };
            let part = start.max(range.start)..loan.end.min(range.end);
            let objects = &self.objects;
            let of_part = loan.handles.iter().copied().filter(|handle| is_over(objects, *handle, &part));
            forgotten.objects.extend(of_part);
            let whole = start..loan.end;
            let (rest, part) = loan.cut(start, part);
            for (start, mut loan) in rest {
                let range = start..loan.end;
                loan.handles.retain(|handle| is_over(objects, *handle, &range));
                self.loans.insert(start, loan);
            }
            self.take_back_unused(&whole);
            forgotten.loans.push(part);
        }
        forgotten
    }

    /// Ends the loan of those pages of `[address, address + bytes)` that are no longer mapped, or not the lent ones: the program
    /// has unmapped or replaced them in a way that was not noticed. Answers the objects that had them.
    ///
    /// # Errors
    /// Those of reading the maps.
    pub fn forget_lost(&mut self, address: u64, bytes: u64) -> Result<BTreeSet<u64>, Errno> {
        let mut lost = Vec::new();
        let range = page_range(address, bytes).unwrap_or_default();
        for (&start, loan) in self.over(&range) {
            let part = start.max(range.start)..loan.end.min(range.end);
            let mut at = part.start;
            for vma in loan.mapped(part.clone())? {
                lost.push(at..vma.range.start);
                at = vma.range.end;
            }
            lost.push(at..part.end);
        }
        let lost = lost.iter().filter(|range| !range.is_empty());
        Ok(lost.flat_map(|range| self.forget(range).objects).collect())
    }
}

/// Whether an object is over a page of a range.
fn is_over(objects: &HashMap<u64, Range<usize>>, handle: u64, range: &Range<usize>) -> bool {
    objects.get(&handle).is_some_and(|object| object.start < range.end && object.end > range.start)
}

impl Loan {
    /// Cuts a part out of a loan that begins at `start`: what is left, and the part.
    fn cut(self, start: usize, part: Range<usize>) -> (Vec<(usize, Self)>, (usize, Self)) {
        let Self { end, mark, name, private, handles } = self;
        let marks = mark.map_or([None, None], |mark| mark.cut(&part).map(Some));
        let piece = |range: Range<usize>, mark: Option<Mark>| {
            let (name, private, handles) = (name.clone(), private.clone(), handles.clone());
            (range.start, Self { end: range.end, mark, name, private, handles })
        };
        let rest = [start..part.start, part.end..end].into_iter().zip(marks);
        let rest = rest.filter(|(range, _)| !range.is_empty()).map(|(range, mark)| piece(range, mark));
        (rest.collect(), piece(part, None))
    }
}

impl Forgotten {
    /// Makes what is still mapped of the loans private again.
    ///
    /// # Errors
    /// The first errno, after all pages were tried.
    pub fn take_back(&self) -> Result<(), Errno> {
        self.loans.iter().map(|(start, loan)| loan.take_back(*start)).fold(Ok(()), Result::and)
    }
}
