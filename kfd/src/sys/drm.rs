// SPDX-License-Identifier: MIT OR Apache-2.0
//! The render node's ioctls that a compute process meets (`drm.h`, `amdgpu_drm.h`).

abi_struct! {
    /// DRM_IOCTL_VERSION; strings are copied up to the lengths given, the true lengths come back.
    drm_version: 64 {
        /// Major, out.
        0 => version_major: i32,
        /// Minor, out.
        4 => version_minor: i32,
        /// Patch level, out.
        8 => version_patchlevel: i32,
        /// Zero.
        12 => pad: u32,
        /// Bytes at `name`, in and out.
        16 => name_len: u64,
        /// Address for the driver's name.
        24 => name: u64,
        /// Bytes at `date`, in and out.
        32 => date_len: u64,
        /// Address for the date.
        40 => date: u64,
        /// Bytes at `desc`, in and out.
        48 => desc_len: u64,
        /// Address for the description.
        56 => desc: u64,
    }
}

abi_struct! {
    /// DRM_IOCTL_GEM_CLOSE.
    drm_gem_close: 8 {
        /// GEM handle, in.
        0 => handle: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// DRM_IOCTL_GET_CAP.
    drm_get_cap: 16 {
        /// Capability, in.
        0 => capability: u64,
        /// Value, out.
        8 => value: u64,
    }
}

abi_struct! {
    /// DRM_IOCTL_PRIME_HANDLE_TO_FD and FD_TO_HANDLE.
    drm_prime_handle: 12 {
        /// GEM handle.
        0 => handle: u32,
        /// `O_CLOEXEC`, `O_RDWR`.
        4 => flags: u32,
        /// DMABuf.
        8 => fd: i32,
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_INFO.
    drm_amdgpu_info: 32 {
        /// Address for the answer, in.
        0 => return_pointer: u64,
        /// Bytes there, in.
        8 => return_size: u32,
        /// `AMDGPU_INFO_*`, in.
        12 => query: u32,
        /// The C union, by query, in.
        16 => args: [u32; 4],
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_GEM_VA (40 bytes up to Linux 6.12).
    drm_amdgpu_gem_va: 64 {
        /// GEM handle, in.
        0 => handle: u32,
        /// Zero.
        4 => pad: u32,
        /// 1 map, 2 unmap, 3 clear, 4 replace, in.
        8 => operation: u32,
        /// Permissions and memory type, in.
        12 => flags: u32,
        /// GPU address, in.
        16 => va_address: u64,
        /// Offset in the buffer object, in.
        24 => offset_in_bo: u64,
        /// Bytes, in.
        32 => map_size: u64,
        /// Timeline point to signal, in.
        40 => vm_timeline_point: u64,
        /// Sync object to signal, in.
        48 => vm_timeline_syncobj_out: u32,
        /// Sync objects to wait for, in.
        52 => num_syncobj_handles: u32,
        /// Address of their handles, in.
        56 => input_fence_syncobj_handles: u64,
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_GEM_MMAP; a C union, whose `in` is a handle and whose `out` is the offset.
    drm_amdgpu_gem_mmap: 8 {
        /// GEM handle (in the lower half), in; offset to map the object at on this file, out.
        0 => addr_ptr: u64,
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_CTX; a C union. In: operation, flags, context, priority. Out: by operation.
    drm_amdgpu_ctx: 16 {
        /// `AMDGPU_CTX_OP_*`, in; context or the lower half of flags, out.
        0 => op: u32,
        /// Zero, in; zero or the upper half of flags, out.
        4 => flags: u32,
        /// Context, in; how often the context hung, out (always 0).
        8 => ctx_id: u32,
        /// `AMDGPU_CTX_PRIORITY_*`, in; `AMDGPU_CTX_*_RESET`, out.
        12 => priority: i32,
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_GEM_METADATA.
    drm_amdgpu_gem_metadata: 288 {
        /// GEM handle, in.
        0 => handle: u32,
        /// `AMDGPU_GEM_METADATA_OP_*`, in.
        4 => op: u32,
        /// Flags of the data, whose meaning is the clients' affair; in and out.
        8 => flags: u64,
        /// How textures lie in the memory; in and out.
        16 => tiling_info: u64,
        /// Bytes of the data, in and out.
        24 => data_size_bytes: u32,
        /// Data, in and out.
        28 => data: [u32; 64],
        /// Zero.
        284 => pad: u32,
    }
}

abi_struct! {
    /// What GEM_OP says an object was created with (`drm_amdgpu_gem_create_in`).
    drm_amdgpu_gem_create_in: 32 {
        /// Bytes.
        0 => bo_size: u64,
        /// Bytes.
        8 => alignment: u64,
        /// `AMDGPU_GEM_DOMAIN_*`.
        16 => domains: u64,
        /// `AMDGPU_GEM_CREATE_*`.
        24 => domain_flags: u64,
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_GEM_OP.
    drm_amdgpu_gem_op: 24 {
        /// GEM handle, in.
        0 => handle: u32,
        /// 0 create info, 1 set placement, 2 mapping info, in.
        4 => op: u32,
        /// Address or value, by operation.
        8 => value: u64,
        /// Elements at `value`, in and out.
        16 => num_entries: u32,
        /// Zero.
        20 => padding: u32,
    }
}

abi_struct! {
    /// DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES.
    drm_amdgpu_gem_list_handles: 16 {
        /// Address of the elements, in.
        0 => entries: u64,
        /// Elements, in and out.
        8 => num_entries: u32,
        /// Zero.
        12 => padding: u32,
    }
}

abi_struct! {
    /// One element of GEM_LIST_HANDLES.
    drm_amdgpu_gem_list_handles_entry: 40 {
        /// GEM handle.
        0 => gem_handle: u32,
        /// 1: imported.
        4 => flags: u32,
        /// Bytes.
        8 => size: u64,
        /// Domains.
        16 => preferred_domains: u64,
        /// Flags it was created with.
        24 => alloc_flags: u64,
        /// Alignment in bytes.
        32 => alignment: u64,
    }
}

/// CTX operation: a new context.
pub const AMDGPU_CTX_OP_ALLOC_CTX: u32 = 1;
/// CTX operation: ends a context.
pub const AMDGPU_CTX_OP_FREE_CTX: u32 = 2;
/// CTX operation: whether the GPU was reset since the operation was used before.
pub const AMDGPU_CTX_OP_QUERY_STATE: u32 = 3;
/// CTX operation: what happened to the GPU since the context was made.
pub const AMDGPU_CTX_OP_QUERY_STATE2: u32 = 4;
/// State of a context: nothing happened.
pub const AMDGPU_CTX_NO_RESET: i32 = 0;
/// State of a context: the GPU was reset, for whatever reason.
pub const AMDGPU_CTX_UNKNOWN_RESET: i32 = 3;
/// Flag of a context's state: the GPU was reset.
pub const AMDGPU_CTX_QUERY2_FLAGS_RESET: u32 = 1 << 0;
/// Priority of a context: the one that needs no right. Higher ones do.
pub const AMDGPU_CTX_PRIORITY_NORMAL: i32 = 0;
/// Priority of a context.
pub const AMDGPU_CTX_PRIORITY_HIGH: i32 = 512;
/// Priority of a context.
pub const AMDGPU_CTX_PRIORITY_VERY_HIGH: i32 = 1023;

/// GEM_METADATA operation.
pub const AMDGPU_GEM_METADATA_OP_SET_METADATA: u32 = 1;
/// GEM_METADATA operation.
pub const AMDGPU_GEM_METADATA_OP_GET_METADATA: u32 = 2;

/// Domain: system memory that a GPU can access.
pub const AMDGPU_GEM_DOMAIN_GTT: u64 = 2;
/// Domain: memory of the GPU.
pub const AMDGPU_GEM_DOMAIN_VRAM: u64 = 4;
/// Flag of an object: where the CPU can access it.
pub const AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED: u64 = 1 << 0;
/// Flag of an object: nobody finds its contents later.
pub const AMDGPU_GEM_CREATE_VRAM_WIPE_ON_RELEASE: u64 = 1 << 9;

/// GEM_OP operation: what the object was created with (32 bytes).
pub const AMDGPU_GEM_OP_GET_GEM_CREATE_INFO: u32 = 0;
/// GEM_OP operation: where the object is mapped (32 bytes each).
pub const AMDGPU_GEM_OP_GET_MAPPING_INFO: u32 = 2;

/// Capability of GET_CAP: DMABufs ([`DRM_PRIME_CAP_IMPORT`], [`DRM_PRIME_CAP_EXPORT`]).
pub const DRM_CAP_PRIME: u64 = 5;
/// DMABufs can become GEM handles.
pub const DRM_PRIME_CAP_IMPORT: u64 = 1;
/// GEM handles can become DMABufs.
pub const DRM_PRIME_CAP_EXPORT: u64 = 2;

/// GEM_VA operation: a new mapping where there is none.
pub const AMDGPU_VA_OP_MAP: u32 = 1;
/// GEM_VA operation: ends the object's mapping that starts at the address.
pub const AMDGPU_VA_OP_UNMAP: u32 = 2;
/// GEM_VA operation: ends whatever is mapped in the range, cutting mappings at its ends.
pub const AMDGPU_VA_OP_CLEAR: u32 = 3;
/// GEM_VA operation: as CLEAR and MAP in one.
pub const AMDGPU_VA_OP_REPLACE: u32 = 4;

/// GEM_VA flag: leave the page tables for the next submission.
pub const AMDGPU_VM_DELAY_UPDATE: u32 = 1 << 0;
/// GEM_VA flag: the GPU may read.
pub const AMDGPU_VM_PAGE_READABLE: u32 = 1 << 1;
/// GEM_VA flag: the GPU may write.
pub const AMDGPU_VM_PAGE_WRITEABLE: u32 = 1 << 2;
/// GEM_VA flag: the GPU may execute.
pub const AMDGPU_VM_PAGE_EXECUTABLE: u32 = 1 << 3;
/// GEM_VA flag: partially resident texture, no object.
pub const AMDGPU_VM_PAGE_PRT: u32 = 1 << 4;
/// GEM_VA flags: memory type.
pub const AMDGPU_VM_MTYPE_MASK: u32 = 0xf << 5;
/// GEM_VA flag: keep out of the infinity cache.
pub const AMDGPU_VM_PAGE_NOALLOC: u32 = 1 << 9;

/// First GPU address that GEM_VA maps (`AMDGPU_VA_RESERVED_BOTTOM` since Linux 6.9).
pub const AMDGPU_VA_RESERVED_BOTTOM: u64 = 64 << 10;
