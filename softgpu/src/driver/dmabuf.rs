// SPDX-License-Identifier: MIT OR Apache-2.0
//! EXPORT_DMABUF, IMPORT_DMABUF and GET_DMABUF_INFO.
//!
//! A DMABuf is a duplicate of the buffer's memfd. INVARIANT: the inode identifies the memory through every export and
//! import, in all processes of the device. The memory lives as long as a descriptor of it.
//!
//! On a real machine the memory of another driver arrives as a DMABuf. Where softgpu runs there may be no such driver,
//! not even udmabuf. So a memfd takes the DMABuf's place: one that udmabuf would accept, sealed against shrinking and
//! not against writing. The importing GPU treats it as system memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kfd::sys::*;
use nix::errno::Errno;
use queues::words::count;

use super::bo::{Backing, Bo, Charge, Domain};
use super::drm::Metadata;
use super::process::{KfdProcess, State, split_handle};
use super::{Call, FdPlace, memfd};
use crate::names;

/// Offsets of the descriptor fields in their structs.
const IMPORT_FD: u16 = KfdIoctl::ImportDmabuf.row().descriptor_field();
const EXPORT_FD: u16 = KfdIoctl::ExportDmabuf.row().descriptor_field();
const INFO_FD: u16 = KfdIoctl::GetDmabufInfo.row().descriptor_field();

impl KfdProcess {
    pub(super) fn export_dmabuf(
        &self,
        args: &mut kfd_ioctl_export_dmabuf_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let (gpu_id, index) = split_handle(args.handle);
        // KFD compares the handle's upper half with the hardware's own id here, and nowhere else.
        let gpu = self.gpu_by_actual_id(gpu_id)?;
        let state = self.state.lock();
        let bo = state.bo(gpu, index).ok_or(Errno::EINVAL)?;
        match bo.backing.domain {
            Domain::Vram { .. } | Domain::Gtt => {}
            Domain::Userptr => return Err(Errno::EPERM),
            Domain::Doorbell | Domain::Mmio => return Err(Errno::EINVAL),
        }
        let fd = if bo.writable() {
            memfd::duplicate(&bo.backing.fd)?
        } else {
            memfd::reopen_read_only(bo.backing.fd.as_fd())?
        };
        self.hardware.release_host_writes(bo.backing.gpu, bo.backing.fd.as_fd());
        // The client installs the descriptor, with O_CLOEXEC as `flags` says, and writes its number into the argument.
        call.fds.give_out(FdPlace::Field(EXPORT_FD), fd);
        Ok(())
    }

    pub(super) fn import_dmabuf(
        &self,
        args: &mut kfd_ioctl_import_dmabuf_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let mut state = self.state.lock();
        state.bound(gpu)?;
        let fd = call.fds.take_in(FdPlace::Field(IMPORT_FD)).ok_or(Errno::EBADF)?;
        let backing = self.backing_of(&mut state, gpu, fd)?;
        // KFD attaches the memory of another GPU as system memory, whatever its domain is.
        let home = if backing.gpu == gpu { backing.domain.flag() } else { Domain::Gtt.flag() };
        let flags = home | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
        let mmap_offset = state.take_mmap_offset(backing.bytes);
        let bo = Bo { backing, va: args.va_addr, flags, mmap_offset, mapped: 0, lost: false };
        args.handle = self.insert_bo(&mut state, gpu, bo);
        Ok(())
    }

    /// The memory behind a DMABuf that `gpu` imports. It may belong to this process, to another process, or to another
    /// driver. The process remembers it from now on.
    ///
    /// # Errors
    /// `EINVAL` when it is no DMABuf.
    pub(super) fn backing_of(
        &self,
        state: &mut State,
        gpu: usize,
        fd: OwnedFd,
    ) -> Result<Arc<Backing>, Errno> {
        let (domain, home, bytes) = match self.describe(fd.as_fd()) {
            Ok(ours) => ours,
            Err(errno) => (Domain::Gtt, gpu, foreign_bytes(fd.as_fd()).ok_or(errno)?),
        };
        let identity = memfd::identity(fd.as_fd())?;
        if let Some(known) = state.backings.get(&identity).and_then(std::sync::Weak::upgrade) {
            return Ok(known);
        }
        // The memory is counted in the exporter's share of the ledger. An importer that outlives the exporter holds it
        // uncounted.
        let backing = Backing::new(fd, bytes, domain, home, Charge::none(&self.slot))?;
        state.remember(&backing);
        Ok(backing)
    }

    /// Domain, GPU and size of a DMABuf.
    ///
    /// # Errors
    /// `EINVAL` when this device did not export it.
    pub(super) fn describe(&self, fd: BorrowedFd<'_>) -> Result<(Domain, usize, u64), Errno> {
        let name = names::of(fd).ok_or(Errno::EINVAL)?;
        let (domain, gpu_id) = Domain::of_dmabuf(&name).ok_or(Errno::EINVAL)?;
        let bytes = memfd::sealed_bytes(fd).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(super::PAGE));
        Ok((domain, self.gpu_by_actual_id(gpu_id)?, bytes.ok_or(Errno::EINVAL)?))
    }

    pub(super) fn get_dmabuf_info(
        &self,
        args: &mut kfd_ioctl_get_dmabuf_info_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if self.gpus.is_empty() {
            return Err(Errno::EINVAL);
        }
        let fd = call.fds.take_in(FdPlace::Field(INFO_FD)).ok_or(Errno::EBADF)?;
        let (domain, gpu, bytes) = self.describe(fd.as_fd())?;
        let metadata = Metadata::of(fd.as_fd())?.data;
        // Only who gives a buffer for them gets the bytes; the buffer must have room for all of them.
        if args.metadata_ptr != 0 {
            if metadata.len() > args.metadata_size as usize {
                return Err(Errno::EINVAL);
            }
            call.memory.write(args.metadata_ptr, &metadata)?;
        }
        args.size = bytes;
        args.metadata_size = count(metadata.len());
        args.gpu_id = self.gpus[gpu].gpu_id();
        args.flags = domain.flag();
        if domain == (Domain::Vram { public: true }) {
            args.flags |= KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
        }
        Ok(())
    }
}

/// Size of another driver's DMABuf; `None` for any other file.
pub(super) fn foreign_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let name = names::of(fd)?;
    // The files of this device and the pages of USERPTR objects are memfds too.
    if name.starts_with("softgpu") || name.starts_with("stasis-") {
        return None;
    }
    // udmabuf refuses these seals (`SEALS_DENIED`). A descriptor that cannot write could not be mapped either.
    if memfd::is_write_sealed(fd) || memfd::is_read_only(fd) {
        return None;
    }
    memfd::sealed_bytes(fd).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(super::PAGE))
}
