// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine of `stasis-protocol`, driving this runtime's device.
//!
//! INVARIANT: what may happen when is decided there, where it is model-checked; here is only what each step does.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stasis_protocol::Stopped;
use stasis_protocol::gate::{Closed, Gate};
use stasis_protocol::{Failed, Limit, Steps, Taken};

use super::down::{Destination, take_down};
use super::keeper::KeeperError;
use super::parked::Parked;
use super::protocol::{CheckpointReport, RestoreReport};
use super::up::{bring_back, check_window};
use super::{
    Activity, CheckpointError, CheckpointOptions, Mode, RestoreOptions, State, evacuate, is_stall, preempt,
};
use crate::context::{Context, Layer};
use crate::image::ImageError;

/// The checkpoint side of a runtime.
#[derive(Debug, Default)]
pub(crate) struct CheckpointMachine {
    machine: stasis_protocol::StateMachine<Box<Parked>, RestoreReport>,
    /// The id of the image that this process came from, if it is a restored copy.
    copy_of: Mutex<Option<String>>,
}

/// A runtime as the state machine sees it.
struct Driver<'a>(&'a Arc<Context>);

impl<'a> Steps for Driver<'a> {
    type Parked = Box<Parked>;
    type Destination = Destination<'a>;
    type Source = RestoreOptions;
    type Saved = CheckpointReport;
    type Restored = RestoreReport;
    type Error = Box<CheckpointError>;

    fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }

    fn stop(&self, closed: &Closed, mode: Mode, limit: &Limit) -> Result<(), Self::Error> {
        let context = self.0;
        match mode {
            Mode::Drain => {
                let queues = evacuate::queues(&context.registry.lock());
                evacuate::drain(&queues, closed, limit)
                    .map_err(|late| Box::new(late.explain(&context.registry.lock())))
            }
            Mode::Preempt => {
                preempt::park(context, closed, limit).map_err(|error| Box::new(late(error, "lock", limit)))
            }
        }
    }

    fn resume_queues(&self, closed: &Closed, mode: Mode) -> Result<(), Self::Error> {
        let pass = closed.pass();
        match (mode, self.0.device(&pass)) {
            (Mode::Preempt, Some(on)) => preempt::go_on(&mut self.0.registry.lock(), on).map_err(Box::new),
            _ => Ok(()),
        }
    }

    fn tear_down(
        &self,
        closed: &mut Closed,
        mode: Mode,
        into: &Destination<'a>,
        limit: &Limit,
    ) -> Taken<Self> {
        let mut report = CheckpointReport::default();
        match take_down(self.0, closed, mode, into, limit, &mut report) {
            Ok(parked) => Ok((Box::new(parked), report)),
            Err(error) => Err(error.map_untouched(|error| Box::new(late(*error, "checkpoint", limit)))),
        }
    }

    fn undo(&self, closed: &mut Closed, parked: &mut Self::Parked) -> Result<(), Self::Error> {
        bring_back(self.0, closed, parked, &RestoreOptions::default(), &Limit::none())
            .map(drop)
            .map_err(Box::new)
    }

    fn rebuild(
        &self,
        closed: &mut Closed,
        parked: &mut Self::Parked,
        from: &RestoreOptions,
        limit: &Limit,
    ) -> Result<RestoreReport, Self::Error> {
        check_window(self.0)
            .and_then(|()| bring_back(self.0, closed, parked, from, limit))
            .map_err(|error| Box::new(late(error, "restore", limit)))
    }
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

impl Layer for CheckpointMachine {
    fn new(_: usize) -> Self {
        CheckpointMachine::default()
    }
}

impl CheckpointMachine {
    /// The one of this context.
    pub fn of(context: &Context) -> Arc<Self> {
        context.layer()
    }

    /// Where the runtime is. Never blocks.
    pub fn state(&self) -> State {
        self.machine.state()
    }

    /// What the verb at work is doing. Never blocks.
    pub fn activity(&self) -> Activity {
        self.machine.activity()
    }

    /// Says what the verb at work is doing from now on.
    pub(super) fn now(&self, activity: Activity) {
        self.machine.now(activity);
    }

    /// The id of the image that this process came from, if it is a restored copy. Never blocks for long.
    pub fn copy_of(&self) -> Option<String> {
        self.copy_of.lock().clone()
    }

    /// Says so from now on; what was said before.
    pub(super) fn set_copy_of(&self, image: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.copy_of.lock(), image)
    }

    /// Has the verb at work, if there is one, give up; says whether there was.
    pub fn cancel(&self) -> bool {
        self.machine.cancel()
    }

    /// RUNNING → LOCKED: closes the gate and stops the queues.
    pub fn lock(
        &self,
        context: &Arc<Context>,
        mode: Mode,
        within: Duration,
    ) -> Result<Duration, CheckpointError> {
        Ok(self.machine.lock(&Driver(context), mode, within)?)
    }

    /// LOCKED → RUNNING.
    pub fn unlock(&self, context: &Arc<Context>) -> Result<(), CheckpointError> {
        Ok(self.machine.unlock(&Driver(context))?)
    }

    /// LOCKED → CHECKPOINTED: writes the image into `directory`, takes everything down, closes the device, audits.
    pub fn checkpoint(
        &self,
        context: &Arc<Context>,
        directory: &Path,
        options: &CheckpointOptions,
    ) -> Result<CheckpointReport, CheckpointError> {
        Ok(self.machine.checkpoint(
            &Driver(context),
            &Destination {
                directory,
                self_contained: options.self_contained,
                session: options.session.as_ref(),
            },
            options.deadline,
        )?)
    }

    /// CHECKPOINTED → LOCKED: opens the device, admits its agents, makes everything again and fills it.
    pub fn restore(
        &self,
        context: &Arc<Context>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport, CheckpointError> {
        Ok(self.machine.restore(&Driver(context), options, options.deadline)?)
    }

    /// Duplicates of the files that this process needs to come back, if it is CHECKPOINTED.
    ///
    /// # Errors
    /// [`KeeperError`]: its keepers do not give them.
    pub fn lend(&self) -> Result<Vec<OwnedFd>, KeeperError> {
        self.machine.parked(|parked| parked.kept.lend()).unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Whatever the state → RUNNING; says what the last restore moved.
    pub fn resume(
        &self,
        context: &Arc<Context>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport, CheckpointError> {
        Ok(self.machine.resume(&Driver(context), options, options.deadline)?)
    }
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
