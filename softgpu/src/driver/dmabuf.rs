// SPDX-License-Identifier: MIT OR Apache-2.0
//! EXPORT_DMABUF, IMPORT_DMABUF and GET_DMABUF_INFO.
//!
//! A DMABuf is a duplicate of the buffer's memfd. INVARIANT: memory keeps one identity (the inode) through every
//! export and import, in this process and in others of the same device; it lives as long as anyone holds it.
//!
//! Memory of another driver comes as a DMABuf on a real machine. Where softgpu runs there may be no such driver, not
//! even udmabuf, so the memfd that udmabuf would take stands in for the DMABuf it would make: sealed against shrinking
//! and not against writing. It is system memory of whichever GPU imports it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kfd::sys::*;
use rustix::io::Errno;

use super::bo::{Backing, Bo, Charge, Domain};
use super::process::{KfdProcess, State, split_handle};
use super::{Call, FdPlace, memfd};

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
        // Unlike everywhere else the handle's half is compared with the hardware's own id.
        let gpu = self.gpu_by_actual_id(gpu_id)?;
        let state = self.state.lock();
        let bo = state.bo(gpu, index).ok_or(Errno::INVAL)?;
        match bo.backing.domain {
            Domain::Vram { .. } | Domain::Gtt => {}
            Domain::Userptr => return Err(Errno::PERM),
            Domain::Doorbell | Domain::Mmio => return Err(Errno::INVAL),
        }
        let fd = if bo.writable() {
            memfd::duplicate(&bo.backing.fd)?
        } else {
            memfd::reopen_read_only(bo.backing.fd.as_fd())?
        };
        // The number goes into the argument when the client installs it, with O_CLOEXEC as `flags` says.
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
        let fd = call.fds.take_in(FdPlace::Field(IMPORT_FD)).ok_or(Errno::BADF)?;
        let backing = self.backing_of(&mut state, gpu, fd)?;
        // Memory of another GPU is attached as system memory, whatever it is at home.
        let home = if backing.gpu == gpu { backing.domain.flag() } else { Domain::Gtt.flag() };
        let flags = home | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
        let mmap_offset = state.take_mmap_offset(backing.bytes);
        let bo = Bo { backing, va: args.va_addr, flags, mmap_offset, mapped: 0 };
        args.handle = self.insert_bo(&mut state, gpu, bo);
        Ok(())
    }

    /// The memory behind a DMABuf that `gpu` imports: one of our own, one of another process, or another driver's;
    /// this process knows it from now on.
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
        // The exporter's share of the ledger carries it; an importer that outlives the exporter holds it uncounted.
        let backing = Backing::new(fd, bytes, domain, home, Charge::none(&self.slot))?;
        state.remember(&backing);
        Ok(backing)
    }

    /// Domain, GPU and size of a DMABuf.
    ///
    /// # Errors
    /// `EINVAL` when this device did not export it.
    fn describe(&self, fd: BorrowedFd<'_>) -> Result<(Domain, usize, u64), Errno> {
        let name = memfd::name(fd).ok_or(Errno::INVAL)?;
        let (domain, gpu_id) = Domain::of_dmabuf(&name).ok_or(Errno::INVAL)?;
        let bytes = memfd::sealed_bytes(fd).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(super::PAGE));
        Ok((domain, self.gpu_by_actual_id(gpu_id)?, bytes.ok_or(Errno::INVAL)?))
    }

    pub(super) fn get_dmabuf_info(
        &self,
        args: &mut kfd_ioctl_get_dmabuf_info_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if self.gpus.is_empty() {
            return Err(Errno::INVAL);
        }
        let fd = call.fds.take_in(FdPlace::Field(INFO_FD)).ok_or(Errno::BADF)?;
        let (domain, gpu, bytes) = self.describe(fd.as_fd())?;
        args.size = bytes;
        // Only graphics drivers attach metadata (tiling); buffers made here have none.
        args.metadata_size = 0;
        args.gpu_id = self.gpus[gpu].gpu_id();
        args.flags = domain.flag();
        if domain == (Domain::Vram { public: true }) {
            args.flags |= KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
        }
        Ok(())
    }
}

/// Size of another driver's DMABuf; `None` for any other file.
fn foreign_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let name = memfd::name(fd)?;
    // The device's own files and the pages of USERPTR objects are memfds too.
    if name.starts_with("softgpu") || name.starts_with("stasis-") {
        return None;
    }
    // What udmabuf refuses (`SEALS_DENIED`); a descriptor that cannot write could not be mapped either.
    if memfd::is_write_sealed(fd) || memfd::is_read_only(fd) {
        return None;
    }
    memfd::sealed_bytes(fd).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(super::PAGE))
}
