// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lends pages for USERPTR objects and for shared virtual memory: private pages are exchanged for a memfd that the device can
//! map too, and later for private pages again.
//!
//! INVARIANT: loans do not overlap, and the pages of every object, and of every range of shared virtual memory that a GPU may
//! access, are loans; an object over pages that are lent already shares these. Pages that the application has unmapped or
//! replaced are no loan any longer, once that is noticed ([`gone`]); when lent pages are taken back, they are left alone. No
//! descriptor of a loan is kept: the device has them. A child that is forked while pages are lent gets copies of those that
//! were private ([`super::fork`]).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;
use nix::unistd::{SysconfVar, sysconf};

use self::index::Mark;
use crate::linux;
use crate::maps::{self, Vma};
use crate::transport::CloseError;
use crate::transport::wire::{MAX_FDS, PageRun};

mod calls;
mod exchange;
mod gone;
mod index;

pub(super) use exchange::on_another_stack;
pub(super) use gone::Forgotten;
pub(super) use index::has_page_of;

/// Most new memfds of a call; their descriptors go with one message.
const MAX_NEW: usize = MAX_FDS / 2;
/// Most runs of pages of a call, so that the message is not too large.
const MAX_RUNS: usize = 4096;
/// What the names of memfds with lent pages begin with.
const MEMORY_NAME: &str = "stasis-userptr:";

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

/// For whom pages are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// The USERPTR object with this handle.
    Object(u64),
    /// The GPU with this id, which may access them as shared virtual memory.
    Gpu(u32),
}

#[derive(Debug)]
struct Loan {
    end: usize,
    /// Keeps it in the index.
    mark: Option<Mark>,
    /// The name of the memfd, which no loan but a part of the same has. Its inode is another one after a restore.
    name: String,
    /// The address at which the memfd's first page was lent.
    origin: usize,
    /// The pages that were private, ascending.
    private: Vec<Range<usize>>,
    users: Vec<User>,
}

/// What pages are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// An object, which is written or not.
    Object { writable: bool },
    /// Shared virtual memory.
    Range,
}

/// Pages for a call under way.
#[derive(Debug, Default)]
pub(in crate::transport::soft) struct Pages {
    range: Range<usize>,
    /// Where they are, in order; none if the device is to refuse the call.
    pub runs: Vec<PageRun>,
    /// The memory of those that were not lent before, in order.
    pub memory: Vec<OwnedFd>,
}

impl Pages {
    /// Adds a run; one that continues the last one is added to it.
    fn push(&mut self, run: PageRun) {
        if let (PageRun::Unchanged { bytes: more }, Some(PageRun::Unchanged { bytes })) =
            (run, self.runs.last_mut())
        {
            *bytes += more;
        } else {
            self.runs.push(run);
        }
    }
}

impl Lent {
    /// None yet, in a process whose calls that unmap pages are looked at ([`has_page_of`]).
    pub fn indexed() -> Self {
        Self { indexed: true, ..Self::default() }
    }

    /// The pages of `[address, address + bytes)`; those that are not lent yet are lent. `None` if they cannot be: they
    /// are not mapped, not writable though an object is, shared with a file or a device, or in more pieces than a
    /// message has room for.
    ///
    /// Shared memory without a file is exchanged like private memory; a process that shared it, since it was forked, does
    /// not share it any longer.
    fn lend(&mut self, address: u64, bytes: u64, purpose: Purpose) -> Option<Pages> {
        let range = page_range(address, bytes)?;
        let mut pages = Pages { range: range.clone(), ..Pages::default() };
        for piece in self.pieces(&range) {
            let is_of_gpus = self.over(&piece).next().map(|(_, loan)| loan.is_of_gpus());
            let done = match (is_of_gpus, purpose) {
                (None, _) => self.lend_new(&piece, purpose, &mut pages),
                (Some(true), Purpose::Range) => {
                    pages.push(PageRun::Unchanged { bytes: piece.len() as u64 });
                    Some(())
                }
                (Some(_), _) => self.object_over(&piece).map(|(handle, offset)| {
                    pages.push(PageRun::Of { handle, offset, bytes: piece.len() as u64 });
                }),
            };
            if done.is_none() || pages.runs.len() > MAX_RUNS {
                self.cancel(&pages);
                return None;
            }
        }
        Some(pages)
    }

