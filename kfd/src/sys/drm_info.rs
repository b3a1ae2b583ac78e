// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queries of AMDGPU_INFO and their answers (`amdgpu_drm.h`).
//!
//! The driver copies as many bytes of an answer as the caller has room for, so that answers can grow.

abi_struct! {
    /// DEV_INFO. 440 bytes up to Linux 6.15, 368 up to Linux 6.2.
    drm_amdgpu_info_device: 448 {
        /// PCI device id.
        0 => device_id: u32,
        /// Internal revision of the chip.
        4 => chip_rev: u32,
        /// Revision of the chip among those of its family.
        8 => external_rev: u32,
        /// PCI revision.
        12 => pci_rev: u32,
        /// `AMDGPU_FAMILY_*`.
        16 => family: u32,
        /// Shader engines of an XCC.
        20 => num_shader_engines: u32,
        /// Shader arrays of a shader engine.
        24 => num_shader_arrays_per_engine: u32,
        /// Ticks of the GPU clock counter per millisecond.
        28 => gpu_counter_freq: u32,
        /// kHz.
        32 => max_engine_clock: u64,
        /// kHz.
        40 => max_memory_clock: u64,
        /// Compute units of all XCCs.
        48 => cu_active_number: u32,
        /// Not valid, by the header.
        52 => cu_ao_mask: u32,
        /// Compute units of an XCC: a word for each shader array.
        56 => cu_bitmap: [[u32; 4]; 4],
        /// Bit per render backend.
        120 => enabled_rb_pipes_mask: u32,
        /// Render backends.
        124 => num_rb_pipes: u32,
        /// Graphics contexts.
        128 => num_hw_gfx_contexts: u32,
        /// PCIe generation that slot and card have in common (since 6.3).
        132 => pcie_gen: u32,
        /// `AMDGPU_IDS_FLAGS_*`.
        136 => ids_flags: u64,
        /// First GPU address for clients.
        144 => virtual_address_offset: u64,
        /// First GPU address above those for clients.
        152 => virtual_address_max: u64,
        /// Alignment of GPU addresses, bytes.
        160 => virtual_address_alignment: u32,
        /// Bytes that one entry of a page table can stand for.
        164 => pte_fragment_size: u32,
        /// Bytes of a page of system memory.
        168 => gart_page_size: u32,
        /// RAM of the constant engine, bytes.
        172 => ce_ram_size: u32,
        /// `AMDGPU_VRAM_TYPE_*`.
        176 => vram_type: u32,
        /// Bits.
        180 => vram_bit_width: u32,
        /// Video encoders that do not work.
        184 => vce_harvest_config: u32,
        /// Graphics.
        188 => gc_double_offchip_lds_buf: u32,
        /// Graphics: GPU addresses of the primitive, position, control and parameter buffers.
        192 => ngg_buf_gpu_addr: [u64; 4],
        /// Graphics: their sizes.
        224 => ngg_buf_size: [u32; 4],
        /// Lanes of a wave.
        240 => wave_front_size: u32,
        /// Vector registers that a shader can name.
        244 => num_shader_visible_vgprs: u32,
        /// Most compute units of a shader array.
        248 => num_cu_per_sh: u32,
        /// Channels of the level 2 cache.
        252 => num_tcc_blocks: u32,
        /// Graphics.
        256 => gs_vgt_table_depth: u32,
        /// Graphics.
        260 => gs_prim_buffer_depth: u32,
        /// Graphics.
        264 => max_gs_waves_per_vgt: u32,
        /// PCIe lanes (since 6.3).
        268 => pcie_num_lanes: u32,
        /// Compute units that are never switched off, as `cu_bitmap`.
        272 => cu_ao_bitmap: [[u32; 4]; 4],
        /// First GPU address for clients in the upper half; 0 without one.
        336 => high_va_offset: u64,
        /// First GPU address above those for clients in the upper half.
        344 => high_va_max: u64,
        /// Graphics.
        352 => pa_sc_tile_steering_override: u32,
        /// Zero.
        356 => pad_before_tcc: u32,
        /// Channels of the level 2 cache that do not work.
        360 => tcc_disabled_mask: u64,
        /// kHz.
        368 => min_engine_clock: u64,
        /// kHz.
        376 => min_memory_clock: u64,
        /// Vector cache, KiB; this and the other caches since gfx11, else 0.
        384 => tcp_cache_size: u32,
        /// Scalar and instruction caches of a work-group processor.
        388 => num_sqc_per_wgp: u32,
        /// Scalar cache, KiB.
        392 => sqc_data_cache_size: u32,
        /// Instruction cache, KiB.
        396 => sqc_inst_cache_size: u32,
        /// Cache of a shader array, KiB.
        400 => gl1c_cache_size: u32,
        /// Level 2 cache, KiB.
        404 => gl2c_cache_size: u32,
        /// Infinity Cache, bytes.
        408 => mall_size: u64,
        /// Upper half of `enabled_rb_pipes_mask`.
        416 => enabled_rb_pipes_mask_hi: u32,
        /// Graphics: bytes and alignment of the shadow area, then of the save area.
        420 => shadow_and_csa: [u32; 4],
        /// Bit per kind of user queue (since 6.16).
        436 => userq_ip_mask: u32,
        /// Zero.
        440 => pad: [u32; 2],
    }
}

