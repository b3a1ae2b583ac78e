// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offsets for `mmap` on `/dev/kfd`: type in bits 63:62, GPU id in bits 61:46, an offset below.

/// Shift of the mapping type.
pub const KFD_MMAP_TYPE_SHIFT: u32 = 62;
/// Doorbell slice of a GPU.
pub const KFD_MMAP_TYPE_DOORBELL: u64 = 3 << KFD_MMAP_TYPE_SHIFT;
/// Event page; only a number on Linux 7.3.
pub const KFD_MMAP_TYPE_EVENTS: u64 = 2 << KFD_MMAP_TYPE_SHIFT;
/// Reserved memory; only a number on Linux 7.3.
pub const KFD_MMAP_TYPE_RESERVED_MEM: u64 = 1 << KFD_MMAP_TYPE_SHIFT;
/// Remapped register page of a GPU.
pub const KFD_MMAP_TYPE_MMIO: u64 = 0;
/// The bits of the type.
pub const KFD_MMAP_TYPE_MASK: u64 = 3 << KFD_MMAP_TYPE_SHIFT;
/// Shift of the GPU id.
pub const KFD_MMAP_GPU_ID_SHIFT: u32 = 46;
/// The bits of the GPU id.
pub const KFD_MMAP_GPU_ID_MASK: u64 = 0xffff << KFD_MMAP_GPU_ID_SHIFT;

/// Bytes of a process' doorbell slice on gfx9 and later.
pub const DOORBELL_SLICE_BYTES: usize = 8192;
/// Bytes of the event page: one u64 for each of [`super::KFD_SIGNAL_EVENT_LIMIT`] slots.
pub const EVENT_PAGE_BYTES: usize = 32768;
/// Bytes of the remapped register page.
pub const MMIO_REMAP_BYTES: usize = 4096;

/// The GPU id's bits of a cookie.
pub const fn kfd_mmap_gpu_id(gpu_id: u32) -> u64 {
    ((gpu_id as u64) << KFD_MMAP_GPU_ID_SHIFT) & KFD_MMAP_GPU_ID_MASK
}

/// The GPU id in a cookie.
pub const fn kfd_mmap_get_gpu_id(offset: u64) -> u32 {
    // CAST: the mask leaves 16 bits.
    ((offset & KFD_MMAP_GPU_ID_MASK) >> KFD_MMAP_GPU_ID_SHIFT) as u32
}

/// The cookie of a GPU's doorbell slice.
pub const fn doorbell_cookie(gpu_id: u32) -> u64 {
    KFD_MMAP_TYPE_DOORBELL | kfd_mmap_gpu_id(gpu_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_round_trips_the_gpu_id() {
        let cookie = doorbell_cookie(0xbeef) | 0x10;
        assert_eq!(kfd_mmap_get_gpu_id(cookie), 0xbeef);
        assert_eq!(cookie & KFD_MMAP_TYPE_MASK, KFD_MMAP_TYPE_DOORBELL);
        assert_eq!(cookie & (DOORBELL_SLICE_BYTES as u64 - 1), 0x10);
    }
}
