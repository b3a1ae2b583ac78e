// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of CRIU_OP, the buckets it exchanges, and the structs of its private blob.
//!
//! The blob's structs are no uapi: they are those of `kfd_priv.h`, the same in Linux 6.12 and 7.3, for which
//! `KFD_CRIU_PRIV_VERSION` stands. [`crate::blob`] reads a blob as a whole.

use super::flags::KFD_CRIU_MAX_GPUS;

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

abi_struct! {
    /// First in the blob: the process.
    kfd_criu_process_priv_data: 8 {
        /// `KFD_CRIU_PRIV_VERSION`.
        0 => version: u32,
        /// Whether faults are retried.
        4 => xnack_mode: u32,
    }
}

abi_struct! {
    /// One GPU in the blob; nothing of it is used.
    kfd_criu_device_priv_data: 8 {
        /// Zero.
        0 => reserved: u64,
    }
}

abi_struct! {
    /// One buffer object in the blob.
    kfd_criu_bo_priv_data: 272 {
        /// First address of a USERPTR object's pages, else 0.
        0 => user_addr: u64,
        /// The lower half of its handle.
        8 => idr_handle: u32,
        /// The ids of the GPUs it is mapped on; the first 0 ends them.
        12 => mapped_gpuids: [u32; KFD_CRIU_MAX_GPUS],
        /// Padding.
        268 => pad: u32,
    }
}

abi_struct! {
    /// One queue in the blob; its memory descriptor and its control stack follow.
    kfd_criu_queue_priv_data: 120 {
        /// `KFD_CRIU_OBJECT_TYPE_QUEUE`.
        0 => object_type: u32,
        /// Padding.
        4 => pad: u32,
        /// GPU address of the ring.
        8 => q_address: u64,
        /// Its bytes.
        16 => q_size: u64,
        /// GPU address of the read pointer.
        24 => read_ptr_addr: u64,
        /// GPU address of the write pointer.
        32 => write_ptr_addr: u64,
        /// Doorbell on the device's BAR; ignored by RESTORE.
        40 => doorbell_off: u64,
        /// GPU address of the end-of-pipe buffer.
        48 => eop_ring_buffer_address: u64,
        /// GPU address of the context save area.
        56 => ctx_save_restore_area_address: u64,
        /// The id the process knows.
        64 => gpu_id: u32,
        /// `KFD_QUEUE_TYPE_*`, which are not the numbers of CREATE_QUEUE.
        68 => queue_type: u32,
        /// `KFD_QUEUE_FORMAT_*`.
        72 => format: u32,
        /// Queue number.
        76 => q_id: u32,
        /// 0 to 15.
        80 => priority: u32,
        /// 0 to 100.
        84 => q_percent: u32,
        /// Doorbell in the process's slice, in units of 8 bytes.
        88 => doorbell_id: u32,
        /// Whether it holds the GPU's global wave sync.
        92 => gws: u32,
        /// Number among the SDMA queues.
        96 => sdma_id: u32,
        /// End-of-pipe buffer bytes.
        100 => eop_ring_buffer_size: u32,
        /// Save area bytes of one XCC.
        104 => ctx_save_restore_area_size: u32,
        /// Control stack bytes that follow the descriptors, over all XCCs; 0 from gfx10 on.
        108 => ctl_stack_size: u32,
        /// Descriptor bytes that follow, over all XCCs.
        112 => mqd_size: u32,
        /// Padding.
        116 => tail_pad: u32,
    }
}

abi_struct! {
    /// One event in the blob.
    kfd_criu_event_priv_data: 64 {
        /// `KFD_CRIU_OBJECT_TYPE_EVENT`.
        0 => object_type: u32,
        /// Padding.
        4 => pad: u32,
        /// In the first event only: the handle of the event page.
        8 => user_handle: u64,
        /// Event number.
        16 => event_id: u32,
        /// Whether a wait consumes it.
        20 => auto_reset: u32,
        /// `KFD_IOC_EVENT_*`.
        24 => event_type: u32,
        /// Whether it is signalled.
        28 => signaled: u32,
        /// Payload of a MEMORY event, or (16 bytes) of a HW_EXCEPTION event.
        32 => payload: [u64; 4],
    }
}

abi_struct! {
    /// One range of shared virtual memory in the blob; its attributes follow.
    kfd_criu_svm_range_priv_data: 24 {
        /// `KFD_CRIU_OBJECT_TYPE_SVM_RANGE`.
        0 => object_type: u32,
        /// Padding.
        4 => pad: u32,
        /// First page.
        8 => start_addr: u64,
        /// Pages.
        16 => size: u64,
    }
}
