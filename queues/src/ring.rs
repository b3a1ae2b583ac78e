// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arithmetic on a queue's packet indices.
//!
//! INVARIANT: an index never wraps at the ring's end, only at 2^64. A slot is `index mod packets`, a distance
//! is a wrapping difference, and no comparison of two indices is ever made directly.
//!
//! ```text
//!   logical   0 . . . . . . . . N . .        what the application counts, for ever
//!   hardware              0 . . p . .        what a newly created queue counts; p = N mod packets
//!             |--- bias --|                  a multiple of the ring size, so slots agree
//! ```

use thiserror::Error;

use crate::aql::PACKET_BYTES;

/// The smallest ring KFD keeps as asked, in packets; it rounds smaller ones up to 1024 bytes.
pub const MIN_PACKETS: u64 = 16;

/// A ring that cannot exist.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The size is not a power of two, or its bytes do not fit 64 bits.
    #[error("Ring size must be a power of two of at least 1 and at most 2^57 packets, found {packets}")]
    Size {
        /// The size asked for.
        packets: u64,
    },
}

/// A ring of 64-byte packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    packets: u64,
}

impl Ring {
    /// A ring of this many packets.
    ///
    /// # Errors
    /// [`RingError::Size`] unless `packets` is a power of two whose byte size fits 64 bits.
    pub const fn new(packets: u64) -> Result<Self, RingError> {
        if !packets.is_power_of_two() || packets > 1 << 57 {
            return Err(RingError::Size { packets });
        }
        Ok(Self { packets })
    }

    /// Packets that the ring holds.
    #[must_use]
    pub const fn packets(self) -> u64 {
        self.packets
    }

    /// Bytes that the ring takes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        // CAST: 64, widened.
        self.packets * PACKET_BYTES as u64
    }

    /// The slot where the packet with this index lies.
    #[must_use]
    pub const fn slot(self, index: u64) -> u64 {
        index & (self.packets - 1)
    }

    /// Where that slot starts, in bytes from the ring's start.
    #[must_use]
    pub const fn byte_offset(self, index: u64) -> u64 {
        // CAST: 64, widened.
        self.slot(index) * PACKET_BYTES as u64
    }

    /// Packets written and not yet read, or `None` if there are more of them than the ring can hold, that is,
    /// if the read index is ahead of the write index or the writer has overrun the ring.
    #[must_use]
    pub const fn used(self, write: u64, read: u64) -> Option<u64> {
        let used = write.wrapping_sub(read);
        if used > self.packets { None } else { Some(used) }
    }

    /// Packets that may be written before the reader moves; 0 for indices that cannot be.
    #[must_use]
    pub const fn free(self, write: u64, read: u64) -> u64 {
        match self.used(write, read) {
            Some(used) => self.packets - used,
            None => 0,
        }
    }

    /// Whether there is room for not one packet more.
    #[must_use]
    pub const fn is_full(self, write: u64, read: u64) -> bool {
        self.free(write, read) == 0
    }

    /// Whether the packet `index` may be written now, given how far the reader is.
    ///
    /// A producer that reserved `index` by an atomic add waits until this holds.
    #[must_use]
    pub const fn admits(self, index: u64, read: u64) -> bool {
        index.wrapping_sub(read) < self.packets
    }

    /// No-op packets that a fresh hardware queue, which starts at 0, must step over before its next slot is
    /// the one where `logical` lies.
    #[must_use]
    pub const fn resume_padding(self, logical: u64) -> u64 {
        self.slot(logical)
    }

    /// How a fresh hardware queue continues at `logical`.
    #[must_use]
    pub const fn rebase(self, logical: u64) -> Rebase {
        let padding = self.resume_padding(logical);
        Rebase { bias: logical.wrapping_sub(padding), padding }
    }
}

/// The relation between the index an application sees and the one its present hardware queue counts.
///
/// INVARIANT: `bias` is a multiple of the ring size it was made for, so both indices name the same slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rebase {
    bias: u64,
    padding: u64,
}

impl Rebase {
    /// `logical - hardware`, wrapping.
    #[must_use]
    pub const fn bias(self) -> u64 {
        self.bias
    }

    /// No-op packets in slots `0..padding` that the hardware consumes before the first real one.
    #[must_use]
    pub const fn padding(self) -> u64 {
        self.padding
    }

    /// The application's index of the packet that the hardware counts as `hardware`.
    #[must_use]
    pub const fn logical(self, hardware: u64) -> u64 {
        hardware.wrapping_add(self.bias)
    }

