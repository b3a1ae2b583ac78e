// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver boundary: KFD's ABI, one typed wrapper per ioctl, the topology, and the transports that answer.
//!
//! Everything above this crate issues the real ioctl numbers with the real structs and the real mmap
//! cookies; only [`transport`] knows whether a kernel driver or the software device answers them.
//!
//! INVARIANT: unsafe code lives only in the modules that begin with `allow(unsafe_code)`: the ioctl table; the two
//! modules that issue ioctls; the system calls of [`linux`]; the transports' files, doorbells, mappings and copies of
//! memory; the start of softgpud; forks; and userfaultfd.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod blob;
pub mod errno;
pub mod forks;
pub mod ids;
pub mod ioctl;
pub mod linux;
pub mod maps;
pub mod meminfo;
pub mod sys;
pub mod topology;
pub mod transport;
pub mod userfault;
pub mod written;

pub use ids::{EventId, GemHandle, GpuId, MemoryHandle, NodeId, QueueId};
pub use ioctl::{IoctlError, Kfd, Render, VaAccess, VaRange, map_dmabuf};
pub use nix::errno::Errno;
pub use topology::{Topology, TopologyError};
pub use transport::{
    DeviceSpec, Doorbell, DoorbellSlice, File, OpenError, ProtFlags, Transport, open_default,
};