abi_struct! {
    /// HW_IP_INFO. 32 bytes up to Linux 6.15.
    drm_amdgpu_info_hw_ip: 40 {
        /// Version of the driver's block.
        0 => hw_ip_version_major: u32,
        /// Version of the driver's block.
        4 => hw_ip_version_minor: u32,
        /// Zero.
        8 => capabilities_flags: u64,
        /// Bytes.
        16 => ib_start_alignment: u32,
        /// Bytes.
        20 => ib_size_alignment: u32,
        /// Bit per ring that takes submissions.
        24 => available_rings: u32,
        /// Version of the hardware: major, minor and revision, a byte each.
        28 => ip_discovery_version: u32,
        /// User queues at a time (since 6.16).
        32 => userq_num_slots: u32,
        /// Zero.
        36 => pad: u32,
    }
}

abi_struct! {
    /// FW_VERSION.
    drm_amdgpu_info_firmware: 8 {
        /// Version.
        0 => ver: u32,
        /// Version of its interface.
        4 => feature: u32,
    }
}

abi_struct! {
    /// VRAM_GTT.
    drm_amdgpu_info_vram_gtt: 24 {
        /// Bytes for clients.
        0 => vram_size: u64,
        /// Bytes of it that the CPU sees.
        8 => vram_cpu_accessible_size: u64,
        /// Bytes of system memory for clients.
        16 => gtt_size: u64,
    }
}

abi_struct! {
    /// One memory of [`drm_amdgpu_memory_info`].
    drm_amdgpu_heap_info: 32 {
        /// Bytes.
        0 => total_heap_size: u64,
        /// Bytes for clients.
        8 => usable_heap_size: u64,
        /// Bytes in use by all processes.
        16 => heap_usage: u64,
        /// Most bytes that one buffer should have.
        24 => max_allocation: u64,
    }
}

abi_struct! {
    /// MEMORY.
    drm_amdgpu_memory_info: 96 {
        /// Memory of the GPU.
        0 => vram: drm_amdgpu_heap_info,
        /// What the CPU sees of it.
        32 => cpu_accessible_vram: drm_amdgpu_heap_info,
        /// System memory.
        64 => gtt: drm_amdgpu_heap_info,
    }
}

