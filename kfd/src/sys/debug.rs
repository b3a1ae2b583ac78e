// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of DBG_TRAP (since 1.13), whose union is read by operation.

use bytemuck::Pod;

abi_struct! {
    /// DBG_TRAP.
    kfd_ioctl_dbg_trap_args: 32 {
        /// Debugged process, in.
        0 => pid: u32,
        /// `KFD_IOC_DBG_TRAP_*`, in.
        4 => op: u32,
        /// The C union; one of the structs of this module in its first bytes.
        8 => args: [u64; 3],
    }
}

impl kfd_ioctl_dbg_trap_args {
    /// An argument for operation `op` on `pid`, carrying `args` in the union.
    pub fn new<T: Pod>(pid: u32, op: u32, args: &T) -> Self {
        const { assert!(size_of::<T>() <= 24) };
        let mut this = Self { pid, op, args: [0; 3] };
        let bytes: &mut [u8] = bytemuck::bytes_of_mut(&mut this.args);
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(args));
        this
    }

    /// The union read as `T`.
    pub fn read<T: Pod>(&self) -> T {
        const { assert!(size_of::<T>() <= 24) };
        let mut out = T::zeroed();
        let bytes: &[u8] = bytemuck::bytes_of(&self.args);
        bytemuck::bytes_of_mut(&mut out).copy_from_slice(&bytes[..size_of::<T>()]);
        out
    }
}

abi_struct! {
    /// ENABLE.
    kfd_ioctl_dbg_trap_enable_args: 24 {
        /// Exceptions to report.
        0 => exception_mask: u64,
        /// Address of a [`kfd_runtime_info`].
        8 => rinfo_ptr: u64,
        /// Its bytes, in and out.
        16 => rinfo_size: u32,
        /// Descriptor that is written to on an exception.
        20 => dbg_fd: u32,
    }
}

abi_struct! {
    /// SEND_RUNTIME_EVENT.
    kfd_ioctl_dbg_trap_send_runtime_event_args: 16 {
        /// Exceptions to raise.
        0 => exception_mask: u64,
        /// GPU.
        8 => gpu_id: u32,
        /// Queue.
        12 => queue_id: u32,
    }
}

abi_struct! {
    /// SET_EXCEPTIONS_ENABLED.
    kfd_ioctl_dbg_trap_set_exceptions_enabled_args: 8 {
        /// Exceptions to report.
        0 => exception_mask: u64,
    }
}

abi_struct! {
    /// SET_WAVE_LAUNCH_OVERRIDE.
    kfd_ioctl_dbg_trap_set_wave_launch_override_args: 16 {
        /// 0 or, 1 replace.
        0 => override_mode: u32,
        /// Bits to set, in; previous, out.
        4 => enable_mask: u32,
        /// Bits asked for, in; supported, out.
        8 => support_request_mask: u32,
        /// Zero.
        12 => pad: u32,
    }
}

