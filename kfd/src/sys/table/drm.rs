// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls of a render node that a compute process meets (`drm.h`, `amdgpu_drm.h`).

use super::{Array, CloseOnExec, Command, Length, Part, Place, PlainArgs, Row};
use crate::sys::drm::*;
use crate::sys::number::{DRM_IOCTL_BASE, READ, WRITE, ioc};

ioctls! {
    /// An ioctl of a render node. Numbers from [`DRM_COMMAND_BASE`](super::super::DRM_COMMAND_BASE) are amdgpu's own.
    enum DrmIoctl, types in drm_ioctl, type byte DRM_IOCTL_BASE;

    /// Takes [`drm_version`].
    0x00 Version DRM_IOCTL_VERSION "DRM_VERSION":
        READ | WRITE, drm_version, points
        (writes name: [u8; u64 name_len])
        (writes date: [u8; u64 date_len])
        (writes desc: [u8; u64 desc_len]);
    /// Takes [`drm_gem_close`].
    0x09 GemClose DRM_IOCTL_GEM_CLOSE "DRM_GEM_CLOSE":
        WRITE, drm_gem_close, plain;
    /// Takes [`drm_get_cap`].
    0x0c GetCap DRM_IOCTL_GET_CAP "DRM_GET_CAP":
        READ | WRITE, drm_get_cap, plain;
    /// Takes [`drm_prime_handle`].
    0x2d PrimeHandleToFd DRM_IOCTL_PRIME_HANDLE_TO_FD "DRM_PRIME_HANDLE_TO_FD":
        READ | WRITE, drm_prime_handle, plain
        (makes fd, close on exec by flags);
    /// Takes [`drm_prime_handle`].
    0x2e PrimeFdToHandle DRM_IOCTL_PRIME_FD_TO_HANDLE "DRM_PRIME_FD_TO_HANDLE":
        READ | WRITE, drm_prime_handle, plain
        (takes fd);
    /// Takes [`drm_amdgpu_gem_mmap`].
    0x41 GemMmap DRM_IOCTL_AMDGPU_GEM_MMAP "AMDGPU_GEM_MMAP":
        READ | WRITE, drm_amdgpu_gem_mmap, plain;
    /// Takes [`drm_amdgpu_ctx`].
    0x42 Ctx DRM_IOCTL_AMDGPU_CTX "AMDGPU_CTX":
        READ | WRITE, drm_amdgpu_ctx, plain;
    /// Takes [`drm_amdgpu_info`].
    0x45 Info DRM_IOCTL_AMDGPU_INFO "AMDGPU_INFO":
        WRITE, drm_amdgpu_info, points
        (writes return_pointer: [u8; return_size]);
    /// Takes [`drm_amdgpu_gem_metadata`].
    0x46 GemMetadata DRM_IOCTL_AMDGPU_GEM_METADATA "AMDGPU_GEM_METADATA":
        READ | WRITE, drm_amdgpu_gem_metadata, plain;
    /// Takes [`drm_amdgpu_gem_va`]. Up to Linux 6.12 the struct ends before the sync objects to wait for.
    0x48 GemVa DRM_IOCTL_AMDGPU_GEM_VA "AMDGPU_GEM_VA":
        WRITE, drm_amdgpu_gem_va, points
        (reads input_fence_syncobj_handles: [u32; num_syncobj_handles]);
    /// Takes [`drm_amdgpu_gem_op`]. GET_CREATE_INFO writes one struct of 32 bytes, GET_MAPPING_INFO an array of such.
    0x50 GemOp DRM_IOCTL_AMDGPU_GEM_OP "AMDGPU_GEM_OP":
        READ | WRITE, drm_amdgpu_gem_op, points
        (when op is AMDGPU_GEM_OP_GET_GEM_CREATE_INFO => (writes value: [[u64; 4]; const 1]))
        (when op is AMDGPU_GEM_OP_GET_MAPPING_INFO => (writes value: [[u64; 4]; num_entries]));
    /// Takes [`drm_amdgpu_gem_list_handles`].
    0x59 GemListHandles DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES "AMDGPU_GEM_LIST_HANDLES":
        READ | WRITE, drm_amdgpu_gem_list_handles, points
        (writes entries: [drm_amdgpu_gem_list_handles_entry; num_entries]);
}
