// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of the queue ioctls.

abi_struct! {
    /// CREATE_QUEUE. 88 bytes before interface 1.17; the kernel zero-extends the shorter form.
    kfd_ioctl_create_queue_args: 96 {
        /// GPU address of the ring, in.
        0 => ring_base_address: u64,
        /// GPU address of the write pointer (u64), in.
        8 => write_pointer_address: u64,
        /// GPU address of the read pointer (u64), in.
        16 => read_pointer_address: u64,
        /// mmap cookie of the doorbell slice plus the byte offset in it, out.
        24 => doorbell_offset: u64,
        /// Ring size in bytes, in; the clamped value out.
        32 => ring_size: u32,
        /// GPU, in.
        36 => gpu_id: u32,
        /// `KFD_IOC_QUEUE_TYPE_*`, in.
        40 => queue_type: u32,
        /// Bits 0-7 percentage 0-100, bits 8-15 target XCC of a PM4 queue, in.
        44 => queue_percentage: u32,
        /// 0 to 15, in.
        48 => queue_priority: u32,
        /// Queue number, out.
        52 => queue_id: u32,
        /// GPU address of the end-of-pipe buffer, in.
        56 => eop_buffer_address: u64,
        /// Its size in bytes, in.
        64 => eop_buffer_size: u64,
        /// GPU address of the context save area, in.
        72 => ctx_save_restore_address: u64,
        /// Save area bytes of one XCC without the debugger's part, in.
        80 => ctx_save_restore_size: u32,
        /// Control stack bytes of one XCC, in.
        84 => ctl_stack_size: u32,
        /// Engine of a `KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID` queue (since 1.17), in.
        88 => sdma_engine_id: u32,
        /// Metadata ring bytes of an AQL queue (since 1.22), in.
        92 => metadata_ring_size: u32,
    }
}

abi_struct! {
    /// DESTROY_QUEUE.
    kfd_ioctl_destroy_queue_args: 8 {
        /// Queue number, in.
        0 => queue_id: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// UPDATE_QUEUE. Percentage 0 or ring 0 parks the queue.
    kfd_ioctl_update_queue_args: 24 {
        /// GPU address of the ring, in.
        0 => ring_base_address: u64,
        /// Queue number, in.
        8 => queue_id: u32,
        /// Ring size in bytes, in.
        12 => ring_size: u32,
        /// Percentage 0-100, in.
        16 => queue_percentage: u32,
        /// 0 to 15, in.
        20 => queue_priority: u32,
    }
}

abi_struct! {
    /// SET_CU_MASK.
    kfd_ioctl_set_cu_mask_args: 16 {
        /// Queue number, in.
        0 => queue_id: u32,
        /// Number of bits, a multiple of 32, in.
        4 => num_cu_mask: u32,
        /// Address of `num_cu_mask / 32` words, in.
        8 => cu_mask_ptr: u64,
    }
}

abi_struct! {
    /// GET_QUEUE_WAVE_STATE of an inactive compute queue.
    kfd_ioctl_get_queue_wave_state_args: 24 {
        /// Address of the context save area, in.
        0 => ctl_stack_address: u64,
        /// Control stack bytes in use, out.
        8 => ctl_stack_used_size: u32,
        /// Wave state bytes in use, out.
        12 => save_area_used_size: u32,
        /// Queue number, in.
        16 => queue_id: u32,
        /// Zero.
        20 => pad: u32,
    }
}

abi_struct! {
    /// ALLOC_QUEUE_GWS.
    kfd_ioctl_alloc_queue_gws_args: 16 {
        /// Queue number, in.
        0 => queue_id: u32,
        /// Number of barriers, in.
        4 => num_gws: u32,
        /// Always 0, out.
        8 => first_gws: u32,
        /// Zero.
        12 => pad: u32,
    }
}
