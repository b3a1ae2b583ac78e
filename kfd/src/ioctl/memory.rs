// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers of the memory ioctls.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::call::{Issue, NO_FD, Slice};
use super::error::{IoctlError, MapError};
use super::file::Kfd;
use crate::ids::{GpuId, MemoryHandle};
use crate::sys::{self, kfd_ioctl};

/// Bytes lent for a DMABuf's metadata; amdgpu keeps at most 64 words.
const METADATA_BYTES: usize = 256;

/// What to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AllocMemory {
    /// GPU.
    pub gpu: GpuId,
    /// GPU address the object will be mapped at.
    pub va: u64,
    /// Bytes.
    pub bytes: u64,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*`.
    pub flags: u32,
    /// First address of a USERPTR object's pages, else 0. No thread may write to the pages during the call, since the
    /// soft device copies them.
    pub user_address: u64,
}

/// What was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its handle.
    pub handle: MemoryHandle,
    /// Offset to map it at, on the acquired render node (on `/dev/kfd` for the register page).
    pub mmap_offset: u64,
}

/// What a DMABuf is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmabufInfo {
    /// Bytes.
    pub bytes: u64,
    /// The GPU that holds it (the hardware's own id).
    pub gpu: GpuId,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*`.
    pub flags: u32,
    /// The exporter's metadata.
    pub metadata: Vec<u8>,
}

impl Kfd {
    /// ALLOC_MEMORY_OF_GPU.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn alloc_memory(&self, what: &AllocMemory) -> Result<Allocation, IoctlError> {
        let mut args = sys::kfd_ioctl_alloc_memory_of_gpu_args {
            va_addr: what.va,
            size: what.bytes,
            handle: 0,
            mmap_offset: what.user_address,
            gpu_id: what.gpu.0,
            flags: what.flags,
        };
        self.call_plain::<kfd_ioctl::AllocMemoryOfGpu>(&mut args)?;
        Ok(Allocation { handle: MemoryHandle(args.handle), mmap_offset: args.mmap_offset })
    }

    /// FREE_MEMORY_OF_GPU.
    ///
    /// # Errors
    /// [`IoctlError`]; the handle stays valid then.
    pub fn free_memory(&self, handle: MemoryHandle) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_free_memory_of_gpu_args { handle: handle.0 };
        self.call_plain::<kfd_ioctl::FreeMemoryOfGpu>(&mut args).map(drop)
    }

    /// MAP_MEMORY_TO_GPU. A GPU on which the memory is mapped already counts as done.
    ///
    /// # Errors
    /// [`MapError`] says how many were done.
    pub fn map_memory(&self, handle: MemoryHandle, gpus: &[GpuId]) -> Result<(), MapError> {
        let mut args = sys::kfd_ioctl_map_memory_to_gpu_args { handle: handle.0, ..Default::default() };
        let ids = Slice::Read(bytemuck::cast_slice(gpus));
        let outcome = self.call_with::<kfd_ioctl::MapMemoryToGpu>(&mut args, &mut [ids]);
        outcome.map(drop).map_err(|source| MapError { done: args.n_success, wanted: args.n_devices, source })
    }

    /// UNMAP_MEMORY_FROM_GPU.
    ///
    /// # Errors
    /// [`MapError`] says how many were done.
    pub fn unmap_memory(&self, handle: MemoryHandle, gpus: &[GpuId]) -> Result<(), MapError> {
        let mut args = sys::kfd_ioctl_unmap_memory_from_gpu_args { handle: handle.0, ..Default::default() };
        let ids = Slice::Read(bytemuck::cast_slice(gpus));
        let outcome = self.call_with::<kfd_ioctl::UnmapMemoryFromGpu>(&mut args, &mut [ids]);
        outcome.map(drop).map_err(|source| MapError { done: args.n_success, wanted: args.n_devices, source })
    }

    /// AVAILABLE_MEMORY: bytes that may still be allocated on `gpu`.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn available_memory(&self, gpu: GpuId) -> Result<u64, IoctlError> {
        let mut args = sys::kfd_ioctl_get_available_memory_args { gpu_id: gpu.0, ..Default::default() };
        self.call_plain::<kfd_ioctl::AvailableMemory>(&mut args)?;
        Ok(args.available)
    }

    /// EXPORT_DMABUF: a new close-on-exec descriptor of the object.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn export_dmabuf(&self, handle: MemoryHandle) -> Result<OwnedFd, IoctlError> {
        let flags = (nix::libc::O_CLOEXEC | nix::libc::O_RDWR).cast_unsigned();
        let mut args = sys::kfd_ioctl_export_dmabuf_args { handle: handle.0, flags, dmabuf_fd: NO_FD };
        self.call_for_descriptor::<kfd_ioctl::ExportDmabuf>(&mut args)
    }

    /// IMPORT_DMABUF at GPU address `va`.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn import_dmabuf(
        &self,
        gpu: GpuId,
        va: u64,
        dmabuf: BorrowedFd<'_>,
    ) -> Result<MemoryHandle, IoctlError> {
        let dmabuf_fd = dmabuf.as_raw_fd().cast_unsigned();
        let mut args = sys::kfd_ioctl_import_dmabuf_args { va_addr: va, handle: 0, gpu_id: gpu.0, dmabuf_fd };
        self.call_plain::<kfd_ioctl::ImportDmabuf>(&mut args)?;
        Ok(MemoryHandle(args.handle))
    }

    /// GET_DMABUF_INFO.
    ///
    /// # Errors
    /// [`IoctlError`]; EINVAL if amdgpu did not export it.
    pub fn get_dmabuf_info(&self, dmabuf: BorrowedFd<'_>) -> Result<DmabufInfo, IoctlError> {
        let mut metadata = vec![0_u8; METADATA_BYTES];
        let mut args = sys::kfd_ioctl_get_dmabuf_info_args {
            dmabuf_fd: dmabuf.as_raw_fd().cast_unsigned(),
            ..Default::default()
        };
        self.call_with::<kfd_ioctl::GetDmabufInfo>(&mut args, &mut [Slice::Write(&mut metadata)])?;
        metadata.truncate(args.metadata_size as usize);
        Ok(DmabufInfo { bytes: args.size, gpu: GpuId(args.gpu_id), flags: args.flags, metadata })
    }
}
