// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of the state machine: controllers, a canceller, the application and whoever asks for the state, over a device
//! whose steps fail wherever the plan says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread;
use stasis_protocol::gate::{Closed, Gate, GatedCell, Lost};
use stasis_protocol::sync::World;
use stasis_protocol::{
    Failed, LONGEST_VERB, Limit, Mode, State, StateMachine, Steps, Stopped, TearDownError,
};

use crate::world::{check, tell};

/// What is behind the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Runs,
    Stopped,
    Absent,
}

/// A runtime whose *n*-th chance to fail is taken if bit *n* of the plan is set.
struct Fake {
    machine: StateMachine<Contents, u32>,
    gate: Arc<Gate>,
    device: GatedCell<Device>,
    plan: AtomicU32,
    chances: AtomicU32,
    /// Holds a step up until somebody has been told the state.
    told: Option<(Mutex<Told>, Condvar)>,
}

#[derive(Default)]
struct Told {
    in_step: bool,
    told: bool,
}

/// What is kept while the device is gone.
#[derive(Debug)]
struct Contents;

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Planned,
    Stopped(Stopped),
}

type Outcome<T> = Result<T, Failed<Refusal>>;

impl Fake {
    fn new(plan: u32) -> Arc<Self> {
        Self::with(plan, None)
    }

    fn with(plan: u32, told: Option<(Mutex<Told>, Condvar)>) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        Arc::new(Self {
            machine: StateMachine::default(),
            device: GatedCell::new(&gate, Device::Runs),
            gate,
            plan: plan.into(),
            chances: AtomicU32::new(0),
            told,
        })
    }

    fn fails(&self) -> bool {
        let chance = self.chances.fetch_add(1, Ordering::Relaxed);
        chance < 32 && self.plan.load(Ordering::Relaxed) & (1 << chance) != 0
    }

    fn becomes(&self, closed: &mut Closed, from: Device, to: Device) {
        assert_eq!(self.look(closed), from);
        self.device.set(closed, to);
    }

    fn look(&self, closed: &Closed) -> Device {
        *self.device.get(&closed.pass())
    }

    /// A call of the application.
    fn call(&self) {
        let pass = self.gate.enter().unwrap();
        assert_eq!(*self.device.get(&pass), Device::Runs, "a call met a device that is not there");
        assert_eq!(self.machine.state(), State::Running, "a call is inside");
    }

    fn lock(&self, within: Duration) -> Outcome<Duration> {
        self.machine.lock(&Driver(self), Mode::Preempt, within)
    }

    fn checkpoint(&self, within: Duration) -> Outcome<u32> {
        self.machine.checkpoint(&Driver(self), &(), within)
    }

    fn restore(&self) -> Outcome<u32> {
        self.machine.restore(&Driver(self), &(), LONGEST_VERB)
    }

    fn unlock(&self) -> Outcome<()> {
        self.machine.unlock(&Driver(self), LONGEST_VERB)
    }

    fn resume(&self) -> Outcome<u32> {
        self.machine.resume(&Driver(self), &(), LONGEST_VERB)
    }

    /// Nothing is wedged: one resume that may work makes everything as it was.
    fn assert_comes_back(&self) {
        self.plan.store(0, Ordering::Relaxed);
        self.resume().unwrap();
        assert_eq!(self.machine.state(), State::Running);
        assert!(!self.gate.is_closed());
        self.call();
        assert!(!self.machine.cancel(), "a verb is still at work");
    }
}

/// The device of the runtime, as the state machine drives it. `stop` and `resume_queues` get the gate shared, so they leave the
/// device's word alone; what they do is seen by who may look.
struct Driver<'a>(&'a Fake);

