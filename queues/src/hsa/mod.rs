// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures that host, firmware and kernels share byte for byte.
//!
//! INVARIANT: sizes and offsets are those of `amd_hsa_signal.h`, `amd_hsa_queue.h` and
//! `amd_hsa_kernel_code.h`, asserted at compile time beside each structure. Every field is a plain integer
//! and there is no padding, so that each is [`bytemuck::Pod`] and any bytes are a valid value.

mod descriptor;
mod layout;
mod queue;
mod signal;
#[cfg(test)]
mod tests;
mod user_sgprs;

pub use descriptor::{DescriptorError, KernelDescriptor};
pub use queue::{AmdQueue, queue_properties};
pub use signal::{AmdSignal, signal_kind};
pub use user_sgprs::UserSgprs;
