// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of the gate: callers against whoever closes, cancels or loses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use loom::thread;
use stasis_protocol::Limit;
use stasis_protocol::gate::{CloseError, Closed, Gate, GatedCell, Lost};
use stasis_protocol::sync::{AtomicBool, Flaw, Instant, World};

use crate::world::{check, tell};

const LONG: Duration = Duration::from_secs(1);

fn flawed(flaw: Flaw) -> World {
    World { flaw, ..World::default() }
}

/// Device memory as the checker sees it: who may read it has passed the gate, who may write it has closed it.
struct Memory(loom::cell::UnsafeCell<()>);

// SAFETY: there is nothing in it; only the order of the accesses is checked.
unsafe impl Sync for Memory {}

/// A gate, and what is behind it.
struct House {
    gate: Arc<Gate>,
    value: GatedCell<u32>,
    memory: Memory,
    /// Not of the model: counts, and orders nothing.
    inside: AtomicU32,
}

impl House {
    fn new() -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let memory = Memory(loom::cell::UnsafeCell::new(()));
        Arc::new(Self { value: GatedCell::new(&gate, 0), memory, inside: AtomicU32::new(0), gate })
    }

    /// One call.
    fn visit(&self) -> Result<(), Lost> {
        let pass = self.gate.enter()?;
        self.inside.fetch_add(1, Ordering::Relaxed);
        let seen = *self.value.get(&pass);
        self.memory.0.with(|_| ());
        // A second look, after which nothing may have changed.
        drop(self.gate.enter()?);
        assert_eq!(*self.value.get(&pass), seen);
        self.inside.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn close(&self) -> Result<Closed, CloseError> {
        self.gate.close(Instant::now() + LONG, &AtomicBool::new(false))
    }

    /// What a checkpoint does with what is behind.
    fn replace(&self, closed: &mut Closed, value: u32) {
        assert_eq!(self.inside.load(Ordering::Relaxed), 0, "somebody is inside a closed gate");
        self.memory.0.with_mut(|_| ());
        self.value.set(closed, value);
        assert_eq!(self.inside.load(Ordering::Relaxed), 0, "somebody came into a closed gate");
    }

    fn assert_open(&self) {
        assert!(!self.gate.is_closed());
        assert_eq!(self.gate.passes(), 0);
        drop(self.gate.try_enter().unwrap().expect("an open gate lets pass"));
    }
}

fn visitor(house: &Arc<House>) -> thread::JoinHandle<Result<(), Lost>> {
    let house = Arc::clone(house);
    thread::spawn(move || house.visit())
}

fn closed_gate_is_empty(world: World, preemptions: Option<usize>) -> u64 {
    check(world, preemptions, || {
        let house = House::new();
        let visitors = [visitor(&house), visitor(&house)];
        let mut closed = house.close().unwrap();
        house.replace(&mut closed, 1);
        closed.open();
        for visitor in visitors {
            visitor.join().unwrap().unwrap();
        }
        house.assert_open();
        assert_eq!(*house.value.get(&house.gate.enter().unwrap()), 1);
    })
}

