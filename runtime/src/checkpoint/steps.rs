// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each step of a verb does to this context's device, and the verbs themselves.
//!
//! INVARIANT: the state machine of `stasis-protocol` decides what may happen when.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kfd::transport::CallLimit;
use stasis_protocol::gate::{Closed, Gate};
use stasis_protocol::{Failed, LONGEST_VERB, Limit, Mode, Steps, Stopped, Taken};

use super::error::{CheckpointError, is_stall, system};
use super::machine::CheckpointMachine;
use super::options::{CheckpointOptions, DEFAULT_DEADLINE, RestoreOptions, SaveOptions};
use super::report::{CheckpointReport, RestoreReport};
use super::restore::check_window;
use super::snapshot::Snapshot;
use super::tear_down::{Destination, Down, tear_down};
use super::writing::write_labelled;
use super::{drain, lazy, preempt, restore as restoring, waiting};
use crate::context::Context;
use crate::context::memory::guard;
use crate::image::ImageError;

/// A runtime as the state machine sees it.
struct Driver<'a>(&'a Arc<Context>);

impl Driver<'_> {
    /// Waits until the queues have nothing that runs.
    fn drain(&self, closed: &Closed, limit: &Limit) -> Result<(), Box<CheckpointError>> {
        let context = self.0;
        let queues = drain::queues(&context.registry.lock());
        drain::drain(context, &queues, closed, limit)
            .map_err(|undrained| Box::new(undrained.explain(&context.registry.lock())))
    }
}

impl<'a> Steps for Driver<'a> {
    type Snapshot = Box<Snapshot>;
    type Destination = Destination<'a>;
    type Source = RestoreOptions;
    type Saved = CheckpointReport;
    type Restored = RestoreReport;
    type Error = Box<CheckpointError>;

    fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }

    fn prepare(&self, mode: Mode, limit: &Limit) {
        if let (Mode::Drain, Some(submitter)) = (mode, self.0.submitter.get()) {
            submitter.settle(limit);
        }
    }

    fn go_on(&self) {
        if let Some(submitter) = self.0.submitter.get() {
            submitter.go_on();
        }
    }

    fn stop(&self, closed: &Closed, mode: Mode, limit: &Limit) -> Result<(), Self::Error> {
        let context = self.0;
        let _own = guard::own();
        match mode {
            Mode::Drain => self.drain(closed, limit)?,
            Mode::Preempt => preempt::suspend_queues(context, closed, limit)
                .map_err(|error| Box::new(late(error, "lock", limit)))?,
        }
        let held = context.guard.hold(&context.registry.lock());
        held.map_err(|errno| {
            // Whatever is left of the lock's time.
            if let Err(error) = let_run(context, closed, &Limit::none()) {
                tracing::error!(target: "checkpoint", %error, "a queue stays off the hardware");
            }
            Box::new(system("hold back who has pointers to device memory")(errno.into()))
        })
    }

    fn resume_queues(&self, closed: &Closed, _mode: Mode, limit: &Limit) -> Result<(), Self::Error> {
        let stalled = |error| CheckpointError::Stalled { verb: "unlock", source: Box::new(error) };
        let resumed = let_run(self.0, closed, limit)
            .map_err(|error| if is_stall(&error) { stalled(error) } else { error })
            .and_then(|()| {
                let released = self.0.guard.release(&self.0.registry.lock());
                let act = "let who has pointers to device memory go on";
                released.map_err(|errno| system(act)(errno.into()))
            });
        // Queues may run, and the state is still LOCKED.
        CheckpointMachine::of(self.0).set_undrained(resumed.is_err());
        resumed.map_err(Box::new)
    }

    fn tear_down(
        &self,
        closed: &mut Closed,
        mode: Mode,
        into: &Destination<'a>,
        limit: &Limit,
    ) -> Taken<Self> {
        let _own = guard::own();
        let machine = CheckpointMachine::of(self.0);
        if mode == Mode::Drain && machine.is_undrained() {
            self.drain(closed, limit).map_err(Down::untouched)?;
            machine.set_undrained(false);
        }
        let mut report = CheckpointReport::default();
        match tear_down(self.0, closed, mode, into, limit, &mut report) {
            Ok(snapshot) => Ok((Box::new(snapshot), report)),
            Err(error) => Err(error.map_untouched(|error| Box::new(late(*error, "checkpoint", limit)))),
        }
    }

    fn undo(&self, closed: &mut Closed, snapshot: &mut Self::Snapshot) -> Result<(), Self::Error> {
        let _own = guard::own();
        restoring::restore(self.0, closed, snapshot, &RestoreOptions::default(), &Limit::none())
            .map(drop)
            .map_err(Box::new)
    }

    fn rebuild(
        &self,
        closed: &mut Closed,
        snapshot: &mut Self::Snapshot,
        from: &RestoreOptions,
        limit: &Limit,
    ) -> Result<RestoreReport, Self::Error> {
        let _own = guard::own();
        check_window(self.0)
            .and_then(|()| restoring::restore(self.0, closed, snapshot, from, limit))
            .map_err(|error| Box::new(late(error, "restore", limit)))
    }
}

