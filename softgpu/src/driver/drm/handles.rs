// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of buffers on one open render node: import, export and close (`drm_prime.c`, `drm_gem.c`).
//!
//! INVARIANT: an open file has at most one handle for a memory, however often the memory is imported. The handle keeps
//! the memory alive after KFD's own handle is freed. A buffer of KFD has no handle here until it is imported.

use queues::words::words;
use std::os::fd::AsFd;

use kfd::sys::*;
use nix::errno::Errno;

use super::super::bo::Backing;
use super::super::files::{Node, OpenFile};
use super::super::process::{KfdProcess, State};
use super::super::{Call, FdPlace, memfd};
use super::gems::Gem;

const TAKEN_FD: u16 = DrmIoctl::PrimeFdToHandle.row().descriptor_field();
const MADE_FD: u16 = DrmIoctl::PrimeHandleToFd.row().descriptor_field();
/// `DRM_CLOEXEC`: `O_CLOEXEC`.
const CLOEXEC: u32 = 0x8_0000;
/// `DRM_RDWR`: `O_RDWR`.
const RDWR: u32 = 2;

impl State {
    /// What a handle of an open file stands for.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(super) fn gem(&self, file: &OpenFile, handle: u32) -> Result<&Gem, Errno> {
        self.gems.get(&file.id()).and_then(|table| table.get(handle)).ok_or(Errno::ENOENT)
    }

    /// The handles of an open file, and what each stands for.
    pub(super) fn handles(&self, file: &OpenFile) -> impl Iterator<Item = (u32, &Backing)> {
        let table = self.gems.get(&file.id());
        table
            .into_iter()
            .flat_map(|table| table.slots.iter().map(|(slot, gem)| (slot + 1, gem.backing.as_ref())))
    }

    /// The object that some file maps at this offset, and that file's number.
    pub(in super::super) fn gem_by_offset(&self, offset: u64) -> Option<(u64, &Gem)> {
        self.gems.iter().find_map(|(file, table)| {
            let found = table.slots.iter().find(|(_, gem)| gem.mmap_offset == offset)?;
            Some((*file, found.1))
        })
    }
}

impl KfdProcess {
    /// PRIME_FD_TO_HANDLE. Memory in another GPU's VRAM is accepted too. Without a P2P path a real driver moves it to
    /// system memory first, which changes the speed and not the contents.
    pub(super) fn prime_fd_to_handle(
        &self,
        file: &OpenFile,
        args: &mut drm_prime_handle,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let Node::Render { gpu } = file.node() else { return Err(Errno::EINVAL) };
        let fd = call.fds.take_in(FdPlace::Field(TAKEN_FD)).ok_or(Errno::EBADF)?;
        let read_only = memfd::is_read_only(fd.as_fd());
        let mut state = self.state.lock();
        let backing = self.backing_of(&mut state, gpu, fd)?;
        let known = state.gems.get(&file.id()).and_then(|table| table.find(backing.identity));
        args.handle = match known {
            Some(handle) => handle,
            None => {
                let mmap_offset = state.take_mmap_offset(backing.bytes);
                let table = state.gems.entry(file.id()).or_default();
                table.insert(Gem { backing, mmap_offset, read_only })
            }
        };
        Ok(())
    }

    /// PRIME_HANDLE_TO_FD: another descriptor of the DMABuf that the handle came from.
    pub(super) fn prime_handle_to_fd(
        &self,
        file: &OpenFile,
        args: &mut drm_prime_handle,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if args.flags & !(CLOEXEC | RDWR) != 0 {
            return Err(Errno::EINVAL);
        }
        let state = self.state.lock();
        let gem = state.gem(file, args.handle)?;
        self.hardware.release_host_writes(gem.backing.gpu, gem.backing.fd.as_fd());
        let fd = if gem.read_only {
            memfd::reopen_read_only(gem.backing.fd.as_fd())?
        } else {
            memfd::duplicate(&gem.backing.fd)?
        };
        // The client installs the descriptor, with O_CLOEXEC as `flags` says, and writes its number into the argument.
        call.fds.give_out(FdPlace::Field(MADE_FD), fd);
        Ok(())
    }

    /// GEM_CLOSE: ends the handle and the mappings that were made with it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown handle; `EBUSY` when a queue uses memory that would be unmapped. A real kernel unmaps it
    /// all the same: it counts queues only for KFD's own UNMAP.
    pub(super) fn gem_close(
        &self,
        file: &OpenFile,
        args: &mut drm_gem_close,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let memory = state.gem(file, args.handle).map_err(|_| Errno::EINVAL)?.backing.identity;
        if let Some(gpu) = state.compute_space(file) {
            let mapped = state.pdds[gpu].vm.of_gem(args.handle);
            if !mapped.is_empty() && state.pdds[gpu].vm.is_held(memory) {
                return Err(Errno::EBUSY);
            }
            for (va, bytes) in mapped {
                self.hardware.unmap(gpu, va, bytes);
                state.pdds[gpu].vm.remove(va);
            }
        }
        if let Some(table) = state.gems.get_mut(&file.id()) {
            table.remove(args.handle);
        }
        Ok(())
    }

    /// AMDGPU_GEM_MMAP.
    pub(super) fn gem_mmap(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_gem_mmap,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        // The handle is the lower half of the union; the upper one is padding.
        let [handle, _] = words(args.addr_ptr);
        let state = self.state.lock();
        let gem = state.gem(file, handle)?;
        args.addr_ptr = gem.mmap_offset;
        Ok(())
    }
}
