// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology that `/sys/class/kfd/kfd/topology` would show for the machine: the CPU nodes, then the GPUs; and beside it
//! the other files of `/sys`, `/dev` and `/proc` by which programs find the GPUs (`system`).
//!
//! INVARIANT: counts and directories agree, and the GPUs' `cwsr_size` and `ctl_stack_size` are what
//! [`queues::cwsr`] computes, as the kernel computes them for its own sysfs.

mod caches;
mod chips;
mod description;
mod device_info;
mod gpu_id;
mod host;
mod links;
mod machine;
mod machine_error;
mod model;
mod spec;
mod system;
mod tree;
mod values;

pub use device_info::EngineVersion;
pub use host::Host;
pub use machine::Machine;
pub use machine_error::MachineError;
pub use model::GpuModel;
pub use spec::{MAX_SPEC_GPUS, SpecError, canonical_spec};
pub use system::{SystemOptions, SystemTree, WriteTreeError};
pub use tree::SysfsTree;
