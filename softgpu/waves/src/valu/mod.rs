// SPDX-License-Identifier: MIT OR Apache-2.0
//! Vector ALU handlers, one module per family, all found through [`table_handler`].

mod cmp;
pub(crate) mod cross;
mod cvt;
#[cfg(test)]
mod differential;
mod div;
pub(crate) mod f32;
#[cfg(target_arch = "x86_64")]
mod fast;
pub(crate) mod fp;
pub(crate) mod half;
pub(crate) mod int;
mod interpolate;
mod masks;
pub(crate) mod nan;
pub(crate) mod packed;
mod sad;
pub(crate) mod shapes;
mod shapes64;
pub(crate) mod soft;
pub(crate) mod trans;
mod trig;
mod wide;
mod wmma;
#[cfg(target_arch = "x86_64")]
pub(crate) mod wmma_float;

use crate::level::Level;
use crate::step::{Handler, Step};
use softgpu_isa::Op;

/// The handler of a vector operation at `level`, for any operands.
pub(crate) fn table_handler(level: Level, op: Op) -> Option<Handler> {
    int::table(level, op)
        .or_else(|| f32::table(level, op))
        .or_else(|| cvt::table(level, op))
        .or_else(|| cmp::integers(level, op))
        .or_else(|| cmp::floats(level, op))
        .or_else(|| half::table(level, op))
        .or_else(|| packed::table(level, op))
        .or_else(|| wide::table(level, op))
        .or_else(|| cross::table(level, op))
        .or_else(|| interpolate::table(level, op))
        .or_else(|| wmma::table(level, op))
}

/// A handler for this step with its resolved operands, if there is a faster one than the general one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fast_handler(level: Level, halves: usize, op: Op, step: &Step) -> Option<Handler> {
    fast::pick(level, halves, op, step).or_else(|| wmma_float::pick(level, step))
}

/// Other architectures have no faster handlers.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn fast_handler(_: Level, _: usize, _: Op, _: &Step) -> Option<Handler> {
    None
}
