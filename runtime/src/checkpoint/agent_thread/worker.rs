// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that carries orders out, and decides alone when a checkpointed process goes on without one: at the end of
//! its lease, or because it finds itself in another incarnation.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kfd::linux::poll;
use nix::poll::{PollFd, PollFlags};
use stasis_protocol::lease::{Next, OnStranded, Watch, Why, decide};
use stasis_protocol::{State, Stopped};

use super::lease::{Lease, is_traced};
use super::shared::{Order, Outcome, Shared, Task, lower, raise};
use super::stranded;
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::machine::CheckpointMachine;
use crate::checkpoint::options::{CheckpointOptions, DEFAULT_DEADLINE, RestoreOptions};
use crate::checkpoint::pre_copy::{PreCopyOptions, PreCopyReport, pre_copy};
use crate::checkpoint::protocol::{CheckpointOrder, Done, PreCopyOrder};
use crate::checkpoint::report::{CheckpointReport, RestoreReport};
use crate::checkpoint::rescue::Rescue;
use crate::checkpoint::steps;
use crate::context::Context;
use crate::context::error::explain;
use crate::linux::incarnation::Incarnation;

/// How often the thread looks at lease and incarnation while the process is checkpointed.
const WATCH: Duration = Duration::from_millis(20);

pub(super) struct Worker {
    runtime: Weak<Context>,
    shared: Arc<Shared>,
    lease: Option<Lease>,
    incarnation: Incarnation,
    /// What the last order wants done if the device cannot come back.
    plan: Plan,
}

/// What is done if the device cannot come back in this life.
#[derive(Debug, Default)]
struct Plan {
    on_stranded: OnStranded,
    /// How long help is waited for before the process ends.
    after: Duration,
    directory: PathBuf,
}

impl Worker {
    pub fn new(runtime: Weak<Context>, shared: Arc<Shared>) -> io::Result<Self> {
        let incarnation = Incarnation::current()?;
        Ok(Self { runtime, shared, lease: None, incarnation, plan: Plan::default() })
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
            self.check_lease(&runtime);
        }
    }

    /// Waits for an order, or while there is a lease for the next look at it.
    fn wait(&self) {
        let limit = self.lease.as_ref().map(|_| WATCH);
        let mut fds = [PollFd::new(self.shared.ordered.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut fds, limit), Ok(n) if n > 0) {
            lower(&self.shared.ordered);
        }
    }

    fn serve(&mut self, runtime: &Arc<Context>, order: Order) {
        let Order { task, controller, abandoned } = order;
        let mut files = Vec::new();
        let done = match task {
            Task::Checkpoint(order) => {
                let controller = controller.filter(|_| !order.outlives_controller);
                let report = self.serve_checkpoint(runtime, &order, controller, &abandoned);
                if report.is_ok() && order.hold_files {
                    files = lend(runtime);
                }
                report.map(Done::Checkpointed)
            }
            Task::PreCopy(order) => serve_pre_copy(runtime, &order, &abandoned).map(Done::PreCopied),
            Task::Resume(options) => self.serve_resume(runtime, &options).map(Done::Running),
        };
        *self.shared.outcome.lock() = Some(Outcome { done: done.map_err(|error| explain(&error)), files });
        raise(&self.shared.finished);
    }

    fn serve_checkpoint(
        &mut self,
        runtime: &Arc<Context>,
        order: &CheckpointOrder,
        controller: Option<i32>,
        abandoned: &AtomicBool,
    ) -> Result<CheckpointReport, CheckpointError> {
        // A copy differs from the process that was checkpointed, which may itself be one.
        self.note_incarnation();
        self.plan = Plan {
            on_stranded: order.on_stranded,
            after: Duration::from_millis(order.stranded_ms),
            directory: order.directory.clone(),
        };
        match lock_and_write(runtime, order, abandoned) {
            Ok(report) => {
                self.lease = Some(Lease::new(Duration::from_millis(order.lease_ms), controller));
                Ok(report)
            }
            Err(Undone { error, is_shut }) => {
                if is_shut {
                    self.lease = Some(Lease::unfinished());
                }
                Err(*error)
            }
        }
    }

    fn serve_resume(
        &mut self,
        runtime: &Arc<Context>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport, CheckpointError> {
        let report = steps::resume(runtime, options);
        *self.shared.last_error.lock() = report.as_ref().err().map(|error| explain(error));
        if report.is_ok() {
            self.lease = None;
            self.note_incarnation();
        } else if let Some(lease) = &mut self.lease {
            match &report {
                Err(CheckpointError::Stranded(_)) => lease.strand(),
                _ => lease.rest(),
            }
        }
        report
    }

    fn note_incarnation(&mut self) {
        match Incarnation::current() {
            Ok(incarnation) => self.incarnation = incarnation,
            Err(error) => tracing::warn!(target: "checkpoint", %error, "the process cannot be identified"),
        }
    }

    /// Goes on by itself when nobody else will see to it.
    fn check_lease(&mut self, runtime: &Arc<Context>) {
        let Some(lease) = &self.lease else { return };
        match decide(&Look { runtime, lease, incarnation: &self.incarnation, plan: &self.plan }) {
            Next::Wait => {}
            Next::Forget => self.lease = None,
            Next::End => stranded::end(&Rescue::of(&self.plan.directory)),
            Next::GoOn(why) => {
                if why != Why::Copied {
                    tracing::warn!(target: "checkpoint", %why, "the lease is over, the process takes its device back");
                }
                if let Err(error) = self.serve_resume(runtime, &RestoreOptions::default()) {
                    tracing::error!(target: "checkpoint", error = explain(&error), "the device did not come back");
                }
            }
        }
    }
}

