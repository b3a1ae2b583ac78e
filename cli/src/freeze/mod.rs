// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis checkpoint` and `stasis restore`: process trees checkpointed and restored from outside.

mod args;
mod check;
mod checkpoint;
mod claim;
mod dumps;
mod fate;
mod orders;
mod outcome;
mod parent;
mod party;
mod pre_copy;
mod restore;
mod resume;

pub use self::args::{CheckpointArgs, CriuArgs, RestoreArgs, TermsArgs};
pub use self::check::all as check_files;
pub use self::checkpoint::{clear_failed, run as checkpoint};
pub use self::claim::wait_for_pid;
pub use self::fate::{Known, list, lives};
pub use self::outcome::directory_bytes;
pub use self::party::command_line;
pub use self::restore::run as restore;
pub use self::resume::resume;
