// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ioctl numbers, built from direction, type, number and struct size as `asm-generic/ioctl.h` does.

use super::{criu::*, debug::*, drm::*, event::*, memory::*, process::*, queue::*, svm::*};

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// The type byte of `/dev/kfd`'s ioctls.
pub const AMDKFD_IOCTL_BASE: u32 = b'K' as u32;
/// The type byte of the render node's ioctls.
pub const DRM_IOCTL_BASE: u32 = b'd' as u32;
/// Where amdgpu's own render node ioctls start.
pub const DRM_COMMAND_BASE: u32 = 0x40;
/// First number that is no KFD ioctl on Linux 7.3.
pub const AMDKFD_COMMAND_END: u32 = 0x29;

const fn ioc(direction: u32, base: u32, nr: u32, bytes: usize) -> u32 {
    assert!(bytes < 1 << 14 && nr < 1 << 8 && base < 1 << 8);
    // CAST: 14 bits, asserted above.
    direction << 30 | (bytes as u32) << 16 | base << 8 | nr
}

const fn kfd<T>(direction: u32, nr: u32) -> u32 {
    ioc(direction, AMDKFD_IOCTL_BASE, nr, size_of::<T>())
}

const fn drm<T>(direction: u32, nr: u32) -> u32 {
    ioc(direction, DRM_IOCTL_BASE, nr, size_of::<T>())
}

/// The number of a command (`_IOC_NR`).
pub const fn ioc_nr(cmd: u32) -> u32 {
    cmd & 0xff
}

/// The type byte of a command (`_IOC_TYPE`).
pub const fn ioc_type(cmd: u32) -> u32 {
    cmd >> 8 & 0xff
}

/// The argument bytes of a command (`_IOC_SIZE`).
pub const fn ioc_size(cmd: u32) -> usize {
    (cmd >> 16 & 0x3fff) as usize
}

/// The direction bits of a command: 1 written by the user, 2 read by the user.
pub const fn ioc_dir(cmd: u32) -> u32 {
    cmd >> 30
}

