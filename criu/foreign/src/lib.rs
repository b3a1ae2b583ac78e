// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices of programs under `stasis run`, for whoever has CRIU freeze and restore such programs: the `stasis` command, and
//! the plugin of a CRIU that somebody else runs.
//!
//! ```text
//!   run, broker       which processes have a device, and whose softgpud it is
//!   executors         orders to the process of softgpud that has the state of one client
//!   saving            states and memory into the directory of a checkpoint, while the tasks are frozen
//!   device            a softgpud for a restored tree, and the directory of its run
//!   restoring         states and memory into new executors, while the restored tasks are stopped
//!   relocation        the device of a tree that softgpud belongs to, into a softgpud outside of it
//! ```
//!
//! INVARIANT: a paused device resumes when the connection that paused it ends, so nothing here has to be undone by a caller
//! that fails: it drops its [`Executor`]s.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod broker;
mod contents;
mod description;
mod device;
mod error;
mod executors;
mod mapping;
mod processes;
mod relocation;
mod restoring;
mod run;
mod run_directory;
mod saving;
mod tasks;

pub use self::broker::Broker;
pub use self::description::{
    CONTENTS_FILE, Client, Description, Extent, FILE, Memory, Place, Programs, VERSION, is_saved_file,
};
pub use self::device::{start, start_joined};
pub use self::error::ForeignError;
pub use self::executors::{Executor, Paused};
pub use self::mapping::Mapping;
pub use self::processes::{Environment, Task, members, owner};
pub use self::relocation::Relocation;
pub use self::restoring::restore;
pub use self::run::Run;
pub use self::run_directory::{
    CHECKPOINTED_FILE, OpenRunDirectory, REPORT_FILE, RunDirectory, RunDirectoryError,
};
pub use self::saving::{Saved, Saving};
pub use self::tasks::gate_of;
