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

/// Memory for other machines of a fabric, by a number that is unique among them.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, Eq)]
pub struct hsa_fabric_handle_t {
    /// Opaque.
    pub handle: [u8; 16],
}

/// An image as the second version of the functions describes it.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hsa_ext_image_descriptor_v2_t {
    /// Of one to three dimensions, or an array of such.
    pub geometry: hsa_ext_image_geometry_t,
    /// Components of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Planes.
    pub depth: usize,
    /// Images of an array.
    pub array_size: usize,
    /// What a component is.
    pub format: hsa_ext_image_format_t,
    /// Sizes of which there are copies; 0 for one.
    pub mipmap_levels: usize,
}

/// A sampler with an addressing mode for each dimension.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hsa_ext_sampler_descriptor_v2_t {
    /// Whether coordinates are normalized.
    pub coordinate_mode: hsa_ext_sampler_coordinate_mode32_t,
    /// Nearest or linear.
    pub filter_mode: hsa_ext_sampler_filter_mode32_t,
    /// The same between sizes.
    pub mipmap_filter_mode: hsa_ext_sampler_filter_mode32_t,
    /// What lies beyond the edges.
    pub address_modes: [hsa_ext_sampler_addressing_mode32_t; 3],
}

/// What a copy of a batch does: `hsa_amd_memory_copy_op_type_t`.
pub mod copy_op {
    /// Copies, once or for each entry.
    pub const LINEAR: u16 = 0;
    /// Copies one source to several destinations.
    pub const BROADCAST: u16 = 1;
    /// Exchanges; and those that find an address in memory.
    pub const LAST: u16 = 5;
    /// `HSA_AMD_MEMORY_COPY_OP_VERSION`.
    pub const VERSION: u16 = 1;
}

/// A copy of a batch. Words that are one thing for a single copy and another for a list have the name of the single one.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct hsa_amd_memory_copy_op_t {
    /// [`copy_op::VERSION`].
    pub version: u16,
    /// Of [`copy_op`].
    pub type_: u16,
    /// Entries of the lists; 0 for a single copy.
    pub num_entries: u16,
    /// 0.
    pub traffic_class: u16,
    /// Decremented when it is done.
    pub completion_signal: hsa_signal_t,
    /// `void*`, or `void**` for a list.
    pub src: u64,
    /// Whose the source is.
    pub src_agent: hsa_agent_t,
    /// `hsa_agent_t`, or a pointer to as many as there are entries.
    pub dst_agent: u64,
    /// `void*`, or `void**` for a list.
    pub dst: u64,
    /// Bytes, or a pointer to as many numbers as there are entries.
    pub size: u64,
    /// 0, but for exchanges.
    pub other_size: u64,
    /// What the engine waits for before: 0 for nothing.
    pub wait: [u64; 4],
    /// What it writes afterwards: 0 for nothing.
    pub signal: [u64; 3],
    /// 0.
    pub reserved: u64,
}

/// What `hsa_amd_queue_create` makes queues of.
pub mod queue_create {
    /// `HSA_AMD_QUEUE_CREATE_DESC_VERSION`.
    pub const VERSION: u16 = 1;
    /// A queue of packets of the header's.
    pub const COMPUTE: u8 = 0;
    /// The last engine that there is a number for.
    pub const LAST_ENGINE: u8 = 2;
    /// The last flags that there are: of where the ring is.
    pub const FLAGS: u16 = 3;
}

/// A queue to be made.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hsa_amd_queue_create_desc_t {
    /// [`queue_create::VERSION`].
    pub version: u16,
    /// Where its ring is.
    pub flags: u16,
    /// Of [`queue_create`].
    pub engine_type: u8,
    /// 0.
    pub reserved_header: [u8; 3],
    /// Bytes of the ring.
    pub queue_size_bytes: u32,
    /// Its priority.
    pub priority: hsa_amd_queue_priority_t,
    /// Called for its errors.
    pub callback: Option<unsafe extern "C" fn(hsa_status_t, *mut hsa_queue_t, *mut c_void)>,
    /// What `callback` is given.
    pub callback_data: *mut c_void,
    /// The queue, out; null if it was not made.
    pub queue: *mut hsa_queue_t,
    /// Of a compute queue: a bit for each compute unit.
    pub cu_mask: *const u32,
    /// `HSA_QUEUE_TYPE_*`.
    pub type_: hsa_queue_type32_t,
    /// Bytes of scratch of a work-item to begin with.
    pub private_segment_size: u32,
    /// Bits of `cu_mask`.
    pub cu_mask_count: u32,
    /// 0.
    pub reserved_compute: [u32; 3],
    /// 0.
    pub traffic_class: u32,
    /// 0.
    pub reserved: [u8; 20],
}

