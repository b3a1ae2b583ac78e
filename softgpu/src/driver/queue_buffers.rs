// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mappings that a queue uses, whose addresses and sizes must be exact (`amdkfd/kfd_queue.c`:
//! `kfd_queue_acquire_buffers`).
//!
//! INVARIANT: the mapping in the queue's own GPU address space is compared, never the buffer object. One large object
//! with one mapping cannot serve as several buffers of a queue.

use std::ops::Range;

use kfd::sys::*;
use nix::errno::Errno;

use super::bo::Domain;
use super::memfd::Identity;
use super::page_align;
use super::process::State;
use super::svm::SvmRanges;
use super::vm::{Vm, VmMapping};
use crate::sysfs::GpuModel;

/// Smallest end-of-pipe buffer, bytes.
const MIN_EOP_BYTES: u64 = 4096;

/// Memory that a queue holds; nothing by default.
#[derive(Debug, Default)]
pub(super) struct QueueBuffers {
    /// Memory of the ring; UPDATE_QUEUE exchanges it.
    pub(super) ring: Option<Identity>,
    /// Memory of the pointers, the end-of-pipe buffer and the save area. The same memory may occur more than once.
    pub(super) others: Vec<Identity>,
    /// The save area, if it is shared virtual memory.
    pub(super) svm: Option<Range<u64>>,
}

/// Finds all buffers of a queue that is about to be made on `gpu`.
///
/// # Errors
/// `EINVAL` for the first one that is not mapped exactly as it must be.
pub(super) fn find(
    state: &State,
    gpu: usize,
    model: &GpuModel,
    args: &kfd_ioctl_create_queue_args,
) -> Result<QueueBuffers, Errno> {
    let vm = &state.pdds[gpu].vm;
    let mut found = find_all_but_save_area(vm, args)?;
    if is_compute(args) {
        let area = save_area(model, args)?;
        match vm.exact(area.start, area.end - area.start) {
            Some(mapping) => found.others.push(mapping.backing.identity),
            None if state.svm.hold_save_area(gpu, &area) => found.svm = Some(area),
            None => return Err(Errno::EINVAL),
        }
    }
    Ok(found)
}

/// Finds all buffers of a queue that was saved. `in_svm`: its save area was shared virtual memory, which may have lost its
/// attributes since, or its pages.
///
/// # Errors
/// As [`find`].
pub(super) fn find_again(
    state: &State,
    gpu: usize,
    model: &GpuModel,
    args: &kfd_ioctl_create_queue_args,
    in_svm: bool,
) -> Result<QueueBuffers, Errno> {
    let vm = &state.pdds[gpu].vm;
    let mut found = find_all_but_save_area(vm, args)?;
    match (is_compute(args), in_svm) {
        (true, true) => found.svm = Some(save_area(model, args)?),
        (true, false) => {
            let area = save_area(model, args)?;
            found.others.push(exact(vm, area.start, area.end - area.start)?.backing.identity);
        }
        (false, true) => return Err(Errno::EINVAL),
        (false, false) => {}
    }
    Ok(found)
}

fn is_compute(args: &kfd_ioctl_create_queue_args) -> bool {
    matches!(args.queue_type, KFD_IOC_QUEUE_TYPE_COMPUTE | KFD_IOC_QUEUE_TYPE_COMPUTE_AQL)
}

fn find_all_but_save_area(vm: &Vm, args: &kfd_ioctl_create_queue_args) -> Result<QueueBuffers, Errno> {
    let mut others = vec![
        exact(vm, args.write_pointer_address, 4096)?.backing.identity,
        exact(vm, args.read_pointer_address, 4096)?.backing.identity,
    ];
    // metadata_ring_size exists since 1.22; for the modelled kernel the word is padding.
    let ring_bytes = page_align(u64::from(args.ring_size)).ok_or(Errno::EINVAL)?;
    let ring = exact(vm, args.ring_base_address, ring_bytes)?.backing.identity;
    if is_compute(args) {
        find_eop(vm, args, &mut others)?;
    }
    Ok(QueueBuffers { ring: Some(ring), others, svm: None })
}