/// Puts the queues back on the hardware that were stopped, with all their packets. After a failure some may run: the next checkpoint drains
/// again.
fn let_run(context: &Context, closed: &Closed, limit: &Limit) -> Result<(), CheckpointError> {
    let pass = closed.pass();
    let Some(on) = context.device(&pass) else { return Ok(()) };
    CallLimit::until(limit.deadline(LONGEST_VERB)).hold(|| {
        let resumed = preempt::resume_queues(&mut context.registry.lock(), on);
        let back = waiting::put_back(context, &pass, limit);
        resumed.and(back)
    })
}

/// What a verb fails with that gave up waiting for the device: whoever cancelled it, or the device that stands still.
fn late(error: CheckpointError, verb: &'static str, limit: &Limit) -> CheckpointError {
    if !is_stall(&error) {
        return error;
    }
    match limit.check() {
        Err(stopped @ Stopped::Cancelled { .. }) => CheckpointError::Stopped { verb, stopped },
        _ => CheckpointError::Stalled { verb, source: Box::new(error) },
    }
}

/// RUNNING → LOCKED: closes the gate and stops the queues.
pub fn lock(context: &Arc<Context>, mode: Mode, within: Duration) -> Result<Duration, CheckpointError> {
    bring_the_rest(context)?;
    Ok(CheckpointMachine::of(context).machine.lock(&Driver(context), mode, within)?)
}

/// RUNNING, and stays so: has what a restore has left for later be here before the process is stopped. It takes time of its own, not that
/// of the lock.
fn bring_the_rest(context: &Arc<Context>) -> Result<(), CheckpointError> {
    let machine = CheckpointMachine::of(context);
    if !context.arriving.is_active() {
        return Ok(());
    }
    let brought = machine.machine.while_running("lock", DEFAULT_DEADLINE, |limit| {
        let pass = context.gate.enter().map_err(CheckpointError::from)?;
        lazy::bring_rest(context, &pass, "lock", limit).map_err(Box::new)
    });
    Ok(brought?)
}

/// LOCKED → RUNNING.
pub fn unlock(context: &Arc<Context>, within: Duration) -> Result<(), CheckpointError> {
    Ok(CheckpointMachine::of(context).machine.unlock(&Driver(context), within)?)
}

/// LOCKED → CHECKPOINTED: writes the image into `directory`, takes everything down, closes the device, audits.
pub fn write_and_close(
    context: &Arc<Context>,
    directory: &Path,
    options: &CheckpointOptions,
) -> Result<CheckpointReport, CheckpointError> {
    Ok(CheckpointMachine::of(context).machine.checkpoint(
        &Driver(context),
        &Destination {
            directory,
            self_contained: options.self_contained,
            session: options.session.as_ref(),
            parent: options.parent.as_deref(),
        },
        options.deadline,
    )?)
}

/// RUNNING, and so again: writes an image of the labelled buffers into `directory` while the queues are stopped.
pub fn save(
    context: &Arc<Context>,
    directory: &Path,
    options: &SaveOptions,
) -> Result<CheckpointReport, CheckpointError> {
    bring_the_rest(context)?;
    let (machine, driver) = (&CheckpointMachine::of(context).machine, Driver(context));
    let (lock_within, within) = (options.lock_deadline, options.deadline);
    Ok(machine.while_stopped(&driver, "save", lock_within, within, |closed, limit| {
        let _own = guard::own();
        let written = write_labelled(context, closed, directory, options, limit);
        written.map_err(|error| Box::new(late(error, "save", limit)))
    })?)
}

/// CHECKPOINTED → LOCKED: opens the device, admits its agents, makes everything again and fills it.
pub fn restore(context: &Arc<Context>, options: &RestoreOptions) -> Result<RestoreReport, CheckpointError> {
    Ok(CheckpointMachine::of(context).machine.restore(&Driver(context), options, options.deadline)?)
}

/// Whatever the state → RUNNING; says what the last restore moved.
pub fn resume(context: &Arc<Context>, options: &RestoreOptions) -> Result<RestoreReport, CheckpointError> {
    Ok(CheckpointMachine::of(context).machine.resume(&Driver(context), options, options.deadline)?)
}

impl From<Failed<Box<CheckpointError>>> for CheckpointError {
    fn from(failed: Failed<Box<CheckpointError>>) -> Self {
        match failed {
            Failed::State { verb, state, wanted } => Self::State { verb, state, wanted },
            Failed::AtWork { verb, waited } => Self::AtWork { verb, waited },
            Failed::Gate(error) => Self::Gate(error),
            Failed::Step { verb, error } => match *error {
                // From within the image's workers, which do not know for whom they work.
                Self::Image(ImageError::Stopped(stopped)) => Self::Stopped { verb, stopped },
                other => other,
            },
            Failed::Stuck { failure, undo } => Self::Stuck { failure, undo },
        }
    }
}