abi_struct! {
    /// SET_WAVE_LAUNCH_MODE.
    kfd_ioctl_dbg_trap_set_wave_launch_mode_args: 8 {
        /// 0 normal, 1 halt, 3 debug.
        0 => launch_mode: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// SUSPEND_QUEUES; the ioctl's result is the number suspended.
    kfd_ioctl_dbg_trap_suspend_queues_args: 24 {
        /// Exceptions to clear.
        0 => exception_mask: u64,
        /// Address of u32 queue ids, flags written back into them.
        8 => queue_array_ptr: u64,
        /// Number of ids.
        16 => num_queues: u32,
        /// Grace in thousands of clocks.
        20 => grace_period: u32,
    }
}

abi_struct! {
    /// RESUME_QUEUES; the ioctl's result is the number resumed.
    kfd_ioctl_dbg_trap_resume_queues_args: 16 {
        /// Address of u32 queue ids, flags written back into them.
        0 => queue_array_ptr: u64,
        /// Number of ids.
        8 => num_queues: u32,
        /// Zero.
        12 => pad: u32,
    }
}

abi_struct! {
    /// SET_NODE_ADDRESS_WATCH.
    kfd_ioctl_dbg_trap_set_node_address_watch_args: 24 {
        /// Address.
        0 => address: u64,
        /// Access kinds.
        8 => mode: u32,
        /// Address bits compared.
        12 => mask: u32,
        /// GPU.
        16 => gpu_id: u32,
        /// Watchpoint, out.
        20 => id: u32,
    }
}

abi_struct! {
    /// CLEAR_NODE_ADDRESS_WATCH.
    kfd_ioctl_dbg_trap_clear_node_address_watch_args: 8 {
        /// GPU.
        0 => gpu_id: u32,
        /// Watchpoint.
        4 => id: u32,
    }
}

abi_struct! {
    /// SET_FLAGS.
    kfd_ioctl_dbg_trap_set_flags_args: 8 {
        /// 1 single memory op, 2 single ALU op, 4 LDS out of range; previous, out.
        0 => flags: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// QUERY_DEBUG_EVENT.
    kfd_ioctl_dbg_trap_query_debug_event_args: 16 {
        /// Exceptions to clear, in; raised, out.
        0 => exception_mask: u64,
        /// GPU, out.
        8 => gpu_id: u32,
        /// Queue, out.
        12 => queue_id: u32,
    }
}

abi_struct! {
    /// QUERY_EXCEPTION_INFO.
    kfd_ioctl_dbg_trap_query_exception_info_args: 24 {
        /// Address for the information.
        0 => info_ptr: u64,
        /// Bytes, in and out.
        8 => info_size: u32,
        /// GPU or queue.
        12 => source_id: u32,
        /// Exception code.
        16 => exception_code: u32,
        /// Non-zero: clear it.
        20 => clear_exception: u32,
    }
}

abi_struct! {
    /// GET_QUEUE_SNAPSHOT.
    kfd_ioctl_dbg_trap_queue_snapshot_args: 24 {
        /// Exceptions to clear.
        0 => exception_mask: u64,
        /// Address of [`kfd_queue_snapshot_entry`] elements.
        8 => snapshot_buf_ptr: u64,
        /// Elements, in and out.
        16 => num_queues: u32,
        /// Bytes of an element, in and out.
        20 => entry_size: u32,
    }
}

abi_struct! {
    /// GET_DEVICE_SNAPSHOT.
    kfd_ioctl_dbg_trap_device_snapshot_args: 24 {
        /// Exceptions to clear.
        0 => exception_mask: u64,
        /// Address of [`kfd_dbg_device_info_entry`] elements.
        8 => snapshot_buf_ptr: u64,
        /// Elements, in and out.
        16 => num_devices: u32,
        /// Bytes of an element, in and out.
        20 => entry_size: u32,
    }
}

abi_struct! {
    /// What RUNTIME_ENABLE told the driver, as ENABLE returns it.
    kfd_runtime_info: 16 {
        /// Address of the rendezvous struct.
        0 => r_debug: u64,
        /// 0 disabled, 1 enabled, 2 busy, 3 error.
        8 => runtime_state: u32,
        /// Whether TTMPs are saved.
        12 => ttmp_setup: u32,
    }
}

abi_struct! {
    /// One queue of a snapshot.
    kfd_queue_snapshot_entry: 64 {
        /// Exceptions raised.
        0 => exception_status: u64,
        /// Ring.
        8 => ring_base_address: u64,
        /// Write pointer.
        16 => write_pointer_address: u64,
        /// Read pointer.
        24 => read_pointer_address: u64,
        /// Context save area.
        32 => ctx_save_restore_address: u64,
        /// Queue.
        40 => queue_id: u32,
        /// GPU.
        44 => gpu_id: u32,
        /// Ring bytes.
        48 => ring_size: u32,
        /// `KFD_IOC_QUEUE_TYPE_*`.
        52 => queue_type: u32,
        /// Save area bytes.
        56 => ctx_save_restore_area_size: u32,
        /// Zero.
        60 => reserved: u32,
    }
}

abi_struct! {
    /// One GPU of a snapshot.
    kfd_dbg_device_info_entry: 128 {
        /// Exceptions raised.
        0 => exception_status: u64,
        /// LDS window.
        8 => lds_base: u64,
        /// LDS window.
        16 => lds_limit: u64,
        /// Scratch window.
        24 => scratch_base: u64,
        /// Scratch window.
        32 => scratch_limit: u64,
        /// GPU address range.
        40 => gpuvm_base: u64,
        /// GPU address range.
        48 => gpuvm_limit: u64,
        /// GPU.
        56 => gpu_id: u32,
        /// PCI location.
        60 => location_id: u32,
        /// PCI vendor.
        64 => vendor_id: u32,
        /// PCI device.
        68 => device_id: u32,
        /// PCI revision.
        72 => revision_id: u32,
        /// PCI subsystem vendor.
        76 => subsystem_vendor_id: u32,
        /// PCI subsystem device.
        80 => subsystem_device_id: u32,
        /// MEC firmware.
        84 => fw_version: u32,
        /// Target.
        88 => gfx_target_version: u32,
        /// SIMDs.
        92 => simd_count: u32,
        /// Waves per SIMD.
        96 => max_waves_per_simd: u32,
        /// Shader arrays.
        100 => array_count: u32,
        /// Shader arrays per engine.
        104 => simd_arrays_per_engine: u32,
        /// Compute complexes.
        108 => num_xcc: u32,
        /// As in the topology.
        112 => capability: u32,
        /// As in the topology.
        116 => debug_prop: u32,
        /// As in the topology.
        120 => capability2: u32,
        /// Zero.
        124 => pad: u32,
    }
}
