// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slots of a queue's scratch memory: how many waves can have some at a time, and what `COMPUTE_TMPRING_SIZE` says
//! of it.
//!
//! ```text
//! gfx9, gfx10   WAVES: of an XCC; engine e has slots e * WAVES / engines ..
//! from gfx11    WAVES: of a shader engine; engine e has slots e * WAVES ..
//! ```
//! Each XCC has an equal part of the memory, in order (ROCdbgapi `aql_queue_t::scratch_memory_region`).
//!
//! INVARIANT: what `WAVES` allows lies in the memory, whatever its size is; `WAVES` of an XCC is divisible by its shader
//! engines, else waves get addresses that nobody expects (ROCdbgapi `gfx9_architecture_t::scratch_memory_region`).

use kfd::topology::NodeProperties;
use queues::target::{ScratchFormat, Target};
use queues::words::words;

/// What the WAVES field can say.
const MAX_WAVES: u64 = 0xfff;
/// Bytes of scratch that an XCC can have where a wave's offset is an SGPR (`private_segment_wave_offset`), so 32 bits wide.
const OFFSET_END: u64 = 1 << 32;

/// The numbers of an agent that its scratch slots depend on, over all XCCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    compute_units: u64,
    engines: u64,
    xccs: u64,
    /// Slots of a compute unit.
    per_unit: u64,
}

impl Slots {
    /// An agent's.
    pub(super) fn of(properties: &NodeProperties) -> Self {
        let quotient = |whole: u32, part: u32| u64::from(whole.checked_div(part).unwrap_or(1).max(1));
        let xccs = u64::from(properties.num_xcc.max(1));
        Self {
            compute_units: quotient(properties.simd_count, properties.simd_per_cu),
            // Every XCC has one at least.
            engines: quotient(properties.array_count, properties.simd_arrays_per_engine).max(xccs),
            xccs,
            per_unit: u64::from(properties.max_slots_scratch_cu.max(1)),
        }
    }

    /// Slots of all XCCs: as if all shader engines had as many compute units as the largest (ROCr
    /// `AqlQueue::HandleInsufficientScratch`).
    pub(super) fn all(&self) -> u64 {
        self.compute_units.next_multiple_of(self.engines) * self.per_unit
    }

    /// Bytes of memory for waves that have `wave_bytes` each. They are all slots, or fewer waves run at a time where a
    /// wave cannot be told of so much.
    pub(super) fn memory_bytes(&self, wave_bytes: u64, target: &Target) -> u64 {
        let all = self.all();
        let slots = match (target.architected_flat_scratch, OFFSET_END.checked_div(wave_bytes)) {
            (false, Some(addressable)) => all.min(addressable * self.xccs / self.engines * self.engines),
            _ => all,
        };
        slots.saturating_mul(wave_bytes)
    }

    /// Bytes of one XCC's part of the memory (ROCr `AqlQueue::FillBufRsrcWord2`, `InitScratchSRD`).
    pub(super) fn xcc_bytes(&self, memory_bytes: u64, format: &ScratchFormat) -> u64 {
        let unit = u64::from(format.wave_size_unit);
        memory_bytes / self.xccs / unit * unit
    }

    /// `COMPUTE_TMPRING_SIZE` for memory of this size (ROCr `AqlQueue::FillComputeTmpRingSize`,
    /// `FillComputeTmpRingSize_Gfx11`); 0 if no wave has room.
    pub(super) fn tmpring_size(&self, memory_bytes: u64, wave_bytes: u64, format: &ScratchFormat) -> u32 {
        let of_xcc = self.engines / self.xccs;
        let fitting = self.xcc_bytes(memory_bytes, format).checked_div(wave_bytes).unwrap_or(0);
        let waves = match format.waves_per_engine {
            true => (fitting / of_xcc).min(self.compute_units / self.xccs * self.per_unit).min(MAX_WAVES),
            false => fitting.min(self.compute_units * self.per_unit).min(MAX_WAVES) / of_xcc * of_xcc,
        };
        if waves == 0 {
            return 0;
        }
        let units = wave_bytes / u64::from(format.wave_size_unit);
        // CAST: 12 bits; whoever chose the bytes of a wave kept to `max_lane_bytes`, so to the bits that are left.
        words(waves | units << 12)[0]
    }
}

