// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which compute units a queue's waves may run on.
//!
//! INVARIANT: what SET_CU_MASK refuses, or a mask that leaves a queue nothing to run on, is refused here, before the
//! ioctl (`kfd_ioctl_set_cu_mask`, `kfd_chardev.c`; `pqm_update_mqd`, `kfd_process_queue_manager.c`).

use crate::context::error::CuMaskError;

/// Bits of a word of the mask.
const WORD_BITS: usize = 32;
/// The driver cuts longer masks without saying so.
const MOST_BITS: usize = 1024;

/// Compute units, a bit each: bit `n` allows the `n`th active unit, counted as the driver does (over the XCCs first,
/// then shader engines, arrays and units). Bits beyond the agent's units mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CuMask(Vec<u32>);

impl CuMask {
    /// A mask of these words, the lowest units first.
    ///
    /// # Errors
    /// [`CuMaskError::Bits`] for none, and for more than 32.
    pub fn from_words(words: &[u32]) -> Result<Self, CuMaskError> {
        Self::check_bits(words.len() * WORD_BITS)?;
        Ok(Self(words.to_vec()))
    }

    /// A mask that says of each unit whether it may be used.
    ///
    /// # Errors
    /// [`CuMaskError::Bits`] unless there are a multiple of 32, at least 32 and at most 1024 (the driver's rule).
    pub fn from_units(units: &[bool]) -> Result<Self, CuMaskError> {
        Self::check_bits(units.len())?;
        let word = |units: &[bool]| units.iter().rev().fold(0, |word, &unit| word << 1 | u32::from(unit));
        Ok(Self(units.chunks(WORD_BITS).map(word).collect()))
    }

    fn check_bits(bits: usize) -> Result<(), CuMaskError> {
        if bits == 0 || !bits.is_multiple_of(WORD_BITS) || bits > MOST_BITS {
            return Err(CuMaskError::Bits { bits, most: MOST_BITS });
        }
        Ok(())
    }

    /// Its words, the lowest units first.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// Whether an agent with this many compute units, which come in pairs or not, can take it.
    ///
    /// # Errors
    /// [`CuMaskError::Pair`] where units come in pairs and one is divided, [`CuMaskError::None`].
    pub(crate) fn check(&self, paired: bool, units: u32) -> Result<(), CuMaskError> {
        let mut any = false;
        for (word, first) in self.0.iter().zip((0u32..).step_by(WORD_BITS)) {
            for pair in (0..32).step_by(2) {
                let (bits, unit) = (word >> pair & 3, first + pair);
                if paired && (bits == 1 || bits == 2) {
                    return Err(CuMaskError::Pair { first: unit, second: unit + 1, mask: bits });
                }
                any |= bits & 1 != 0 && unit < units || bits & 2 != 0 && unit + 1 < units;
            }
        }
        if any { Ok(()) } else { Err(CuMaskError::None { units }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_a_multiple_of_32_up_to_1024() {
        let refused = |bits: usize| CuMask::from_units(&vec![true; bits]).unwrap_err();
        for bits in [0, 31, 33, 1056] {
            assert_eq!(refused(bits), CuMaskError::Bits { bits, most: 1024 });
        }
        assert_eq!(CuMask::from_words(&[]).unwrap_err(), CuMaskError::Bits { bits: 0, most: 1024 });
        assert_eq!(CuMask::from_words(&[1; 33]).unwrap_err(), CuMaskError::Bits { bits: 1056, most: 1024 });
        assert_eq!(CuMask::from_words(&[7; 32]).unwrap().words().len(), 32);
    }

    #[test]
    fn units_are_bits_from_the_lowest() {
        let mut units = [false; 64];
        (units[0], units[33]) = (true, true);
        assert_eq!(CuMask::from_units(&units).unwrap().words(), [1, 2]);
    }

    #[test]
    fn divided_pairs_are_refused_where_units_come_in_pairs() {
        let mask = CuMask::from_words(&[0b11, 0b0100_0000]).unwrap();
        let error = CuMaskError::Pair { first: 38, second: 39, mask: 1 };
        assert_eq!(mask.check(true, 96), Err(error));
        assert_eq!(mask.check(false, 96), Ok(()));
        assert!(error.to_string().contains("units 38 and 39"), "{error}");
    }

    #[test]
    fn mask_without_a_unit_is_refused() {
        assert_eq!(
            CuMask::from_words(&[0, 0]).unwrap().check(true, 96),
            Err(CuMaskError::None { units: 96 })
        );
        let beyond = CuMask::from_words(&[0, 0, 0, 0b11]).unwrap();
        assert_eq!(beyond.check(true, 96), Err(CuMaskError::None { units: 96 }));
        assert_eq!(beyond.check(true, 97), Ok(()));
    }
}
