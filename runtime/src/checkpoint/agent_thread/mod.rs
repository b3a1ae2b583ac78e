// SPDX-License-Identifier: MIT OR Apache-2.0
//! The in-process agent: two threads that take orders from outside, keep the lease, and notice that they woke up in a
//! restored copy.
//!
//! The *desk* ([`desk`]) speaks with controllers and answers whatever needs no waiting; orders go to the *worker*
//! ([`orders`]), one at a time. So the state can be asked for, and an order cancelled, while another one is at work.
//!
//! The connection of the order at work stays with the desk, which closes it with the answer: whoever has the answer knows
//! that no half of a connection is left for CRIU to stumble over.
//!
//! Both wait in `poll` with relative time-outs, never on a futex with a deadline: a copy restored without a time
//! namespace may find its clock set back by days.

mod desk;
mod lease;
mod orders;
mod stranded;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use self::desk::Desk;
use self::orders::Worker;
use super::RestoreOptions;
use super::inbox::Inbox;
use super::protocol::{CheckpointOrder, Done};
use crate::context::Context;

/// Starts the threads for a runtime; they end when the runtime is dropped.
pub(crate) fn start(runtime: &Arc<Context>) -> io::Result<()> {
    let inbox = Inbox::make()?;
    let shared = Arc::new(Shared::new()?);
    let worker = Worker::new(Arc::downgrade(runtime), Arc::clone(&shared))?;
    let desk = Desk::new(Arc::downgrade(runtime), inbox, Arc::clone(&shared));
    std::thread::Builder::new().name("stasis-agent".into()).spawn(move || desk.run())?;
    let spawned = std::thread::Builder::new().name("stasis-orders".into()).spawn(move || worker.run());
    spawned.map(drop).inspect_err(|_| shared.end())
}

/// What takes time.
#[derive(Debug)]
enum Task {
    Checkpoint(CheckpointOrder),
    Resume(RestoreOptions),
}

/// An order on its way from the desk to the worker.
#[derive(Debug)]
struct Order {
    task: Task,
    /// Its pid, if it is to be seen from here.
    controller: Option<i32>,
    /// Its controller has gone, or it was cancelled.
    abandoned: Arc<AtomicBool>,
}

/// What became of an order.
#[derive(Debug)]
struct Outcome {
    done: Result<Done, String>,
    /// For the controller to hold; closed here with the answer.
    files: Vec<OwnedFd>,
}

/// What desk and worker have in common.
#[derive(Debug)]
struct Shared {
    /// The next order, until the worker takes it.
    order: Mutex<Option<Order>>,
    /// Readable when there is an order, or at the end.
    ordered: OwnedFd,
    /// What became of the order, until the desk takes it.
    outcome: Mutex<Option<Outcome>>,
    /// Readable when there is an outcome.
    finished: OwnedFd,
    last_error: Mutex<Option<String>>,
    ended: AtomicBool,
}

impl Shared {
    fn new() -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            order: Mutex::default(),
            ordered: event()?,
            outcome: Mutex::default(),
            finished: event()?,
            last_error: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        raise(&self.ordered);
    }
}

/// Makes an eventfd readable.
fn raise(event: &OwnedFd) {
    // It fails only at 2^64 - 2 unread calls, when it is readable in any case.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
fn lower(event: &OwnedFd) {
    // It fails only if it is so already.
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}
