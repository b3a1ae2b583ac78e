// SPDX-License-Identifier: MIT OR Apache-2.0
//! The SVM ioctl (`kfd_svm.c`): plain memory of the client that GPUs access at the client's own addresses.
//!
//! A range that some GPU may access has its pages from the client, who lends them as it does for a USERPTR buffer, and is
//! mapped on these GPUs at once, since no GPU of this device retries faults. Locations and granularity are stored and told
//! only: all memory stays where it is.
//!
//! INVARIANT: a range has memory exactly while a GPU may access it, or while a queue has its save area there. A call that is
//! refused changes nothing. (The kernel keeps the attributes of a range that it fails to map; and it never unmaps a range from
//! a GPU that lost its access.)

mod attributes;
mod ranges;

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kfd::sys::*;
use nix::errno::Errno;

pub(super) use self::attributes::Attributes;
use self::attributes::{Change, Common};
pub(super) use self::ranges::{SvmMemory, SvmRange, SvmRanges};
use super::bo::Run;
use super::ledger::Resource;
use super::memory::ClientPages;
use super::process::{KfdProcess, State};
use super::{Call, PAGE};
use crate::hardware::{GpuMapping, PageAccess};
use crate::sysfs::GpuModel;

const HEAD: usize = size_of::<kfd_ioctl_svm_args>();
const ATTRIBUTE: usize = size_of::<kfd_ioctl_svm_attribute>();

impl KfdProcess {
    /// The whole ioctl: its argument with the attributes behind it, whose number was checked against the size.
    pub(super) fn svm_ioctl(&self, bytes: &mut [u8], call: &Call<'_>) -> Result<u32, Errno> {
        let (head, tail) = bytes.split_at_mut_checked(HEAD).ok_or(Errno::EFAULT)?;
        let args: kfd_ioctl_svm_args = bytemuck::pod_read_unaligned(head);
        let tail = tail.get_mut(..args.nattr as usize * ATTRIBUTE).ok_or(Errno::EINVAL)?;
        let mut attributes: Vec<kfd_ioctl_svm_attribute> =
            tail.chunks_exact(ATTRIBUTE).map(bytemuck::pod_read_unaligned).collect();
        let result = self.svm(&args, &mut attributes, call);
        tail.copy_from_slice(bytemuck::cast_slice(&attributes));
        result.map(|()| 0)
    }

    fn svm(
        &self,
        args: &kfd_ioctl_svm_args,
        attributes: &mut [kfd_ioctl_svm_attribute],
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        // A kernel that was built without HSA_AMD_SVM; the topology's capability words say the same.
        if !self.gpus.iter().any(GpuModel::has_svm) {
            return Err(Errno::EPERM);
        }
        let &kfd_ioctl_svm_args { start_addr, size, op, .. } = args;
        let is_whole = start_addr.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        if !is_whole || start_addr == 0 || size == 0 {
            return Err(Errno::EINVAL);
        }
        let span = start_addr..start_addr.checked_add(size).ok_or(Errno::EFAULT)?;
        match op {
            KFD_IOCTL_SVM_OP_SET_ATTR => self.set_attributes(&span, attributes, call),
            KFD_IOCTL_SVM_OP_GET_ATTR => self.get_attributes(&span, attributes, call),
            _ => Err(Errno::EINVAL),
        }
    }

    fn set_attributes(
        &self,
        span: &Range<u64>,
        attributes: &[kfd_ioctl_svm_attribute],
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let changes =
            attributes.iter().map(|attribute| self.change(attribute)).collect::<Result<Vec<_>, _>>()?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // What KFD keeps of a process's memory begins with the first address space (`kgd_process_info`).
        if state.pdds.iter().all(|pdd| pdd.render.is_none()) {
            return Err(Errno::EINVAL);
        }
        let pages = self.pages_of(state, span, call)?;
        check_free(state, span)?;
        if changes.iter().filter_map(|change| change.new_user()).any(|gpu| state.pdds[gpu].render.is_none()) {
            return Err(Errno::EINVAL);
        }
        check_memory(&state.svm, span, &pages, &changes)?;
        let gaps = state.svm.gaps(span);
        self.slot.reserve(Resource::System, gaps.iter().map(|gap| gap.end - gap.start).sum())?;
        state.svm.cut_out(span);
        state.svm.fill(span);
        let lent = self.take_memory(&mut state.svm, span.start, pages);
        let starts = state.svm.cut_out(span);
        if let Err(errno) = self.map_for_new_users(&mut state.svm, &starts, &changes) {
            for start in lent {
                if let Some(range) = state.svm.get_mut(start) {
                    self.unmap_range(start, range);
                }
            }
            gaps.iter().for_each(|gap| self.forget(state, gap));
            return Err(errno);
        }
        for start in starts {
            if let Some(range) = state.svm.get_mut(start) {
                range.attributes = range.attributes.after(&changes);
                self.update(start, range);
            }
        }
        Ok(())
    }

