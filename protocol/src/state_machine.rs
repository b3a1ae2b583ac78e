// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine of one runtime: which verb is allowed in which state, and what every failure leads back to.
//!
//! INVARIANT: `state` changes only under the `phase` lock and agrees with it; reading it never blocks. `phase` holds the
//! token of the closed gate, so that the gate opens exactly when the phase changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thiserror::Error;

use crate::gate::{CloseError, Closed, Gate};
use crate::limit::Limit;
use crate::state::{Activity, Mode, State};
use crate::sync::{AtomicBool, AtomicU8, Mutex, MutexGuard};

/// TIMEOUT: of a verb that has no deadline of its own.
pub const LONGEST_VERB: Duration = Duration::from_secs(86_400);

/// The steps of the verbs, as the owner of a device implements them. Every step but [`Steps::prepare`] and [`Steps::go_on`] is
/// taken with the gate closed, and all by one thread at a time.
pub trait Steps {
    /// What is kept while the device is closed.
    type Snapshot;
    /// Where contents are saved to.
    type Destination: ?Sized;
    /// Where contents come from, and under which rules.
    type Source: ?Sized;
    /// What saving moved.
    type Saved;
    /// What restoring moved.
    type Restored: Clone;
    /// Why a step failed.
    type Error;

    /// The gate in front of the device.
    fn gate(&self) -> &Arc<Gate>;

    /// Before the gate is closed: what needs calls that the gate would hold.
    fn prepare(&self, _mode: Mode, _limit: &Limit) {}

    /// The gate is open again, after an unlock or a lock that failed.
    fn go_on(&self) {}

    /// Stops the queues.
    ///
    /// # Errors
    /// The queues were not stopped.
    fn stop(&self, closed: &Closed, mode: Mode, limit: &Limit) -> Result<(), Self::Error>;

    /// Lets the queues run again. The limit's time applies, its cancellation does not: whoever cancels a verb wants the
    /// process to run.
    ///
    /// # Errors
    /// Queues are stopped as before, and the step can be tried again.
    fn resume_queues(&self, closed: &Closed, mode: Mode, limit: &Limit) -> Result<(), Self::Error>;

    /// Saves the contents and closes the device.
    ///
    /// # Errors
    /// [`TearDownError`], which says whether the device was changed.
    fn tear_down(
        &self,
        closed: &mut Closed,
        mode: Mode,
        into: &Self::Destination,
        limit: &Limit,
    ) -> Taken<Self>;

    /// Rebuilds what a failed [`Steps::tear_down`] had taken away. The limit of the failed verb does not apply.
    ///
    /// # Errors
    /// The contents are kept, and [`Steps::rebuild`] can be tried.
    fn undo(&self, closed: &mut Closed, snapshot: &mut Self::Snapshot) -> Result<(), Self::Error>;

    /// Opens the device and rebuilds everything.
    ///
    /// # Errors
    /// The device is closed and the contents are kept as before.
    fn rebuild(
        &self,
        closed: &mut Closed,
        snapshot: &mut Self::Snapshot,
        from: &Self::Source,
        limit: &Limit,
    ) -> Result<Self::Restored, Self::Error>;
}

/// The result of [`Steps::tear_down`].
pub type Taken<S> = Result<
    (<S as Steps>::Snapshot, <S as Steps>::Saved),
    TearDownError<<S as Steps>::Snapshot, <S as Steps>::Error>,
>;

/// How far a failed [`Steps::tear_down`] had come.
#[derive(Debug)]
pub enum TearDownError<P, E> {
    /// The device is as it was.
    Untouched(E),
    /// A part of the device's state is gone; all of it can be rebuilt from the snapshot.
    TornDown(E, P),
}

impl<P, E> TearDownError<P, E> {
    /// The step failed before it changed anything.
    pub fn untouched(error: impl Into<E>) -> Self {
        Self::Untouched(error.into())
    }

    /// The step failed after it had changed something, which `snapshot` restores.
    pub fn torn_down(error: impl Into<E>, snapshot: P) -> Self {
        Self::TornDown(error.into(), snapshot)
    }

    /// Replaces the error of a step that changed nothing.
    #[must_use]
    pub fn map_untouched(self, map: impl FnOnce(E) -> E) -> Self {
        match self {
            Self::Untouched(error) => Self::Untouched(map(error)),
            torn_down @ Self::TornDown(..) => torn_down,
        }
    }
}

