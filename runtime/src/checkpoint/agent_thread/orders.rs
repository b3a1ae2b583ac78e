// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that carries orders out, and decides alone when a checkpointed process goes on without one: at the end of
//! its lease, or because it finds itself in another incarnation.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lease::{Lease, is_traced};
use super::{Order, Shared, Task, explain, lower, raise};
use crate::checkpoint::incarnation::Incarnation;
use crate::checkpoint::protocol::{CheckpointOrder, Done};
use crate::checkpoint::{
    CheckpointError, CheckpointOptions, CheckpointReport, RestoreOptions, RestoreReport, State,
};
use crate::limit::Stopped;
use crate::runtime::Inner;

/// How often the thread looks at lease and incarnation while the process is checkpointed.
const WATCH: Duration = Duration::from_millis(20);

pub(super) struct Worker {
    runtime: Weak<Inner>,
    shared: Arc<Shared>,
    lease: Option<Lease>,
    incarnation: Incarnation,
}

impl Worker {
    pub fn new(runtime: Weak<Inner>, shared: Arc<Shared>) -> io::Result<Self> {
        let incarnation = Incarnation::current()?;
        Ok(Self { runtime, shared, lease: None, incarnation })
    }

    pub fn run(mut self) {
        loop {
            self.wait();
            let order = self.shared.order.lock().take();
            if self.shared.ended.load(Ordering::Acquire) {
                return;
            }
            let Some(runtime) = self.runtime.upgrade() else { return };
            if let Some(order) = order {
                self.serve(&runtime, order);
            }
            self.look_after(&runtime);
        }
    }

    /// Waits for an order, or while there is a lease for the next look at it.
    fn wait(&self) {
        let limit = self.lease.as_ref().and_then(|_| Timespec::try_from(WATCH).ok());
        let mut fds = [PollFd::new(&self.shared.ordered, PollFlags::IN)];
        if matches!(poll(&mut fds, limit.as_ref()), Ok(n) if n > 0) {
            lower(&self.shared.ordered);
        }
    }

    fn serve(&mut self, runtime: &Arc<Inner>, order: Order) {
        let Order { task, controller, abandoned } = order;
        let done = match task {
            Task::Checkpoint(order) => checkpoint(runtime, &order, &abandoned).map(|report| {
                let controller = controller.filter(|_| !order.outlives_controller);
                // A copy differs from the process that was checkpointed, which may itself be one.
                self.know_itself();
                self.lease = Some(Lease::new(Duration::from_millis(order.lease_ms), controller));
                Done::Checkpointed(report)
            }),
            Task::Resume(options) => self.resume(runtime, &options).map(Done::Running),
        };
        *self.shared.outcome.lock() = Some(done.map_err(|error| explain(&error)));
        raise(&self.shared.finished);
    }

    fn resume(
        &mut self,
        runtime: &Arc<Inner>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport, CheckpointError> {
        let report = runtime.session().resume(runtime, options);
        *self.shared.last_error.lock() = report.as_ref().err().map(|error| explain(error));
        if report.is_ok() {
            self.lease = None;
            self.know_itself();
        }
        report
    }

    fn know_itself(&mut self) {
        match Incarnation::current() {
            Ok(incarnation) => self.incarnation = incarnation,
            Err(error) => tracing::warn!(target: "checkpoint", %error, "the process cannot be identified"),
        }
    }

    /// Goes on by itself when nobody else will see to it.
    fn look_after(&mut self, runtime: &Arc<Inner>) {
        let Some(lease) = &self.lease else { return };
        if runtime.session().state() != State::Checkpointed {
            self.lease = None;
            return;
        }
        if lease.is_resting() {
            return;
        }
        let copied = Incarnation::current().is_ok_and(|now| now != self.incarnation);
        if !copied {
            // The lease counts only while nobody is at work on this process.
            let Some(why) = lease.is_over().filter(|_| !is_traced()) else { return };
            tracing::warn!(target: "checkpoint", why, "the lease is over, the process takes its device back");
        }
        if let Err(error) = self.resume(runtime, &RestoreOptions::default()) {
            tracing::error!(target: "checkpoint", error = explain(&error), "the device did not come back");
            if let Some(lease) = &mut self.lease {
                lease.rest();
            }
        }
    }
}

fn checkpoint(
    runtime: &Arc<Inner>,
    order: &CheckpointOrder,
    abandoned: &AtomicBool,
) -> Result<CheckpointReport, CheckpointError> {
    let session = runtime.session();
    let lock = session.lock(runtime, order.mode, Duration::from_millis(order.deadline_ms))?;
    let options = CheckpointOptions {
        deadline: order.write_deadline_ms.map_or(Duration::MAX, Duration::from_millis),
        self_contained: order.self_contained,
    };
    let report = if abandoned.load(Ordering::Relaxed) {
        Err(CheckpointError::Stopped { verb: "checkpoint", stopped: Stopped::Cancelled { elapsed: lock } })
    } else {
        session.checkpoint(runtime, &order.directory, &options)
    };
    let report = report.map(|report| CheckpointReport { lock_ms: lock.as_secs_f64() * 1e3, ..report });
    report.inspect_err(|_| {
        if session.state() == State::Locked
            && let Err(error) = session.unlock(runtime)
        {
            tracing::error!(target: "checkpoint", error = explain(&error), "a failed checkpoint left the gate shut");
        }
    })
}