fn serve_pre_copy(
    runtime: &Arc<Context>,
    order: &PreCopyOrder,
    abandoned: &AtomicBool,
) -> Result<PreCopyReport, CheckpointError> {
    if abandoned.load(Ordering::Relaxed) {
        let stopped = Stopped::Cancelled { elapsed: Duration::ZERO };
        return Err(CheckpointError::Stopped { verb: "pre-copy", stopped });
    }
    let options = PreCopyOptions {
        deadline: Duration::from_millis(order.deadline_ms),
        rounds: order.rounds,
        parent: order.parent.clone(),
    };
    pre_copy(runtime, &order.directory, &options)
}

/// What a worker with a lease sees.
struct Look<'a> {
    runtime: &'a Context,
    lease: &'a Lease,
    incarnation: &'a Incarnation,
    plan: &'a Plan,
}

impl Watch for Look<'_> {
    fn state(&self) -> State {
        CheckpointMachine::of(self.runtime).state()
    }

    fn is_unfinished(&self) -> bool {
        self.lease.is_unfinished()
    }

    fn is_resting(&self) -> bool {
        self.lease.is_resting()
    }

    fn is_copied(&self) -> bool {
        Incarnation::current().is_ok_and(|now| now != *self.incarnation)
    }

    fn is_stranded(&self) -> bool {
        self.lease.stranded_for().is_some()
    }

    fn is_to_end(&self) -> bool {
        self.plan.on_stranded == OnStranded::Exit
            && self.lease.stranded_for().is_some_and(|since| since >= self.plan.after)
            && Rescue::of(&self.plan.directory).is_complete()
    }

    fn is_over(&self) -> Option<Why> {
        self.lease.is_over()
    }

    fn is_traced(&self) -> bool {
        is_traced()
    }
}

/// The files that the controller is to hold, too. Without them it depends on the keepers alone.
fn lend(runtime: &Context) -> Vec<OwnedFd> {
    CheckpointMachine::of(runtime).lend().unwrap_or_else(|error| {
        tracing::warn!(target: "checkpoint", %error, "the controller is not given the render files");
        Vec::new()
    })
}

/// A checkpoint was not made.
struct Undone {
    error: Box<CheckpointError>,
    /// The gate is closed because of it.
    is_shut: bool,
}

impl From<CheckpointError> for Undone {
    fn from(error: CheckpointError) -> Self {
        Self { error: Box::new(error), is_shut: false }
    }
}

fn lock_and_write(
    runtime: &Arc<Context>,
    order: &CheckpointOrder,
    abandoned: &AtomicBool,
) -> Result<CheckpointReport, Undone> {
    let lock = steps::lock(runtime, order.mode, Duration::from_millis(order.deadline_ms));
    let lock = lock.inspect_err(|error| {
        if let Some(session) = &order.session {
            session.abort(&explain(error));
        }
    })?;
    let options = CheckpointOptions {
        deadline: order.write_deadline_ms.map_or(DEFAULT_DEADLINE, Duration::from_millis),
        self_contained: order.self_contained,
        session: order.session.clone(),
        parent: order.parent.clone(),
    };
    let report = if abandoned.load(Ordering::Relaxed) {
        if let Some(session) = &order.session {
            session.abort("it was cancelled");
        }
        Err(CheckpointError::Stopped { verb: "checkpoint", stopped: Stopped::Cancelled { elapsed: lock } })
    } else {
        steps::write_and_close(runtime, &order.directory, &options)
    };
    match report {
        Ok(report) => Ok(CheckpointReport { lock_ms: lock.as_secs_f64() * 1e3, ..report }),
        Err(error) => {
            // From CHECKPOINTED the worker tries to come back, a while later.
            let is_shut = match CheckpointMachine::of(runtime).state() {
                State::Running => false,
                State::Locked => steps::unlock(runtime, DEFAULT_DEADLINE).is_err_and(|error| {
                    tracing::error!(target: "checkpoint", error = explain(&error), "a failed checkpoint left the gate shut");
                    !matches!(error, CheckpointError::State { .. })
                }),
                State::Checkpointed => matches!(error, CheckpointError::Stuck { .. }),
            };
            Err(Undone { error: Box::new(error), is_shut })
        }
    }
}
