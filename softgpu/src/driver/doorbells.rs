// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which doorbell of a process slice each queue gets (`kfd_doorbell.c`, `amdgpu_doorbell.h`).
//!
//! INVARIANT: no compute queue gets a doorbell of the range that belongs to SDMA engines and fixed functions, or of
//! that range's mirror 512 doorbells higher. The number of an SDMA queue alone determines its doorbell.

use queues::words::count;

/// Doorbells of a slice, 8 bytes each.
pub(super) const DOORBELLS: usize = 1024;
/// Bytes of one doorbell.
pub(super) const DOORBELL_BYTES: u32 = 8;

/// First and last doorbell that is not the command processor's (gfx10, gfx11, gfx12).
const RESERVED: (usize, usize) = (0x100, 0x190);
/// Distance to the mirrored range.
const MIRROR: usize = 512;
/// Doorbells between the bases of neighbouring SDMA engines.
const SDMA_ENGINE_STRIDE: u32 = 10;

/// Compute doorbells in use.
#[derive(Clone, Debug)]
pub(super) struct DoorbellMap {
    used: [u64; DOORBELLS / 64],
}

impl Default for DoorbellMap {
    fn default() -> Self {
        let mut map = Self { used: [0; DOORBELLS / 64] };
        for id in RESERVED.0..=RESERVED.1 {
            map.set(id);
            map.set(id + MIRROR);
        }
        map
    }
}

impl DoorbellMap {
    fn set(&mut self, id: usize) {
        self.used[id / 64] |= 1 << (id % 64);
    }

    /// Takes the lowest free doorbell.
    pub(super) fn take(&mut self) -> Option<u32> {
        let word = self.used.iter().position(|word| *word != u64::MAX)?;
        let id = word * 64 + self.used[word].trailing_ones() as usize;
        self.set(id);
        u32::try_from(id).ok()
    }

    /// Takes a chosen doorbell; answers whether it was free.
    pub(super) fn take_at(&mut self, id: u32) -> bool {
        let id = id as usize;
        let free = self.used.get(id / 64).is_some_and(|word| word & 1 << (id % 64) == 0);
        if free {
            self.set(id);
        }
        free
    }

    /// Gives a doorbell back.
    pub(super) fn release(&mut self, id: u32) {
        if let Some(word) = self.used.get_mut(id as usize / 64) {
            *word &= !(1 << (id % 64));
        }
    }
}

/// The doorbell of SDMA queue `id` on a GPU with `engines` engines: queues alternate between them.
pub(super) fn sdma_doorbell(id: u32, engines: u32) -> u32 {
    let (engine, queue) = (id % engines.max(1), id / engines.max(1));
    count(RESERVED.0) + SDMA_ENGINE_STRIDE * engine + (queue & 1) * count(MIRROR) + (queue >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_gives_the_lowest_free_and_skips_the_reserved_ranges() {
        let mut map = DoorbellMap::default();
        let taken: Vec<u32> = std::iter::from_fn(|| map.take()).collect();
        assert_eq!(taken.len(), DOORBELLS - 2 * 0x91);
        assert_eq!(taken[..3], [0, 1, 2]);
        assert!(taken.iter().all(|id| !(0x100..=0x190).contains(id) && !(0x300..=0x390).contains(id)));
        map.release(1);
        assert_eq!((map.take(), map.take()), (Some(1), None));
        map.release(7);
        assert_eq!(
            [7, 7, 0x100, 1024, u32::MAX].map(|id| map.take_at(id)),
            [true, false, false, false, false]
        );
    }

    #[test]
    fn sdma_doorbells_alternate_engines_and_halves() {
        // Queue 2 of engine 0, queue 2 of engine 1, queue 3 of engine 0.
        assert_eq!([4, 5, 6].map(|id| sdma_doorbell(id, 2)), [0x101, 0x10b, 0x301]);
        let mut all: Vec<u32> = (0..16).map(|id| sdma_doorbell(id, 2)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 16);
    }
}
