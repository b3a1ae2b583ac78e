// SPDX-License-Identifier: MIT OR Apache-2.0
//! USERPTR objects: private pages become a memfd that the device can map too, and later private again.
//!
//! INVARIANT: the bytes and the protection of the pages are the same before, during and after; only what
//! other threads write *while* the pages are exchanged is lost, which is why ALLOC forbids it. Pages that
//! the application has replaced meanwhile are left alone when lent ones are taken back. A child forked
//! while pages are lent shares them with its parent.
#![allow(unsafe_code)]

mod maps;

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use self::maps::Vma;
use crate::sys;
use crate::transport::CloseError;

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
    /// The memfd behind the pages of `[address, address + bytes)`, which are lent now if they were not.
    /// None if they cannot be: no such memory, not writable though asked for, shared already, or the stack in use.
    ///
    /// `frame` is any address in the caller's stack frame: what lies below it changes while it is copied,
    /// so it cannot be lent.
    #[inline(never)] // Else this function's locals might lie above `frame`.
    pub fn lend(&mut self, address: u64, bytes: u64, flags: u32, frame: usize) -> Option<Arc<OwnedFd>> {
        let page = rustix::param::page_size();
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

    /// The device made `handle` over the pages.
    pub fn keep(&mut self, memory: &Arc<OwnedFd>, handle: u64) {
        if let Some(loan) = self.loans.iter_mut().find(|loan| Arc::ptr_eq(&loan.memory, memory)) {
            loan.handles.push(handle);
        }
    }

    /// The device did not take the pages.
    pub fn cancel(&mut self, memory: &Arc<OwnedFd>) {
        if let Some(index) = self.loans.iter().position(|loan| Arc::ptr_eq(&loan.memory, memory)) {
            self.take_back_unused(index);
        }
    }

    /// Whether `handle` is over lent pages.
    pub fn has(&self, handle: u64) -> bool {
        self.loans.iter().any(|loan| loan.handles.contains(&handle))
    }

    /// The device freed `handle`.
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
            // The bytes are right where they are; closing the transport tries again.
            Err(errno) => tracing::warn!(target: "kfd", %errno, range = ?loan.range, "pages stay shared"),
        }
    }

    /// Takes everything back; the device is not asked.
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
        let fit = vma.private && vma.prot.contains(ProtFlags::READ);
        if !fit || (writable && !vma.prot.contains(ProtFlags::WRITE)) || vma.range.start != next {
            return None;
        }
        next = vma.range.end;
    }
    (next == range.end).then_some(vmas)
}

fn exchange_for_memfd(range: &Range<usize>, vmas: &[Vma]) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("stasis-userptr", flags)?;
    rustix::fs::ftruncate(&memory, range.len() as u64)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK)?;
    let mut done = 0;
    while done < range.len() {
        let source: *const c_void = std::ptr::with_exposed_provenance(range.start + done);
        // CAST: an offset in a file of at most isize::MAX bytes.
        let offset = done as libc::off_t;
        // SAFETY: the kernel reads the pages and answers EFAULT where there are none.
        let written = unsafe { libc::pwrite(memory.as_raw_fd(), source, range.len() - done, offset) };
        done += progress(written)?;
    }
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the pages are replaced by the same bytes, so whoever points to them sees no difference.
    unsafe {
        rustix::mm::mmap(
            pointer(range.start),
            range.len(),
            rw,
            MapFlags::SHARED | MapFlags::FIXED,
            &memory,
            0,
        )?
    };
    for vma in vmas.iter().filter(|vma| vma.prot != rw) {
        // SAFETY: gives the pages the protection they had.
        unsafe { rustix::mm::mprotect(pointer(vma.range.start), vma.range.len(), mprotect_flags(vma.prot))? };
    }
    Ok(memory)
}

impl Loan {
    /// Makes what is still mapped of the loan private again.
    fn take_back(&self) -> Result<(), Errno> {
        let status = rustix::fs::fstat(&*self.memory)?;
        for vma in maps::in_range(&self.range)? {
            if vma.inode == status.st_ino && vma.device == maps::device(status.st_dev) {
                self.privatise(&vma)?;
            }
        }
        Ok(())
    }

    fn privatise(&self, vma: &Vma) -> Result<(), Errno> {
        let length = vma.range.len();
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses replaces nothing.
        let copy =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, rw, MapFlags::PRIVATE)? };
        let outcome = self.fill(copy, vma).and_then(|()| {
            // SAFETY: `copy` is ours and not yet known to anybody.
            unsafe { rustix::mm::mprotect(copy, length, mprotect_flags(vma.prot)) }?;
            // SAFETY: replaces the pages by the same bytes in one step.
            unsafe {
                rustix::mm::mremap_fixed(copy, length, length, MremapFlags::MAYMOVE, pointer(vma.range.start))
            }
        });
        if outcome.is_err() {
            // SAFETY: `copy` is ours, and was not moved.
            let _ = unsafe { rustix::mm::munmap(copy, length) };
        }
        outcome.map(drop)
    }

    fn fill(&self, copy: *mut c_void, vma: &Vma) -> Result<(), Errno> {
        let mut done = 0;
        while done < vma.range.len() {
            let offset = vma.offset + done as u64;
            let offset = libc::off_t::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
            // SAFETY: `copy` has as many bytes as the mapping.
            let read = unsafe {
                libc::pread(self.memory.as_raw_fd(), copy.byte_add(done), vma.range.len() - done, offset)
            };
            done += progress(read)?;
        }
        Ok(())
    }
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

fn mprotect_flags(prot: ProtFlags) -> MprotectFlags {
    MprotectFlags::from_bits_truncate(prot.bits())
}

/// Bytes moved by a system call, of which there must be some.
fn progress(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(0) => Err(Errno::IO),
        Ok(moved) => Ok(moved),
        Err(_) => match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => Ok(0),
            errno => Err(errno.unwrap_or(Errno::IO)),
        },
    }
}

#[cfg(test)]
mod tests;
