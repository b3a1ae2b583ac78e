// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a process whose device cannot come back, and of which a complete checkpoint exists.
//!
//! Its threads wait at a gate that nobody will open. `exit` runs handlers and destructors, which may wait there too, so
//! the process ends without them (`_exit`).

use kfd::linux::exit_now;

use crate::checkpoint::{Rescue, last_line};

/// With which status it ends: `EX_TEMPFAIL` of sysexits.h, for trying again is what helps.
pub(super) const STATUS: i32 = 75;

/// Says so on standard error, in one line, and ends the process.
pub(super) fn end(rescue: &Rescue) -> ! {
    let pid = std::process::id();
    tracing::error!(target: "checkpoint", status = STATUS, %rescue, "a stranded process ends");
    last_line::say(
        std::io::stderr(),
        &format!("stasis: process {pid} ends with status {STATUS}: its render files are gone; {rescue}\n"),
    );
    // Every thread ends at once, and nothing of this process runs.
    exit_now(STATUS)
}
