// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of CRIU_OP and the buckets it exchanges.

abi_struct! {
    /// CRIU_OP (since 1.7).
    kfd_ioctl_criu_args: 56 {
        /// Address of `num_devices` [`kfd_criu_device_bucket`].
        0 => devices: u64,
        /// Address of `num_bos` [`kfd_criu_bo_bucket`].
        8 => bos: u64,
        /// Address of the driver's private blob.
        16 => priv_data: u64,
        /// Bytes of the blob.
        24 => priv_data_size: u64,
        /// Elements in `devices`.
        32 => num_devices: u32,
        /// Elements in `bos`.
        36 => num_bos: u32,
        /// Queues, events and ranges in the blob.
        40 => num_objects: u32,
        /// Process.
        44 => pid: u32,
        /// `KFD_CRIU_OP_*`.
        48 => op: u32,
        /// The C struct's tail padding, zero.
        52 => pad: u32,
    }
}

abi_struct! {
    /// One GPU of a checkpoint.
    kfd_criu_device_bucket: 16 {
        /// The id the process knows.
        0 => user_gpu_id: u32,
        /// The id of the hardware.
        4 => actual_gpu_id: u32,
        /// Fresh render node, for RESTORE.
        8 => drm_fd: u32,
        /// Zero.
        12 => pad: u32,
    }
}

abi_struct! {
    /// One buffer object of a checkpoint.
    kfd_criu_bo_bucket: 48 {
        /// GPU address.
        0 => addr: u64,
        /// Bytes.
        8 => size: u64,
        /// mmap offset at CHECKPOINT.
        16 => offset: u64,
        /// mmap offset after RESTORE.
        24 => restored_offset: u64,
        /// The id the process knows.
        32 => gpu_id: u32,
        /// `KFD_IOC_ALLOC_MEM_FLAGS_*`.
        36 => alloc_flags: u32,
        /// DMABuf of a VRAM or GTT object, else `u32::MAX`.
        40 => dmabuf_fd: u32,
        /// Zero.
        44 => pad: u32,
    }
}
