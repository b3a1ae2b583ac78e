// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields of the MODE register that change the code generated for floating-point operations.
//!
//! INVARIANT: [`Floats::numbered`] is the inverse of [`Floats::number`].

use crate::wave::mode;

/// Those fields of MODE.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floats {
    /// f32 rounds to nearest even and keeps denormals.
    pub f32_default: bool,
    /// f16 and f64 round to nearest even and keep denormals.
    pub f16_64_default: bool,
    /// Signalling NaNs are quieted.
    pub ieee: bool,
}

impl Floats {
    pub(super) fn of(mode: u32) -> Floats {
        Floats {
            f32_default: mode & mode::F32_MASK == mode::F32_DEFAULT,
            f16_64_default: mode & mode::F16_64_MASK == mode::F16_64_DEFAULT,
            ieee: mode & mode::IEEE != 0,
        }
    }

    /// As three bits.
    pub(super) fn number(self) -> u8 {
        u8::from(self.f32_default) | u8::from(self.f16_64_default) << 1 | u8::from(self.ieee) << 2
    }

    /// The inverse of [`Floats::number`].
    pub(super) fn numbered(bits: u8) -> Floats {
        Floats { f32_default: bits & 1 != 0, f16_64_default: bits & 2 != 0, ieee: bits & 4 != 0 }
    }
}