/// A verb was refused or failed. The state is the one before.
#[derive(Debug, Error)]
pub enum Failed<E> {
    /// The verb does not fit the state.
    #[error("Cannot {verb} while {state}; it needs {wanted}")]
    State {
        /// The verb.
        verb: &'static str,
        /// The state now.
        state: State,
        /// The state it needs.
        wanted: State,
    },
    /// A verb of another thread is in progress.
    #[error("Cannot {verb}: another verb was still at work after {} ms", waited.as_millis())]
    AtWork {
        /// The verb.
        verb: &'static str,
        /// How long was waited for the other.
        waited: Duration,
    },
    /// The gate could not be closed.
    #[error(transparent)]
    Gate(CloseError),
    /// A step of the verb failed.
    #[error("A step of {verb} failed")]
    Step {
        /// The verb.
        verb: &'static str,
        /// Why.
        error: E,
    },
    /// A checkpoint failed after it had changed something, and undoing it failed too: the state is CHECKPOINTED, with the
    /// contents kept.
    #[error("A checkpoint failed, and so did going back")]
    Stuck {
        /// What failed first.
        failure: E,
        /// What failed during the undo.
        undo: E,
    },
}

fn step<E>(verb: &'static str) -> impl FnOnce(E) -> Failed<E> {
    move |error| Failed::Step { verb, error }
}

#[derive(Debug)]
enum Phase<P> {
    Running,
    Locked(Closed, Mode),
    Checkpointed(Closed, Mode, P),
}

impl<P> Phase<P> {
    fn state(&self) -> State {
        match self {
            Self::Running => State::Running,
            Self::Locked(..) => State::Locked,
            Self::Checkpointed(..) => State::Checkpointed,
        }
    }
}

/// The state machine of one runtime: `P` is the snapshot kept while the device is closed, `R` the report of a
/// restore.
#[derive(Debug)]
pub struct StateMachine<P, R> {
    state: AtomicU8,
    activity: AtomicU8,
    phase: Mutex<Phase<P>>,
    /// Cancels the verb in progress, if there is one.
    at_work: Mutex<Option<Arc<AtomicBool>>>,
    /// The report of the last restore.
    restored: Mutex<R>,
}

impl<P, R: Default> Default for StateMachine<P, R> {
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

/// A verb in progress. It holds the phase's lock, so no other verb changes the phase meanwhile.
struct Work<'s, P, R> {
    machine: &'s StateMachine<P, R>,
    phase: MutexGuard<'s, Phase<P>>,
    limit: Limit,
}

impl<P, R> Drop for Work<'_, P, R> {
    fn drop(&mut self) {
        self.machine.now(Activity::Idle);
        *self.machine.at_work.lock() = None;
    }
}

impl<P, R> Work<'_, P, R> {
    fn enter(&mut self, next: Phase<P>) {
        self.machine.state.store(next.state() as u8, Ordering::Release);
        *self.phase = next;
    }

    /// Takes the phase's contents out of it. Until [`Work::enter`] the state is still the one before.
    fn take(&mut self) -> Phase<P> {
        std::mem::replace(&mut *self.phase, Phase::Running)
    }

    /// Lets the queues run again and opens the gate; LOCKED if the queues cannot run.
    fn go_on<S: Steps<Snapshot = P, Restored = R>>(
        &mut self,
        steps: &S,
        verb: &'static str,
        closed: Closed,
        mode: Mode,
        limit: &Limit,
    ) -> Result<(), Failed<S::Error>> {
        if let Err(error) = steps.resume_queues(&closed, mode, limit) {
            self.enter(Phase::Locked(closed, mode));
            return Err(step(verb)(error));
        }
        self.enter(Phase::Running);
        drop(closed);
        steps.go_on();
        Ok(())
    }

    /// Puts the phase back, because the verb is not allowed in it.
    fn refuse<E>(&mut self, verb: &'static str, phase: Phase<P>, wanted: State) -> Failed<E> {
        let state = phase.state();
        *self.phase = phase;
        Failed::State { verb, state, wanted }
    }
}

impl<P, R> StateMachine<P, R> {
    /// The state of the runtime. Never blocks.
    pub fn state(&self) -> State {
        State::from_raw(self.state.load(Ordering::Acquire))
    }

    /// What the verb in progress is doing. Never blocks.
    pub fn activity(&self) -> Activity {
        Activity::from_raw(self.activity.load(Ordering::Relaxed))
    }

