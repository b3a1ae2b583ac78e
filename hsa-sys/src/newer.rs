// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the vendor's headers declare since release 5.2, the one whose headers [`crate::raw`] was generated from: written by
//! hand after `hsa_ext_amd.h`, each function with the release that brought it.

use std::ffi::{c_int, c_void};

use super::raw::*;

/// `HSA_AMD_AGENT_INFO_*` that are newer.
pub mod agent_info {
    /// `uint64_t`: bytes that could be allocated now, of all global pools (5.4).
    pub const MEMORY_AVAIL: u32 = 0xA015;
    /// `uint64_t`: Hz of the agent's time stamps (5.5).
    pub const TIMESTAMP_FREQUENCY: u32 = 0xA016;
    /// `uint32_t`: family of the chip (5.3).
    pub const ASIC_FAMILY_ID: u32 = 0xA107;
    /// `uint32_t`: version of the packet processor's firmware (5.3).
    pub const UCODE_VERSION: u32 = 0xA108;
    /// `uint32_t`: version of the copy engines' firmware (5.3).
    pub const SDMA_UCODE_VERSION: u32 = 0xA109;
    /// `uint32_t`: copy engines (5.5).
    pub const NUM_SDMA_ENG: u32 = 0xA10A;
    /// `uint32_t`: copy engines for XGMI (5.5).
    pub const NUM_SDMA_XGMI_ENG: u32 = 0xA10B;
    /// `hsa_amd_iommu_version_t` (5.7).
    pub const IOMMU_SUPPORT: u32 = 0xA110;
    /// `uint32_t`: XCCs (6.0).
    pub const NUM_XCC: u32 = 0xA111;
    /// `uint32_t`: the driver's name for the agent (6.0).
    pub const DRIVER_UID: u32 = 0xA112;
    /// `hsa_agent_t`: the nearest CPU (6.0).
    pub const NEAREST_CPU: u32 = 0xA113;
    /// `uint8_t[8]`: flags (6.2).
    pub const MEMORY_PROPERTIES: u32 = 0xA114;
    /// `uint8_t[8]`: flags (6.2).
    pub const AQL_EXTENSIONS: u32 = 0xA115;
    /// `uint64_t`: most bytes of scratch (6.3).
    pub const SCRATCH_LIMIT_MAX: u32 = 0xA116;
    /// `uint64_t`: the threshold that is set (6.3).
    pub const SCRATCH_LIMIT_CURRENT: u32 = 0xA117;
    /// `hsa_amd_clock_counters_t` (6.4).
    pub const CLOCK_COUNTERS: u32 = 0xA118;
}

/// `HSA_AMD_SYSTEM_INFO_*` that are newer.
pub mod system_info {
    /// `bool` (5.3).
    pub const MWAITX_ENABLED: u32 = 0x203;
    /// `bool`: whether memory can be exported as a DMABuf (5.4).
    pub const DMABUF_SUPPORTED: u32 = 0x204;
    /// `bool`: whether `hsa_amd_vmem_*` work (6.0).
    pub const VIRTUAL_MEM_API_SUPPORTED: u32 = 0x205;
    /// `bool` (6.0).
    pub const XNACK_ENABLED: u32 = 0x206;
    /// `uint16_t` (6.2).
    pub const EXT_VERSION_MAJOR: u32 = 0x207;
    /// `uint16_t` (6.2).
    pub const EXT_VERSION_MINOR: u32 = 0x208;
}

/// `HSA_AMD_MEMORY_POOL_INFO_*` that are newer.
pub mod pool_info {
    /// `uint32_t`: where the memory is (6.0).
    pub const LOCATION: u32 = 17;
    /// `size_t`: bytes that allocations are best a multiple of (6.0).
    pub const RUNTIME_ALLOC_REC_GRANULE: u32 = 18;
}

