// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lends pages for USERPTR objects: private pages are exchanged for a memfd that the device can map too, and later for
//! private pages again.
//!
//! INVARIANT: each exchange keeps the bytes and the protection of the pages. Writes by other threads *while* pages are
//! exchanged are lost, which is why ALLOC forbids them. When lent pages are taken back, pages that the application has
//! replaced meanwhile are left alone. A child that is forked while pages are lent shares them with its parent.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::mman::{ProtFlags, mprotect};
use nix::sys::stat::fstat;
use nix::unistd::{SysconfVar, sysconf};

use super::user_memory;
use crate::maps::{self, Vma};
use crate::transport::{CloseError, Mapping, map_fixed};
use crate::{linux, sys};

/// More stack than the calls below [`Lent::lend`] need.
const OWN_FRAMES_BYTES: usize = 64 << 10;

/// All pages that are lent.
#[derive(Debug, Default)]
pub(in crate::transport::soft) struct Lent {
    loans: Vec<Loan>,
}

#[derive(Debug)]
struct Loan {
    range: Range<usize>,
    memory: Arc<OwnedFd>,
    handles: Vec<u64>,
}

impl Lent {
    /// The memfd behind the pages of `[address, address + bytes)`; lends them if they are not lent yet. `None` if they
    /// cannot be lent: they are not mapped, not writable though the flags ask for it, shared already, or part of the
    /// stack in use.
    ///
    /// `frame` is any address in the caller's stack frame. The stack below it changes while it is copied, and cannot be
    /// lent.
    #[inline(never)] // Else this function's locals might lie above `frame`.
    pub fn lend(&mut self, address: u64, bytes: u64, flags: u32, frame: usize) -> Option<Arc<OwnedFd>> {
        let page = usize::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
        let first = usize::try_from(address).ok()?;
        let end = first.checked_add(usize::try_from(bytes).ok()?)?.checked_next_multiple_of(page)?;
        let range = first / page * page..end;
        if address == 0 || bytes == 0 {
            return None;
        }
        if let Some(loan) = self.loans.iter().find(|loan| loan.range == range) {
            return Some(Arc::clone(&loan.memory));
        }
        if self.loans.iter().any(|loan| loan.range.start < range.end && range.start < loan.range.end) {
            return None;
        }
        let writable = flags & sys::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE != 0;
        if range.start <= frame && frame.saturating_sub(OWN_FRAMES_BYTES) < range.end {
            return None;
        }
        let vmas = lendable(&range, writable)?;
        let memory = exchange_for_memfd(&range, &vmas);
        let memory = memory.inspect_err(|errno| {
            tracing::warn!(target: "kfd", address, bytes, %errno, "cannot lend pages to the soft device");
        });
        let memory = Arc::new(memory.ok()?);
        self.loans.push(Loan { range, memory: Arc::clone(&memory), handles: Vec::new() });
        Some(memory)
    }

    /// Notes that the device made `handle` over the pages.
    pub fn keep(&mut self, memory: &Arc<OwnedFd>, handle: u64) {
        if let Some(loan) = self.loans.iter_mut().find(|loan| Arc::ptr_eq(&loan.memory, memory)) {
            loan.handles.push(handle);
        }
    }

    /// Takes the pages back if no handle uses them, since the device made none.
    pub fn cancel(&mut self, memory: &Arc<OwnedFd>) {
        if let Some(index) = self.loans.iter().position(|loan| Arc::ptr_eq(&loan.memory, memory)) {
            self.take_back_unused(index);
        }
    }

    /// Whether `handle` is over lent pages.
    pub fn has(&self, handle: u64) -> bool {
        self.loans.iter().any(|loan| loan.handles.contains(&handle))
    }

    /// Notes that the device freed `handle`.
    pub fn release(&mut self, handle: u64) {
        if let Some(index) = self.loans.iter().position(|loan| loan.handles.contains(&handle)) {
            self.loans[index].handles.retain(|known| *known != handle);
            self.take_back_unused(index);
        }
    }

    fn take_back_unused(&mut self, index: usize) {
        let loan = &self.loans[index];
        if !loan.handles.is_empty() {
            return;
        }
        match loan.take_back() {
            Ok(()) => drop(self.loans.swap_remove(index)),
            // The pages keep their bytes; closing the transport tries again.
            Err(errno) => tracing::warn!(target: "kfd", %errno, range = ?loan.range, "pages stay shared"),
        }
    }

    /// Takes all pages back, whatever the device still uses.
    pub fn take_back_all(&mut self) -> Result<(), CloseError> {
        while let Some(loan) = self.loans.last() {
            loan.take_back().map_err(|errno| CloseError::Userptr {
                address: loan.range.start,
                bytes: loan.range.len(),
                errno,
            })?;
            self.loans.pop();
        }
        Ok(())
    }
}

/// The mappings that make up `range`, if all of it can be lent.
fn lendable(range: &Range<usize>, writable: bool) -> Option<Vec<Vma>> {
    let vmas = maps::in_range(range).ok()?;
    let mut next = range.start;
    for vma in &vmas {
        let fit = vma.private && vma.prot.contains(ProtFlags::PROT_READ);
        if !fit || (writable && !vma.prot.contains(ProtFlags::PROT_WRITE)) || vma.range.start != next {
            return None;
        }
        next = vma.range.end;
    }
    (next == range.end).then_some(vmas)
}

fn exchange_for_memfd(range: &Range<usize>, vmas: &[Vma]) -> Result<OwnedFd, Errno> {
    let memory = linux::memfd("stasis-userptr", range.len() as u64, SealFlag::F_SEAL_SHRINK)?;
    user_memory::copy_to_file(range.start as u64, range.len() as u64, &memory)?;
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the memfd was filled from the pages that it replaces, and the contract of ALLOC forbids writes to them
    // meanwhile, so that whoever uses the addresses finds the same bytes.
    unsafe { map_fixed(memory.as_fd(), pointer(range.start), range.len(), rw, 0)? };
    for vma in vmas.iter().filter(|vma| vma.prot != rw) {
        let start = NonNull::new(pointer(vma.range.start).cast()).ok_or(Errno::EFAULT)?;
        // SAFETY: the range was mapped just now; it gets the protection that the pages there had before.
        unsafe { mprotect(start, vma.range.len(), vma.prot)? };
    }
    Ok(memory)
}

impl Loan {
    /// Makes what is still mapped of the loan private again.
    fn take_back(&self) -> Result<(), Errno> {
        let status = fstat(&*self.memory)?;
        for vma in maps::in_range(&self.range)? {
            if vma.inode == status.st_ino && vma.device == maps::device(status.st_dev) {
                self.privatise(&vma)?;
            }
        }
        Ok(())
    }

    fn privatise(&self, vma: &Vma) -> Result<(), Errno> {
        let copy = Mapping::copy_of(&self.memory, vma.offset, vma.range.len())?;
        // SAFETY: the copy was filled from the memfd whose pages it replaces, so that whoever uses the addresses finds
        // the same bytes.
        unsafe { copy.move_over(vma.range.start, vma.prot) }
    }
}

fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests;
