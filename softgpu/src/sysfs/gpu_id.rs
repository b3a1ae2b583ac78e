// SPDX-License-Identifier: MIT OR Apache-2.0
//! KFD's 16-bit GPU id (`kfd_topology.c:kfd_generate_gpu_id`): a CRC over slot, chip and memory size.
//!
//! INVARIANT: ids are non-zero and distinct within one machine, and the same machine always gets the same ids.

use queues::words::words;

/// What the id is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// `bus << 8 | devfn`.
    pub location_id: u32,
    pub domain: u32,
    pub device_id: u32,
    /// `subsystem vendor | subsystem device << 16`.
    pub subsystem: u32,
    pub vram_bytes: u64,
    pub num_xcc: u32,
}

/// The id, given those already taken.
pub(super) fn generate(identity: &Identity, taken: &[u32]) -> u32 {
    // As the kernel splits it.
    let [vram_low, vram_high] = words(identity.vram_bytes);
    let words = [
        identity.location_id & 0xff,
        identity.subsystem,
        identity.domain,
        identity.device_id,
        identity.location_id >> 8 & 0xff,
        vram_low,
        vram_high,
        // First XCC 0, XCC count above.
        identity.num_xcc << 16,
    ];
    let mut id = words.iter().flat_map(|word| word.to_le_bytes()).fold(0, crc16_step);
    while id == 0 || taken.contains(&u32::from(id)) {
        id = id.wrapping_add(1);
    }
    u32::from(id)
}

/// One byte of the kernel's `crc16` (polynomial 0x8005, reflected, initial value 0).
fn crc16_step(crc: u16, byte: u8) -> u16 {
    (0..8).fold(crc ^ u16::from(byte), |crc, _| if crc & 1 != 0 { crc >> 1 ^ 0xa001 } else { crc >> 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Identity = Identity {
        location_id: 0x300,
        domain: 0,
        device_id: 0x744c,
        subsystem: 0x0e3b_1002,
        vram_bytes: 25_753_026_560,
        num_xcc: 1,
    };

    #[test]
    fn crc16_gives_the_published_check_value() {
        // CRC-16/ARC of "123456789".
        assert_eq!(b"123456789".iter().copied().fold(0, crc16_step), 0xbb3d);
    }

    #[test]
    fn generate_skips_taken_ids() {
        let first = generate(&CARD, &[]);
        assert_eq!(generate(&CARD, &[first]), (first + 1) & 0xffff);
        assert_eq!(generate(&CARD, &[]), first);
    }

    #[test]
    fn generate_depends_on_slot_and_memory() {
        let first = generate(&CARD, &[]);
        assert_ne!(generate(&Identity { location_id: 0x600, ..CARD }, &[]), first);
        assert_ne!(generate(&Identity { vram_bytes: 1 << 34, ..CARD }, &[]), first);
    }
}