    /// Lends a piece of which nothing is lent; for shared virtual memory read-only pages apart from others.
    fn lend_new(&mut self, piece: &Range<usize>, purpose: Purpose, pages: &mut Pages) -> Option<()> {
        let vmas = lendable(piece, purpose == Purpose::Object { writable: true })?;
        let is_writable = |vma: &Vma| match purpose {
            Purpose::Object { writable } => writable,
            Purpose::Range => vma.prot.contains(ProtFlags::PROT_WRITE),
        };
        for vmas in vmas.chunk_by(|a, b| is_writable(a) == is_writable(b)) {
            let ([first, ..], [.., last]) = (vmas, vmas) else { continue };
            if pages.memory.len() >= MAX_NEW {
                return None;
            }
            let part = first.range.start..last.range.end;
            pages.memory.push(self.lend_part(&part, vmas)?);
            pages.push(PageRun::New { bytes: part.len() as u64, writable: is_writable(first) });
        }
        Some(())
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
        loan.users.iter().find_map(|user| {
            let User::Object(handle) = user else { return None };
            let object = self.objects.get(handle)?;
            let offset = piece.start.checked_sub(object.start)?;
            (piece.end <= object.end).then_some((*handle, offset as u64))
        })
    }

    fn lend_part(&mut self, part: &Range<usize>, vmas: &[Vma]) -> Option<OwnedFd> {
        let memory = linux::unique_name(MEMORY_NAME)
            .and_then(|name| Ok((exchange::for_memfd(part, vmas, &name)?, name)));
        let memory = memory.inspect_err(|errno| {
            let (start, bytes) = (part.start, part.len());
            tracing::warn!(target: "kfd", start, bytes, %errno, "cannot lend pages to the soft device");
        });
        let (memory, name) = memory.ok()?;
        let was_private = |vma: &&Vma| vma.private || is_lent_memory(vma);
        let private = vmas.iter().filter(was_private).map(|vma| vma.range.clone()).collect();
        let mark = self.indexed.then(|| Mark::new(part));
        let loan = Loan { end: part.end, mark, name, origin: part.start, private, users: Vec::new() };
        self.loans.insert(part.start, loan);
        Some(memory)
    }

    /// Notes that the device made `handle` over the pages.
    fn keep(&mut self, pages: &Pages, handle: u64) {
        for start in self.starts(&pages.range) {
            if let Some(loan) = self.loans.get_mut(&start) {
                loan.users.push(User::Object(handle));
            }
        }
        self.objects.insert(handle, pages.range.clone());
    }

    /// Takes those pages back that nobody uses, since the device refused the call.
    pub fn cancel(&mut self, pages: &Pages) {
        self.take_back_unused(&pages.range);
    }

    /// Notes that the device freed `handle`.
    fn release(&mut self, handle: u64) {
        let Some(range) = self.objects.remove(&handle) else { return };
        for start in self.starts(&range) {
            if let Some(loan) = self.loans.get_mut(&start) {
                loan.users.retain(|user| *user != User::Object(handle));
            }
        }
        self.take_back_unused(&range);
    }

    /// Where the loans begin that overlap a range.
    fn starts(&self, range: &Range<usize>) -> Vec<usize> {
        self.over(range).map(|(start, _)| *start).collect()
    }

    /// Makes boundaries of loans at both ends of a range. Answers the range with all of the loans that it was in or reached
    /// into; some of it may have no user then.
    fn cut_out(&mut self, range: &Range<usize>) -> Range<usize> {
        let whole = self
            .over(range)
            .fold(range.clone(), |whole, (start, loan)| whole.start.min(*start)..whole.end.max(loan.end));
        self.cut_at(range.start);
        self.cut_at(range.end);
        whole
    }

