// SPDX-License-Identifier: MIT OR Apache-2.0
//! ALLOC, FREE and AVAILABLE_MEMORY (`amdgpu_amdkfd_gpuvm.c`), checked in the kernel's order.
//!
//! INVARIANT: ALLOC records an address and does not map it. ALLOC charges and creates nothing before every check has
//! passed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kfd::sys::*;
use nix::errno::Errno;

use super::bo::{Backing, Bo, Charge, Domain, Run, VRAM_UNIT, vram_charge};
use super::ledger::Resource;
use super::memfd::Identity;
use super::process::{KfdProcess, State, split_handle};
use super::svm::SvmRanges;
use super::{Call, PAGE, UserPages, memfd, page_align};
use crate::misbehaviour::Misbehaviour;

/// What ALLOC will make.
pub(super) struct Wanted {
    pub(super) domain: Domain,
    /// Size of the memory, rounded up to pages; with AQL_QUEUE_MEM half of the size asked for.
    bytes: u64,
}

impl KfdProcess {
    pub(super) fn alloc_memory(
        &self,
        args: &mut kfd_ioctl_alloc_memory_of_gpu_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if args.size == 0 {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        if is_in_an_svm_range(&state.svm, args) {
            return Err(Errno::EADDRINUSE);
        }
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let public = args.flags & KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC != 0;
        if public && args.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0 && !self.gpus[gpu].large_bar() {
            return Err(Errno::EINVAL);
        }
        state.bound(gpu)?;
        let wanted = wanted(args)?;
        let bo = self.new_bo(&mut state, gpu, &wanted, args, call.fds.pages())?;
        args.mmap_offset = match wanted.domain {
            Domain::Mmio => KFD_MMAP_TYPE_MMIO | kfd_mmap_gpu_id(args.gpu_id),
            _ => bo.mmap_offset,
        };
        args.handle = self.insert_bo(&mut state, gpu, bo);
        Ok(())
    }

    /// Makes a buffer without a handle. `userptr` are the client's pages, for a USERPTR buffer.
    pub(super) fn new_bo(
        &self,
        state: &mut State,
        gpu: usize,
        wanted: &Wanted,
        args: &kfd_ioctl_alloc_memory_of_gpu_args,
        userptr: Vec<UserPages>,
    ) -> Result<Bo, Errno> {
        let charge = self.charge(gpu, wanted.domain, wanted.bytes)?;
        match wanted.domain {
            Domain::Vram { .. } if Misbehaviour::DeviceMemory.is_on() => return Err(Errno::ENOMEM),
            Domain::Gtt if Misbehaviour::HostMemory.is_on() => return Err(Errno::ENOMEM),
            _ => {}
        }
        let backing = match wanted.domain {
            Domain::Userptr => {
                let runs = client_runs(self, state, userptr)?;
                let identity = Identity::of_client(state.take_client_memory());
                Backing::of_client(runs, identity, wanted.bytes, gpu, charge)?
            }
            domain => Backing::new(self.memory_for(gpu, wanted)?, wanted.bytes, domain, gpu, charge)?,
        };
        // The host does not see it otherwise; where the BAR is large, clients map memory without PUBLIC, too.
        let behind_aperture = matches!(wanted.domain, Domain::Vram { .. }) && self.gpus[gpu].large_bar();
        if behind_aperture && !Misbehaviour::FreshMemory.is_on() {
            let code = args.flags & KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE != 0;
            self.hardware.hold_host_writes(gpu, backing.fd.as_fd(), code);
        }
        if wanted.domain.is_shareable() {
            state.remember(&backing);
        }
        let mmap_offset = match wanted.domain {
            Domain::Userptr => args.mmap_offset,
            Domain::Mmio => 0,
            _ => state.take_mmap_offset(wanted.bytes),
        };
        Ok(Bo { backing, va: args.va_addr, flags: args.flags, mmap_offset, mapped: 0, lost: false })
    }

    /// Gives a buffer its handle.
    pub(super) fn insert_bo(&self, state: &mut State, gpu: usize, bo: Bo) -> u64 {
        let index = state.pdds[gpu].bos.insert(bo);
        u64::from(self.user_id(gpu)) << 32 | u64::from(index)
    }

    /// Accounts for the memory (`amdgpu_amdkfd_reserve_mem_limit`).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn charge(&self, gpu: usize, domain: Domain, bytes: u64) -> Result<Charge, Errno> {
        match domain {
            Domain::Vram { .. } => {
                let bytes = vram_charge(bytes).ok_or(Errno::ENOMEM)?;
                let charge = Charge::take(&self.slot, &[(Resource::Vram(gpu), bytes)])?;
                let limit = self.gpus[gpu].vram_bytes().saturating_sub(self.page_table_estimate());
                // Checked after the reservation, so that racing processes see each other's.
                if self.slot.ledger().used(Resource::Vram(gpu)) > limit {
                    return Err(Errno::ENOMEM);
                }
                Ok(charge)
            }
            Domain::Gtt => Charge::take(&self.slot, &[(Resource::System, bytes), (Resource::Ttm, bytes)]),
            Domain::Userptr => Charge::take(&self.slot, &[(Resource::System, bytes)]),
            Domain::Doorbell | Domain::Mmio => Ok(Charge::none(&self.slot)),
        }
    }