#[test]
fn no_pass_while_closed_and_every_caller_goes_on_after() {
    tell("gate: two callers, one closer", closed_gate_is_empty(World::default(), Some(2)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn flaw_without_notifications_is_found() {
    closed_gate_is_empty(flawed(Flaw::Mute), Some(2));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn flaw_of_relaxed_orderings_is_found() {
    closed_gate_is_empty(flawed(Flaw::Relaxed), Some(2));
}

#[test]
#[should_panic]
fn flaw_of_an_entry_in_two_steps_is_found() {
    closed_gate_is_empty(flawed(Flaw::Torn), Some(2));
}

#[test]
fn failed_close_leaves_the_gate_open() {
    let mut runs = 0;
    // A limit of n ns passes at the n-th look at the clock: before, between and after the waits.
    for within in [0, 2, 3, 4, u64::MAX] {
        for timeouts in 0..=2 {
            let world = World { timeouts, ..World::default() };
            runs += check(world, Some(3), move || {
                let house = House::new();
                let visitor = visitor(&house);
                let cancelled = Arc::new(AtomicBool::new(false));
                let limit = Limit::cancellable(Duration::from_nanos(within), Arc::clone(&cancelled));
                let canceller = thread::spawn(move || cancelled.store(true, Ordering::Relaxed));
                match house.gate.close(limit.deadline(LONG), limit.cancelled()) {
                    Ok(mut closed) => {
                        house.replace(&mut closed, 1);
                        drop(closed);
                    }
                    Err(CloseError::Cancelled { passes } | CloseError::Timeout { passes }) => {
                        assert!(passes > 0, "an empty gate closes");
                        assert!(!house.gate.is_closed());
                    }
                    Err(other) => panic!("{other}"),
                }
                visitor.join().unwrap().unwrap();
                canceller.join().unwrap();
                house.assert_open();
            });
        }
    }
    tell("gate: deadlines and cancellation", runs);
}

/// One caller is inside and stays there, so the close fails; another waits meanwhile.
#[test]
fn caller_at_a_gate_that_failed_to_close_goes_on() {
    let world = World { timeouts: 1, ..World::default() };
    let runs = check(world, None, || {
        let house = House::new();
        let pass = house.gate.enter().unwrap();
        let closer = {
            let house = Arc::clone(&house);
            thread::spawn(move || {
                // It passes at the second look: after one wait, in which the other finds the gate closed.
                let deadline = Instant::now() + Duration::from_nanos(2);
                let failed = house.gate.close(deadline, &AtomicBool::new(false)).map(drop);
                assert!(matches!(failed, Err(CloseError::Timeout { .. })));
            })
        };
        let visitor = visitor(&house);
        closer.join().unwrap();
        visitor.join().unwrap().unwrap();
        drop(pass);
        house.assert_open();
    });
    tell("gate: a caller at a failed close", runs);
}

#[test]
fn one_of_two_closers_has_the_gate() {
    let runs = check(World::default(), Some(3), || {
        let house = House::new();
        let visitor = visitor(&house);
        let other = {
            let house = Arc::clone(&house);
            thread::spawn(move || match house.close() {
                Ok(mut closed) => house.replace(&mut closed, 1),
                Err(error) => assert!(matches!(error, CloseError::AlreadyClosed)),
            })
        };
        match house.close() {
            Ok(mut closed) => house.replace(&mut closed, 2),
            Err(error) => assert!(matches!(error, CloseError::AlreadyClosed)),
        }
        other.join().unwrap();
        visitor.join().unwrap().unwrap();
        house.assert_open();
    });
    tell("gate: two closers", runs);
}

#[test]
fn try_enter_never_waits_and_never_errs() {
    let runs = check(World::default(), None, || {
        let house = House::new();
        let guest = {
            let house = Arc::clone(&house);
            thread::spawn(move || {
                if let Some(pass) = house.gate.try_enter().unwrap() {
                    house.inside.fetch_add(1, Ordering::Relaxed);
                    let _ = *house.value.get(&pass);
                    house.inside.fetch_sub(1, Ordering::Relaxed);
                }
            })
        };
        let mut closed = house.close().unwrap();
        house.replace(&mut closed, 1);
        // The guest is let off at a closed gate: it ends without anybody opening.
        guest.join().unwrap();
        assert!(house.gate.try_enter().unwrap().is_none());
        drop(closed);
        house.assert_open();
    });
    tell("gate: try_enter", runs);
}

/// The closer's own passes, and a caller that waits meanwhile.
#[test]
fn holder_of_a_closed_gate_passes_it() {
    let runs = check(World::default(), Some(3), || {
        let house = House::new();
        let visitor = visitor(&house);
        let mut closed = house.close().unwrap();
        {
            let pass = closed.pass();
            let _ = *house.value.get(&pass);
            drop(house.gate.enter().unwrap());
        }
        house.replace(&mut closed, 1);
        drop(closed);
        visitor.join().unwrap().unwrap();
        house.assert_open();
    });
    tell("gate: passes of the closer", runs);
}

fn lost() -> Lost {
    Lost { what: "model", source: None }
}

/// A device that is lost at any moment of a close is lost for good, also if the close fails.
#[test]
fn lost_gate_refuses_whatever_a_closer_does() {
    let mut runs = 0;
    for (within, timeouts) in [(u64::MAX, 0), (0, 0), (3, 2)] {
        let world = World { timeouts, ..World::default() };
        runs += check(world, Some(3), move || {
            let house = House::new();
            // It may be refused or not; it must not wait for ever.
            let visitor = visitor(&house);
            let loser = {
                let house = Arc::clone(&house);
                thread::spawn(move || house.gate.lose(lost()))
            };
            let limit = Limit::within(Duration::from_nanos(within));
            match house.gate.close(limit.deadline(LONG), limit.cancelled()) {
                Ok(mut closed) => house.replace(&mut closed, 1),
                Err(error) => {
                    assert!(matches!(error, CloseError::Lost(_) | CloseError::Timeout { .. }), "{error}");
                }
            }
            loser.join().unwrap();
            let _ = visitor.join().unwrap();
            assert!(house.gate.enter().is_err(), "a call passed the gate of a lost device");
            assert!(matches!(house.close(), Err(CloseError::Lost(_))));
        });
    }
    tell("gate: the device is lost", runs);
}

/// What was lost while the gate was closed is lost when it opens, unless the holder has said that it is found.
#[test]
fn loss_outlasts_a_close_and_ends_with_hold() {
    let runs = check(World::default(), None, || {
        let house = House::new();
        let closed = house.close().unwrap();
        let visitor = visitor(&house);
        let loser = {
            let house = Arc::clone(&house);
            thread::spawn(move || house.gate.lose(lost()))
        };
        loser.join().unwrap();
        assert!(visitor.join().unwrap().is_err(), "a caller waits at the gate of a lost device");
        drop(closed);
        assert!(house.visit().is_err());
    });
    let found = check(World::default(), None, || {
        let house = House::new();
        let mut closed = house.close().unwrap();
        house.gate.lose(lost());
        house.replace(&mut closed, 1);
        closed.hold();
        let visitor = visitor(&house);
        drop(closed);
        visitor.join().unwrap().unwrap();
        house.assert_open();
    });
    tell("gate: loss and recovery", runs + found);
}
