// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffer objects as DMABufs: made of one, or one made of them.
//!
//! INVARIANT: what identifies memory that others may hold is the inode of its DMABuf ([`DmabufId`]), never a handle or a
//! descriptor; no descriptor is kept here.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kfd::sys::*;
use kfd::{Errno, MemoryHandle, ProtFlags, map_dmabuf};
use queues::words::size;

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::registry::state::{BoKind, DmabufId};
use crate::context::registry::{Bo, KernelBo};

/// What is known of a DMABuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dmabuf {
    /// Its identity.
    pub id: DmabufId,
    /// Length in bytes.
    pub bytes: u64,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*` of memory of this driver; `None` for somebody else's.
    pub own: Option<OwnDmabuf>,
}

/// A DMABuf of this driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnDmabuf {
    /// VRAM or GTT, and PUBLIC if the CPU sees it.
    pub flags: u32,
    /// The GPU whose memory it is, or through which it was made (the hardware's own id).
    pub gpu: kfd::GpuId,
}

impl Dmabuf {
    /// Whether the CPU can map it.
    pub fn is_visible(&self) -> bool {
        const SEEN: u32 = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
        self.own.is_none_or(|own| own.flags & SEEN != 0)
    }
}

/// The identity of the memory behind a DMABuf.
///
/// # Errors
/// What fstat(2) says.
pub fn identify(fd: impl AsFd) -> Result<DmabufId, Errno> {
    let stat = nix::sys::stat::fstat(fd)?;
    Ok(DmabufId { device: stat.st_dev, inode: stat.st_ino })
}

impl Device {
    /// What a DMABuf is.
    ///
    /// # Errors
    /// [`DeviceError`]; EBADF-like failures for what is no open file.
    pub fn describe_dmabuf(&self, fd: BorrowedFd<'_>) -> Result<Dmabuf, DeviceError> {
        let stat = nix::sys::stat::fstat(fd).map_err(|errno| DeviceError::Descriptor { errno })?;
        let id = DmabufId { device: stat.st_dev, inode: stat.st_ino };
        match self.kfd.get_dmabuf_info(fd) {
            Ok(info) => {
                let own = OwnDmabuf { flags: info.flags, gpu: info.gpu };
                Ok(Dmabuf { id, bytes: info.bytes, own: Some(own) })
            }
            // Not of this driver: its length is what its file says.
            Err(error) if error.errno == Errno::EINVAL => {
                Ok(Dmabuf { id, bytes: u64::try_from(stat.st_size).unwrap_or(0), own: None })
            }
            Err(error) => Err(ioctl("to say what a DMABuf is")(error)),
        }
    }

    /// Makes a DMABuf of an object, close-on-exec.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn export_bo(&self, bo: &Bo) -> Result<OwnedFd, DeviceError> {
        if let Some(file) = &bo.file {
            return file.try_clone().map_err(|error| DeviceError::Descriptor {
                errno: kfd::errno::of_io(&error).unwrap_or(Errno::EMFILE),
            });
        }
        let kernel = bo.kernel.ok_or(DeviceError::Absent { what: "the buffer object" })?;
        self.kfd.export_dmabuf(MemoryHandle(kernel.handle)).map_err(ioctl("a DMABuf"))
    }

    /// Makes the object of an entry out of a DMABuf: imports it, maps it to the agents it names and, if it is to be,
    /// for the CPU.
    ///
    /// # Errors
    /// [`DeviceError`]; nothing is left of it then.
    pub fn import_bo(&self, bo: &mut Bo, fd: BorrowedFd<'_>) -> Result<(), DeviceError> {
        // It is whole: nothing will be shown later.
        bo.aside = None;
        let state = &bo.state;
        let owner = self.node(state.agent)?;
        let gpus = self.gpus(&state.mapped)?;
        let handle =
            self.kfd.import_dmabuf(owner.gpu, state.va, fd).map_err(ioctl("the import of a DMABuf"))?;
        bo.kernel = Some(KernelBo { handle: handle.0, mmap_offset: 0 });
        let made = (|| {
            if !gpus.is_empty() {
                self.kfd
                    .map_memory(handle, &gpus)
                    .map_err(|error| ioctl("a mapping of memory to its agents")(error.into()))?;
            }
            if !state.cpu_mapped {
                return Ok(());
            }
            let at = std::ptr::with_exposed_provenance_mut::<u8>(size(state.va));
            // SAFETY: the range belongs to this entry alone (arena), and holds the reservation until this call.
            // CAST: u64 and usize are the same here.
            unsafe { map_dmabuf(fd, at, size(state.bytes), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, 0) }
                .map_err(|errno| DeviceError::Mmap {
                    path: "a DMABuf".into(),
                    va: state.va,
                    bytes: state.bytes,
                    offset: 0,
                    errno,
                })
        })();
        if made.is_err() {
            self.abandon(bo, &gpus);
        }
        made
    }

    /// Makes memory that no agent maps yet and gives its DMABuf, which alone holds it from then on.
    ///
    /// # Errors
    /// [`DeviceError`]; nothing is left of it then.
    pub fn make_dmabuf(&self, bo: &mut Bo) -> Result<OwnedFd, DeviceError> {
        debug_assert!(bo.state.kind != BoKind::Imported && bo.state.mapped.is_empty());
        self.create_bo(bo)?;
        let fd = self.export_bo(bo);
        let freed = self.destroy_bo(bo);
        let fd = fd?;
        freed.map(|()| fd)
    }
}
