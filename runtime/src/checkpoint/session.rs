// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine of one runtime: which verb is allowed when, and the way back from every failure.
//!
//! INVARIANT: `state` changes only under the `phase` lock and agrees with it; reading it never blocks. The closed gate
//! lives in `phase`, so that it opens when the phase says so and never by accident.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::down::{Down, take_down};
use super::parked::Parked;
use super::protocol::{CheckpointReport, RestoreReport};
use super::up::{bring_back, check_window};
use super::{Activity, CheckpointError, CheckpointOptions, Mode, RestoreOptions, State, evacuate, preempt};
use crate::gate::Closed;
use crate::image::ImageError;
use crate::limit::Limit;
use crate::runtime::Inner;

/// TIMEOUT: of a verb that has no deadline of its own: a day.
const LONGEST_VERB: Duration = Duration::from_secs(86_400);

#[derive(Debug)]
enum Phase {
    Running,
    Locked(Closed, Mode),
    Checkpointed(Closed, Box<Parked>),
}

/// The checkpoint side of a runtime.
#[derive(Debug)]
pub(crate) struct Session {
    state: AtomicU8,
    activity: AtomicU8,
    phase: Mutex<Phase>,
    /// Cancels the verb at work, if one is.
    at_work: Mutex<Option<Arc<AtomicBool>>>,
    /// What the last restore moved.
    restored: Mutex<RestoreReport>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            state: AtomicU8::new(State::Running as u8),
            activity: AtomicU8::new(Activity::Idle as u8),
            phase: Mutex::new(Phase::Running),
            at_work: Mutex::new(None),
            restored: Mutex::default(),
        }
    }
}

/// A verb at work: nobody else changes the phase meanwhile.
struct Work<'s> {
    session: &'s Session,
    phase: MutexGuard<'s, Phase>,
    limit: Limit,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.session.now(Activity::Idle);
        *self.session.at_work.lock() = None;
    }
}

impl Work<'_> {
    fn enter(&mut self, next: Phase) {
        self.session.state.store(next.state() as u8, Ordering::Release);
        *self.phase = next;
    }

    /// Takes what belongs to the phase out of it; what it stands for meanwhile is still the state before.
    fn take(&mut self) -> Phase {
        std::mem::replace(&mut *self.phase, Phase::Running)
    }

    /// Puts the phase back: the verb does not fit it.
    fn refuse(&mut self, verb: &'static str, phase: Phase, wanted: State) -> CheckpointError {
        let state = phase.state();
        *self.phase = phase;
        CheckpointError::State { verb, state, wanted }
    }
}

impl Phase {
    fn state(&self) -> State {
        match self {
            Self::Running => State::Running,
            Self::Locked(..) => State::Locked,
            Self::Checkpointed(..) => State::Checkpointed,
        }
    }
}

impl Session {
    /// Where the runtime is. Never blocks.
    pub fn state(&self) -> State {
        State::from_raw(self.state.load(Ordering::Acquire))
    }

    /// What the verb at work is doing. Never blocks.
    pub fn activity(&self) -> Activity {
        Activity::from_raw(self.activity.load(Ordering::Relaxed))
    }

