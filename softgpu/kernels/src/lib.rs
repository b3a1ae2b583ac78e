// SPDX-License-Identifier: MIT OR Apache-2.0
//! A catalogue of compute kernels, each written once in C and compiled for gfx1100 and for the host CPU, with the
//! problems to run them on and the two engines that run them.
//!
//! Its [`Device`] is how everything that has no driver and no queue loads and launches kernels on the wave engine: the
//! catalogue's tests, the wave engine's own and the benchmarks of single kernels.
//!
//! INVARIANT: a [`Case`] says nothing about where it runs. An [`Engine`] takes a [`Problem`] and returns what its buffers
//! hold afterwards; [`Problem::compare`] judges one engine's results by another's.
//!
//! ```text
//! kernels/*.c ─┬─ clang gfx1100 ─ gpu-{32,64}.so ── Device (softgpu-waves) ─┐
//!              └─ clang host ──── host-{32,64}.so ─ Host (coroutines) ──────┴─ Problem::compare
//! ```
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod arguments;
mod array;
mod catalogue;
mod code;
mod device;
mod dispatch;
mod host;
mod memory;
mod problem;
mod random;

pub use arguments::Arguments;
pub use array::{Array, values_of};
pub use catalogue::{Case, case, cases, gemm};
pub use code::CodeError;
pub use device::{Device, DeviceError};
pub use dispatch::{Assembly, Dispatch, Launched, Shape};
pub use host::{Host, HostError};
pub use memory::{Allocation, OutOfMemory};
pub use problem::{Argument, Buffer, Check, Mismatch, Problem};
pub use random::Random;

/// Lanes of the waves that a build of the kernels is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaveSize {
    /// 32 lanes, what gfx1100 compilers choose.
    W32,
    /// 64 lanes.
    W64,
}

impl WaveSize {
    /// The number.
    pub fn lanes(self) -> u16 {
        match self {
            WaveSize::W32 => 32,
            WaveSize::W64 => 64,
        }
    }
}

/// Something that runs the catalogue's kernels.
pub trait Engine {
    /// How a run fails.
    type Error: std::error::Error;

    /// Runs `problem` on copies of its buffers and returns what they hold at the end, in the order of its arguments.
    ///
    /// # Errors
    /// The engine's own.
    fn run(&self, problem: &Problem) -> Result<Vec<Vec<u8>>, Self::Error>;
}
