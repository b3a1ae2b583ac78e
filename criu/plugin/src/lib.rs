// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CRIU plugin that is only a trigger: it has the processes of ours in a tree let go of their device before
//! `criu dump` freezes any of them, and tells them at `criu restore` where their contents are now.
//!
//! INVARIANT: it never dumps or restores anything of a device itself. What it asks for is what `stasis checkpoint` asks
//! for, so its images restore without it, too; and to a process that has no Stasis agent it does nothing at all.
//!
//! ```text
//! criu dump                                       our processes (all running)
//!   init            sees whether any are about
//!   PAUSE, first    walks the tree, orders a     lock, write stasis-PID/, close the device
//!                   checkpoint of each at once   (together, in parallel)
//!                   moves keepers out, ends a    (of a container: what process 1 inherited)
//!                   software device inside
//!   PAUSE, later    nothing                      ancestors are frozen by now
//!   CHECKPOINT      looks for device files       all frozen
//!   exit            nothing
//!   criu's end      orders those let go to       take the device back (by themselves if criu
//!                   resume, waits for them       was killed)
//! criu restore
//!   init            checks that contents are there
//!   RESUME_LATE     leaves an order              find it, or their contents where they wrote them
//! ```

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod abi;
mod agent;
mod dump;
mod guard;
mod host;
mod images;
mod inside;
mod marker;
mod process;
mod restore;
mod session;
mod settings;
mod sys;
mod tree;

pub use self::abi::{CR_PLUGIN_DESC, PluginDescriptor};
