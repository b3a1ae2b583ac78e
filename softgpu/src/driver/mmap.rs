// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `mmap` on `/dev/kfd` and on a render node maps (`kfd_mmap`, `amdgpu_gem_object_mmap`).
//!
//! INVARIANT: only these files can map a buffer: the render file whose address space was acquired for the buffer's GPU,
//! and render files with a handle of it. Each file has its own offset for it.

use std::os::fd::{AsFd, OwnedFd};

use kfd::sys::*;
use kfd::userfault::WatchedPages;
use nix::errno::Errno;

use super::bo::{Backing, Bo, Domain};
use super::files::{Node, OpenFile};
use super::kernel::KernelModel;
use super::process::{KfdProcess, State};
use super::{memfd, page_align};
use crate::sysfs::GpuModel;

/// Memory for the client to map, shared.
#[derive(Debug)]
pub struct Mapped {
    /// The file to map.
    pub fd: OwnedFd,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// For doorbells: the page whose first u32 tells whether the device sleeps.
    pub parked: Option<OwnedFd>,
}

impl Mapped {
    fn plain(fd: OwnedFd) -> Self {
        Self { fd, offset: 0, parked: None }
    }
}

impl KfdProcess {
    /// Answers `mmap(length, offset)` on an open file.
    ///
    /// # Errors
    /// On `/dev/kfd`: `ENODEV` for an unknown GPU, `EINVAL` for a wrong size or type. On a render node: `EINVAL` when
    /// no buffer starts at the offset or it is shorter, `EACCES` when the file is not the acquired one, `EPERM` for
    /// the client's own memory.
    pub fn mmap(&self, file: &OpenFile, length: u64, offset: u64) -> Result<Mapped, Errno> {
        let length = page_align(length).filter(|length| *length > 0).ok_or(Errno::EINVAL)?;
        match file.node() {
            Node::Kfd => self.mmap_kfd(length, offset),
            Node::Render { .. } => self.mmap_render(file, length, offset),
        }
    }

    fn mmap_kfd(&self, length: u64, offset: u64) -> Result<Mapped, Errno> {
        let gpu = || {
            let id = kfd_mmap_get_gpu_id(offset);
            // Linux 6.12 compares with the hardware's own id, Linux 7.3 with the id that the process knows.
            let found = if self.kernel == KernelModel::V6_12 {
                self.gpu_by_actual_id(id)
            } else {
                self.gpu_by_id(id)
            };
            found.map_err(|_| Errno::ENODEV)
        };
        match offset & KFD_MMAP_TYPE_MASK {
            KFD_MMAP_TYPE_DOORBELL => {
                let gpu = gpu()?;
                if length != DOORBELL_SLICE_BYTES as u64 {
                    return Err(Errno::EINVAL);
                }
                let (fd, parked) = self.hardware.doorbells(gpu)?;
                Ok(Mapped { fd, offset: 0, parked: Some(parked) })
            }
            KFD_MMAP_TYPE_EVENTS => self.mmap_events(length),
            KFD_MMAP_TYPE_MMIO => {
                let gpu = gpu()?;
                if length != MMIO_REMAP_BYTES as u64 {
                    return Err(Errno::EINVAL);
                }
                Ok(Mapped::plain(self.hardware.hdp_page(gpu)?))
            }
            // The reserved type was the trap page of gfx8 APUs; this device models none.
            _ => gpu().and(Err(Errno::EINVAL)),
        }
    }

