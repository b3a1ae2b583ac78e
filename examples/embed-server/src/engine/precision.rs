// SPDX-License-Identifier: MIT OR Apache-2.0
//! The precision that the model computes in.

/// The precision of the weights and of the products' operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Half precision into sums of single precision, by matrix instructions.
    F16,
    /// Single precision.
    F32,
}

impl Precision {
    /// Its name in kernels' names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Precision::F16 => "f16",
            Precision::F32 => "f32",
        }
    }
}