    /// The file of a memory that is not the client's.
    fn memory_for(&self, gpu: usize, wanted: &Wanted) -> Result<OwnedFd, Errno> {
        match wanted.domain {
            Domain::Vram { .. } | Domain::Gtt => {
                let fd = memfd::create(&wanted.domain.memfd_name(self.gpus[gpu].gpu_id()), wanted.bytes)?;
                if Misbehaviour::FreshMemory.is_on() {
                    nix::sys::uio::pwrite(&fd, &[0xaa; 16], 0)?;
                }
                Ok(fd)
            }
            Domain::Doorbell => Ok(self.hardware.doorbells(gpu)?.0),
            Domain::Mmio => self.hardware.hdp_page(gpu),
            Domain::Userptr => Err(Errno::EFAULT),
        }
    }

    pub(super) fn free_memory(
        &self,
        args: &mut kfd_ioctl_free_memory_of_gpu_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.event_page == Some(args.handle) {
            return Err(Errno::EPERM);
        }
        let (gpu_id, index) = split_handle(args.handle);
        let gpu = self.gpu_by_id(gpu_id)?;
        let bo = state.bo(gpu, index).ok_or(Errno::EINVAL)?;
        if bo.mapped != 0 {
            return Err(Errno::EBUSY);
        }
        state.pdds[gpu].bos.remove(index);
        Ok(())
    }

    pub(super) fn available_memory(
        &self,
        args: &mut kfd_ioctl_get_available_memory_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let used = self.slot.ledger().used(Resource::Vram(gpu)).saturating_add(self.page_table_estimate());
        let available = self.gpus[gpu].vram_bytes().saturating_sub(used);
        args.available = available - available % VRAM_UNIT;
        Ok(())
    }

    /// What KFD sets aside for page tables: all GPUs' VRAM / 16384, at least 8 MiB.
    fn page_table_estimate(&self) -> u64 {
        let total: u64 = self.gpus.iter().map(|gpu| gpu.vram_bytes()).sum();
        (total >> 14).max(8 << 20)
    }
}

/// Some of the client's pages, found.
#[derive(Debug)]
pub(super) struct ClientPages {
    pub(super) bytes: u64,
    /// What they are made up of, in order; none if the client brought no memory.
    pub(super) memory: Option<Vec<Run>>,
    /// Whether the client itself may write them.
    pub(super) writable: bool,
}

