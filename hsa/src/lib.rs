// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C ABI of AMD's HSA runtime (`hsa.h`, `hsa_ext_amd.h` and what belongs to them) over the crate `stasis`.
//!
//! `cargo xtask hsa` makes `libhsa-runtime64.so.1` of it, which programs load in place of AMD's: HIP programs, rocminfo, whatever
//! was written against the headers. Such a program can be checkpointed as one that uses the crate itself (`docs/hsa.md`).
//!
//! ```text
//! abi, handles               declarations, arguments, statuses; numbers that name objects
//! instance                   what hsa_init starts: the runtime and the tables below
//! agents, isas, pools, ..    a folder or file a group of functions
//! ```
//!
//! INVARIANT: nothing of the state is an address of the driver's or of the hardware's: what a program was given (handles, queues,
//! signals, memory) is the same after a restore.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(unsafe_code)]

mod abi;
mod agents;
#[cfg(feature = "calls")]
pub mod calls;
mod code;
mod events;
mod handles;
mod images;
mod instance;
mod ipc;
mod isas;
mod memory;
mod pools;
mod profiling;
mod queues;
mod signals;
mod system;
