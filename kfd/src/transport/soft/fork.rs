// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fork of a process that has lent pages. They are shared memory then, and a child would share those with its parent that
//! were private before.
//!
//! ```text
//!   forking thread              child
//!   lock the loans
//!   fork ─────────────────────► make private what was private, with the bytes of now
//!   wait                        │
//!    ◄────── a byte, or the end ┘
//!   unlock
//! ```
//!
//! INVARIANT: from the beginning of a fork until the child has its own pages, the forking thread stores to none of them, and no
//! thread lends pages or takes any back. Other threads' stores meanwhile may or may not be in the child, as those of a
//! device may.

use std::fmt;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::ops::Range;

use nix::errno::Errno;
use parking_lot::{ArcMutexGuard, RawMutex};

use super::userptr::{Lent, on_another_stack};

/// More stack than `fork` and what handles it need.
const OWN_FRAMES_BYTES: usize = 64 << 10;

/// A fork under way: to be ended once in the parent, and once in the child.
pub struct Fork {
    lent: ArcMutexGuard<RawMutex, Lent>,
    /// None if there is nothing to wait for, or no descriptor is left: then parent and child go on at once.
    done: Option<(PipeReader, PipeWriter)>,
}

impl fmt::Debug for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fork").field("lent", &*self.lent).field("done", &self.done).finish()
    }
}

impl Fork {
    pub(super) fn new(lent: ArcMutexGuard<RawMutex, Lent>) -> Self {
        let done = if lent.has_private() { std::io::pipe().ok() } else { None };
        Self { lent, done }
    }

    /// In the parent, or where no child was made: waits until the child has its own pages, or has ended.
    pub fn end_in_parent(self) {
        if let Some((mut reader, writer)) = self.done {
            drop(writer);
            // A byte, the end of the child, and a signal that ends the wait early are the same here.
            while reader.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {}
        }
    }

    /// In the child: makes the pages its own that were private before they were lent.
    ///
    /// # Errors
    /// The errno of a failing call; the child shares some pages with its parent then.
    pub fn end_in_child(mut self) -> Result<(), Errno> {
        let outcome = self.lent.leave_to_parent();
        if let Some((_, mut writer)) = self.done.take() {
            // Without a parent nobody waits.
            let _ = writer.write(&[0]);
        }
        // Threads that wait for the lock are the parent's; there is nobody here to unlock it for.
        std::mem::forget(self);
        outcome
    }
}

/// Does `call`, which forks, on another stack if this thread's may be lent: parent and child return from `fork` on the same
/// pages otherwise.
///
/// # Errors
/// The errno of making a stack.
pub(super) fn on_own_stack<R>(
    is_lent: impl Fn(&Range<usize>) -> bool,
    call: impl FnOnce() -> R,
) -> Result<R, Errno> {
    let here = 0_u8;
    let here = std::ptr::from_ref(&here).addr();
    if is_lent(&(here.saturating_sub(OWN_FRAMES_BYTES)..here.saturating_add(OWN_FRAMES_BYTES))) {
        on_another_stack(call)
    } else {
        Ok(call())
    }
}