impl Steps for Driver<'_> {
    type Snapshot = Contents;
    type Destination = ();
    type Source = ();
    type Saved = u32;
    type Restored = u32;
    type Error = Refusal;

    fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }

    fn stop(&self, closed: &Closed, _mode: Mode, limit: &Limit) -> Result<(), Refusal> {
        assert_eq!(self.0.look(closed), Device::Runs);
        if self.0.fails() {
            return Err(Refusal::Planned);
        }
        limit.check().map_err(Refusal::Stopped)
    }

    fn resume_queues(&self, closed: &Closed, _mode: Mode, _limit: &Limit) -> Result<(), Refusal> {
        assert_eq!(self.0.look(closed), Device::Runs);
        if self.0.fails() { Err(Refusal::Planned) } else { Ok(()) }
    }

    fn tear_down(
        &self,
        closed: &mut Closed,
        _mode: Mode,
        _into: &(),
        limit: &Limit,
    ) -> Result<(Contents, u32), TearDownError<Contents, Refusal>> {
        if let Some((lock, changed)) = &self.0.told {
            let mut talk = lock.lock().unwrap();
            talk.in_step = true;
            changed.notify_all();
            while !talk.told {
                talk = changed.wait(talk).unwrap();
            }
        }
        limit.check().map_err(|stopped| TearDownError::Untouched(Refusal::Stopped(stopped)))?;
        self.0.becomes(closed, Device::Runs, Device::Stopped);
        if self.0.fails() {
            self.0.becomes(closed, Device::Stopped, Device::Runs);
            return Err(TearDownError::Untouched(Refusal::Planned));
        }
        self.0.becomes(closed, Device::Stopped, Device::Absent);
        if self.0.fails() {
            Err(TearDownError::TornDown(Refusal::Planned, Contents))
        } else {
            Ok((Contents, 1))
        }
    }

    fn undo(&self, closed: &mut Closed, snapshot: &mut Contents) -> Result<(), Refusal> {
        self.rebuild(closed, snapshot, &(), &Limit::none()).map(drop)
    }

    fn rebuild(
        &self,
        closed: &mut Closed,
        _snapshot: &mut Contents,
        _from: &(),
        limit: &Limit,
    ) -> Result<u32, Refusal> {
        self.0.becomes(closed, Device::Absent, Device::Stopped);
        if self.0.fails() {
            self.0.becomes(closed, Device::Stopped, Device::Absent);
            return Err(Refusal::Planned);
        }
        if let Err(stopped) = limit.check() {
            self.0.becomes(closed, Device::Stopped, Device::Absent);
            return Err(Refusal::Stopped(stopped));
        }
        self.0.becomes(closed, Device::Stopped, Device::Runs);
        Ok(2)
    }
}

