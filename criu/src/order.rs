// SPDX-License-Identifier: MIT OR Apache-2.0
//! What guards are told, as the argument of `stasis guard`.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stasis::checkpoint::Process;

/// What a guard is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ordered {
    /// To restore.
    Restore(Order),
    /// To end CRIUs that dump when the command has ended.
    Dumps(Dumps),
}

/// What CRIU restores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// CRIU.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it looks for plugins.
    pub plugins: OsString,
    /// Roots and runtimes that it restores.
    pub targets: Vec<i32>,
    /// How long it may take.
    pub limit: Duration,
    /// Whether CRIU runs in a process group of its own, where no signal of the terminal reaches it. A job of a shell
    /// must stay in the group of the command.
    pub has_group: bool,
}

/// The CRIUs that a guard ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Dumps {
    pub criu: Vec<Process>,
}
