// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CRIU plugin by which a plain `criu dump` takes the devices of a process tree along.
//!
//! To processes with an agent it is only a trigger: before any process of a tree is frozen, it has them close their devices, and at
//! `criu restore` it tells them where their contents are now. The devices of programs under `stasis run`, which have no agent, it
//! pauses, saves and restores itself (`foreign`).
//!
//! INVARIANT: of a process with an agent the plugin never dumps or restores any state of a device. It sends the same orders as
//! `stasis checkpoint`, so its images also restore without the plugin. It does nothing to a process that has neither an agent nor a
//! device of a `stasis run`.
//!
//! ```text
//! criu dump                                       processes with an agent (all running)
//!   init            looks whether there are any
//!   PAUSE, first    walks the tree, orders a     lock, write stasis-PID/, close the device
//!                   checkpoint of each at once   (together, in parallel)
//!                   moves keepers out, ends a    (of a container: what process 1 inherited)
//!                   software device inside
//!   PAUSE, later    nothing                      ancestors are frozen by now
//!   CHECKPOINT      looks for device files       (all are frozen)
//!   exit            nothing
//!   criu's end      orders those that run to     take the device back (by themselves if criu
//!                   resume, waits for them       was killed)
//! criu restore
//!   init            checks that contents are there
//!   RESUME_LATE     leaves an order              find it, or their contents where they wrote them
//! ```

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod abi;
mod agent;
mod dump;
mod foreign;
mod guard;
mod host;
mod images;
mod inside;
mod marker;
mod network;
mod process;
mod restore;
mod session;
mod settings;
mod sys;
mod tree;

pub use self::abi::{CR_PLUGIN_DESC, PluginDescriptor};