macro_rules! commands {
    ($( $(#[$doc:meta])* $name:ident = $value:expr, $label:literal; )*) => {
        $( $(#[$doc])* pub const $name: u32 = $value; )*

        /// Every command with the name that errors print.
        pub const COMMANDS: &[(u32, &str)] = &[ $( ($name, $label), )* ];
    };
}

commands! {
    /// Takes [`kfd_ioctl_get_version_args`].
    AMDKFD_IOC_GET_VERSION = kfd::<kfd_ioctl_get_version_args>(READ, 0x01), "GET_VERSION";
    /// Takes [`kfd_ioctl_create_queue_args`].
    AMDKFD_IOC_CREATE_QUEUE = kfd::<kfd_ioctl_create_queue_args>(READ | WRITE, 0x02), "CREATE_QUEUE";
    /// Takes [`kfd_ioctl_destroy_queue_args`].
    AMDKFD_IOC_DESTROY_QUEUE = kfd::<kfd_ioctl_destroy_queue_args>(READ | WRITE, 0x03), "DESTROY_QUEUE";
    /// Takes [`kfd_ioctl_set_memory_policy_args`].
    AMDKFD_IOC_SET_MEMORY_POLICY = kfd::<kfd_ioctl_set_memory_policy_args>(WRITE, 0x04), "SET_MEMORY_POLICY";
    /// Takes [`kfd_ioctl_get_clock_counters_args`].
    AMDKFD_IOC_GET_CLOCK_COUNTERS = kfd::<kfd_ioctl_get_clock_counters_args>(READ | WRITE, 0x05), "GET_CLOCK_COUNTERS";
    /// Takes [`kfd_ioctl_get_process_apertures_args`].
    AMDKFD_IOC_GET_PROCESS_APERTURES = kfd::<kfd_ioctl_get_process_apertures_args>(READ, 0x06), "GET_PROCESS_APERTURES";
    /// Takes [`kfd_ioctl_update_queue_args`].
    AMDKFD_IOC_UPDATE_QUEUE = kfd::<kfd_ioctl_update_queue_args>(WRITE, 0x07), "UPDATE_QUEUE";
    /// Takes [`kfd_ioctl_create_event_args`].
    AMDKFD_IOC_CREATE_EVENT = kfd::<kfd_ioctl_create_event_args>(READ | WRITE, 0x08), "CREATE_EVENT";
    /// Takes [`kfd_ioctl_destroy_event_args`].
    AMDKFD_IOC_DESTROY_EVENT = kfd::<kfd_ioctl_destroy_event_args>(WRITE, 0x09), "DESTROY_EVENT";
    /// Takes [`kfd_ioctl_set_event_args`].
    AMDKFD_IOC_SET_EVENT = kfd::<kfd_ioctl_set_event_args>(WRITE, 0x0a), "SET_EVENT";
    /// Takes [`kfd_ioctl_reset_event_args`].
    AMDKFD_IOC_RESET_EVENT = kfd::<kfd_ioctl_reset_event_args>(WRITE, 0x0b), "RESET_EVENT";
    /// Takes [`kfd_ioctl_wait_events_args`].
    AMDKFD_IOC_WAIT_EVENTS = kfd::<kfd_ioctl_wait_events_args>(READ | WRITE, 0x0c), "WAIT_EVENTS";
    /// Removed; answers EPERM.
    AMDKFD_IOC_DBG_REGISTER = ioc(WRITE, AMDKFD_IOCTL_BASE, 0x0d, 8), "DBG_REGISTER";
    /// Removed; answers EPERM.
    AMDKFD_IOC_DBG_UNREGISTER = ioc(WRITE, AMDKFD_IOCTL_BASE, 0x0e, 8), "DBG_UNREGISTER";
    /// Removed; answers EPERM.
    AMDKFD_IOC_DBG_ADDRESS_WATCH = ioc(WRITE, AMDKFD_IOCTL_BASE, 0x0f, 16), "DBG_ADDRESS_WATCH";
    /// Removed; answers EPERM.
    AMDKFD_IOC_DBG_WAVE_CONTROL = ioc(WRITE, AMDKFD_IOCTL_BASE, 0x10, 16), "DBG_WAVE_CONTROL";
    /// Takes [`kfd_ioctl_set_scratch_backing_va_args`].
    AMDKFD_IOC_SET_SCRATCH_BACKING_VA = kfd::<kfd_ioctl_set_scratch_backing_va_args>(READ | WRITE, 0x11), "SET_SCRATCH_BACKING_VA";
    /// Takes [`kfd_ioctl_get_tile_config_args`].
    AMDKFD_IOC_GET_TILE_CONFIG = kfd::<kfd_ioctl_get_tile_config_args>(READ | WRITE, 0x12), "GET_TILE_CONFIG";
    /// Takes [`kfd_ioctl_set_trap_handler_args`].
    AMDKFD_IOC_SET_TRAP_HANDLER = kfd::<kfd_ioctl_set_trap_handler_args>(WRITE, 0x13), "SET_TRAP_HANDLER";
    /// Takes [`kfd_ioctl_get_process_apertures_new_args`].
    AMDKFD_IOC_GET_PROCESS_APERTURES_NEW = kfd::<kfd_ioctl_get_process_apertures_new_args>(READ | WRITE, 0x14), "GET_PROCESS_APERTURES_NEW";
    /// Takes [`kfd_ioctl_acquire_vm_args`].
    AMDKFD_IOC_ACQUIRE_VM = kfd::<kfd_ioctl_acquire_vm_args>(WRITE, 0x15), "ACQUIRE_VM";
    /// Takes [`kfd_ioctl_alloc_memory_of_gpu_args`].
    AMDKFD_IOC_ALLOC_MEMORY_OF_GPU = kfd::<kfd_ioctl_alloc_memory_of_gpu_args>(READ | WRITE, 0x16), "ALLOC_MEMORY_OF_GPU";
    /// Takes [`kfd_ioctl_free_memory_of_gpu_args`].
    AMDKFD_IOC_FREE_MEMORY_OF_GPU = kfd::<kfd_ioctl_free_memory_of_gpu_args>(WRITE, 0x17), "FREE_MEMORY_OF_GPU";
    /// Takes [`kfd_ioctl_map_memory_to_gpu_args`].
    AMDKFD_IOC_MAP_MEMORY_TO_GPU = kfd::<kfd_ioctl_map_memory_to_gpu_args>(READ | WRITE, 0x18), "MAP_MEMORY_TO_GPU";
    /// Takes [`kfd_ioctl_unmap_memory_from_gpu_args`].
    AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU = kfd::<kfd_ioctl_unmap_memory_from_gpu_args>(READ | WRITE, 0x19), "UNMAP_MEMORY_FROM_GPU";
    /// Takes [`kfd_ioctl_set_cu_mask_args`].
    AMDKFD_IOC_SET_CU_MASK = kfd::<kfd_ioctl_set_cu_mask_args>(WRITE, 0x1a), "SET_CU_MASK";
    /// Takes [`kfd_ioctl_get_queue_wave_state_args`].
    AMDKFD_IOC_GET_QUEUE_WAVE_STATE = kfd::<kfd_ioctl_get_queue_wave_state_args>(READ | WRITE, 0x1b), "GET_QUEUE_WAVE_STATE";
    /// Takes [`kfd_ioctl_get_dmabuf_info_args`].
    AMDKFD_IOC_GET_DMABUF_INFO = kfd::<kfd_ioctl_get_dmabuf_info_args>(READ | WRITE, 0x1c), "GET_DMABUF_INFO";
    /// Takes [`kfd_ioctl_import_dmabuf_args`].
    AMDKFD_IOC_IMPORT_DMABUF = kfd::<kfd_ioctl_import_dmabuf_args>(READ | WRITE, 0x1d), "IMPORT_DMABUF";
    /// Takes [`kfd_ioctl_alloc_queue_gws_args`].
    AMDKFD_IOC_ALLOC_QUEUE_GWS = kfd::<kfd_ioctl_alloc_queue_gws_args>(READ | WRITE, 0x1e), "ALLOC_QUEUE_GWS";
    /// Takes [`kfd_ioctl_smi_events_args`].
    AMDKFD_IOC_SMI_EVENTS = kfd::<kfd_ioctl_smi_events_args>(READ | WRITE, 0x1f), "SMI_EVENTS";
    /// Takes [`kfd_ioctl_svm_args`] and attributes; see [`svm_command`].
    AMDKFD_IOC_SVM = kfd::<kfd_ioctl_svm_args>(READ | WRITE, 0x20), "SVM";
    /// Takes [`kfd_ioctl_set_xnack_mode_args`].
    AMDKFD_IOC_SET_XNACK_MODE = kfd::<kfd_ioctl_set_xnack_mode_args>(READ | WRITE, 0x21), "SET_XNACK_MODE";
    /// Takes [`kfd_ioctl_criu_args`].
    AMDKFD_IOC_CRIU_OP = kfd::<kfd_ioctl_criu_args>(READ | WRITE, 0x22), "CRIU_OP";
    /// Takes [`kfd_ioctl_get_available_memory_args`].
    AMDKFD_IOC_AVAILABLE_MEMORY = kfd::<kfd_ioctl_get_available_memory_args>(READ | WRITE, 0x23), "AVAILABLE_MEMORY";
    /// Takes [`kfd_ioctl_export_dmabuf_args`].
    AMDKFD_IOC_EXPORT_DMABUF = kfd::<kfd_ioctl_export_dmabuf_args>(READ | WRITE, 0x24), "EXPORT_DMABUF";
    /// Takes [`kfd_ioctl_runtime_enable_args`].
    AMDKFD_IOC_RUNTIME_ENABLE = kfd::<kfd_ioctl_runtime_enable_args>(READ | WRITE, 0x25), "RUNTIME_ENABLE";
    /// Takes [`kfd_ioctl_dbg_trap_args`].
    AMDKFD_IOC_DBG_TRAP = kfd::<kfd_ioctl_dbg_trap_args>(READ | WRITE, 0x26), "DBG_TRAP";
    /// Takes nothing (since 1.19).
    AMDKFD_IOC_CREATE_PROCESS = ioc(NONE, AMDKFD_IOCTL_BASE, 0x27, 0), "CREATE_PROCESS";
    /// Takes [`kfd_ioctl_profiler_args`].
    AMDKFD_IOC_PROFILER = kfd::<kfd_ioctl_profiler_args>(READ | WRITE, 0x28), "PROFILER";

    /// Takes [`drm_version`].
    DRM_IOCTL_VERSION = drm::<drm_version>(READ | WRITE, 0x00), "DRM_VERSION";
    /// Takes [`drm_gem_close`].
    DRM_IOCTL_GEM_CLOSE = drm::<drm_gem_close>(WRITE, 0x09), "DRM_GEM_CLOSE";
    /// Takes [`drm_get_cap`].
    DRM_IOCTL_GET_CAP = drm::<drm_get_cap>(READ | WRITE, 0x0c), "DRM_GET_CAP";
    /// Takes [`drm_prime_handle`].
    DRM_IOCTL_PRIME_HANDLE_TO_FD = drm::<drm_prime_handle>(READ | WRITE, 0x2d), "DRM_PRIME_HANDLE_TO_FD";
    /// Takes [`drm_prime_handle`].
    DRM_IOCTL_PRIME_FD_TO_HANDLE = drm::<drm_prime_handle>(READ | WRITE, 0x2e), "DRM_PRIME_FD_TO_HANDLE";
    /// Takes [`drm_amdgpu_gem_mmap`].
    DRM_IOCTL_AMDGPU_GEM_MMAP = drm::<drm_amdgpu_gem_mmap>(READ | WRITE, DRM_COMMAND_BASE + 0x01), "AMDGPU_GEM_MMAP";
    /// Takes [`drm_amdgpu_info`].
    DRM_IOCTL_AMDGPU_INFO = drm::<drm_amdgpu_info>(WRITE, DRM_COMMAND_BASE + 0x05), "AMDGPU_INFO";
    /// Takes [`drm_amdgpu_gem_va`].
    DRM_IOCTL_AMDGPU_GEM_VA = drm::<drm_amdgpu_gem_va>(WRITE, DRM_COMMAND_BASE + 0x08), "AMDGPU_GEM_VA";
    /// Takes [`drm_amdgpu_gem_op`].
    DRM_IOCTL_AMDGPU_GEM_OP = drm::<drm_amdgpu_gem_op>(READ | WRITE, DRM_COMMAND_BASE + 0x10), "AMDGPU_GEM_OP";
    /// Takes [`drm_amdgpu_gem_list_handles`].
    DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES = drm::<drm_amdgpu_gem_list_handles>(READ | WRITE, DRM_COMMAND_BASE + 0x19), "AMDGPU_GEM_LIST_HANDLES";
}

/// The SVM command for `nattr` attributes, whose bytes the size field must count.
pub const fn svm_command(nattr: usize) -> u32 {
    ioc(READ | WRITE, AMDKFD_IOCTL_BASE, 0x20, size_of::<kfd_ioctl_svm_args>() + 8 * nattr)
}

/// The name of a command, whatever size its caller's struct had; `"unknown ioctl"` if there is none.
pub fn command_name(cmd: u32) -> &'static str {
    let key = (ioc_type(cmd), ioc_nr(cmd));
    let found = COMMANDS.iter().find(|(known, _)| (ioc_type(*known), ioc_nr(*known)) == key);
    found.map_or("unknown ioctl", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The table of the ABI reference, compiled there from the kernel's own headers.
    const TABLE: &[(u32, &str)] = &[
        (0x8008_4b01, "GET_VERSION"),
        (0xc060_4b02, "CREATE_QUEUE"),
        (0xc008_4b03, "DESTROY_QUEUE"),
        (0x4020_4b04, "SET_MEMORY_POLICY"),
        (0xc028_4b05, "GET_CLOCK_COUNTERS"),
        (0x8190_4b06, "GET_PROCESS_APERTURES"),
        (0x4018_4b07, "UPDATE_QUEUE"),
        (0xc020_4b08, "CREATE_EVENT"),
        (0x4008_4b09, "DESTROY_EVENT"),
        (0x4008_4b0a, "SET_EVENT"),
        (0x4008_4b0b, "RESET_EVENT"),
        (0xc018_4b0c, "WAIT_EVENTS"),
        (0x4008_4b0d, "DBG_REGISTER"),
        (0x4008_4b0e, "DBG_UNREGISTER"),
        (0x4010_4b0f, "DBG_ADDRESS_WATCH"),
        (0x4010_4b10, "DBG_WAVE_CONTROL"),
        (0xc010_4b11, "SET_SCRATCH_BACKING_VA"),
        (0xc028_4b12, "GET_TILE_CONFIG"),
        (0x4018_4b13, "SET_TRAP_HANDLER"),
        (0xc010_4b14, "GET_PROCESS_APERTURES_NEW"),
        (0x4008_4b15, "ACQUIRE_VM"),
        (0xc028_4b16, "ALLOC_MEMORY_OF_GPU"),
        (0x4008_4b17, "FREE_MEMORY_OF_GPU"),
        (0xc018_4b18, "MAP_MEMORY_TO_GPU"),
        (0xc018_4b19, "UNMAP_MEMORY_FROM_GPU"),
        (0x4010_4b1a, "SET_CU_MASK"),
        (0xc018_4b1b, "GET_QUEUE_WAVE_STATE"),
        (0xc020_4b1c, "GET_DMABUF_INFO"),
        (0xc018_4b1d, "IMPORT_DMABUF"),
        (0xc010_4b1e, "ALLOC_QUEUE_GWS"),
        (0xc008_4b1f, "SMI_EVENTS"),
        (0xc018_4b20, "SVM"),
        (0xc004_4b21, "SET_XNACK_MODE"),
        (0xc038_4b22, "CRIU_OP"),
        (0xc010_4b23, "AVAILABLE_MEMORY"),
        (0xc010_4b24, "EXPORT_DMABUF"),
        (0xc010_4b25, "RUNTIME_ENABLE"),
        (0xc020_4b26, "DBG_TRAP"),
        (0x0000_4b27, "CREATE_PROCESS"),
        (0xc010_4b28, "PROFILER"),
        (0xc040_6400, "DRM_VERSION"),
        (0x4008_6409, "DRM_GEM_CLOSE"),
        (0xc010_640c, "DRM_GET_CAP"),
        (0xc00c_642d, "DRM_PRIME_HANDLE_TO_FD"),
        (0xc00c_642e, "DRM_PRIME_FD_TO_HANDLE"),
        (0xc008_6441, "AMDGPU_GEM_MMAP"),
        (0x4020_6445, "AMDGPU_INFO"),
        (0x4040_6448, "AMDGPU_GEM_VA"),
        (0xc018_6450, "AMDGPU_GEM_OP"),
        (0xc010_6459, "AMDGPU_GEM_LIST_HANDLES"),
    ];

    #[test]
    fn numbers_equal_the_table_compiled_from_the_headers() {
        assert_eq!(COMMANDS, TABLE);
    }

    #[test]
    fn svm_command_counts_attributes_in_its_size() {
        assert_eq!(svm_command(0), AMDKFD_IOC_SVM);
        assert_eq!(ioc_size(svm_command(5)), 24 + 40);
        assert_eq!(command_name(svm_command(5)), "SVM");
    }

    #[test]
    fn command_name_ignores_the_callers_size() {
        assert_eq!(command_name(0xc058_4b02), "CREATE_QUEUE");
        assert_eq!(command_name(0xc058_4bff), "unknown ioctl");
    }
}
