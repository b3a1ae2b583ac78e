// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the checks of a preflight look at.

use std::collections::HashSet;

use super::dump_flags::DumpFlags;
use super::privileges::Own;
use super::run_device::Executors;
use super::tree::Process;

/// What the judges look at.
pub struct Scene<'a> {
    /// The root first.
    pub tree: &'a [Process],
    pub flags: &'a DumpFlags,
    pub own: &'a Own,
    /// Processes of other trees that are checkpointed at the same time.
    pub session: &'a HashSet<i32>,
    /// If it is a tree of a `stasis run`: the device of that.
    pub executors: Option<&'a Executors>,
}

impl Scene<'_> {
    pub fn root(&self) -> &Process {
        // PANIC: `tree::read` gives the root or an error.
        &self.tree[0]
    }

    /// Whether CRIU will be given --shell-job: by our user, or by `stasis checkpoint` for a process with a terminal.
    pub fn shell_job(&self) -> bool {
        self.flags.shell_job || self.root().stat.terminal != 0
    }
}