impl ClientPages {
    /// Where the client's pages are.
    ///
    /// # Errors
    /// `EFAULT` as of get_user_pages where nothing is mapped: for a file that is too short or may shrink, and for pages of
    /// another allocation that does not have them.
    pub(super) fn find(process: &KfdProcess, state: &State, pages: UserPages) -> Result<Self, Errno> {
        let (UserPages::New { bytes, .. } | UserPages::Unchanged { bytes } | UserPages::Of { bytes, .. }) =
            pages;
        if !bytes.is_multiple_of(PAGE) {
            return Err(Errno::EFAULT);
        }
        let (memory, writable) = match pages {
            UserPages::New { fd, bytes, writable } => {
                let has = memfd::sealed_bytes(fd.as_fd()).ok_or(Errno::EFAULT)?;
                if has < bytes {
                    return Err(Errno::EFAULT);
                }
                (Some(vec![Run { fd: Arc::new(fd), offset: 0, bytes }]), writable)
            }
            UserPages::Unchanged { .. } => (None, false),
            UserPages::Of { handle, offset, bytes } => {
                let (gpu_id, index) = split_handle(handle);
                let gpu = process.gpu_by_id(gpu_id).map_err(|_| Errno::EFAULT)?;
                let other = state.bo(gpu, index).filter(|bo| bo.backing.domain == Domain::Userptr);
                let other = other.filter(|_| offset.is_multiple_of(PAGE));
                let part = other.and_then(|bo| bo.backing.part(offset, bytes));
                (Some(part.ok_or(Errno::EFAULT)?), true)
            }
        };
        Ok(Self { bytes, memory, writable })
    }
}

/// Where the pages of a USERPTR allocation are.
///
/// # Errors
/// As [`ClientPages::find`].
fn client_runs(process: &KfdProcess, state: &State, pages: Vec<UserPages>) -> Result<Vec<Run>, Errno> {
    let mut runs = Vec::with_capacity(pages.len());
    for pages in pages {
        runs.extend(ClientPages::find(process, state, pages)?.memory.ok_or(Errno::EFAULT)?);
    }
    Ok(runs)
}

/// Whether a range of shared virtual memory is where the buffer would be, or has pages that it would be made of. VRAM
/// without an address is in no range's way.
fn is_in_an_svm_range(svm: &SvmRanges, args: &kfd_ioctl_alloc_memory_of_gpu_args) -> bool {
    let has = |flag| args.flags & flag != 0;
    let has_address = args.va_addr != 0 || !has(KFD_IOC_ALLOC_MEM_FLAGS_VRAM);
    let pages = if has(KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) { args.mmap_offset } else { 0 };
    (has_address && svm.overlaps(args.va_addr, args.size)) || (pages != 0 && svm.overlaps(pages, args.size))
}

/// The domain and the size that the flags ask for.
///
/// # Errors
/// `EINVAL` and `ENOMEM`, checked in the kernel's order.
pub(super) fn wanted(args: &kfd_ioctl_alloc_memory_of_gpu_args) -> Result<Wanted, Errno> {
    let flags = args.flags;
    let has = |flag: u32| flags & flag != 0;
    if has(KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL) && args.size != DOORBELL_SLICE_BYTES as u64 {
        return Err(Errno::EINVAL);
    }
    if !has(KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL)
        && has(KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP)
        && args.size != MMIO_REMAP_BYTES as u64
    {
        return Err(Errno::EINVAL);
    }
    let domain = if has(KFD_IOC_ALLOC_MEM_FLAGS_VRAM) {
        Domain::Vram { public: has(KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC) }
    } else if has(KFD_IOC_ALLOC_MEM_FLAGS_GTT) {
        Domain::Gtt
    } else if has(KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) {
        if args.mmap_offset == 0 {
            return Err(Errno::EINVAL);
        }
        Domain::Userptr
    } else if has(KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL) {
        Domain::Doorbell
    } else if has(KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP) {
        Domain::Mmio
    } else {
        return Err(Errno::EINVAL);
    };
    let size = if has(KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM) { args.size / 2 } else { args.size };
    if size == 0 {
        return Err(Errno::EINVAL);
    }
    // A size that cannot be rounded up exceeds every limit.
    Ok(Wanted { domain, bytes: page_align(size).ok_or(Errno::ENOMEM)? })
}
