// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls of `/dev/kfd` (`kfd_ioctl.h`, and `amdkfd_ioctls` in `amdkfd/kfd_chardev.c`).

use super::{Array, CloseOnExec, Command, Length, Part, Place, PlainArgs, Row};
use crate::sys::criu::*;
use crate::sys::debug::*;
use crate::sys::event::*;
use crate::sys::flags::*;
use crate::sys::memory::*;
use crate::sys::number::{AMDKFD_IOCTL_BASE, NONE, READ, WRITE, ioc};
use crate::sys::process::*;
use crate::sys::queue::*;
use crate::sys::svm::*;

/// Bits of a CU mask that count; the driver ignores more (`kfd_ioctl_set_cu_mask`).
pub const KFD_MAX_CU_MASK_BITS: u32 = 1024;

ioctls! {
    /// An ioctl of `/dev/kfd`.
    enum KfdIoctl, types in kfd_ioctl, type byte AMDKFD_IOCTL_BASE;

    /// Takes [`kfd_ioctl_get_version_args`].
    0x01 GetVersion AMDKFD_IOC_GET_VERSION "GET_VERSION":
        READ, kfd_ioctl_get_version_args, plain;
    /// Takes [`kfd_ioctl_create_queue_args`].
    0x02 CreateQueue AMDKFD_IOC_CREATE_QUEUE "CREATE_QUEUE":
        READ | WRITE, kfd_ioctl_create_queue_args, plain;
    /// Takes [`kfd_ioctl_destroy_queue_args`].
    0x03 DestroyQueue AMDKFD_IOC_DESTROY_QUEUE "DESTROY_QUEUE":
        READ | WRITE, kfd_ioctl_destroy_queue_args, plain;
    /// Takes [`kfd_ioctl_set_memory_policy_args`].
    0x04 SetMemoryPolicy AMDKFD_IOC_SET_MEMORY_POLICY "SET_MEMORY_POLICY":
        WRITE, kfd_ioctl_set_memory_policy_args, plain;
    /// Takes [`kfd_ioctl_get_clock_counters_args`].
    0x05 GetClockCounters AMDKFD_IOC_GET_CLOCK_COUNTERS "GET_CLOCK_COUNTERS":
        READ | WRITE, kfd_ioctl_get_clock_counters_args, plain;
    /// Takes [`kfd_ioctl_get_process_apertures_args`].
    0x06 GetProcessApertures AMDKFD_IOC_GET_PROCESS_APERTURES "GET_PROCESS_APERTURES":
        READ, kfd_ioctl_get_process_apertures_args, plain;
    /// Takes [`kfd_ioctl_update_queue_args`].
    0x07 UpdateQueue AMDKFD_IOC_UPDATE_QUEUE "UPDATE_QUEUE":
        WRITE, kfd_ioctl_update_queue_args, plain;
    /// Takes [`kfd_ioctl_create_event_args`].
    0x08 CreateEvent AMDKFD_IOC_CREATE_EVENT "CREATE_EVENT":
        READ | WRITE, kfd_ioctl_create_event_args, plain;
    /// Takes [`kfd_ioctl_destroy_event_args`].
    0x09 DestroyEvent AMDKFD_IOC_DESTROY_EVENT "DESTROY_EVENT":
        WRITE, kfd_ioctl_destroy_event_args, plain;
    /// Takes [`kfd_ioctl_set_event_args`].
    0x0a SetEvent AMDKFD_IOC_SET_EVENT "SET_EVENT":
        WRITE, kfd_ioctl_set_event_args, plain;
    /// Takes [`kfd_ioctl_reset_event_args`].
    0x0b ResetEvent AMDKFD_IOC_RESET_EVENT "RESET_EVENT":
        WRITE, kfd_ioctl_reset_event_args, plain;
    /// Takes [`kfd_ioctl_wait_events_args`].
    0x0c WaitEvents AMDKFD_IOC_WAIT_EVENTS "WAIT_EVENTS":
        READ | WRITE, kfd_ioctl_wait_events_args, points
        (writes events_ptr: [kfd_event_data; num_events]);
    /// Removed; answers EPERM.
    0x0d DbgRegister AMDKFD_IOC_DBG_REGISTER "DBG_REGISTER":
        WRITE, [u32; 2], plain;
    /// Removed; answers EPERM.
    0x0e DbgUnregister AMDKFD_IOC_DBG_UNREGISTER "DBG_UNREGISTER":
        WRITE, [u32; 2], plain;
    /// Removed; answers EPERM.
    0x0f DbgAddressWatch AMDKFD_IOC_DBG_ADDRESS_WATCH "DBG_ADDRESS_WATCH":
        WRITE, [u32; 4], plain;
    /// Removed; answers EPERM.
    0x10 DbgWaveControl AMDKFD_IOC_DBG_WAVE_CONTROL "DBG_WAVE_CONTROL":
        WRITE, [u32; 4], plain;
    /// Takes [`kfd_ioctl_set_scratch_backing_va_args`].
    0x11 SetScratchBackingVa AMDKFD_IOC_SET_SCRATCH_BACKING_VA "SET_SCRATCH_BACKING_VA":
        READ | WRITE, kfd_ioctl_set_scratch_backing_va_args, plain;
    /// Takes [`kfd_ioctl_get_tile_config_args`].
    0x12 GetTileConfig AMDKFD_IOC_GET_TILE_CONFIG "GET_TILE_CONFIG":
        READ | WRITE, kfd_ioctl_get_tile_config_args, points
        (writes tile_config_ptr: [u32; num_tile_configs])
        (writes macro_tile_config_ptr: [u32; num_macro_tile_configs]);
    /// Takes [`kfd_ioctl_set_trap_handler_args`].
    0x13 SetTrapHandler AMDKFD_IOC_SET_TRAP_HANDLER "SET_TRAP_HANDLER":
        WRITE, kfd_ioctl_set_trap_handler_args, plain;
    /// Takes [`kfd_ioctl_get_process_apertures_new_args`].
    0x14 GetProcessAperturesNew AMDKFD_IOC_GET_PROCESS_APERTURES_NEW "GET_PROCESS_APERTURES_NEW":
        READ | WRITE, kfd_ioctl_get_process_apertures_new_args, points
        (writes kfd_process_device_apertures_ptr: [kfd_process_device_apertures; num_of_nodes]);
    /// Takes [`kfd_ioctl_acquire_vm_args`].
    0x15 AcquireVm AMDKFD_IOC_ACQUIRE_VM "ACQUIRE_VM":
        WRITE, kfd_ioctl_acquire_vm_args, plain
        (takes drm_fd);
    /// Takes [`kfd_ioctl_alloc_memory_of_gpu_args`].
    0x16 AllocMemoryOfGpu AMDKFD_IOC_ALLOC_MEMORY_OF_GPU "ALLOC_MEMORY_OF_GPU":
        READ | WRITE, kfd_ioctl_alloc_memory_of_gpu_args, plain;
    /// Takes [`kfd_ioctl_free_memory_of_gpu_args`].
    0x17 FreeMemoryOfGpu AMDKFD_IOC_FREE_MEMORY_OF_GPU "FREE_MEMORY_OF_GPU":
        WRITE, kfd_ioctl_free_memory_of_gpu_args, plain;
    /// Takes [`kfd_ioctl_map_memory_to_gpu_args`].
    0x18 MapMemoryToGpu AMDKFD_IOC_MAP_MEMORY_TO_GPU "MAP_MEMORY_TO_GPU":
        READ | WRITE, kfd_ioctl_map_memory_to_gpu_args, points
        (reads device_ids_array_ptr: [u32; n_devices]);
    /// Takes [`kfd_ioctl_unmap_memory_from_gpu_args`].
    0x19 UnmapMemoryFromGpu AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU "UNMAP_MEMORY_FROM_GPU":
        READ | WRITE, kfd_ioctl_unmap_memory_from_gpu_args, points
        (reads device_ids_array_ptr: [u32; n_devices]);
    /// Takes [`kfd_ioctl_set_cu_mask_args`].
    0x1a SetCuMask AMDKFD_IOC_SET_CU_MASK "SET_CU_MASK":
        WRITE, kfd_ioctl_set_cu_mask_args, points
        (reads cu_mask_ptr: [u32; bits num_cu_mask, at most KFD_MAX_CU_MASK_BITS]);
    /// Takes [`kfd_ioctl_get_queue_wave_state_args`]; the driver writes the header of the wave state, whose four words
    /// are offset and size of the control stack and of the wave state.
    0x1b GetQueueWaveState AMDKFD_IOC_GET_QUEUE_WAVE_STATE "GET_QUEUE_WAVE_STATE":
        READ | WRITE, kfd_ioctl_get_queue_wave_state_args, points
        (writes ctl_stack_address: [u32; const 4]);
    /// Takes [`kfd_ioctl_get_dmabuf_info_args`].
    0x1c GetDmabufInfo AMDKFD_IOC_GET_DMABUF_INFO "GET_DMABUF_INFO":
        READ | WRITE, kfd_ioctl_get_dmabuf_info_args, points
        (writes metadata_ptr: [u8; metadata_size])
        (takes dmabuf_fd);
    /// Takes [`kfd_ioctl_import_dmabuf_args`].
    0x1d ImportDmabuf AMDKFD_IOC_IMPORT_DMABUF "IMPORT_DMABUF":
        READ | WRITE, kfd_ioctl_import_dmabuf_args, plain
        (takes dmabuf_fd);
    /// Takes [`kfd_ioctl_alloc_queue_gws_args`].
    0x1e AllocQueueGws AMDKFD_IOC_ALLOC_QUEUE_GWS "ALLOC_QUEUE_GWS":
        READ | WRITE, kfd_ioctl_alloc_queue_gws_args, plain;
    /// Takes [`kfd_ioctl_smi_events_args`].
    0x1f SmiEvents AMDKFD_IOC_SMI_EVENTS "SMI_EVENTS":
        READ | WRITE, kfd_ioctl_smi_events_args, plain
        (makes anon_fd, inheritable);
    /// Takes [`kfd_ioctl_svm_args`] and attributes; see [`svm_command`](super::super::svm_command).
    0x20 Svm AMDKFD_IOC_SVM "SVM":
        READ | WRITE, kfd_ioctl_svm_args, plain;
    /// Takes [`kfd_ioctl_set_xnack_mode_args`].
    0x21 SetXnackMode AMDKFD_IOC_SET_XNACK_MODE "SET_XNACK_MODE":
        READ | WRITE, kfd_ioctl_set_xnack_mode_args, plain;
    /// Takes [`kfd_ioctl_criu_args`].
    0x22 CriuOp AMDKFD_IOC_CRIU_OP "CRIU_OP":
        READ | WRITE, kfd_ioctl_criu_args, points
        (writes devices: [kfd_criu_device_bucket; num_devices])
        (writes bos: [kfd_criu_bo_bucket; num_bos])
        (writes priv_data: [u8; u64 priv_data_size])
        (makes dmabuf_fd in bos: [kfd_criu_bo_bucket; num_bos], inheritable)
        (when op is KFD_CRIU_OP_RESTORE => (takes drm_fd in devices: [kfd_criu_device_bucket; num_devices]));
    /// Takes [`kfd_ioctl_get_available_memory_args`].
    0x23 AvailableMemory AMDKFD_IOC_AVAILABLE_MEMORY "AVAILABLE_MEMORY":
        READ | WRITE, kfd_ioctl_get_available_memory_args, plain;
    /// Takes [`kfd_ioctl_export_dmabuf_args`].
    0x24 ExportDmabuf AMDKFD_IOC_EXPORT_DMABUF "EXPORT_DMABUF":
        READ | WRITE, kfd_ioctl_export_dmabuf_args, plain
        (makes dmabuf_fd, close on exec by flags);
    /// Takes [`kfd_ioctl_runtime_enable_args`].
    0x25 RuntimeEnable AMDKFD_IOC_RUNTIME_ENABLE "RUNTIME_ENABLE":
        READ | WRITE, kfd_ioctl_runtime_enable_args, plain;
    /// Takes [`kfd_ioctl_dbg_trap_args`].
    0x26 DbgTrap AMDKFD_IOC_DBG_TRAP "DBG_TRAP":
        READ | WRITE, kfd_ioctl_dbg_trap_args, points
        (when op is KFD_IOC_DBG_TRAP_ENABLE, args as kfd_ioctl_dbg_trap_enable_args =>
            (writes rinfo_ptr: [u8; rinfo_size])
            (takes dbg_fd))
        (when op is KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, args as kfd_ioctl_dbg_trap_suspend_queues_args =>
            (writes queue_array_ptr: [u32; num_queues]))
        (when op is KFD_IOC_DBG_TRAP_RESUME_QUEUES, args as kfd_ioctl_dbg_trap_resume_queues_args =>
            (writes queue_array_ptr: [u32; num_queues]))
        (when op is KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO,
            args as kfd_ioctl_dbg_trap_query_exception_info_args =>
            (writes info_ptr: [u8; info_size]))
        (when op is KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT, args as kfd_ioctl_dbg_trap_queue_snapshot_args =>
            (writes snapshot_buf_ptr: [bytes; num_queues * entry_size]))
        (when op is KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT, args as kfd_ioctl_dbg_trap_device_snapshot_args =>
            (writes snapshot_buf_ptr: [bytes; num_devices * entry_size]));
    /// Takes nothing (since 1.19).
    0x27 CreateProcess AMDKFD_IOC_CREATE_PROCESS "CREATE_PROCESS":
        NONE, [u8; 0], plain;
    /// Takes [`kfd_ioctl_profiler_args`].
    0x28 Profiler AMDKFD_IOC_PROFILER "PROFILER":
        READ | WRITE, kfd_ioctl_profiler_args, plain;
}
