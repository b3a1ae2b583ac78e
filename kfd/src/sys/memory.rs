// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of the memory ioctls.

abi_struct! {
    /// ALLOC_MEMORY_OF_GPU.
    kfd_ioctl_alloc_memory_of_gpu_args: 40 {
        /// GPU address the object is to have, in; recorded, mapped only by MAP_MEMORY_TO_GPU.
        0 => va_addr: u64,
        /// Bytes, in; rounded up to pages.
        8 => size: u64,
        /// `gpu_id << 32 | index`, out.
        16 => handle: u64,
        /// CPU address of a USERPTR object, in; mmap offset on the render node (or cookie), out.
        24 => mmap_offset: u64,
        /// GPU, in.
        32 => gpu_id: u32,
        /// `KFD_IOC_ALLOC_MEM_FLAGS_*`, in.
        36 => flags: u32,
    }
}

abi_struct! {
    /// FREE_MEMORY_OF_GPU.
    kfd_ioctl_free_memory_of_gpu_args: 8 {
        /// Handle, in.
        0 => handle: u64,
    }
}

abi_struct! {
    /// MAP_MEMORY_TO_GPU. Starts at index `n_success`, so an interrupted call can be repeated as it is.
    kfd_ioctl_map_memory_to_gpu_args: 24 {
        /// Handle, in.
        0 => handle: u64,
        /// Address of `n_devices` u32 GPU ids, in.
        8 => device_ids_array_ptr: u64,
        /// Number of ids, in.
        16 => n_devices: u32,
        /// Number of GPUs done, in and out (also on error).
        20 => n_success: u32,
    }
}

abi_struct! {
    /// UNMAP_MEMORY_FROM_GPU; fields as for [`kfd_ioctl_map_memory_to_gpu_args`].
    kfd_ioctl_unmap_memory_from_gpu_args: 24 {
        /// Handle, in.
        0 => handle: u64,
        /// Address of `n_devices` u32 GPU ids, in.
        8 => device_ids_array_ptr: u64,
        /// Number of ids, in.
        16 => n_devices: u32,
        /// Number of GPUs done, in and out (also on error).
        20 => n_success: u32,
    }
}

abi_struct! {
    /// GET_DMABUF_INFO.
    kfd_ioctl_get_dmabuf_info_args: 32 {
        /// Bytes, out.
        0 => size: u64,
        /// Address of a buffer for the exporter's metadata, in.
        8 => metadata_ptr: u64,
        /// Size of that buffer, in; bytes of metadata, out.
        16 => metadata_size: u32,
        /// GPU holding the memory (the actual id), out.
        20 => gpu_id: u32,
        /// `KFD_IOC_ALLOC_MEM_FLAGS_*`, out.
        24 => flags: u32,
        /// DMABuf, in.
        28 => dmabuf_fd: u32,
    }
}

abi_struct! {
    /// IMPORT_DMABUF.
    kfd_ioctl_import_dmabuf_args: 24 {
        /// GPU address, in.
        0 => va_addr: u64,
        /// Handle, out.
        8 => handle: u64,
        /// GPU, in.
        16 => gpu_id: u32,
        /// DMABuf, in.
        20 => dmabuf_fd: u32,
    }
}

abi_struct! {
    /// EXPORT_DMABUF (since 1.12).
    kfd_ioctl_export_dmabuf_args: 16 {
        /// Handle, in.
        0 => handle: u64,
        /// `O_CLOEXEC` and access mode of the new descriptor, in.
        8 => flags: u32,
        /// DMABuf, out.
        12 => dmabuf_fd: u32,
    }
}

abi_struct! {
    /// AVAILABLE_MEMORY (since 1.9).
    kfd_ioctl_get_available_memory_args: 16 {
        /// Bytes that may still be allocated, out.
        0 => available: u64,
        /// GPU, in.
        8 => gpu_id: u32,
        /// Zero.
        12 => pad: u32,
    }
}
