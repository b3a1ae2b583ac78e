// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of the ioctls about the process as a whole and its agents.

abi_struct! {
    /// GET_VERSION.
    kfd_ioctl_get_version_args: 8 {
        /// Always 1, out.
        0 => major_version: u32,
        /// Interface minor version, out.
        4 => minor_version: u32,
    }
}

abi_struct! {
    /// SET_MEMORY_POLICY.
    kfd_ioctl_set_memory_policy_args: 32 {
        /// Base of the alternate aperture, in.
        0 => alternate_aperture_base: u64,
        /// Its bytes, in.
        8 => alternate_aperture_size: u64,
        /// GPU, in.
        16 => gpu_id: u32,
        /// `KFD_IOC_CACHE_POLICY_*`, in.
        20 => default_policy: u32,
        /// `KFD_IOC_CACHE_POLICY_*`, in.
        24 => alternate_policy: u32,
        /// `KFD_PROC_FLAG_*` (since 1.18), in.
        28 => misc_process_flag: u32,
    }
}

abi_struct! {
    /// GET_CLOCK_COUNTERS.
    kfd_ioctl_get_clock_counters_args: 40 {
        /// GPU counter ticks, out; 0 for an unknown GPU.
        0 => gpu_clock_counter: u64,
        /// `CLOCK_MONOTONIC_RAW` nanoseconds, out.
        8 => cpu_clock_counter: u64,
        /// `CLOCK_BOOTTIME` nanoseconds, out.
        16 => system_clock_counter: u64,
        /// Ticks of the system counter per second, out.
        24 => system_clock_freq: u64,
        /// GPU, in.
        32 => gpu_id: u32,
        /// Zero.
        36 => pad: u32,
    }
}

abi_struct! {
    /// Address windows of one GPU in this process.
    kfd_process_device_apertures: 56 {
        /// First address of the LDS window.
        0 => lds_base: u64,
        /// Last address of the LDS window.
        8 => lds_limit: u64,
        /// First address of the scratch window.
        16 => scratch_base: u64,
        /// Last address of the scratch window.
        24 => scratch_limit: u64,
        /// First usable GPU address.
        32 => gpuvm_base: u64,
        /// Last usable GPU address.
        40 => gpuvm_limit: u64,
        /// GPU (the actual id).
        48 => gpu_id: u32,
        /// Zero.
        52 => pad: u32,
    }
}

/// Entries in the legacy aperture struct.
pub const NUM_OF_SUPPORTED_GPUS: usize = 7;

abi_struct! {
    /// GET_PROCESS_APERTURES (legacy, at most seven GPUs).
    kfd_ioctl_get_process_apertures_args: 400 {
        /// One entry per GPU, out.
        0 => process_apertures: [kfd_process_device_apertures; NUM_OF_SUPPORTED_GPUS],
        /// Entries written, out.
        392 => num_of_nodes: u32,
        /// Zero.
        396 => pad: u32,
    }
}

abi_struct! {
    /// GET_PROCESS_APERTURES_NEW.
    kfd_ioctl_get_process_apertures_new_args: 16 {
        /// Address of an array of [`kfd_process_device_apertures`], in.
        0 => kfd_process_device_apertures_ptr: u64,
        /// Entries in the array, in (0 asks for the count); entries written, out.
        8 => num_of_nodes: u32,
        /// Zero.
        12 => pad: u32,
    }
}

abi_struct! {
    /// ACQUIRE_VM: makes a render node's VM the compute VM of this process.
    kfd_ioctl_acquire_vm_args: 8 {
        /// Open render node, in.
        0 => drm_fd: u32,
        /// GPU, in.
        4 => gpu_id: u32,
    }
}

abi_struct! {
    /// SET_SCRATCH_BACKING_VA.
    kfd_ioctl_set_scratch_backing_va_args: 16 {
        /// GPU address, in.
        0 => va_addr: u64,
        /// GPU, in.
        8 => gpu_id: u32,
        /// Zero.
        12 => pad: u32,
    }
}

abi_struct! {
    /// GET_TILE_CONFIG.
    kfd_ioctl_get_tile_config_args: 40 {
        /// Address of `num_tile_configs` u32, in.
        0 => tile_config_ptr: u64,
        /// Address of `num_macro_tile_configs` u32, in.
        8 => macro_tile_config_ptr: u64,
        /// Entries, in; entries written, out.
        16 => num_tile_configs: u32,
        /// Entries, in; entries written, out.
        20 => num_macro_tile_configs: u32,
        /// GPU, in.
        24 => gpu_id: u32,
        /// GB_ADDR_CONFIG register, out.
        28 => gb_addr_config: u32,
        /// Memory banks, out.
        32 => num_banks: u32,
        /// Memory ranks, out.
        36 => num_ranks: u32,
    }
}

abi_struct! {
    /// SET_TRAP_HANDLER.
    kfd_ioctl_set_trap_handler_args: 24 {
        /// GPU address of the handler's code, in.
        0 => tba_addr: u64,
        /// GPU address of the handler's data, in.
        8 => tma_addr: u64,
        /// GPU, in.
        16 => gpu_id: u32,
        /// Zero.
        20 => pad: u32,
    }
}

abi_struct! {
    /// SMI_EVENTS.
    kfd_ioctl_smi_events_args: 8 {
        /// GPU, in.
        0 => gpuid: u32,
        /// Event stream, out.
        4 => anon_fd: u32,
    }
}

abi_struct! {
    /// SET_XNACK_MODE: negative asks, otherwise sets; the mode in force, out.
    kfd_ioctl_set_xnack_mode_args: 4 {
        /// Mode, in and out.
        0 => xnack_enabled: i32,
    }
}

abi_struct! {
    /// RUNTIME_ENABLE (since 1.13).
    kfd_ioctl_runtime_enable_args: 16 {
        /// Address of the debugger's rendezvous struct, in.
        0 => r_debug: u64,
        /// `KFD_RUNTIME_ENABLE_MODE_*`, in; 0 disables.
        8 => mode_mask: u32,
        /// Not written by Linux 7.3.
        12 => capabilities_mask: u32,
    }
}

abi_struct! {
    /// PROFILER (since 1.23); `args` is read by operation.
    kfd_ioctl_profiler_args: 16 {
        /// `KFD_IOC_PROFILER_*`, in.
        0 => op: u32,
        /// PMC: gpu_id, lock, perfcount_enable. PTL: gpu_id, enable. VERSION: version, out.
        4 => args: [u32; 3],
    }
}
