// SPDX-License-Identifier: MIT OR Apache-2.0
//! `amd_queue_t`: what an `hsa_queue_t*` points at, read by the firmware and by kernels.

use bytemuck::{Pod, Zeroable};

use super::layout::assert_layout;

/// Bits of [`AmdQueue::queue_properties`].
pub mod queue_properties {
    /// Kernels of this queue use 64-bit pointers.
    pub const IS_PTR64: u32 = 1 << 1;
    /// The processor writes start and end times into completion signals.
    pub const ENABLE_PROFILING: u32 = 1 << 3;
    /// Scratch goes back after the dispatch that made it grow.
    pub const USE_SCRATCH_ONCE: u32 = 1 << 4;
}

/// A queue as host, command processor and kernels see it.
///
/// The two dispatch ids are the write and read index; they are shared memory and are read and written through
/// atomics at these offsets. This type is for building the initial value and for copies.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AmdQueue {
    /// `hsa_queue_t.type`: 0 many producers, 1 one, 2 cooperative.
    pub queue_type: u32,
    /// `hsa_queue_t.features`: bit 0 kernel dispatch, bit 1 agent dispatch.
    pub features: u32,
    /// GPU address of the ring.
    pub base_address: u64,
    /// Handle of the doorbell signal.
    pub doorbell_signal: u64,
    /// Packets in the ring.
    pub size: u32,
    /// Zero.
    pub reserved1: u32,
    /// The queue's number in its process.
    pub id: u64,
    /// Capabilities.
    pub caps: u32,
    /// Zero.
    pub reserved2: [u32; 3],
    /// Write index, packets.
    pub write_dispatch_id: u64,
    /// High half of the LDS aperture's address.
    pub group_segment_aperture_base_hi: u32,
    /// High half of the scratch aperture's address.
    pub private_segment_aperture_base_hi: u32,
    /// Compute units less one.
    pub max_cu_id: u32,
    /// Waves a compute unit can hold, less one.
    pub max_wave_id: u32,
    /// Only for doorbells of gfx8 and older.
    pub max_legacy_doorbell_dispatch_id_plus_1: u64,
    /// Only for doorbells of gfx8 and older.
    pub legacy_doorbell_lock: u32,
    /// Zero.
    pub reserved3: [u32; 9],
    /// Read index, packets.
    pub read_dispatch_id: u64,
    /// Offset of `read_dispatch_id` in this structure, bytes: 128.
    pub read_dispatch_id_field_base_byte_offset: u32,
    /// `COMPUTE_TMPRING_SIZE`: waves in bits 0..12, size per wave from bit 12.
    pub compute_tmpring_size: u32,
    /// Buffer descriptor of the scratch memory.
    pub scratch_resource_descriptor: [u32; 4],
    /// GPU address of the scratch memory.
    pub scratch_backing_memory_location: u64,
    /// Bytes of scratch memory.
    pub scratch_backing_memory_byte_size: u64,
    /// Bytes of scratch per lane of a wave of 64.
    pub scratch_wave64_lane_byte_size: u32,
    /// Bits of [`queue_properties`].
    pub queue_properties: u32,
    /// Index of the last dispatch that used the scratch memory.
    pub scratch_last_used_index: u64,
    /// Handle of the signal that tells the host why the queue stopped.
    pub queue_inactive_signal: u64,
    /// Zero.
    pub reserved4: [u32; 2],
    /// As `scratch_last_used_index`, for the alternate scratch memory.
    pub alt_scratch_last_used_index: u64,
    /// As `scratch_backing_memory_location`, for the alternate scratch memory.
    pub alt_scratch_backing_memory_location: u64,
    /// As `scratch_backing_memory_byte_size`, for the alternate scratch memory.
    pub alt_scratch_backing_memory_byte_size: u64,
    /// Work-groups in x up to which a dispatch takes the alternate scratch memory.
    pub alt_scratch_dispatch_limit_x: u32,
    /// The same in y.
    pub alt_scratch_dispatch_limit_y: u32,
    /// The same in z.
    pub alt_scratch_dispatch_limit_z: u32,
    /// As `scratch_wave64_lane_byte_size`, for the alternate scratch memory.
    pub alt_scratch_wave64_lane_byte_size: u32,
    /// As `compute_tmpring_size`, for the alternate scratch memory.
    pub alt_compute_tmpring_size: u32,
    /// Zero.
    pub reserved5: u32,
}

assert_layout!(AmdQueue, 256, align 64, {
    0 queue_type,
    4 features,
    8 base_address,
    16 doorbell_signal,
    24 size,
    32 id,
    40 caps,
    56 write_dispatch_id,
    64 group_segment_aperture_base_hi,
    68 private_segment_aperture_base_hi,
    72 max_cu_id,
    76 max_wave_id,
    80 max_legacy_doorbell_dispatch_id_plus_1,
    88 legacy_doorbell_lock,
    128 read_dispatch_id,
    136 read_dispatch_id_field_base_byte_offset,
    140 compute_tmpring_size,
    144 scratch_resource_descriptor,
    160 scratch_backing_memory_location,
    168 scratch_backing_memory_byte_size,
    176 scratch_wave64_lane_byte_size,
    180 queue_properties,
    184 scratch_last_used_index,
    192 queue_inactive_signal,
    208 alt_scratch_last_used_index,
    216 alt_scratch_backing_memory_location,
    224 alt_scratch_backing_memory_byte_size,
    232 alt_scratch_dispatch_limit_x,
    236 alt_scratch_dispatch_limit_y,
    240 alt_scratch_dispatch_limit_z,
    244 alt_scratch_wave64_lane_byte_size,
    248 alt_compute_tmpring_size,
});