/// A verb that nobody disturbs ends in `after`, or fails and leaves `before`.
fn step<T>(fake: &Fake, before: State, after: State, verb: impl FnOnce() -> Outcome<T>) -> bool {
    assert_eq!(fake.machine.state(), before);
    let outcome = verb();
    let expected = match &outcome {
        Ok(_) => after,
        // A way down that could not be undone is as good as one gone to its end.
        Err(Failed::Stuck { .. }) => State::Checkpointed,
        Err(Failed::Gate(_) | Failed::Step { .. }) => before,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(fake.machine.state(), expected);
    outcome.is_ok()
}

/// A controller that takes the process through a whole cycle, and a failed verb as it comes.
fn cycle(fake: &Fake, within: Duration) {
    if !step(fake, State::Running, State::Locked, || fake.lock(within)) {
        return;
    }
    step(fake, State::Locked, State::Checkpointed, || fake.checkpoint(within));
    if fake.machine.state() == State::Checkpointed
        && !step(fake, State::Checkpointed, State::Locked, || fake.restore())
    {
        return;
    }
    step(fake, State::Locked, State::Running, || fake.unlock());
}

fn spawn(fake: &Arc<Fake>, actor: impl FnOnce(&Fake) + 'static) -> thread::JoinHandle<()> {
    let fake = Arc::clone(fake);
    thread::spawn(move || actor(&fake))
}

/// All ways in which the cycle's six chances to fail can be taken (lock; untouched, torn down, undo or restore; go on).
const PLANS: u32 = 1 << 6;

#[test]
fn failed_verb_leaves_the_state_before_and_calls_meet_a_device() {
    let mut runs = 0;
    for plan in 0..PLANS {
        runs += check(World::default(), Some(2), move || {
            let fake = Fake::new(plan);
            let application = spawn(&fake, |fake| {
                fake.call();
                fake.call();
            });
            cycle(&fake, LONGEST_VERB);
            fake.plan.store(0, Ordering::Relaxed);
            fake.resume().unwrap();
            application.join().unwrap();
            fake.assert_comes_back();
        });
    }
    tell("state machine: failures at every step", runs);
}

#[test]
fn cancelled_or_late_verb_leaves_the_state_before() {
    let mut runs = 0;
    for within in [2, 3, 4, 5, u64::MAX] {
        let world = World { timeouts: 1, ..World::default() };
        runs += check(world, Some(2), move || {
            let fake = Fake::new(0);
            let application = spawn(&fake, Fake::call);
            let canceller = spawn(&fake, |fake| {
                fake.machine.cancel();
            });
            cycle(&fake, Duration::from_nanos(within));
            canceller.join().unwrap();
            fake.resume().unwrap();
            application.join().unwrap();
            fake.assert_comes_back();
        });
    }
    tell("state machine: deadlines and cancellation", runs);
}

#[test]
fn two_controllers_wedge_nothing() {
    let mut runs = 0;
    for plan in [0b0, 0b100, 0b1100] {
        runs += check(World::default(), Some(2), move || {
            let fake = Fake::new(plan);
            let other = spawn(&fake, |fake| {
                let _ = fake.resume();
                let _ = fake.lock(LONGEST_VERB);
            });
            let application = spawn(&fake, Fake::call);
            let _ = fake.lock(LONGEST_VERB);
            let _ = fake.checkpoint(LONGEST_VERB);
            let _ = fake.restore();
            let _ = fake.unlock();
            other.join().unwrap();
            fake.plan.store(0, Ordering::Relaxed);
            fake.resume().unwrap();
            application.join().unwrap();
            fake.assert_comes_back();
        });
    }
    tell("state machine: two controllers", runs);
}

/// A device that is lost while the process is locked stays lost, until a restore has made another.
#[test]
fn loss_is_undone_by_a_restore_only() {
    let mut runs = 0;
    for restores in [false, true] {
        runs += check(World::default(), Some(2), move || {
            let fake = Fake::new(0);
            fake.lock(LONGEST_VERB).unwrap();
            fake.gate.lose(Lost { what: "model", source: None });
            let application = spawn(&fake, |fake| {
                let _ = fake.gate.enter().map(drop);
            });
            if restores {
                fake.checkpoint(LONGEST_VERB).unwrap();
                fake.restore().unwrap();
            }
            fake.unlock().unwrap();
            assert_eq!(fake.machine.state(), State::Running);
            application.join().unwrap();
            assert_eq!(fake.gate.enter().is_ok(), restores);
        });
    }
    tell("state machine: a lost device", runs);
}

/// Both want the process to run: each may find the other at it, neither fails.
#[test]
fn two_resumes_share_the_work() {
    let runs = check(World::default(), Some(3), || {
        let fake = Fake::new(0);
        fake.lock(LONGEST_VERB).unwrap();
        fake.checkpoint(LONGEST_VERB).unwrap();
        let other = spawn(&fake, |fake| {
            fake.resume().unwrap();
            fake.call();
        });
        assert_eq!(fake.resume().unwrap(), 2);
        fake.call();
        other.join().unwrap();
        fake.assert_comes_back();
    });
    tell("state machine: two resumes", runs);
}

/// A verb that finds another at work waits for it no longer than its limit.
#[test]
fn verb_gives_up_on_another_that_does_not_end() {
    let world = World { timeouts: 4, ..World::default() };
    let runs = check(world, None, || {
        let fake = Fake::with(0, Some(<(Mutex<Told>, Condvar)>::default()));
        fake.lock(LONGEST_VERB).unwrap();
        let other = spawn(&fake, |fake| drop(fake.checkpoint(LONGEST_VERB)));
        let (lock, changed) = fake.told.as_ref().unwrap();
        let mut talk = lock.lock().unwrap();
        while !talk.in_step {
            talk = changed.wait(talk).unwrap();
        }
        drop(talk);
        let late = fake.checkpoint(Duration::from_nanos(1));
        assert!(matches!(late, Err(Failed::AtWork { verb: "checkpoint", .. })), "{late:?}");
        let late = fake.machine.unlock(&Driver(&fake), Duration::from_nanos(1));
        assert!(matches!(late, Err(Failed::AtWork { verb: "unlock", .. })), "{late:?}");
        lock.lock().unwrap().told = true;
        changed.notify_all();
        other.join().unwrap();
        fake.assert_comes_back();
    });
    tell("state machine: a verb behind another", runs);
}

#[test]
fn state_is_told_and_a_verb_cancelled_while_it_is_at_work() {
    let runs = check(World::default(), None, || {
        let fake = Fake::with(0, Some(<(Mutex<Told>, Condvar)>::default()));
        fake.lock(LONGEST_VERB).unwrap();
        let asker = spawn(&fake, |fake| {
            let (lock, changed) = fake.told.as_ref().unwrap();
            let mut talk = lock.lock().unwrap();
            while !talk.in_step {
                talk = changed.wait(talk).unwrap();
            }
            drop(talk);
            // The step goes on only when this has been answered.
            assert_eq!(fake.machine.state(), State::Locked);
            assert!(fake.machine.cancel());
            lock.lock().unwrap().told = true;
            changed.notify_all();
        });
        let failed = fake.checkpoint(LONGEST_VERB).unwrap_err();
        assert!(
            matches!(failed, Failed::Step { verb: "checkpoint", error: Refusal::Stopped(_) }),
            "{failed:?}"
        );
        assert_eq!(fake.machine.state(), State::Locked);
        asker.join().unwrap();
        fake.assert_comes_back();
    });
    tell("state machine: the state of a busy process", runs);
}
