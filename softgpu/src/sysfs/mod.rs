// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology that `/sys/class/kfd/kfd/topology` would show for the machine: CPU node 0, then the GPUs.
//!
//! INVARIANT: counts and directories agree, and the GPUs' `cwsr_size` and `ctl_stack_size` are what
//! [`queues::cwsr`] computes, as the kernel computes them for its own sysfs.

mod caches;
mod gpu_id;
mod host;
mod links;
mod model;
mod tree;

pub use host::Host;
pub use model::{GpuModel, MAX_SPEC_GPUS, SpecError, canonical_spec};
pub use tree::SysfsTree;