    /// Checks an attribute (`svm_range_check_attr`).
    fn change(&self, attribute: &kfd_ioctl_svm_attribute) -> Result<Change, Errno> {
        let value = attribute.value;
        let gpu = || {
            self.gpu_by_id(value).and_then(|gpu| self.gpus[gpu].has_svm().then_some(gpu).ok_or(Errno::EINVAL))
        };
        match attribute.type_ {
            KFD_IOCTL_SVM_ATTR_PREFERRED_LOC => {
                if !matches!(value, KFD_IOCTL_SVM_LOCATION_SYSMEM | KFD_IOCTL_SVM_LOCATION_UNDEFINED) {
                    gpu()?;
                }
                Ok(Change::Preferred(value))
            }
            KFD_IOCTL_SVM_ATTR_PREFETCH_LOC => {
                if value != KFD_IOCTL_SVM_LOCATION_SYSMEM {
                    gpu()?;
                }
                Ok(Change::Prefetch(value))
            }
            KFD_IOCTL_SVM_ATTR_ACCESS => gpu().map(Change::Access),
            KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE => gpu().map(Change::AccessInPlace),
            KFD_IOCTL_SVM_ATTR_NO_ACCESS => gpu().map(Change::NoAccess),
            KFD_IOCTL_SVM_ATTR_SET_FLAGS => Ok(Change::SetFlags(value)),
            KFD_IOCTL_SVM_ATTR_CLR_FLAGS => Ok(Change::ClearFlags(value)),
            KFD_IOCTL_SVM_ATTR_GRANULARITY => Ok(Change::Granularity(value)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn get_attributes(
        &self,
        span: &Range<u64>,
        attributes: &mut [kfd_ioctl_svm_attribute],
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let state = self.state.lock();
        self.pages_of(&state, span, call)?;
        check_free(&state, span)?;
        let is_asked = |attribute: &kfd_ioctl_svm_attribute| {
            !matches!(attribute.type_, KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE | KFD_IOCTL_SVM_ATTR_NO_ACCESS)
                && attribute.type_ <= KFD_IOCTL_SVM_ATTR_GRANULARITY
        };
        if !attributes.iter().all(is_asked) {
            return Err(Errno::EINVAL);
        }
        let common = Common::of(state.svm.over(span).map(|(_, range)| range.attributes));
        for attribute in attributes {
            match attribute.type_ {
                KFD_IOCTL_SVM_ATTR_PREFERRED_LOC => attribute.value = common.preferred,
                KFD_IOCTL_SVM_ATTR_PREFETCH_LOC => attribute.value = common.prefetch,
                KFD_IOCTL_SVM_ATTR_SET_FLAGS => attribute.value = common.set,
                KFD_IOCTL_SVM_ATTR_CLR_FLAGS => attribute.value = common.clear,
                KFD_IOCTL_SVM_ATTR_GRANULARITY => attribute.value = common.granularity,
                // The answer is the type; the value stays the GPU.
                _ => {
                    let gpu = 1 << self.gpu_by_id(attribute.value)?;
                    attribute.type_ = if common.access & gpu != 0 {
                        KFD_IOCTL_SVM_ATTR_ACCESS
                    } else if common.in_place & gpu != 0 {
                        KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE
                    } else {
                        KFD_IOCTL_SVM_ATTR_NO_ACCESS
                    };
                }
            }
        }
        Ok(())
    }

    /// The client's pages of a span, in order.
    ///
    /// # Errors
    /// `EFAULT` where the client has mapped nothing, or something that it cannot lend.
    fn pages_of(&self, state: &State, span: &Range<u64>, call: &Call<'_>) -> Result<Vec<ClientPages>, Errno> {
        let pages = call.fds.pages().into_iter().map(|pages| ClientPages::find(self, state, pages));
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        let bytes = pages.iter().try_fold(0u64, |sum, pages| sum.checked_add(pages.bytes));
        if bytes == Some(span.end - span.start) { Ok(pages) } else { Err(Errno::EFAULT) }
    }

    /// Makes the pages that the client lends the memory of the ranges from `start` on, which have no gaps. The starts of
    /// the ranges that got memory.
    fn take_memory(&self, svm: &mut SvmRanges, start: u64, pages: Vec<ClientPages>) -> Vec<u64> {
        let mut lent = Vec::new();
        let mut at = start;
        for pages in pages {
            let end = at + pages.bytes;
            for run in pages.memory.into_iter().flatten() {
                let part = at..at + run.bytes;
                for start in svm.cut_out(&part) {
                    let Some(range) = svm.get_mut(start) else { continue };
                    // Pages that the client put where it had unmapped others.
                    self.unmap_range(start, range);
                    let offset = run.offset + (start - part.start);
                    let fd = run.fd.clone();
                    range.memory = Some(SvmMemory { fd, offset, writable: pages.writable });
                    lent.push(start);
                }
                at = part.end;
            }
            at = end;
        }
        lent
    }

    /// Maps ranges on the GPUs that will have access to them and have not yet.
    ///
    /// # Errors
    /// That of the hardware; nothing is mapped then that was not before.
    fn map_for_new_users(
        &self,
        svm: &mut SvmRanges,
        starts: &[u64],
        changes: &[Change],
    ) -> Result<(), Errno> {
        let mut done = Vec::new();
        for &start in starts {
            let Some(range) = svm.get_mut(start) else { continue };
            let after = range.attributes.after(changes);
            let Some(memory) = &range.memory else { continue };
            let (bytes, access) = (range.end - start, page_access(&after, memory));
            let new = after.users() & !range.mapped;
            for gpu in self.gpus_of(new) {
                if let Err(errno) = self.map_range(gpu, start, bytes, access, memory) {
                    for (gpu, start, bytes) in done {
                        self.hardware.unmap(gpu, start, bytes);
                        if let Some(range) = svm.get_mut(start) {
                            range.mapped &= !(1 << gpu);
                        }
                    }
                    return Err(errno);
                }
                done.push((gpu, start, bytes));
                range.mapped |= 1 << gpu;
            }
        }
        Ok(())
    }

    fn map_range(
        &self,
        gpu: usize,
        start: u64,
        bytes: u64,
        access: PageAccess,
        memory: &SvmMemory,
    ) -> Result<(), Errno> {
        let (backing, offset) = (memory.fd.as_fd(), memory.offset);
        self.hardware.map(gpu, &GpuMapping { va: start, bytes, access, backing, offset })
    }

    /// Gives the GPUs the access to a range that its attributes say; without any user its memory is given back.
    fn update(&self, start: u64, range: &mut SvmRange) {
        let Some(memory) = &range.memory else { return };
        let (users, bytes) = (range.attributes.users(), range.end - start);
        let access = page_access(&range.attributes, memory);
        let is_other = range.access.replace(access).is_some_and(|before| before != access);
        for gpu in self.gpus_of(range.mapped) {
            if users & 1 << gpu == 0 && range.queues == 0 {
                self.hardware.unmap(gpu, start, bytes);
                range.mapped &= !(1 << gpu);
            } else if is_other {
                self.hardware.protect(gpu, start, bytes, access);
            }
        }
        if range.mapped == 0 {
            self.unmap_range(start, range);
        }
    }

    /// Adds a range that was saved, and maps it on these GPUs. It is charged already.
    ///
    /// # Errors
    /// The GPU that does not map it, and the hardware's error. The range stays, mapped on the GPUs before that one.
    pub(super) fn restore_range(
        &self,
        svm: &mut SvmRanges,
        start: u64,
        mut range: SvmRange,
        gpus: u32,
    ) -> Result<(), (usize, Errno)> {
        let (bytes, mut outcome) = (range.end - start, Ok(()));
        if let Some(memory) = &range.memory {
            let access = page_access(&range.attributes, memory);
            range.access = Some(access);
            for gpu in self.gpus_of(gpus) {
                outcome = self.map_range(gpu, start, bytes, access, memory).map_err(|errno| (gpu, errno));
                if outcome.is_err() {
                    break;
                }
                range.mapped |= 1 << gpu;
            }
        }
        svm.insert(start, range);
        outcome
    }

    /// Ends all ranges.
    pub(super) fn forget_ranges(&self, state: &mut State) {
        let starts: Vec<u64> = state.svm.iter().map(|(start, _)| start).collect();
        for start in starts {
            let Some(mut range) = state.svm.remove(start) else { continue };
            self.unmap_range(start, &mut range);
            self.slot.release(Resource::System, range.end - start);
        }
    }

    fn unmap_range(&self, start: u64, range: &mut SvmRange) {
        for gpu in self.gpus_of(range.mapped) {
            self.hardware.unmap(gpu, start, range.end - start);
        }
        range.mapped = 0;
        range.access = None;
        range.memory = None;
    }

    /// The client has unmapped a part of its memory, or put something else there: what is left of the ranges there ends
    /// (`svm_range_unmap_from_cpu`). If a queue has its save area there, the queues of the process end, too.
    ///
    /// # Errors
    /// `EINVAL` when these are no whole pages.
    pub fn svm_unmapped(&self, start: u64, bytes: u64) -> Result<(), Errno> {
        let end = start.checked_add(bytes).ok_or(Errno::EINVAL)?;
        if !start.is_multiple_of(PAGE) || !end.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        self.forget(&mut self.state.lock(), &(start..end));
        Ok(())
    }

    fn forget(&self, state: &mut State, span: &Range<u64>) {
        let mut is_held = false;
        for start in state.svm.cut_out(span) {
            let Some(mut range) = state.svm.remove(start) else { continue };
            is_held |= range.queues > 0;
            self.unmap_range(start, &mut range);
            self.slot.release(Resource::System, range.end - start);
        }
        if is_held {
            tracing::warn!(target: "driver", "the save area of a queue was unmapped: queues evicted for good");
            if let Err(errno) = self.evict_queues(state) {
                tracing::warn!(target: "driver", %errno, "a queue did not stop");
            }
        }
    }
}

impl State {
    /// What is behind `bytes` bytes that a GPU has mapped at `va`, if they lie in one mapping or in ranges.
    pub(super) fn runs(&self, gpu: usize, va: u64, bytes: u64) -> Option<Vec<Run>> {
        self.pdds.get(gpu)?.vm.runs(va, bytes).or_else(|| self.svm.runs(gpu, va, bytes))
    }

    /// The same if they lie in one file: the file, and where they are in it.
    pub(super) fn resolve(&self, gpu: usize, va: u64, bytes: u64) -> Option<(Arc<OwnedFd>, i64)> {
        let [run] = <[Run; 1]>::try_from(self.runs(gpu, va, bytes)?).ok()?;
        Some((run.fd, i64::try_from(run.offset).ok()?))
    }
}

/// How GPUs map a range (`svm_range_get_pte_flags`).
fn page_access(attributes: &Attributes, memory: &SvmMemory) -> PageAccess {
    let has = |flag| attributes.flags & flag != 0;
    let write = memory.writable && !has(KFD_IOCTL_SVM_FLAG_GPU_RO);
    PageAccess { read: true, write, execute: has(KFD_IOCTL_SVM_FLAG_GPU_EXEC) }
}

/// Checks that no GPU has a buffer mapped in a span (`svm_range_check_vm`).
///
/// # Errors
/// `EADDRINUSE`.
fn check_free(state: &State, span: &Range<u64>) -> Result<(), Errno> {
    let is_taken = state.pdds.iter().any(|pdd| pdd.vm.overlaps(span.start, span.end - span.start));
    if is_taken { Err(Errno::EADDRINUSE) } else { Ok(()) }
}

/// Checks that all that GPUs may access after the changes has memory.
///
/// # Errors
/// `EFAULT`.
fn check_memory(
    svm: &SvmRanges,
    span: &Range<u64>,
    pages: &[ClientPages],
    changes: &[Change],
) -> Result<(), Errno> {
    let mut at = span.start;
    for pages in pages {
        let part = at..at + pages.bytes;
        at = part.end;
        if pages.memory.is_some() {
            continue;
        }
        let is_needed = |before: Attributes| before.after(changes).users() != 0;
        let lacks = |(_, range): (u64, &SvmRange)| range.memory.is_none() && is_needed(range.attributes);
        let is_in_a_gap = is_needed(Attributes::default()) && !svm.gaps(&part).is_empty();
        if is_in_a_gap || svm.over(&part).any(lacks) {
            return Err(Errno::EFAULT);
        }
    }
    Ok(())
}
