// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small generator (splitmix64) for the problems' contents.
//!
//! INVARIANT: the same seed gives the same values on every machine and in every version.

/// The generator; its field is the state, any value will do as a seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// 32 random bits.
    pub fn u32(&mut self) -> u32 {
        (self.u64() >> 32) as u32
    }

    /// Below `bound`, which is not zero; nearly uniform.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.u32()) * u64::from(bound)) >> 32) as u32
    }

    /// In [-1, 1), a multiple of 2^-23.
    pub fn f32(&mut self) -> f32 {
        (self.u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    /// In [-1, 1), a multiple of 2^-52.
    pub fn f64(&mut self) -> f64 {
        (self.u64() >> 11) as f64 / 4_503_599_627_370_496.0 - 1.0
    }

    /// `count` values of `make`.
    pub fn list<T>(&mut self, count: usize, mut make: impl FnMut(&mut Random) -> T) -> Vec<T> {
        (0..count).map(|_| make(self)).collect()
    }
}
