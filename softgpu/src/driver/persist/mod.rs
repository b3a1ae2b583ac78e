// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pauses a process, saves it, and restores it in another process: the whole state of the driver, as no client can tell
//! from the inside.
//!
//! ```text
//! pause -> save -> resume        restore (on hardware of the same memory) -> resume
//! ```
//!
//! CRIU_OP, which clients use, is another thing: it imitates KFD, which forgets ages of events, handles of render nodes
//! and what was mapped with them.
//!
//! INVARIANT: while a process is paused none of its queues is on the hardware, no work of interrupts is in progress and no
//! wait is entered, so that nothing but ioctls changes its state.

mod known;
mod pause;
mod restore;
mod save;
mod state;
mod waves;

pub use state::ProcessState;