/// AMDGPU_INFO query: whether acceleration works (u32).
pub const AMDGPU_INFO_ACCEL_WORKING: u32 = 0x00;
/// AMDGPU_INFO query: an engine ([`drm_amdgpu_info_hw_ip`]); `args`: `AMDGPU_HW_IP_*`, instance.
pub const AMDGPU_INFO_HW_IP_INFO: u32 = 0x02;
/// AMDGPU_INFO query: how many engines of a kind there are (u32); `args`: `AMDGPU_HW_IP_*`.
pub const AMDGPU_INFO_HW_IP_COUNT: u32 = 0x03;
/// AMDGPU_INFO query: GPU clock counter (u64).
pub const AMDGPU_INFO_TIMESTAMP: u32 = 0x05;
/// AMDGPU_INFO query: a firmware ([`drm_amdgpu_info_firmware`]); `args`: `AMDGPU_INFO_FW_*`, instance, index.
pub const AMDGPU_INFO_FW_VERSION: u32 = 0x0e;
/// AMDGPU_INFO query: bytes that the driver moved between memories (u64).
pub const AMDGPU_INFO_NUM_BYTES_MOVED: u32 = 0x0f;
/// AMDGPU_INFO query: VRAM in use (u64).
pub const AMDGPU_INFO_VRAM_USAGE: u32 = 0x10;
/// AMDGPU_INFO query: GTT in use (u64).
pub const AMDGPU_INFO_GTT_USAGE: u32 = 0x11;
/// AMDGPU_INFO query: total VRAM, visible VRAM, GTT ([`drm_amdgpu_info_vram_gtt`]).
pub const AMDGPU_INFO_VRAM_GTT: u32 = 0x14;
/// AMDGPU_INFO query: registers (u32 each); `args`: first, count, [`AMDGPU_INFO_MMR_INDEX_MASK`]s.
pub const AMDGPU_INFO_READ_MMR_REG: u32 = 0x15;
/// AMDGPU_INFO query: device description ([`drm_amdgpu_info_device`]).
pub const AMDGPU_INFO_DEV_INFO: u32 = 0x16;
/// AMDGPU_INFO query: VRAM in use that the CPU sees (u64).
pub const AMDGPU_INFO_VIS_VRAM_USAGE: u32 = 0x17;
/// AMDGPU_INFO query: buffers that the driver moved out of VRAM (u64).
pub const AMDGPU_INFO_NUM_EVICTIONS: u32 = 0x18;
/// AMDGPU_INFO query: memory totals ([`drm_amdgpu_memory_info`]).
pub const AMDGPU_INFO_MEMORY: u32 = 0x19;
/// AMDGPU_INFO query: clocks, temperatures, power (u32); `args`: sensor.
pub const AMDGPU_INFO_SENSOR: u32 = 0x1d;
/// AMDGPU_INFO query: pages that the driver moved because the CPU touched them (u64).
pub const AMDGPU_INFO_NUM_VRAM_CPU_PAGE_FAULTS: u32 = 0x1e;
/// AMDGPU_INFO query: how often the contents of VRAM were lost (u32).
pub const AMDGPU_INFO_VRAM_LOST_COUNTER: u32 = 0x1f;

/// The engine of graphics.
pub const AMDGPU_HW_IP_GFX: u32 = 0;
/// The engine of compute, which is a part of that of graphics.
pub const AMDGPU_HW_IP_COMPUTE: u32 = 1;
/// The copy engines.
pub const AMDGPU_HW_IP_DMA: u32 = 2;
/// Kinds of engines; those from 3 on decode and encode video.
pub const AMDGPU_HW_IP_NUM: u32 = 10;

/// First number of a firmware.
pub const AMDGPU_INFO_FW_VCE: u32 = 0x01;
/// The firmware of compute queues.
pub const AMDGPU_INFO_FW_GFX_MEC: u32 = 0x08;
/// A number that no firmware has.
pub const AMDGPU_INFO_FW_NONE: u32 = 0x09;
/// The firmware of copy engines.
pub const AMDGPU_INFO_FW_SDMA: u32 = 0x0b;
/// Last number of a firmware (`AMDGPU_INFO_FW_VPE`).
pub const AMDGPU_INFO_FW_LAST: u32 = 0x1c;

/// READ_MMR_REG: the bits of a shader engine's number, and at [`AMDGPU_INFO_MMR_SH_INDEX_SHIFT`] those of a shader array's;
/// all of them set name all.
pub const AMDGPU_INFO_MMR_INDEX_MASK: u32 = 0xff;
/// READ_MMR_REG: where the number of the shader array is.
pub const AMDGPU_INFO_MMR_SH_INDEX_SHIFT: u32 = 8;

/// Families of chips: gfx9.
pub const AMDGPU_FAMILY_AI: u32 = 141;
/// Families of chips: gfx11 with memory of its own.
pub const AMDGPU_FAMILY_GC_11_0_0: u32 = 145;
/// Families of chips: gfx12.
pub const AMDGPU_FAMILY_GC_12_0_0: u32 = 152;

/// Type of memory.
pub const AMDGPU_VRAM_TYPE_HBM: u32 = 6;
/// Type of memory.
pub const AMDGPU_VRAM_TYPE_GDDR6: u32 = 9;
