// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of contents that arrive while the process runs: threads that want them, threads that bring them unasked, and one that frees an
//! object meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use stasis_protocol::Limit;
use stasis_protocol::arrivals::{Arrivals, BringError, Fill, Piece, Want};
use stasis_protocol::sync::{Flaw, World};

use crate::world::{check, tell};

/// A byte of an object as the checker sees it: accesses must be ordered.
struct Byte(loom::cell::UnsafeCell<u32>);

// SAFETY: the checker panics at accesses that are not ordered.
unsafe impl Sync for Byte {}

/// Two objects of memory, and what is done with them.
struct Memory {
    arrivals: Arrivals,
    bytes: [[Byte; 2]; 2],
    /// Not of the model: counts, and orders nothing.
    placed: AtomicU32,
    whole: [AtomicU32; 2],
    /// Reads that are still to fail.
    failures: AtomicU32,
    is_freed: [AtomicU32; 2],
}

const VALUE: u32 = 7;

impl Memory {
    fn new(pieces: &[usize], failures: u32) -> Arc<Self> {
        let byte = || Byte(loom::cell::UnsafeCell::new(0));
        let memory = Self {
            arrivals: Arrivals::default(),
            bytes: [[byte(), byte()], [byte(), byte()]],
            placed: AtomicU32::new(0),
            whole: [AtomicU32::new(0), AtomicU32::new(0)],
            failures: failures.into(),
            is_freed: [AtomicU32::new(0), AtomicU32::new(0)],
        };
        memory.arrivals.announce(pieces.iter().zip(0..).map(|(pieces, object)| (object, vec![1; *pieces])));
        Arc::new(memory)
    }

    fn byte(&self, object: u64, index: usize) -> &Byte {
        &self.bytes[usize::try_from(object).unwrap()][index]
    }

    fn want(&self, object: u64) -> Result<(), BringError<()>> {
        self.arrivals.bring(&[Want { object, pieces: None }], self, &Limit::none())
    }

    /// What a caller does with an object that it has waited for: it reads and stores.
    fn use_it(&self, object: u64, pieces: usize) {
        self.want(object).unwrap();
        assert_eq!(self.whole[usize::try_from(object).unwrap()].load(Ordering::Relaxed), 1);
        for index in 0..pieces {
            self.byte(object, index).0.with(|byte| {
                // SAFETY: the checker panics if that is not ordered with all writes.
                assert_eq!(unsafe { *byte }, VALUE);
            });
        }
    }

    /// What a thread does that frees an object.
    fn free(&self, object: u64) {
        if self.arrivals.hold(object) {
            let number = usize::try_from(object).unwrap();
            self.is_freed[number].store(1, Ordering::Relaxed);
            // The memory may be another object's from here on.
            self.byte(object, 0).0.with_mut(|_| ());
            self.arrivals.forget(object);
        }
    }
}

impl Fill for Memory {
    type Error = ();

    fn read(&self, _: Piece, give: &mut dyn FnMut(&[u8])) -> Result<(), ()> {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > 0 {
            self.failures.store(failures - 1, Ordering::Relaxed);
            return Err(());
        }
        give(&[]);
        Ok(())
    }

    fn place(&self, piece: Piece, _: &[u8]) {
        let number = usize::try_from(piece.object).unwrap();
        assert_eq!(self.is_freed[number].load(Ordering::Relaxed), 0, "a freed object is placed");
        self.placed.fetch_add(1, Ordering::Relaxed);
        self.byte(piece.object, piece.index).0.with_mut(|byte| {
            // SAFETY: the checker panics if that is not ordered with all other accesses.
            unsafe {
                assert_eq!(*byte, 0, "a piece is placed twice");
                *byte = VALUE;
            }
        });
    }

    fn whole(&self, object: u64) -> Result<(), ()> {
        self.whole[usize::try_from(object).unwrap()].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One thread wants an object, and another brings pieces unasked.
fn wanted_object_is_whole(world: World) -> u64 {
    check(world, Some(3), || {
        let memory = Memory::new(&[2], 0);
        let unasked = Arc::clone(&memory);
        let unasked = thread::spawn(move || while unasked.arrivals.bring_next(&*unasked).unwrap() {});
        memory.use_it(0, 2);
        unasked.join().unwrap();
        assert!(!memory.arrivals.is_active());
        assert_eq!((memory.placed.load(Ordering::Relaxed), memory.arrivals.left_bytes()), (2, 0));
    })
}

#[test]
fn whoever_waits_sees_all_bytes_and_each_comes_once() {
    tell("arrivals: one who wants, one who brings", wanted_object_is_whole(World::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn flaw_without_notifications_is_found() {
    wanted_object_is_whole(World { flaw: Flaw::Mute, ..World::default() });
}

#[test]
fn two_who_want_the_same_share_the_work() {
    let runs = check(World::default(), Some(2), || {
        let memory = Memory::new(&[1, 1], 0);
        let others = [[0, 1], [1, 0]].map(|order| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || order.map(|object| memory.use_it(object, 1)))
        });
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(memory.placed.load(Ordering::Relaxed), 2);
        assert!(!memory.arrivals.is_active());
    });
    tell("arrivals: two who want two objects", runs);
}

#[test]
fn freed_object_is_never_written_and_keeps_nobody_waiting() {
    let runs = check(World::default(), Some(3), || {
        let memory = Memory::new(&[1, 1], 0);
        let (bringer, wanter) = (Arc::clone(&memory), Arc::clone(&memory));
        let bringer = thread::spawn(move || while bringer.arrivals.bring_next(&*bringer).unwrap() {});
        let wanter = thread::spawn(move || {
            wanter.want(0).unwrap();
            wanter.use_it(1, 1);
        });
        memory.free(0);
        bringer.join().unwrap();
        wanter.join().unwrap();
        assert!(!memory.arrivals.is_active());
        assert_eq!(memory.arrivals.left_bytes(), 0);
    });
    tell("arrivals: one who frees what others want", runs);
}

#[test]
fn piece_that_fails_is_brought_by_whoever_wants_it() {
    let runs = check(World::default(), Some(3), || {
        let memory = Memory::new(&[2], 1);
        let unasked = Arc::clone(&memory);
        let unasked = thread::spawn(move || unasked.arrivals.bring_next(&*unasked));
        // The thread whose read failed is told; the other goes on.
        let first = memory.want(0);
        let other = unasked.join().unwrap();
        assert!(first.is_ok() || other.is_ok(), "one failure is told once");
        memory.use_it(0, 2);
    });
    tell("arrivals: a piece that is not to be had at once", runs);
}
