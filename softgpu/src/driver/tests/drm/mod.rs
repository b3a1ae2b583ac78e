// SPDX-License-Identifier: MIT OR Apache-2.0
//! The render node's ioctls.

pub mod contexts;
mod foreign;
mod handles;
mod info;
pub mod metadata;
mod query;
mod space;
mod va;

use std::os::fd::{AsFd, OwnedFd};

use bytemuck::Pod;
use kfd::sys::*;
use nix::errno::Errno;

use super::harness::*;
use crate::driver::{FdPlace, OpenFile};

pub const VA: u64 = 0x1000_0000;
pub const PAGE: u64 = 4096;

/// Place of the descriptor in `drm_prime_handle`.
const FD: u16 = 8;

pub fn drm<T: Pod>(client: &Client, file: &OpenFile, cmd: u32, args: &mut T) -> Result<u32, Errno> {
    drm_with(client, file, cmd, args, &Memory::default(), &Fds::default())
}

pub fn drm_with<T: Pod>(
    client: &Client,
    file: &OpenFile,
    cmd: u32,
    args: &mut T,
    memory: &Memory,
    fds: &Fds,
) -> Result<u32, Errno> {
    client.process.ioctl(file, cmd, bytemuck::bytes_of_mut(args), memory, fds)
}

pub fn prime_import(client: &Client, file: &OpenFile, fd: impl AsFd) -> Result<u32, Errno> {
    let mut args = drm_prime_handle { handle: 0, flags: 0, fd: 9 };
    let fds = Fds::field(FD, fd);
    drm_with(client, file, DRM_IOCTL_PRIME_FD_TO_HANDLE, &mut args, &Memory::default(), &fds)?;
    Ok(args.handle)
}

pub fn prime_export(client: &Client, file: &OpenFile, handle: u32, flags: u32) -> Result<OwnedFd, Errno> {
    let (mut args, fds) = (drm_prime_handle { handle, flags, fd: -1 }, Fds::default());
    drm_with(client, file, DRM_IOCTL_PRIME_HANDLE_TO_FD, &mut args, &Memory::default(), &fds)?;
    let mut out = fds.taken_out();
    assert_eq!((out.len(), out[0].0), (1, FdPlace::Field(FD)));
    Ok(out.remove(0).1)
}

pub fn close(client: &Client, file: &OpenFile, handle: u32) -> Result<u32, Errno> {
    drm(client, file, DRM_IOCTL_GEM_CLOSE, &mut drm_gem_close { handle, pad: 0 })
}

pub fn gem_mmap(client: &Client, file: &OpenFile, handle: u32) -> Result<u64, Errno> {
    let mut args = drm_amdgpu_gem_mmap { addr_ptr: u64::from(handle) };
    drm(client, file, DRM_IOCTL_AMDGPU_GEM_MMAP, &mut args).map(|_| args.addr_ptr)
}

pub const READ: u32 = AMDGPU_VM_PAGE_READABLE;
pub const READ_WRITE: u32 = AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE;

/// GEM_VA's arguments, in pages.
pub fn va_args(operation: u32, handle: u32, page: u64, pages: u64, offset: u64) -> drm_amdgpu_gem_va {
    drm_amdgpu_gem_va {
        handle,
        operation,
        flags: READ_WRITE,
        va_address: VA + page * PAGE,
        offset_in_bo: offset * PAGE,
        map_size: pages * PAGE,
        ..Default::default()
    }
}

/// A client with an acquired render node and a handle of a GTT buffer of eight pages, which KFD maps nowhere.
pub struct Space {
    pub client: Client,
    pub file: OpenFile,
    /// KFD's handle of the buffer.
    pub buffer: u64,
    pub dmabuf: OwnedFd,
    pub handle: u32,
}

impl Space {
    pub fn new() -> Self {
        Self::of(Client::new("gfx1100"))
    }

    pub fn of(client: Client) -> Self {
        let file = client.acquire(0);
        let buffer = client.alloc(0, 0, 8 * PAGE, GTT).unwrap();
        let dmabuf = super::sharing::export(&client, buffer).unwrap();
        let handle = prime_import(&client, &file, &dmabuf).unwrap();
        Self { client, file, buffer, dmabuf, handle }
    }

    pub fn va(&self, mut args: drm_amdgpu_gem_va) -> Result<u32, Errno> {
        drm(&self.client, &self.file, DRM_IOCTL_AMDGPU_GEM_VA, &mut args)
    }

    pub fn map(&self, page: u64, pages: u64, offset: u64) -> Result<u32, Errno> {
        self.va(va_args(AMDGPU_VA_OP_MAP, self.handle, page, pages, offset))
    }

    pub fn unmap(&self, page: u64) -> Result<u32, Errno> {
        self.va(va_args(AMDGPU_VA_OP_UNMAP, self.handle, page, 0, 0))
    }

    pub fn clear(&self, page: u64, pages: u64) -> Result<u32, Errno> {
        self.va(va_args(AMDGPU_VA_OP_CLEAR, 0, page, pages, 0))
    }

    /// For each of the first ten pages, the page of the memory that is mapped there.
    pub fn seen(&self) -> Vec<Option<u64>> {
        let page = |page| self.client.hardware.page(0, VA + page * PAGE);
        (0..10).map(|at| page(at).map(|entry| entry.offset / PAGE)).collect()
    }
}
