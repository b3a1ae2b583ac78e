// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data formats of typed buffer accesses: the gfx11 format numbers and the conversion of elements.
//!
//! Format names list the fields of an element from its most significant bits down; component X is the lowest field.
//!
//! INVARIANT: pure functions; a format number that is not in the table gives [`None`].

use crate::valu::fp;

/// How the bits of a component are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// The integers 0..=max stand for 0.0..=1.0.
    Unorm,
    /// The integers -max..=max stand for -1.0..=1.0; the least integer stands for -1.0 too.
    Snorm,
    /// An unsigned integer as a float.
    Uscaled,
    /// A signed integer as a float.
    Sscaled,
    /// Unsigned integer.
    Uint,
    /// Signed integer.
    Sint,
    /// f32, f16, or an unsigned float of 11 or 10 bits with 5 bits of exponent.
    Float,
}

/// Fields of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of X, Y, Z, W; 0 for components that the format does not have.
    pub bits: [u8; 4],
    /// How all components are read.
    pub number: Number,
}

impl Format {
    /// The format with gfx11 number `n`; `None` for the invalid one and for reserved ones.
    pub(crate) fn from_number(n: u32) -> Option<Format> {
        use Number::*;
        const SIX: [Number; 6] = [Unorm, Snorm, Uscaled, Sscaled, Uint, Sint];
        const SEVEN: [Number; 7] = [Unorm, Snorm, Uscaled, Sscaled, Uint, Sint, Float];
        const FOUR: [Number; 4] = [Unorm, Snorm, Uint, Sint];
        const WIDE: [Number; 3] = [Uint, Sint, Float];
        const GROUPS: [(u32, [u8; 4], &[Number]); 15] = [
            (1, [8, 0, 0, 0], &SIX),
            (7, [16, 0, 0, 0], &SEVEN),
            (14, [8, 8, 0, 0], &SIX),
            (20, [32, 0, 0, 0], &WIDE),
            (23, [16, 16, 0, 0], &SEVEN),
            (30, [11, 11, 10, 0], &[Float]),
            (31, [10, 11, 11, 0], &[Float]),
            (32, [2, 10, 10, 10], &FOUR),
            (36, [10, 10, 10, 2], &SIX),
            (42, [8, 8, 8, 8], &SIX),
            (48, [32, 32, 0, 0], &WIDE),
            (51, [16, 16, 16, 16], &SEVEN),
            (58, [32, 32, 32, 0], &WIDE),
            (61, [32, 32, 32, 32], &WIDE),
            (64, [0; 4], &[]),
        ];
        let (first, bits, numbers) = GROUPS.iter().rev().find(|(first, ..)| *first <= n)?;
        let number = *numbers.get((n - first) as usize)?;
        Some(Format { bits: *bits, number })
    }

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        self.bits.iter().map(|&b| usize::from(b)).sum::<usize>() / 8
    }

    /// Whether components are integers.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self.number, Number::Uint | Number::Sint)
    }

    /// Bit positions of component `k`.
    fn field(self, k: usize) -> (u32, u32) {
        let shift = self.bits[..k].iter().map(|&b| u32::from(b)).sum();
        (shift, u32::from(self.bits[k]))
    }

    /// Components of an element: integers, or f32 bits. Components that the format does not have are 0, except W, which
    /// is 1.
    pub(crate) fn unpack(self, element: u128) -> [u32; 4] {
        core::array::from_fn(|k| {
            let (shift, bits) = self.field(k);
            if bits == 0 {
                return if k == 3 { self.one() } else { 0 };
            }
            let x = (element >> shift) as u32 & (u32::MAX >> (32 - bits));
            self.read(x, bits)
        })
    }

    /// The value 1 in this format.
    pub(crate) fn one(self) -> u32 {
        if self.is_integer() { 1 } else { 1f32.to_bits() }
    }

    fn read(self, x: u32, bits: u32) -> u32 {
        let signed = ((x << (32 - bits)) as i32) >> (32 - bits);
        let max = |bits: u32| f64::from((1u64 << bits) as u32 - 1);
        match self.number {
            Number::Uint => x,
            Number::Sint => signed as u32,
            Number::Uscaled => (x as f32).to_bits(),
            Number::Sscaled => (signed as f32).to_bits(),
            Number::Unorm => ((f64::from(x) / max(bits)) as f32).to_bits(),
            Number::Snorm => ((f64::from(signed) / max(bits - 1)).max(-1.0) as f32).to_bits(),
            Number::Float if bits == 32 => x,
            Number::Float if bits == 16 => fp::f16_to_f32(x).to_bits(),
            // The short floats have f16's exponent and no sign.
            Number::Float => fp::f16_to_f32(x << (15 - bits)).to_bits(),
        }
    }

    /// The element made of `components`, integers or f32 bits.
    pub(crate) fn pack(self, components: [u32; 4]) -> u128 {
        (0..4).fold(0, |element, k| {
            let (shift, bits) = self.field(k);
            if bits == 0 {
                return element;
            }
            element | u128::from(self.write(components[k], bits)) << shift
        })
    }

    fn write(self, x: u32, bits: u32) -> u32 {
        let all = u32::MAX >> (32 - bits);
        let (least, most) = (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1);
        let v = f64::from(f32::from_bits(x));
        // A NaN converts to 0.
        let scale = |v: f64, low: f64, by: u32| {
            if v.is_nan() { 0 } else { (v.clamp(low, 1.0) * f64::from(by)).round_ties_even() as i64 }
        };
        match self.number {
            Number::Uint => x.min(all),
            Number::Sint => i64::from(x as i32).clamp(least, most) as u32 & all,
            Number::Uscaled => (v as i64).clamp(0, i64::from(all)) as u32,
            Number::Sscaled => (v as i64).clamp(least, most) as u32 & all,
            Number::Unorm => scale(v, 0.0, all) as u32,
            Number::Snorm => scale(v, -1.0, all >> 1) as u32 & all,
            Number::Float if bits == 32 => x,
            Number::Float if bits == 16 => fp::f32_to_f16(f32::from_bits(x)),
            Number::Float => short_float(x, bits),
        }
    }
}

/// The unsigned float of `bits` bits nearest to an f32; negative values become 0.
fn short_float(x: u32, bits: u32) -> u32 {
    let v = f32::from_bits(x);
    let mantissa = bits - 5;
    let infinity = 31 << mantissa;
    if v.is_nan() {
        return infinity | 1 << (mantissa - 1);
    }
    if v <= 0.0 {
        return 0;
    }
    // Spacing of the target around v: 2^(exponent - mantissa), not below that of its denormals.
    let exponent = ((x >> 23) as i32 - 127).max(-14);
    if exponent > 15 {
        return infinity;
    }
    let spacing = 2f64.powi(exponent - mantissa as i32);
    let steps = (f64::from(v) / spacing).round_ties_even() as u64;
    let field = (exponent + 14) as u64;
    let packed = (field << mantissa) + steps;
    packed.min(u64::from(infinity)) as u32
}