    /// Records what the verb in progress is doing from now on.
    pub fn now(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    /// Calls `look` with the snapshot, if the state is CHECKPOINTED. Waits for the verb in progress.
    pub fn snapshot<T>(&self, look: impl FnOnce(&P) -> T) -> Option<T> {
        match &*self.phase.lock() {
            Phase::Checkpointed(_, _, snapshot) => Some(look(snapshot)),
            Phase::Running | Phase::Locked(..) => None,
        }
    }

    /// Cancels the verb in progress. Returns whether there was one.
    pub fn cancel(&self) -> bool {
        let at_work = self.at_work.lock();
        at_work.as_ref().is_some_and(|cancelled| {
            cancelled.store(true, Ordering::Relaxed);
            true
        })
    }

    fn begin<E>(&self, verb: &'static str, within: Duration) -> Result<Work<'_, P, R>, Failed<E>> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let limit = Limit::cancellable(within, Arc::clone(&cancelled));
        let phase = self.phase.try_lock_until(limit.deadline(LONGEST_VERB));
        let phase = phase.ok_or(Failed::AtWork { verb, waited: limit.elapsed() })?;
        *self.at_work.lock() = Some(cancelled);
        Ok(Work { machine: self, phase, limit })
    }

    /// RUNNING → LOCKED: closes the gate and stops the queues. Returns how long that took.
    ///
    /// # Errors
    /// [`Failed`], but `Stuck`; the gate is open again.
    pub fn lock<S: Steps<Snapshot = P, Restored = R>>(
        &self,
        steps: &S,
        mode: Mode,
        within: Duration,
    ) -> Result<Duration, Failed<S::Error>> {
        let mut work = self.begin("lock", within)?;
        let closed = self.stop(steps, mode, "lock", &mut work)?;
        let elapsed = work.limit.elapsed();
        work.enter(Phase::Locked(closed, mode));
        Ok(elapsed)
    }

    /// RUNNING, and stays so: `act` has the machine to itself, so that no verb closes the gate meanwhile, and calls pass.
    ///
    /// # Errors
    /// [`Failed::State`], [`Failed::AtWork`]; [`Failed::Step`] with the error of `act`.
    pub fn while_running<T, E>(
        &self,
        verb: &'static str,
        within: Duration,
        act: impl FnOnce(&Limit) -> Result<T, E>,
    ) -> Result<T, Failed<E>> {
        let mut work = self.begin(verb, within)?;
        match work.take() {
            Phase::Running => {}
            other => return Err(work.refuse(verb, other, State::Running)),
        }
        self.now(Activity::Copying);
        act(&work.limit).map_err(step(verb))
    }

    /// RUNNING, and so again: stops the queues within `lock_within` as [`StateMachine::lock`] does, has `act` do its work within `within`, and
    /// lets them run again. Other verbs wait for the end of it.
    ///
    /// # Errors
    /// [`Failed`], but `Stuck`; the queues run again, unless that is what failed: then the state is LOCKED.
    pub fn while_stopped<S: Steps<Snapshot = P, Restored = R>, T>(
        &self,
        steps: &S,
        verb: &'static str,
        lock_within: Duration,
        within: Duration,
        act: impl FnOnce(&Closed, &Limit) -> Result<T, S::Error>,
    ) -> Result<T, Failed<S::Error>> {
        let mut work = self.begin(verb, lock_within)?;
        let closed = self.stop(steps, Mode::Drain, verb, &mut work)?;
        work.limit = work.limit.again(within);
        let done = act(&closed, &work.limit).map_err(step(verb));
        // `act` may have used its time up.
        work.go_on(steps, verb, closed, Mode::Drain, &Limit::within(within))?;
        done
    }

    /// Closes the gate and stops the queues of a process that runs.
    fn stop<S: Steps<Snapshot = P, Restored = R>>(
        &self,
        steps: &S,
        mode: Mode,
        verb: &'static str,
        work: &mut Work<'_, P, R>,
    ) -> Result<Closed, Failed<S::Error>> {
        match work.take() {
            Phase::Running => {}
            other => return Err(work.refuse(verb, other, State::Running)),
        }
        self.now(Activity::Locking);
        let limit = &work.limit;
        steps.prepare(mode, limit);
        // A failure drops the gate's token, which opens it.
        let closed = steps.gate().close(limit.deadline(LONGEST_VERB), limit.cancelled());
        let stopped = closed
            .map_err(Failed::Gate)
            .and_then(|closed| steps.stop(&closed, mode, limit).map(|()| closed).map_err(step(verb)));
        stopped.inspect_err(|_| steps.go_on())
    }

    /// LOCKED → RUNNING. A device that was lost meanwhile stays lost: calls that waited at the gate are refused.
    ///
    /// # Errors
    /// [`Failed::State`], [`Failed::AtWork`]; [`Failed::Step`]: the queues are stopped and the state is LOCKED.
    pub fn unlock<S: Steps<Snapshot = P, Restored = R>>(
        &self,
        steps: &S,
        within: Duration,
    ) -> Result<(), Failed<S::Error>> {
        let mut work = self.begin("unlock", within)?;
        let (closed, mode) = match work.take() {
            Phase::Locked(closed, mode) => (closed, mode),
            other => return Err(work.refuse("unlock", other, State::Locked)),
        };
        let limit = work.limit.clone();
        work.go_on(steps, "unlock", closed, mode, &limit)
    }

    /// LOCKED → CHECKPOINTED: saves the contents and closes the device.
    ///
    /// # Errors
    /// [`Failed`]; the state is LOCKED as before, except after [`Failed::Stuck`].
    pub fn checkpoint<S: Steps<Snapshot = P, Restored = R>>(
        &self,
        steps: &S,
        into: &S::Destination,
        within: Duration,
    ) -> Result<S::Saved, Failed<S::Error>> {
        let mut work = self.begin("checkpoint", within)?;
        let (mut closed, mode) = match work.take() {
            Phase::Locked(closed, mode) => (closed, mode),
            other => return Err(work.refuse("checkpoint", other, State::Locked)),
        };
        match steps.tear_down(&mut closed, mode, into, &work.limit) {
            Ok((snapshot, saved)) => {
                work.enter(Phase::Checkpointed(closed, mode, snapshot));
                Ok(saved)
            }
            Err(TearDownError::Untouched(error)) => {
                work.enter(Phase::Locked(closed, mode));
                Err(step("checkpoint")(error))
            }
            Err(TearDownError::TornDown(failure, mut snapshot)) => {
                match steps.undo(&mut closed, &mut snapshot) {
                    Ok(()) => {
                        work.enter(Phase::Locked(closed, mode));
                        Err(step("checkpoint")(failure))
                    }
                    Err(undo) => {
                        work.enter(Phase::Checkpointed(closed, mode, snapshot));
                        Err(Failed::Stuck { failure, undo })
                    }
                }
            }
        }
    }

    /// CHECKPOINTED → LOCKED: opens the device, rebuilds everything and fills it. The gate is no longer lost.
    ///
    /// # Errors
    /// [`Failed`], but `Stuck`; the state is CHECKPOINTED as before.
    pub fn restore<S: Steps<Snapshot = P, Restored = R>>(
        &self,
        steps: &S,
        from: &S::Source,
        within: Duration,
    ) -> Result<R, Failed<S::Error>>
    where
        R: Clone,
    {
        let mut work = self.begin("restore", within)?;
        let (mut closed, mode, mut snapshot) = match work.take() {
            Phase::Checkpointed(closed, mode, snapshot) => (closed, mode, snapshot),
            other => return Err(work.refuse("restore", other, State::Checkpointed)),
        };
        match steps.rebuild(&mut closed, &mut snapshot, from, &work.limit) {
            Ok(restored) => {
                closed.hold();
                work.enter(Phase::Locked(closed, mode));
                *self.restored.lock() = restored.clone();
                Ok(restored)
            }
            Err(error) => {
                work.enter(Phase::Checkpointed(closed, mode, snapshot));
                Err(step("restore")(error))
            }
        }
    }

    /// Any state → RUNNING. Returns the report of the last restore. If another thread resumes at the same time, this one
    /// does only what is left.
    ///
    /// # Errors
    /// Those of [`StateMachine::restore`] and [`StateMachine::unlock`], but `State`; the state is the one that was reached.
    pub fn resume<S: Steps<Snapshot = P, Restored = R>>(
        &self,
        steps: &S,
        from: &S::Source,
        within: Duration,
    ) -> Result<R, Failed<S::Error>>
    where
        R: Clone,
    {
        loop {
            let step = match self.state() {
                State::Running => return Ok(self.restored.lock().clone()),
                State::Locked => self.unlock(steps, within),
                State::Checkpointed => self.restore(steps, from, within).map(drop),
            };
            match step {
                // Another thread took this step first.
                Ok(()) | Err(Failed::State { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
