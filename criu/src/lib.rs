// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs CRIU on processes with a runtime: dumps that commit together or not at all, restores that leave nothing behind.
//!
//! This crate watches every CRIU: its end, the end of the processes it works on, a deadline, and signals to the program
//! that uses this crate. A restore runs under a guard process, so that nothing half restored outlives that program; a dump that waits at
//! a gate has one beside it, so that the tasks go on at once if that program is killed.
//!
//! INVARIANT: a program that calls [`Criu::restore`] or [`Criu::dump`] answers the arguments `guard ORDER` with [`guard::run`]: the guard is
//! the same executable, started again.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod criu;
mod dump_guard;
pub mod guard;
mod interrupt;
mod order;
mod orphans;
mod release;
pub mod session;
mod watch;

pub use criu::{BeforeCommit, Criu, CriuError, Dump, DumpOptions};
pub use watch::Target;
