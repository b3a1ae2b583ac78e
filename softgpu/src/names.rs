// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of the device's memory, as `/proc` shows them.
//!
//! INVARIANT: in a process of the server's own every name begins with `softgpu`, by which clients know the memory that
//! they were given. A process that has a device of its own ([`crate::in_process`]) has the device's memory beside what
//! a client was given; there the names begin otherwise, since no name could tell the two apart.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

const OF_SERVERS: &str = "softgpu";
/// What names begin with in a process that has a device of its own.
pub(crate) const IN_PROCESS: &str = "own-gpu";

static IS_IN_PROCESS: AtomicBool = AtomicBool::new(false);

/// Names all memory from now on as that of a process that has a device of its own.
pub(crate) fn be_in_process() {
    // ORDERING: Relaxed, since whoever makes the first device has the names that its memory gets.
    IS_IN_PROCESS.store(true, Ordering::Relaxed);
}

/// What names begin with here.
pub(crate) fn prefix() -> &'static str {
    if IS_IN_PROCESS.load(Ordering::Relaxed) { IN_PROCESS } else { OF_SERVERS }
}

/// The name of memory here that is called `name` in a server.
pub(crate) fn of_memory(name: &str) -> Cow<'_, str> {
    match name.strip_prefix(OF_SERVERS) {
        Some(rest) if prefix() != OF_SERVERS => Cow::Owned(format!("{}{rest}", prefix())),
        _ => Cow::Borrowed(name),
    }
}