/// A pool of the agent's own memory in which fine grains are ordered with other agents without atomics of the link (6.0).
pub const HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED: u32 = 8;
/// [`pool_info::LOCATION`] of memory of the host.
pub const HSA_AMD_MEMORY_POOL_LOCATION_CPU: u32 = 0;
/// [`pool_info::LOCATION`] of memory of a GPU.
pub const HSA_AMD_MEMORY_POOL_LOCATION_GPU: u32 = 1;
/// The device cannot do that (6.2).
pub const HSA_STATUS_ERROR_NOT_SUPPORTED: hsa_status_t = 47;

/// One bit for a copy engine.
pub type hsa_amd_sdma_engine_id_t = u32;
/// Whether memory may move: 0 may, 1 may not.
pub type hsa_amd_memory_type_t = u32;
/// What is asked of a queue.
pub type hsa_queue_info_attribute_t = u32;

/// Names of [`hsa_queue_info_attribute_t`].
pub mod queue_info {
    /// `hsa_agent_t`.
    pub const AGENT: u32 = 0;
    /// `uint64_t`.
    pub const DOORBELL_ID: u32 = 1;
}

/// Physical memory of the `vmem` functions.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct hsa_amd_vmem_alloc_handle_t {
    /// Opaque.
    pub handle: u64,
}

/// What an agent may do with a mapping.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct hsa_amd_memory_access_desc_t {
    /// `HSA_ACCESS_PERMISSION_*`, or 0 for none.
    pub permissions: hsa_access_permission_t,
    /// Whose.
    pub agent_handle: hsa_agent_t,
}

/// An agent's clock and the host's, read together.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct hsa_amd_clock_counters_t {
    /// Ticks of the agent.
    pub gpu_clock_counter: u64,
    /// Nanoseconds of CLOCK_MONOTONIC_RAW.
    pub cpu_clock_counter: u64,
    /// Ticks of the system's clock.
    pub system_clock_counter: u64,
    /// Of these, in a second.
    pub system_clock_frequency: u64,
}

/// A file for copies between it and an agent's memory.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct hsa_amd_ais_file_handle_t {
    /// The descriptor, in the low half.
    pub bits: u64,
}

const _: () = {
    assert!(size_of::<hsa_amd_memory_access_desc_t>() == 16);
    assert!(size_of::<hsa_amd_clock_counters_t>() == 32);
    assert!(size_of::<hsa_amd_ais_file_handle_t>() == 8);
};

