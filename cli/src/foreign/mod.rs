// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that know nothing of checkpoints, frozen and thawed: the processes of a `stasis run`, whose device softgpud has.
//!
//! ```text
//!   checkpoint                                   restore
//!   executors pause                              softgpud starts, on the same socket
//!   criu dump: the tasks are frozen              criu restore: the tasks are there, stopped
//!   states, and memory that no task has          executors take states and the tasks' memory
//!   commit: the tasks and their device end       queues go on, the tasks go on
//! ```
//!
//! INVARIANT: the device is paused from before the first task is frozen until the checkpoint is committed or given up. If this
//! command ends in between, however it ends, the executors see that by their connections and resume, and CRIU's script finds
//! nobody who gives it the word to commit.

mod cancel;
mod checkpoint;
mod clients;
mod inspect;
mod left_out;
mod outcome;
mod restore;
mod saving;
mod status;
mod thaw;

pub use self::cancel::run as cancel;
pub use self::checkpoint::run as checkpoint;
pub use self::clients::{find, find_all};
pub use self::inspect::Devices;
pub use self::restore::{find as find_checkpoint, hide_directory, restored, run as restore};
pub use self::status::{run as status, survey};
