// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers in front of the runtime that keep packets until they give them to queues.

use std::fmt;

use stasis_protocol::Limit;

/// What gives packets of a program to queues, where the program does not do so by itself.
///
/// A packet may wait for what a thread of the program does when it hears of another packet's end: functions of the host in a stream are
/// made so. While the gate is closed no thread hears of anything, and such a packet would wait until the lock gives up. So a lock that
/// drains has this settle before it closes the gate.
pub trait Submitter: fmt::Debug + Send + Sync {
    /// Gives queues what the program has submitted so far, and no more from then on, and waits until they have completed it; all calls
    /// are let through meanwhile. If it gives up at the limit the lock goes on, and fails for the queue that still runs.
    fn settle(&self, limit: &Limit);

    /// Gives queues packets again: the process runs. Also called when nothing was settled.
    fn go_on(&self);
}