unsafe extern "C" {
    /// Since 6.0.
    pub fn hsa_amd_agent_set_async_scratch_limit(agent: hsa_agent_t, threshold: usize) -> hsa_status_t;
    /// Since 5.5.
    pub fn hsa_amd_memory_async_copy_on_engine(
        dst: *mut c_void,
        dst_agent: hsa_agent_t,
        src: *const c_void,
        src_agent: hsa_agent_t,
        size: usize,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
        engine_id: hsa_amd_sdma_engine_id_t,
        force_copy_on_sdma: bool,
    ) -> hsa_status_t;
    /// Since 5.5.
    pub fn hsa_amd_memory_copy_engine_status(
        dst_agent: hsa_agent_t,
        src_agent: hsa_agent_t,
        engine_ids_mask: *mut u32,
    ) -> hsa_status_t;
    /// Since 5.3.
    pub fn hsa_amd_portable_export_dmabuf(
        ptr: *const c_void,
        size: usize,
        dmabuf: *mut c_int,
        offset: *mut u64,
    ) -> hsa_status_t;
    /// Since 5.3.
    pub fn hsa_amd_portable_close_dmabuf(dmabuf: c_int) -> hsa_status_t;
    /// Since 5.3.
    pub fn hsa_amd_spm_acquire(preferred_agent: hsa_agent_t) -> hsa_status_t;
    /// Since 5.3.
    pub fn hsa_amd_spm_release(preferred_agent: hsa_agent_t) -> hsa_status_t;
    /// Since 5.3.
    pub fn hsa_amd_spm_set_dest_buffer(
        preferred_agent: hsa_agent_t,
        size_in_bytes: usize,
        timeout: *mut u32,
        size_copied: *mut u32,
        dest: *mut c_void,
        is_data_loss: *mut bool,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_address_reserve(
        va: *mut *mut c_void,
        size: usize,
        address: u64,
        flags: u64,
    ) -> hsa_status_t;
    /// Since 6.3.
    pub fn hsa_amd_vmem_address_reserve_align(
        va: *mut *mut c_void,
        size: usize,
        address: u64,
        alignment: u64,
        flags: u64,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_address_free(va: *mut c_void, size: usize) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_handle_create(
        pool: hsa_amd_memory_pool_t,
        size: usize,
        type_: hsa_amd_memory_type_t,
        flags: u64,
        memory_handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_handle_release(memory_handle: hsa_amd_vmem_alloc_handle_t) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_map(
        va: *mut c_void,
        size: usize,
        in_offset: usize,
        memory_handle: hsa_amd_vmem_alloc_handle_t,
        flags: u64,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_unmap(va: *mut c_void, size: usize) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_set_access(
        va: *mut c_void,
        size: usize,
        desc: *const hsa_amd_memory_access_desc_t,
        desc_cnt: usize,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_get_access(
        va: *mut c_void,
        perms: *mut hsa_access_permission_t,
        agent_handle: hsa_agent_t,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_export_shareable_handle(
        dmabuf_fd: *mut c_int,
        handle: hsa_amd_vmem_alloc_handle_t,
        flags: u64,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_import_shareable_handle(
        dmabuf_fd: c_int,
        handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_retain_alloc_handle(
        memory_handle: *mut hsa_amd_vmem_alloc_handle_t,
        addr: *mut c_void,
    ) -> hsa_status_t;
    /// Since 6.0.
    pub fn hsa_amd_vmem_get_alloc_properties_from_handle(
        memory_handle: hsa_amd_vmem_alloc_handle_t,
        pool: *mut hsa_amd_memory_pool_t,
        type_: *mut hsa_amd_memory_type_t,
    ) -> hsa_status_t;
    /// Since 6.4.
    pub fn hsa_amd_portable_export_dmabuf_v2(
        ptr: *const c_void,
        size: usize,
        dmabuf: *mut c_int,
        offset: *mut u64,
        flags: u64,
    ) -> hsa_status_t;
    /// Since 6.4.
    pub fn hsa_amd_memory_get_preferred_copy_engine(
        dst_agent: hsa_agent_t,
        src_agent: hsa_agent_t,
        recommended_ids_mask: *mut u32,
    ) -> hsa_status_t;
    /// Since 6.2.
    pub fn hsa_amd_queue_get_info(
        queue: *mut hsa_queue_t,
        attribute: hsa_queue_info_attribute_t,
        value: *mut c_void,
    ) -> hsa_status_t;
    /// Since 6.4.
    pub fn hsa_amd_enable_logging(flags: *mut u8, file: *mut c_void) -> hsa_status_t;
    /// Since 7.1.
    pub fn hsa_amd_ais_file_write(
        handle: hsa_amd_ais_file_handle_t,
        device_pointer: *mut c_void,
        size: u64,
        file_offset: i64,
        size_copied: *mut u64,
        status: *mut i32,
    ) -> hsa_status_t;
    /// Since 7.1.
    pub fn hsa_amd_ais_file_read(
        handle: hsa_amd_ais_file_handle_t,
        device_pointer: *mut c_void,
        size: u64,
        file_offset: i64,
        size_copied: *mut u64,
        status: *mut i32,
    ) -> hsa_status_t;
    /// Since 6.3.
    pub fn hsa_amd_signal_wait_all(
        signal_count: u32,
        signals: *mut hsa_signal_t,
        conds: *mut hsa_signal_condition_t,
        values: *mut hsa_signal_value_t,
        timeout_hint: u64,
        wait_hint: hsa_wait_state_t,
        satisfying_values: *mut hsa_signal_value_t,
    ) -> u32;
}
