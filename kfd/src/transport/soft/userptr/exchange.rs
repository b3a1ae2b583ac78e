// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exchanges mapped pages for those of a memfd, or for private ones, with the same bytes and the same protection.
//!
//! INVARIANT: while pages are exchanged, other threads' stores to them wait, where the system lets pages be watched
//! ([`crate::userfault`]). Elsewhere such stores may be lost. The exchanging thread stores nothing to them: it allocates
//! nothing meanwhile, and its stack is another one if theirs is among them.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::libc;
use nix::sys::mman::{MmapAdvise, ProtFlags, madvise, mprotect};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

use super::page_bytes;
use crate::linux;
use crate::maps::Vma;
use crate::transport::soft::user_memory;
use crate::transport::{Mapping, map_fixed};
use crate::userfault::{self, WatchedPages};

/// Bytes of the stack that stands in for one that is exchanged: system calls need little.
const STACK_BYTES: usize = 256 << 10;
/// More stack than the calls below need.
const OWN_FRAMES_BYTES: usize = 64 << 10;

/// Makes a memfd of this name the memory of `range`, which is made up of `vmas`.
///
/// # Errors
/// The errno of the failing call; the pages are as before then. EFAULT if this thread's own data are among them.
pub(super) fn for_memfd(range: &Range<usize>, vmas: &[Vma], name: &str) -> Result<OwnedFd, Errno> {
    let memory = linux::memfd(name, range.len() as u64, SealFlag::F_SEAL_SHRINK)?;
    while_nobody_stores(range, || {
        user_memory::copy_to_file(range.start as u64, range.len() as u64, &memory)?;
        let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the memfd was filled from the pages that it replaces, and stores to them wait, so that whoever uses the
        // addresses finds the same bytes.
        unsafe { map_fixed(memory.as_fd(), pointer(range.start), range.len(), rw, 0)? };
        for vma in vmas.iter().filter(|vma| vma.prot != rw) {
            let start = NonNull::new(pointer(vma.range.start).cast()).ok_or(Errno::EFAULT)?;
            // SAFETY: the range was mapped just now; it gets the protection that the pages there had before.
            unsafe { mprotect(start, vma.range.len(), vma.prot)? };
        }
        keep_from_growing(range);
        Ok(())
    })?;
    Ok(memory)
}

/// Makes two mappings of pages that were exchanged just now, so that `mremap` refuses to enlarge them (`EFAULT`). The C library's
/// `realloc` then copies to other memory; enlarged, the mapping would go beyond the end of the memfd, where every access raises
/// SIGBUS. One page alone stays one mapping.
fn keep_from_growing(range: &Range<usize>) {
    let Some(page) = page_bytes().filter(|page| range.len() > *page) else { return };
    if let Some(last) = NonNull::new(pointer(range.end - page).cast()) {
        // How pages of a memfd are read ahead: a difference that keeps the kernel from merging the mappings, and has no other effect.
        // SAFETY: the advice changes no contents and no access.
        let advised = unsafe { madvise(last, page, MmapAdvise::MADV_RANDOM) };
        if let Err(error) = advised {
            tracing::debug!(target: "kfd", %error, start = range.start, "lent pages could be enlarged");
        }
    }
}

/// Makes the memory of `vma` private.
///
/// # Errors
/// As [`for_memfd`].
pub(super) fn for_private(vma: &Vma) -> Result<(), Errno> {
    let copy = Mapping::private(vma.range.len())?;
    let start = NonNull::new(pointer(vma.range.start).cast()).ok_or(Errno::EFAULT)?;
    while_nobody_stores(&vma.range, || {
        if !vma.prot.contains(ProtFlags::PROT_READ) {
            // SAFETY: more access than before; the memory is replaced below, by one with the protection as before.
            unsafe { mprotect(start, vma.range.len(), ProtFlags::PROT_READ)? };
        }
        copy.fill_from(vma.range.start as u64)?;
        // SAFETY: the copy was filled from the pages that it replaces, and stores to them wait, so that whoever uses the
        // addresses finds the same bytes.
        unsafe { copy.move_over(vma.range.start, vma.prot) }
    })
}

/// Does `work` while stores of other threads to `range` wait, and on another stack if this thread's is in the range.
/// `work` allocates nothing.
///
/// # Errors
/// Those of `work`; EFAULT if this thread's own data are in the range: the C library stores to them at any time.
#[inline(never)] // Else this function's locals might lie above `frame`.
fn while_nobody_stores(range: &Range<usize>, work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: the address of a variable of this thread; it is not accessed.
    let own_data = unsafe { libc::__errno_location() }.addr();
    if range.contains(&own_data) {
        return Err(Errno::EFAULT);
    }
    let watched = range.start as u64..range.end as u64;
    let watch = userfault::watch(&watched).ok().map(|fd| WatchedPages::new(fd, watched));
    let watched_work = || {
        if let Some(watch) = &watch {
            let _ = watch.protect(true);
        }
        let done = work();
        // Stores that wait go on, to what is mapped now.
        drop(watch);
        done
    };
    let frame = std::ptr::from_ref(&own_data).addr();
    let is_stack = range.start <= frame && frame.saturating_sub(OWN_FRAMES_BYTES) < range.end;
    if is_stack { on_another_stack(watched_work)? } else { watched_work() }
}

pub(super) fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Does `work` while nothing stores to this thread's stack: on another one, with signals blocked.
///
/// # Errors
/// The errno of making a stack.
pub(in crate::transport::soft) fn on_another_stack<R>(work: impl FnOnce() -> R) -> Result<R, Errno> {
    /// What the stack's first function gets.
    struct Call<W, R> {
        work: Option<W>,
        result: Option<R>,
    }

    unsafe extern "C" fn begin<W: FnOnce() -> R, R>(call: *mut Call<W, R>) {
        // SAFETY: the caller below passes a pointer to its variable, and waits.
        let call = unsafe { &mut *call };
        if let Some(work) = call.work.take() {
            let result = work();
            call.result = Some(result);
        }
    }

    fn function<W: FnOnce() -> R, R>(_: &Call<W, R>) -> unsafe extern "C" fn(*mut Call<W, R>) {
        begin::<W, R>
    }

    let stack = Mapping::private(STACK_BYTES)?;
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let mut call = Call { work: Some(work), result: None };
    let function = function(&call);
    let top = stack.end() & !15;
    // SAFETY: the function gets its only argument and, 16-byte aligned, a stack of its own whose guard is that of the
    // mapping's surroundings; it returns to the next instruction, which puts the old stack pointer back from a register
    // that functions preserve. It does not unwind: `work` makes system calls.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            inout("rdi") &raw mut call => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {function}",
            "mov sp, x20",
            top = in(reg) top,
            function = in(reg) function,
            inout("x0") &raw mut call => _,
            out("x20") _,
            clobber_abi("C"),
        );
    }
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    drop(stack);
    call.result.ok_or(Errno::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_another_stack_has_other_addresses_and_gives_its_result() {
        let here = 0_u8;
        let here = std::ptr::from_ref(&here).addr();
        let there = on_another_stack(|| {
            let there = [1_u8; 1000];
            let sum: usize = there.iter().copied().map(usize::from).sum();
            (std::ptr::from_ref(&there).addr(), sum)
        });
        let (there, sum) = there.unwrap();
        assert_eq!(sum, 1000);
        assert!(here.abs_diff(there) > STACK_BYTES);
    }
}
