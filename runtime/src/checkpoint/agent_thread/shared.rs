// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the listener and the worker have in common.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::checkpoint::options::RestoreOptions;
use crate::checkpoint::protocol::{CheckpointOrder, Done, PreCopyOrder};

/// What takes time.
#[derive(Debug)]
pub(super) enum Task {
    Checkpoint(CheckpointOrder),
    PreCopy(PreCopyOrder),
    Resume(RestoreOptions),
}

/// An order on its way from the listener to the worker.
#[derive(Debug)]
pub(super) struct Order {
    pub task: Task,
    /// Its pid, if it is to be seen from here.
    pub controller: Option<i32>,
    /// Its controller has gone, or it was cancelled.
    pub abandoned: Arc<AtomicBool>,
}

/// What became of an order.
#[derive(Debug)]
pub(super) struct Outcome {
    pub done: Result<Done, String>,
    /// For the controller to hold; closed here with the answer.
    pub files: Vec<OwnedFd>,
}

/// What listener and worker have in common.
#[derive(Debug)]
pub(super) struct Shared {
    /// The next order, until the worker takes it.
    pub order: Mutex<Option<Order>>,
    /// Readable when there is an order, or at the end.
    pub ordered: OwnedFd,
    /// What became of the order, until the listener takes it.
    pub outcome: Mutex<Option<Outcome>>,
    /// Readable when there is an outcome.
    pub finished: OwnedFd,
    pub last_error: Mutex<Option<String>>,
    pub ended: AtomicBool,
}

impl Shared {
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = || EventFd::from_flags(flags).map(OwnedFd::from);
        Ok(Self {
            order: Mutex::default(),
            ordered: event()?,
            outcome: Mutex::default(),
            finished: event()?,
            last_error: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        raise(&self.ordered);
    }
}

/// Makes an eventfd readable.
pub(super) fn raise(event: &OwnedFd) {
    // It fails only at 2^64 - 2 unread calls, when it is readable in any case.
    let _ = nix::unistd::write(event, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub(super) fn lower(event: &OwnedFd) {
    // It fails only if it is so already.
    let _ = nix::unistd::read(event, &mut [0u8; 8]);
}
