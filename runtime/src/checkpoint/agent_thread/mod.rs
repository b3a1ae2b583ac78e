// SPDX-License-Identifier: MIT OR Apache-2.0
//! The in-process agent: two threads that take orders from outside, keep the lease, and notice that they woke up in a
//! restored copy.
//!
//! The *listener* ([`listener`]) speaks with controllers and answers whatever needs no waiting; orders go to the
//! *worker* ([`worker`]), one at a time. So the state can be asked for, and an order cancelled, while another one is at
//! work.
//!
//! The connection of the order at work stays with the listener, which closes it with the answer: whoever has the answer
//! knows that no half of a connection is left for CRIU to stumble over.
//!
//! Both wait in `poll` with relative time-outs, never on a futex with a deadline: a copy restored without a time
//! namespace may find its clock set back by days.

mod lease;
mod listener;
mod shared;
mod sharing;
mod stranded;
mod worker;

use std::io;
use std::sync::Arc;

use self::listener::Listener;
use self::shared::Shared;
use self::worker::Worker;
use super::inbox::Inbox;
use crate::context::Context;

/// Starts the threads for a runtime; they end when the runtime is dropped.
pub(crate) fn start(runtime: &Arc<Context>) -> io::Result<()> {
    let inbox = Inbox::make()?;
    let shared = Arc::new(Shared::new()?);
    let worker = Worker::new(Arc::downgrade(runtime), Arc::clone(&shared))?;
    let listener = Listener::new(Arc::downgrade(runtime), inbox, Arc::clone(&shared));
    std::thread::Builder::new().name("stasis-agent".into()).spawn(move || listener.run())?;
    let spawned = std::thread::Builder::new().name("stasis-orders".into()).spawn(move || worker.run());
    spawned.map(drop).inspect_err(|_| shared.end())
}