/// The end-of-pipe buffer, which only compute queues have, and not all of them.
fn find_eop(vm: &Vm, args: &kfd_ioctl_create_queue_args, others: &mut Vec<Identity>) -> Result<(), Errno> {
    if args.eop_buffer_address != 0 {
        if args.eop_buffer_size < MIN_EOP_BYTES {
            return Err(Errno::EINVAL);
        }
        let bytes = page_align(args.eop_buffer_size).ok_or(Errno::EINVAL)?;
        others.push(exact(vm, args.eop_buffer_address, bytes)?.backing.identity);
    }
    Ok(())
}

/// The pages of a compute queue's save area.
fn save_area(model: &GpuModel, args: &kfd_ioctl_create_queue_args) -> Result<Range<u64>, Errno> {
    let geometry = model.geometry();
    if args.ctl_stack_size != geometry.control_stack_bytes || args.ctx_save_restore_size < geometry.save_bytes
    {
        return Err(Errno::EINVAL);
    }
    let per_xcc = u64::from(args.ctx_save_restore_size) + u64::from(geometry.debug_bytes);
    let bytes = per_xcc.checked_mul(u64::from(geometry.num_xcc)).and_then(page_align).ok_or(Errno::EINVAL)?;
    let start = args.ctx_save_restore_address & !(super::PAGE - 1);
    Ok(start..start.checked_add(bytes).ok_or(Errno::EINVAL)?)
}

fn exact(vm: &Vm, va: u64, bytes: u64) -> Result<&VmMapping, Errno> {
    vm.exact(va, bytes).ok_or(Errno::EINVAL)
}

/// Finds the ring that UPDATE_QUEUE names. A ring smaller than a page is compared by its start only.
///
/// # Errors
/// `EFAULT`, where CREATE_QUEUE says `EINVAL`.
pub(super) fn find_ring(state: &State, gpu: usize, va: u64, ring_bytes: u32) -> Result<Identity, Errno> {
    let whole_pages = u64::from(ring_bytes) / super::PAGE * super::PAGE;
    let mapping = state.pdds[gpu].vm.exact(va, whole_pages).ok_or(Errno::EFAULT)?;
    Ok(mapping.backing.identity)
}

/// Checks the write pointer's memory for a scheduler in firmware (MES, gfx11 on). The scheduler pins it into the GPU's
/// own system memory window, so that it must be system memory of the same GPU.
///
/// # Errors
/// `EINVAL`.
pub(super) fn check_write_pointer(state: &State, gpu: usize, va: u64) -> Result<(), Errno> {
    let backing = &exact(&state.pdds[gpu].vm, va, 4096)?.backing;
    let system = matches!(backing.domain, Domain::Gtt | Domain::Userptr);
    if system && backing.gpu == gpu { Ok(()) } else { Err(Errno::EINVAL) }
}

impl QueueBuffers {
    /// Counts the queue as a user of each buffer.
    pub(super) fn hold(&self, vm: &mut Vm, svm: &mut SvmRanges) {
        self.hold_mappings(vm);
        self.svm.iter().for_each(|area| svm.hold(area));
    }

    /// As `hold`, but for shared virtual memory.
    pub(super) fn hold_mappings(&self, vm: &mut Vm) {
        self.all().for_each(|memory| vm.hold(memory));
    }

    /// Undoes `hold`.
    pub(super) fn release(&self, vm: &mut Vm, svm: &mut SvmRanges) {
        self.all().for_each(|memory| vm.release(memory));
        self.svm.iter().for_each(|area| svm.release(area));
    }

    fn all(&self) -> impl Iterator<Item = Identity> {
        self.others.iter().copied().chain(self.ring)
    }
}