const _: () = {
    assert!(size_of::<hsa_ext_image_descriptor_v2_t>() == 56);
    assert!(size_of::<hsa_ext_sampler_descriptor_v2_t>() == 24);
    assert!(size_of::<hsa_amd_memory_copy_op_t>() == 128);
    assert!(std::mem::offset_of!(hsa_amd_memory_copy_op_t, size) == 48);
    assert!(std::mem::offset_of!(hsa_amd_memory_copy_op_t, signal) == 96);
    assert!(std::mem::offset_of!(hsa_amd_queue_create_desc_t, callback) == 16);
    assert!(std::mem::offset_of!(hsa_amd_queue_create_desc_t, traffic_class) == 72);
    assert!(size_of::<hsa_amd_queue_create_desc_t>() == 96);
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
    /// Interface 1.31, as what follows.
    pub fn hsa_amd_memory_async_batch_copy(
        copy_ops: *const hsa_amd_memory_copy_op_t,
        num_copy_ops: u32,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
    ) -> hsa_status_t;
    /// Makes queues.
    pub fn hsa_amd_queue_create(
        agent: hsa_agent_t,
        descs: *mut hsa_amd_queue_create_desc_t,
        num_descs: u32,
    ) -> hsa_status_t;
    /// As `hsa_amd_interop_map_buffer`, with a size for what does not tell its own.
    pub fn hsa_amd_interop_map_buffer_with_size(
        num_agents: u32,
        agents: *mut hsa_agent_t,
        interop_handle: c_int,
        flags: u32,
        size_hint: usize,
        size: *mut usize,
        ptr: *mut *mut c_void,
        metadata_size: *mut usize,
        metadata: *mut *const c_void,
    ) -> hsa_status_t;
    /// Gives memory of ranges back.
    pub fn hsa_amd_svm_discard_batch_async(
        ptrs: *mut *mut c_void,
        sizes: *mut usize,
        count: u32,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
    ) -> hsa_status_t;
    /// Memory for other machines.
    pub fn hsa_amd_vmem_export_fabric_handle(
        fabric_handle: *mut hsa_fabric_handle_t,
        handle: hsa_amd_vmem_alloc_handle_t,
        flags: u64,
    ) -> hsa_status_t;
    /// Memory of other machines.
    pub fn hsa_amd_vmem_import_fabric_handle(
        fabric_handle: hsa_fabric_handle_t,
        handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) -> hsa_status_t;
    /// Makes an image of the hardware's layout.
    pub fn hsa_amd_image_create_v2(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        image_layout: *const hsa_amd_image_descriptor_t,
        image_data: *const c_void,
        access_permission: hsa_access_permission_t,
        image: *mut hsa_ext_image_t,
    ) -> hsa_status_t;
    /// Makes an image.
    pub fn hsa_ext_image_create_v2(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        image_data: *const c_void,
        access_permission: hsa_access_permission_t,
        image: *mut hsa_ext_image_t,
    ) -> hsa_status_t;
    /// The memory that an image needs.
    pub fn hsa_ext_image_data_get_info_v2(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        access_permission: hsa_access_permission_t,
        image_data_info: *mut hsa_ext_image_data_info_t,
    ) -> hsa_status_t;
    /// Destroys an image.
    pub fn hsa_ext_image_destroy_v2(agent: hsa_agent_t, image: hsa_ext_image_t) -> hsa_status_t;
    /// An image of one of several sizes.
    pub fn hsa_ext_image_mipmap_array_get_level(
        agent: hsa_agent_t,
        mipmapped_array: *const hsa_ext_image_t,
        mip_level: u32,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        level_image_out: *mut hsa_ext_image_t,
    ) -> hsa_status_t;
    /// Since 7.0: makes a sampler.
    pub fn hsa_ext_sampler_create_v2(
        agent: hsa_agent_t,
        sampler_descriptor: *const hsa_ext_sampler_descriptor_v2_t,
        sampler: *mut hsa_ext_sampler_t,
    ) -> hsa_status_t;
    /// Of HIP 7's list of symbols. No published header declares it: whatever it is called with, it is refused.
    pub fn hsa_amd_signal_batch_create() -> hsa_status_t;
    /// As `hsa_amd_signal_batch_create`.
    pub fn hsa_amd_signal_batch_destroy() -> hsa_status_t;
    /// As `hsa_amd_signal_batch_create`.
    pub fn hsa_amd_vmem_get_vmem_info() -> hsa_status_t;
}