/// A node of this shape: `[simd_count, simd_per_cu, array_count, simd_arrays_per_engine, num_xcc]`.
#[cfg(test)]
pub(super) fn properties(shape: [u32; 5]) -> NodeProperties {
    let [simd_count, simd_per_cu, array_count, simd_arrays_per_engine, num_xcc] = shape;
    NodeProperties {
        simd_count,
        simd_per_cu,
        array_count,
        simd_arrays_per_engine,
        num_xcc,
        max_slots_scratch_cu: 32,
        ..NodeProperties::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chip, shape as in [`properties`], bytes of a wave; then, by hand from ROCr's formulas: slots of all XCCs, WAVES,
    /// WAVESIZE, bytes of an XCC.
    type Row = (&'static str, [u32; 5], u64, u64, u32, u32, u64);

    #[rustfmt::skip]
    const ROWS: &[Row] = &[
        // 64 CUs, 4 engines: 64 * 32.
        ("gfx900", [256, 4, 4, 1, 1], 1024, 2048, 2048, 1, 2048 << 10),
        // 120 CUs, 8 engines: 120 * 32.
        ("gfx908", [480, 4, 8, 1, 1], 16 << 10, 3840, 3840, 16, 3840 << 14),
        // 104 CUs, 8 engines: 104 * 32.
        ("gfx90a", [416, 4, 8, 1, 1], 1024, 3328, 3328, 1, 3328 << 10),
        // 110 CUs, 8 engines: memory for 112 * 32, waves of 110 * 32.
        ("gfx90a", [440, 4, 8, 1, 1], 4096, 3584, 3520, 4, 3584 << 12),
        // 80 CUs, 4 engines of 2 arrays: 80 * 32.
        ("gfx1030", [160, 2, 8, 2, 1], 2048, 2560, 2560, 2, 2560 << 11),
        // 96 CUs, 6 engines of 2 arrays: 96 * 32, of which an engine has 512.
        ("gfx1100", [192, 2, 12, 2, 1], 256, 3072, 512, 1, 3072 << 8),
        // 80 CUs of 6 engines: memory for 84 * 32, of which an engine has 448.
        ("gfx1100", [160, 2, 12, 2, 1], 1024, 2688, 448, 4, 2688 << 10),
        // 304 CUs, 32 engines, 8 XCCs: memory for 320 * 32, an eighth of it each.
        ("gfx942", [1216, 4, 32, 1, 8], 1024, 10_240, 1280, 1, 1280 << 10),
        // One of these XCCs alone: memory for 40 * 32, waves of 38 * 32.
        ("gfx942", [152, 4, 4, 1, 1], 1024, 1280, 1216, 1, 1280 << 10),
        // 228 CUs, 24 engines, 6 XCCs: 240 * 32.
        ("gfx942", [912, 4, 24, 1, 6], 2048, 7680, 1280, 2, 1280 << 11),
    ];

    fn slots(shape: [u32; 5]) -> Slots {
        Slots::of(&properties(shape))
    }

    #[test]
    fn numbers_are_those_of_rocr() {
        for &(name, shape, wave_bytes, all, waves, wave_size, xcc_bytes) in ROWS {
            let target = Target::by_name(name).unwrap();
            let format = target.scratch.unwrap();
            let slots = slots(shape);
            let bytes = slots.memory_bytes(wave_bytes, target);
            assert_eq!((slots.all(), bytes), (all, all * wave_bytes), "{name} {shape:?}");
            let ring = slots.tmpring_size(bytes, wave_bytes, &format);
            assert_eq!((ring & 0xfff, ring >> 12), (waves, wave_size), "{name} {shape:?}");
            assert_eq!(slots.xcc_bytes(bytes, &format), xcc_bytes, "{name} {shape:?}");
        }
    }

    #[test]
    fn waves_never_lie_behind_the_memory_and_share_it_evenly() {
        for &(name, shape, wave_bytes, ..) in ROWS {
            let format = Target::by_name(name).unwrap().scratch.unwrap();
            let slots = slots(shape);
            let of_xcc = slots.engines / slots.xccs;
            let whole = slots.all() * wave_bytes;
            for bytes in (0..=16).map(|sixteenths| whole / 16 * sixteenths + 4096 * sixteenths) {
                let waves = u64::from(slots.tmpring_size(bytes, wave_bytes, &format) & 0xfff);
                let reached = if format.waves_per_engine { waves * of_xcc } else { waves };
                assert!(reached * wave_bytes <= slots.xcc_bytes(bytes, &format), "{name} {bytes}");
                assert_eq!(reached % of_xcc, 0, "{name} {bytes}");
            }
            assert_eq!(slots.tmpring_size(0, wave_bytes, &format), 0);
        }
    }

    #[test]
    fn fewer_waves_have_what_an_offset_of_32_bits_cannot_reach() {
        let wave_bytes = 0x1fff * 1024;
        let bytes = |name, shape| {
            let target = Target::by_name(name).unwrap();
            slots(shape).memory_bytes(wave_bytes, target) / wave_bytes
        };
        // 4 GiB / 8387584 is 512 waves and a rest.
        assert_eq!(bytes("gfx900", [256, 4, 4, 1, 1]), 512);
        assert_eq!(bytes("gfx908", [480, 4, 8, 1, 1]), 512);
        // Their waves have 64 bits of address.
        assert_eq!(bytes("gfx942", [152, 4, 4, 1, 1]), 1280);
        assert_eq!(bytes("gfx1100", [192, 2, 12, 2, 1]), 3072);
    }
}