    /// Makes a boundary of loans at `at`, if it lies inside one.
    fn cut_at(&mut self, at: usize) {
        let before = self.loans.range(..at).next_back().filter(|(_, loan)| loan.end > at);
        let Some(start) = before.map(|(start, _)| *start) else { return };
        let Some(loan) = self.loans.remove(&start) else { return };
        let Loan { end, mark, name, origin, private, users } = loan;
        let [front_mark, back_mark] = mark.map_or([None, None], |mark| mark.cut(at).map(Some));
        let mut insert = |part: Range<usize>, mark, name| {
            let inside = |range: &Range<usize>| range.start.max(part.start)..range.end.min(part.end);
            let private = private.iter().map(inside).filter(|range| !range.is_empty()).collect();
            let users = users.iter().copied().filter(|user| self.is_over(*user, &part)).collect();
            self.loans.insert(part.start, Loan { end: part.end, mark, name, origin, private, users });
        };
        insert(start..at, front_mark, name.clone());
        insert(at..end, back_mark, name);
    }

    /// Whether a user of a loan is over a page of this part of it.
    fn is_over(&self, user: User, part: &Range<usize>) -> bool {
        match user {
            User::Object(handle) => {
                let object = self.objects.get(&handle);
                object.is_some_and(|object| object.start < part.end && object.end > part.start)
            }
            User::Gpu(_) => true,
        }
    }

    fn take_back_unused(&mut self, range: &Range<usize>) {
        for start in self.starts(range) {
            let Some(loan) = self.loans.get(&start).filter(|loan| loan.users.is_empty()) else { continue };
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

/// Bytes of a page.
fn page_bytes() -> Option<usize> {
    usize::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()
}

/// The whole pages over some bytes; `None` if there are none.
fn page_range(address: u64, bytes: u64) -> Option<Range<usize>> {
    let page = page_bytes()?;
    let first = usize::try_from(address).ok()?;
    let end = first.checked_add(usize::try_from(bytes).ok()?)?.checked_next_multiple_of(page)?;
    (address != 0 && bytes != 0).then_some(first / page * page..end)
}

/// Whether it is memory that was lent, here or, before it was moved, elsewhere.
fn is_lent_memory(vma: &Vma) -> bool {
    !vma.private && vma.is_named(MEMORY_NAME)
}

/// The mappings that make up `range`, if all of it can be lent.
fn lendable(range: &Range<usize>, writable: bool) -> Option<Vec<Vma>> {
    let vmas = maps::in_range(range).ok()?;
    let mut next = range.start;
    for vma in &vmas {
        let fit =
            (vma.private || vma.anonymous || is_lent_memory(vma)) && vma.prot.contains(ProtFlags::PROT_READ);
        if !fit || (writable && !vma.prot.contains(ProtFlags::PROT_WRITE)) || vma.range.start != next {
            return None;
        }
        next = vma.range.end;
    }
    (next == range.end).then_some(vmas)
}

impl Loan {
    /// Whether it is lent for shared virtual memory.
    fn is_of_gpus(&self) -> bool {
        self.users.iter().any(|user| matches!(user, User::Gpu(_)))
    }

    /// Whether a mapping has the pages that were lent where it is.
    fn is_in(&self, vma: &Vma) -> bool {
        let offset = vma.range.start.wrapping_sub(self.origin) as u64;
        vma.memfd.as_ref() == Some(&self.name) && vma.offset == offset
    }

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

    /// Mappings of the loan's memory in a range; neighbours with the same protection are one, as they were before they were lent.
    fn mapped(&self, range: Range<usize>) -> Result<Vec<Vma>, Errno> {
        let mut mapped: Vec<Vma> = Vec::new();
        for vma in maps::in_range(&range)? {
            match mapped.last_mut() {
                _ if vma.memfd.as_ref() != Some(&self.name) => {}
                Some(last) if last.range.end == vma.range.start && last.prot == vma.prot => {
                    last.range.end = vma.range.end;
                }
                _ => mapped.push(vma),
            }
        }
        Ok(mapped)
    }
}

#[cfg(test)]
mod tests;