    /// Says what the verb at work is doing from now on.
    pub(super) fn now(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    /// Has the verb at work, if there is one, give up; says whether there was.
    pub fn cancel(&self) -> bool {
        let at_work = self.at_work.lock();
        at_work.as_ref().is_some_and(|cancelled| {
            cancelled.store(true, Ordering::Relaxed);
            true
        })
    }

    fn begin(&self, verb: &'static str, within: Duration) -> Result<Work<'_>, CheckpointError> {
        let cancelled = Arc::<AtomicBool>::default();
        let limit = Limit::cancellable(within, Arc::clone(&cancelled));
        let phase = self.phase.try_lock_until(limit.deadline(LONGEST_VERB));
        let phase = phase.ok_or(CheckpointError::AtWork { verb, waited: limit.elapsed() })?;
        *self.at_work.lock() = Some(cancelled);
        Ok(Work { session: self, phase, limit })
    }

    /// RUNNING → LOCKED: closes the gate and stops the queues.
    pub fn lock(
        &self,
        inner: &Arc<Inner>,
        mode: Mode,
        within: Duration,
    ) -> Result<Duration, CheckpointError> {
        let mut work = self.begin("lock", within)?;
        match work.take() {
            Phase::Running => {}
            other => return Err(work.refuse("lock", other, State::Running)),
        }
        self.now(Activity::Locking);
        let limit = &work.limit;
        // A failure drops the gate's token, which opens it.
        let closed = inner.gate.close(limit.deadline(LONGEST_VERB), limit.cancelled())?;
        match mode {
            Mode::Drain => {
                let queues = evacuate::queues(&inner.registry.lock());
                if let Err(late) = evacuate::drain(&queues, &closed, limit) {
                    return Err(late.explain(&inner.registry.lock()));
                }
            }
            Mode::Preempt => preempt::park(inner, &closed)?,
        }
        let elapsed = limit.elapsed();
        work.enter(Phase::Locked(closed, mode));
        Ok(elapsed)
    }

    /// LOCKED → RUNNING.
    pub fn unlock(&self, inner: &Arc<Inner>) -> Result<(), CheckpointError> {
        let mut work = self.begin("unlock", LONGEST_VERB)?;
        let (closed, mode) = match work.take() {
            Phase::Locked(closed, mode) => (closed, mode),
            other => return Err(work.refuse("unlock", other, State::Locked)),
        };
        if mode == Mode::Preempt
            && let Err(error) = go_on(inner, &closed)
        {
            work.enter(Phase::Locked(closed, mode));
            return Err(error);
        }
        work.enter(Phase::Running);
        closed.open();
        Ok(())
    }

    /// LOCKED → CHECKPOINTED: writes the image into `directory`, takes everything down, closes the device, audits.
    pub fn checkpoint(
        &self,
        inner: &Arc<Inner>,
        directory: &Path,
        options: &CheckpointOptions,
    ) -> Result<CheckpointReport, CheckpointError> {
        let mut work = self.begin("checkpoint", options.deadline)?;
        let (mut closed, mode) = match work.take() {
            Phase::Locked(closed, mode) => (closed, mode),
            other => return Err(work.refuse("checkpoint", other, State::Locked)),
        };
        let mut report = CheckpointReport::default();
        match take_down(
            inner,
            &mut closed,
            mode,
            directory,
            (options.self_contained, &work.limit),
            &mut report,
        ) {
            Ok(parked) => {
                work.enter(Phase::Checkpointed(closed, Box::new(parked)));
                Ok(report)
            }
            Err(Down::Untouched(error)) => {
                work.enter(Phase::Locked(closed, mode));
                Err(stopped("checkpoint", *error))
            }
            Err(Down::Parked(error, mut parked)) => {
                // What was ordered failed; going back is not bound by its limit.
                match bring_back(inner, &mut closed, &mut parked, &RestoreOptions::default(), &Limit::none())
                {
                    Ok(_) => {
                        work.enter(Phase::Locked(closed, mode));
                        Err(stopped("checkpoint", *error))
                    }
                    Err(undo) => {
                        work.enter(Phase::Checkpointed(closed, parked));
                        Err(CheckpointError::Stuck { failure: error, undo: Box::new(undo) })
                    }
                }
            }
        }
    }

    /// CHECKPOINTED → LOCKED: opens the device, admits its agents, makes everything again and fills it.
    pub fn restore(
        &self,
        inner: &Arc<Inner>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport, CheckpointError> {
        let mut work = self.begin("restore", options.deadline)?;
        let (mut closed, mut parked) = match work.take() {
            Phase::Checkpointed(closed, parked) => (closed, parked),
            other => return Err(work.refuse("restore", other, State::Checkpointed)),
        };
        let mode = if parked.captured.is_some() { Mode::Preempt } else { Mode::Drain };
        let restored = check_window(inner)
            .and_then(|()| bring_back(inner, &mut closed, &mut parked, options, &work.limit));
        match restored {
            Ok(report) => {
                work.enter(Phase::Locked(closed, mode));
                *self.restored.lock() = report.clone();
                Ok(report)
            }
            Err(error) => {
                work.enter(Phase::Checkpointed(closed, parked));
                Err(stopped("restore", error))
            }
        }
    }
}

impl Session {
    /// Whatever the state → RUNNING; says what the last restore moved. Another thread may be
    /// at the same: then this one sees to what is left.
    pub fn resume(
        &self,
        inner: &Arc<Inner>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport, CheckpointError> {
        loop {
            let step = match self.state() {
                State::Running => return Ok(self.restored.lock().clone()),
                State::Locked => self.unlock(inner),
                State::Checkpointed => self.restore(inner, options).map(drop),
            };
            match step {
                // The other was faster.
                Ok(()) | Err(CheckpointError::State { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Says of a stop that came from within the image's workers what it was that stopped.
fn stopped(verb: &'static str, error: CheckpointError) -> CheckpointError {
    match error {
        CheckpointError::Image(ImageError::Stopped(stopped)) => CheckpointError::Stopped { verb, stopped },
        other => other,
    }
}

/// Puts preempted queues back on the hardware.
fn go_on(inner: &Inner, closed: &Closed) -> Result<(), CheckpointError> {
    let pass = closed.pass();
    let Some(on) = inner.device(&pass) else { return Ok(()) };
    preempt::go_on(&mut inner.registry.lock(), on)
}
