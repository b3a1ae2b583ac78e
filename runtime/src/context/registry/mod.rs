// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every object handed out, under generational keys; what a checkpoint walks and a restore fills again.
//!
//! INVARIANT: an object exists in the driver only if it has an entry here, and the kernel-side fields of an entry
//! (`kernel`, `live`) are `Some` exactly while it does.

pub mod access;
pub mod arena;
mod entry;
mod key;
pub mod maps;
mod persist;
pub mod slots;
pub mod state;
pub mod svm;
mod tables;
pub mod tally;
#[cfg(test)]
mod tests;
mod wire;

pub use self::entry::{Bo, Event, Executable, Gem, KernelBo, Queue, Signal};
pub use self::key::{Key, Table, TableState};
pub use self::persist::Persist;
pub use self::tables::{Registry, RegistryError};
