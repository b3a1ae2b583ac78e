// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lends pages for USERPTR objects: private pages are exchanged for a memfd that the device can map too, and later for
//! private pages again.
//!
//! INVARIANT: loans do not overlap, and the pages of every object are loans; an object over pages that are lent already
//! shares these. Pages that the application has unmapped or replaced are no loan any longer, once that is noticed
//! ([`gone`]); when lent pages are taken back, they are left alone. No descriptor of a loan is kept: the device has them. A child that is forked while pages are lent gets copies of those that
//! were private ([`super::fork`]).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;
use nix::unistd::{SysconfVar, sysconf};

use self::index::Mark;
use crate::maps::{self, Vma};
use crate::transport::CloseError;
use crate::transport::wire::{MAX_FDS, PageRun};
use crate::{linux, sys};

mod exchange;
mod gone;
mod index;

pub(super) use exchange::on_another_stack;
pub(super) use index::has_page_of;

/// Most runs of pages of an object; their descriptors go with one message.
const MAX_RUNS: usize = MAX_FDS / 2;

/// All pages that are lent.
#[derive(Debug, Default)]
pub(in crate::transport::soft) struct Lent {
    /// By first address.
    loans: BTreeMap<usize, Loan>,
    /// The pages of each object.
    objects: HashMap<u64, Range<usize>>,
    /// Whether loans are in the index of this process.
    indexed: bool,
}

#[derive(Debug)]
struct Loan {
    end: usize,
    /// Keeps it in the index.
    mark: Option<Mark>,
    /// The name of the memfd, which no other has. Its inode is another one after a restore.
    name: String,
    /// The pages that were private, ascending.
    private: Vec<Range<usize>>,
    /// The objects over these pages.
    handles: Vec<u64>,
}

/// Pages that are lent for an allocation under way.
#[derive(Debug)]
pub(in crate::transport::soft) struct Pages {
    range: Range<usize>,
    /// Where they are, in order.
    pub runs: Vec<PageRun>,
    /// The memory of those that were not lent before, in order.
    pub memory: Vec<OwnedFd>,
}

impl Lent {
    /// None yet, in a process whose calls that unmap pages are looked at ([`has_page_of`]).
    pub fn indexed() -> Self {
        Self { indexed: true, ..Self::default() }
    }

    /// The pages of `[address, address + bytes)`; those that are not lent yet are lent. `None` if they cannot be: they
    /// are not mapped, not writable though the flags ask for it, shared with a file or a device, or in more pieces than a
    /// message has room for.
    ///
    /// Shared memory without a file is exchanged like private memory; a process that shared it, since it was forked, does
    /// not share it any longer.
    pub fn lend(&mut self, address: u64, bytes: u64, flags: u32) -> Option<Pages> {
        let range = page_range(address, bytes)?;
        let writable = flags & sys::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE != 0;
        let mut pages = Pages { range: range.clone(), runs: Vec::new(), memory: Vec::new() };
        for piece in self.pieces(&range) {
            let bytes = piece.len() as u64;
            let run = match self.object_over(&piece) {
                Some((handle, offset)) => Some(PageRun::Of { handle, offset, bytes }),
                None => self.lend_piece(&piece, writable).map(|memory| {
                    pages.memory.push(memory);
                    PageRun::New { bytes }
                }),
            };
            match run.filter(|_| pages.runs.len() < MAX_RUNS) {
                Some(run) => pages.runs.push(run),
                None => {
                    self.cancel(&pages);
                    return None;
                }
            }
        }
        Some(pages)
    }

    /// The range cut where loans begin and end.
    fn pieces(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (&start, loan) in self.over(range) {
            if at < start {
                pieces.push(at..start);
            }
            pieces.push(start.max(range.start)..loan.end.min(range.end));
            at = loan.end;
        }
        if at < range.end {
            pieces.push(at..range.end);
        }
        pieces
    }

    /// The loans that overlap a range, ascending.
    fn over(&self, range: &Range<usize>) -> impl Iterator<Item = (&usize, &Loan)> {
        let before = self.loans.range(..range.start).next_back().filter(|(_, loan)| loan.end > range.start);
        before.into_iter().chain(self.loans.range(range.clone()))
    }

    /// An object that has a piece of a loan, and the offset of the piece in it.
    fn object_over(&self, piece: &Range<usize>) -> Option<(u64, u64)> {
        let (_, loan) = self.over(piece).next()?;
        loan.handles.iter().find_map(|handle| {
            let object = self.objects.get(handle)?;
            let offset = piece.start.checked_sub(object.start)?;
            (piece.end <= object.end).then_some((*handle, offset as u64))
        })
    }

    fn lend_piece(&mut self, piece: &Range<usize>, writable: bool) -> Option<OwnedFd> {
        let vmas = lendable(piece, writable)?;
        let memory = memory_name().and_then(|name| Ok((exchange::for_memfd(piece, &vmas, &name)?, name)));
        let memory = memory.inspect_err(|errno| {
            let (start, bytes) = (piece.start, piece.len());
            tracing::warn!(target: "kfd", start, bytes, %errno, "cannot lend pages to the soft device");
        });
        let (memory, name) = memory.ok()?;
        let private = vmas.iter().filter(|vma| vma.private).map(|vma| vma.range.clone()).collect();
        let mark = self.indexed.then(|| Mark::new(piece));
        let loan = Loan { end: piece.end, mark, name, private, handles: Vec::new() };
        self.loans.insert(piece.start, loan);
        Some(memory)
    }

