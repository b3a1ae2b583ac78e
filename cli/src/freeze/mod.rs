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
mod party;
mod progress;
mod restore;
mod resume;
mod together;

pub use self::args::{CheckpointArgs, RestoreArgs, TermsArgs};
pub use self::checkpoint::run as checkpoint;
pub use self::restore::run as restore;
pub use self::resume::resume;
