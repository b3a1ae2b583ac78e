// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lent pages that the program unmaps, or maps something else over.
//!
//! KFD learns of it by an MMU notifier (`amdgpu_amdkfd_evict_userptr`). It stops the queues, finds no pages in the worker that
//! wants them again, and lets the queues go on without: an access is a fault then (`update_invalid_user_pages`, where
//! get_user_pages answers EFAULT). Here the client tells the device, which unmaps the pages from the GPUs.

use std::ops::Range;

use nix::errno::Errno;

use super::{Lent, Loan, Mark, page_range};

/// Pages of an object that the program no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::soft) struct GonePages {
    /// The object.
    pub handle: u64,
    /// Where in it, bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What is no loan any longer.
#[derive(Debug, Default)]
pub(in crate::transport::soft) struct Forgotten {
    /// What the device must be told.
    pub pages: Vec<GonePages>,
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
            for &handle in &loan.handles {
                let Some(object) = self.objects.get(&handle) else { continue };
                let (from, to) = (part.start.max(object.start), part.end.min(object.end));
                if from < to {
                    let (offset, bytes) = ((from - object.start) as u64, (to - from) as u64);
                    forgotten.pages.push(GonePages { handle, offset, bytes });
                }
            }
            let whole = start..loan.end;
            let (rest, part) = loan.cut(start, part);
            for (start, mut loan) in rest {
                let objects = &self.objects;
                let is_over = |object: &Range<usize>| object.start < loan.end && object.end > start;
                loan.handles.retain(|handle| objects.get(handle).is_some_and(is_over));
                self.loans.insert(start, loan);
            }
            self.take_back_unused(&whole);
            forgotten.loans.push(part);
        }
        forgotten
    }

    /// Ends the loan of those pages of `[address, address + bytes)` that are no longer mapped, or not the lent ones: the program
    /// has unmapped or replaced them in a way that was not noticed.
    ///
    /// # Errors
    /// Those of reading the maps.
    pub fn forget_lost(&mut self, address: u64, bytes: u64) -> Result<Vec<GonePages>, Errno> {
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
        Ok(lost.flat_map(|range| self.forget(range).pages).collect())
    }
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