    /// Notes that the device made `handle` over the pages.
    pub fn keep(&mut self, pages: &Pages, handle: u64) {
        for start in self.starts(&pages.range) {
            if let Some(loan) = self.loans.get_mut(&start) {
                loan.handles.push(handle);
            }
        }
        self.objects.insert(handle, pages.range.clone());
    }

    /// Takes those pages back that no handle uses, since the device made none.
    pub fn cancel(&mut self, pages: &Pages) {
        self.take_back_unused(&pages.range);
    }

    /// Whether `handle` is over lent pages.
    pub fn has(&self, handle: u64) -> bool {
        self.objects.contains_key(&handle)
    }

    /// Notes that the device freed `handle`.
    pub fn release(&mut self, handle: u64) {
        let Some(range) = self.objects.remove(&handle) else { return };
        for start in self.starts(&range) {
            if let Some(loan) = self.loans.get_mut(&start) {
                loan.handles.retain(|known| *known != handle);
            }
        }
        self.take_back_unused(&range);
    }

    /// Where the loans begin that overlap a range.
    fn starts(&self, range: &Range<usize>) -> Vec<usize> {
        self.over(range).map(|(start, _)| *start).collect()
    }

    fn take_back_unused(&mut self, range: &Range<usize>) {
        for start in self.starts(range) {
            let Some(loan) = self.loans.get(&start).filter(|loan| loan.handles.is_empty()) else { continue };
            match loan.take_back(start) {
                Ok(()) => drop(self.loans.remove(&start)),
                // The pages keep their bytes; closing the transport tries again.
                Err(errno) => tracing::warn!(target: "kfd", %errno, start, "pages stay shared"),
            }
        }
    }

    /// Takes all pages back, whatever the device still uses.
    pub fn take_back_all(&mut self) -> Result<(), CloseError> {
        while let Some((&start, loan)) = self.loans.last_key_value() {
            loan.take_back(start).map_err(|errno| CloseError::Userptr {
                address: start,
                bytes: loan.end - start,
                errno,
            })?;
            self.loans.pop_last();
        }
        self.objects.clear();
        Ok(())
    }

    /// Whether pages are lent that were private.
    pub fn has_private(&self) -> bool {
        self.loans.values().any(|loan| !loan.private.is_empty())
    }

    /// Whether a page of a range is lent.
    pub fn has_page_of(&self, range: &Range<usize>) -> bool {
        self.over(range).next().is_some()
    }

    /// In a forked child: makes those pages private that were, and forgets all loans, which are the parent's. Pages that were
    /// shared without a file stay shared with the parent.
    ///
    /// # Errors
    /// The first errno, after all pages were tried.
    pub fn leave_to_parent(&mut self) -> Result<(), Errno> {
        self.objects.clear();
        let left = |(start, loan): (usize, Loan)| loan.make_private(start);
        std::mem::take(&mut self.loans).into_iter().map(left).fold(Ok(()), Result::and)
    }
}

/// The whole pages over some bytes; `None` if there are none.
fn page_range(address: u64, bytes: u64) -> Option<Range<usize>> {
    let page = usize::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    let first = usize::try_from(address).ok()?;
    let end = first.checked_add(usize::try_from(bytes).ok()?)?.checked_next_multiple_of(page)?;
    (address != 0 && bytes != 0).then_some(first / page * page..end)
}

/// A name for the memory of a loan.
fn memory_name() -> Result<String, Errno> {
    let [low, high] = *linux::random()?.as_chunks::<8>().0 else { return Err(Errno::EIO) };
    Ok(format!("stasis-userptr:{:016x}", u64::from_le_bytes(low) ^ u64::from_le_bytes(high)))
}

/// The mappings that make up `range`, if all of it can be lent.
fn lendable(range: &Range<usize>, writable: bool) -> Option<Vec<Vma>> {
    let vmas = maps::in_range(range).ok()?;
    let mut next = range.start;
    for vma in &vmas {
        let fit = (vma.private || vma.anonymous) && vma.prot.contains(ProtFlags::PROT_READ);
        if !fit || (writable && !vma.prot.contains(ProtFlags::PROT_WRITE)) || vma.range.start != next {
            return None;
        }
        next = vma.range.end;
    }
    (next == range.end).then_some(vmas)
}

impl Loan {
    /// Makes what is still mapped of the loan private again.
    fn take_back(&self, start: usize) -> Result<(), Errno> {
        for vma in self.mapped(start..self.end)? {
            exchange::for_private(&vma)?;
        }
        Ok(())
    }

    /// Makes what is still mapped of the loan, and was private, private again.
    fn make_private(&self, start: usize) -> Result<(), Errno> {
        for range in &self.private {
            for vma in self.mapped(range.start.max(start)..range.end.min(self.end))? {
                exchange::for_private(&vma)?;
            }
        }
        Ok(())
    }

    /// Mappings of the loan's memory in a range.
    fn mapped(&self, range: Range<usize>) -> Result<Vec<Vma>, Errno> {
        let mut vmas = maps::in_range(&range)?;
        vmas.retain(|vma| vma.memfd.as_ref() == Some(&self.name));
        Ok(vmas)
    }
}

#[cfg(test)]
mod tests;
