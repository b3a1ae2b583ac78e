// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CRIU plugin that is only a trigger. Before `criu dump` freezes any process of a tree, the plugin has the processes
//! with an agent close their devices. At `criu restore` it tells them where their contents are now.
//!
//! INVARIANT: the plugin itself never dumps or restores any state of a device. It sends the same orders as `stasis
//! checkpoint`, so its images also restore without the plugin. It does nothing to a process that has no Stasis agent.
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