    /// The client has mapped the doorbells that a cookie names, and rings them by stores alone; `pages` is its mapping.
    ///
    /// # Errors
    /// `EINVAL` on a render node and for another cookie, `ENODEV` for an unknown GPU, else as
    /// [`crate::hardware::Hardware::expect_stores`].
    pub fn expect_stores(
        &self,
        file: &OpenFile,
        offset: u64,
        pages: Option<WatchedPages>,
    ) -> Result<(), Errno> {
        let is_doorbells = offset & KFD_MMAP_TYPE_MASK == KFD_MMAP_TYPE_DOORBELL;
        if file.node() != Node::Kfd || !is_doorbells {
            return Err(Errno::EINVAL);
        }
        let gpu = self.gpu_by_id(kfd_mmap_get_gpu_id(offset)).map_err(|_| Errno::ENODEV)?;
        // A mapping keeps its file open.
        self.state.lock().files.keep(file.id());
        self.hardware.expect_stores(gpu, pages)
    }

    /// The event page that the driver made for a client that gave none. Linux 6.12 lets the client map it.
    fn mmap_events(&self, length: u64) -> Result<Mapped, Errno> {
        if length > EVENT_PAGE_BYTES as u64 {
            return Err(Errno::EINVAL);
        }
        let mut events = self.events.lock();
        let page = events.page.as_mut().ok_or(Errno::EINVAL)?;
        let fd = page.own.as_ref().ok_or(Errno::EINVAL).and_then(memfd::duplicate)?;
        // From now on ids are limited to the slots that the client can see.
        page.usable = u32::try_from(length / 8).map_err(|_| Errno::EINVAL)?;
        Ok(Mapped::plain(fd))
    }

    fn mmap_render(&self, file: &OpenFile, length: u64, offset: u64) -> Result<Mapped, Errno> {
        let state = self.state.lock();
        let (allowed, backing) = match find_by_offset(&state, offset) {
            Some((gpu, bo)) => (state.pdds[gpu].render == Some(*file), &bo.backing),
            None => {
                let (owner, gem) = state.gem_by_offset(offset).ok_or(Errno::EINVAL)?;
                (owner == file.id(), &gem.backing)
            }
        };
        if !allowed {
            return Err(Errno::EACCES);
        }
        if length > backing.bytes {
            return Err(Errno::EINVAL);
        }
        match backing.domain {
            Domain::Gtt | Domain::Vram { public: true } => Ok(Mapped::plain(memfd::duplicate(&backing.fd)?)),
            Domain::Vram { public: false } => self.mmap_hidden(backing),
            Domain::Userptr => Err(Errno::EPERM),
            // Device registers; `/dev/kfd` maps them.
            Domain::Doorbell | Domain::Mmio => Err(Errno::EINVAL),
        }
    }
}

impl KfdProcess {
    /// VRAM that was allocated without PUBLIC. KFD has not set NO_CPU_ACCESS on it since Linux 5.14, so that clients map it
    /// like any other; libhsakmt does so without access, for debuggers, and others with access that they do not use.
    ///
    /// Where the BAR is small, such memory lies outside it. A real kernel moves memory that the CPU touches into the BAR or
    /// to system memory, and stops the process's queues for that; if it cannot, it raises SIGBUS
    /// (`amdgpu_bo_fault_reserve_notify`). This device moves nothing: every access raises SIGBUS.
    fn mmap_hidden(&self, backing: &Backing) -> Result<Mapped, Errno> {
        let is_visible = self.gpus.get(backing.gpu).is_some_and(GpuModel::large_bar);
        let fd = if is_visible { memfd::duplicate(&backing.fd)? } else { memfd::out_of_reach()? };
        Ok(Mapped::plain(fd))
    }
}

/// The buffer at exactly this offset.
fn find_by_offset(state: &State, offset: u64) -> Option<(usize, &Bo)> {
    state.pdds.iter().enumerate().find_map(|(gpu, pdd)| Some((gpu, pdd.bos.at_offset(offset)?)))
}

/// This function is beside `mmap` because a render file's descriptor names the address space to acquire.
pub(super) fn acquired_file(state: &State, fd: &OwnedFd) -> Option<(OpenFile, usize)> {
    let file = state.files.find(fd.as_fd())?;
    match file.node() {
        Node::Render { gpu } => Some((file, gpu)),
        Node::Kfd => None,
    }
}