    /// The hardware's index (and doorbell value) of the application's packet `logical`.
    #[must_use]
    pub const fn hardware(self, logical: u64) -> u64 {
        logical.wrapping_sub(self.bias)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rings() -> impl Strategy<Value = Ring> {
        (0_u32..=57).prop_map(|power| Ring::new(1 << power).unwrap())
    }

    /// Indices near both ends of the range as well as anywhere.
    fn indices() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0_u64..300, (0_u64..300).prop_map(|back| u64::MAX - back)]
    }

    #[test]
    fn new_refuses_what_is_no_power_of_two() {
        for packets in [0, 3, 24, u64::MAX, 1 << 58] {
            assert_eq!(Ring::new(packets), Err(RingError::Size { packets }));
        }
        assert_eq!(Ring::new(64).unwrap().bytes(), 4096);
    }

    #[test]
    fn full_ring_has_no_room_across_the_wrap() {
        let ring = Ring::new(16).unwrap();
        let read = u64::MAX - 7;
        let write = read.wrapping_add(16);
        assert!(ring.is_full(write, read));
        assert!(!ring.admits(write, read));
        assert!(ring.admits(write.wrapping_sub(1), read));
        assert_eq!(ring.free(write, read.wrapping_add(1)), 1);
    }

    #[test]
    fn impossible_indices_have_no_room() {
        let ring = Ring::new(16).unwrap();
        assert_eq!(ring.used(3, 4), None);
        assert_eq!(ring.used(21, 4), None);
        assert!(ring.is_full(3, 4));
        assert_eq!(ring.free(21, 4), 0);
    }

    #[test]
    fn resumed_ring_counts_its_padding_as_used() {
        let ring = Ring::new(64).unwrap();
        let rebase = ring.rebase(1000);
        assert_eq!((rebase.bias(), rebase.padding()), (960, 40));
        assert_eq!(rebase.hardware(1000), 40);
        assert_eq!(ring.free(1000, rebase.logical(0)), 24);
        assert_eq!(ring.free(1000, rebase.logical(40)), 64);
    }

    proptest! {
        #[test]
        fn slots_repeat_every_lap_and_stay_inside(ring in rings(), index in indices()) {
            prop_assert!(ring.slot(index) < ring.packets());
            prop_assert_eq!(ring.slot(index), ring.slot(index.wrapping_add(ring.packets())));
            prop_assert_eq!(ring.byte_offset(index), ring.slot(index) * 64);
            prop_assert!(ring.byte_offset(index) < ring.bytes());
        }

        #[test]
        fn used_and_free_make_up_the_ring(ring in rings(), read in indices(), used in any::<u64>()) {
            let used = used % (ring.packets() + 1);
            let write = read.wrapping_add(used);
            prop_assert_eq!(ring.used(write, read), Some(used));
            prop_assert_eq!(ring.free(write, read), ring.packets() - used);
            prop_assert_eq!(ring.is_full(write, read), used == ring.packets());
            prop_assert_eq!(ring.admits(write, read), used < ring.packets());
        }

        #[test]
        fn any_two_indices_are_answered(ring in rings(), write in indices(), read in indices()) {
            prop_assert!(ring.free(write, read) <= ring.packets());
            prop_assert_eq!(ring.is_full(write, read), ring.free(write, read) == 0);
        }

        #[test]
        fn rebase_keeps_slots_and_order(ring in rings(), logical in indices(), ahead in any::<u64>()) {
            let rebase = ring.rebase(logical);
            prop_assert_eq!(ring.slot(rebase.bias()), 0);
            prop_assert_eq!(rebase.padding(), ring.resume_padding(logical));
            prop_assert!(rebase.padding() < ring.packets());
            // The first real packet goes right behind the padding.
            prop_assert_eq!(rebase.hardware(logical), rebase.padding());
            let later = logical.wrapping_add(ahead);
            prop_assert_eq!(rebase.logical(rebase.hardware(later)), later);
            prop_assert_eq!(ring.slot(rebase.hardware(later)), ring.slot(later));
            prop_assert_eq!(rebase.hardware(later).wrapping_sub(rebase.hardware(logical)), ahead);
        }

        #[test]
        fn rebasing_twice_is_rebasing_once(ring in rings(), first in indices(), second in indices()) {
            // A restored queue's bias follows from the logical index alone, not from earlier restores.
            let _ = ring.rebase(first);
            let rebase = ring.rebase(second);
            prop_assert_eq!(rebase.logical(rebase.padding()), second);
        }
    }
}
