// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents that arrive while the process runs already: which thread brings which piece of an object, which threads wait for it, and
//! what becomes of an object that is freed before it is whole.
//!
//! INVARIANT: a piece is placed at most once, and never after its object was forgotten or while it is held; a thread that
//! waited for an object sees every byte of it, and none uses it before [`Fill::whole`] has been called for it, which happens once. So a piece
//! never overwrites what the process has stored since: it stores to pieces that are here.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::Limit;
use crate::limit::Stopped;
use crate::sync::{ARRIVAL_POLL, AtomicBool, Condvar, Instant, Mutex, wait_until};

/// A piece of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// The object, by a number that it has for as long as it lives.
    pub object: u64,
    /// Which piece of it, from 0.
    pub index: usize,
}

/// Pieces that a thread wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The object.
    pub object: u64,
    /// Which of its pieces; `None`: all, and that it is whole.
    pub pieces: Option<Range<usize>>,
}

/// Reads pieces and places them in their objects.
pub trait Fill {
    /// Why a piece cannot be read or an object not be used.
    type Error;

    /// Gets a piece, and gives it out when it is known to be right.
    ///
    /// # Errors
    /// Why not; then it was not given out.
    fn read(&self, piece: Piece, give: &mut dyn FnMut(&[u8])) -> Result<(), Self::Error>;

    /// Puts a piece where it belongs. The object is there until this returns.
    fn place(&self, piece: Piece, bytes: &[u8]);

    /// All pieces of an object are placed. It may have been forgotten meanwhile.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn whole(&self, object: u64) -> Result<(), Self::Error>;
}

/// Why what was wanted is not here.
#[derive(Debug, thiserror::Error)]
pub enum BringError<E> {
    /// A piece could not be read, or an object not be made usable; it can be wanted again.
    #[error("A piece is not to be had")]
    Fill(E),
    /// The time is over.
    #[error("Contents are still to come: {0}")]
    Stopped(Stopped),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    /// A thread is bringing it.
    Taken,
    Here,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    No,
    /// A thread is in [`Fill::whole`] for it.
    Making,
    Yes,
}

#[derive(Debug)]
struct Object {
    pieces: Vec<(State, u64)>,
    /// Before it no piece is absent.
    first: usize,
    /// Pieces that are not here.
    left: usize,
    /// Pieces that are being placed.
    placing: usize,
    /// No piece is placed now.
    is_held: bool,
    /// It is among those that are brought first.
    is_wanted: bool,
    whole: Whole,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<u64, Object>,
    /// Objects that are brought first.
    wanted: VecDeque<u64>,
    /// All objects, in the order in which they are brought otherwise.
    order: VecDeque<u64>,
    left_bytes: u64,
    /// Objects that are not whole.
    left_objects: usize,
}

/// What is to come.
#[derive(Debug)]
pub struct Arrivals {
    is_active: AtomicBool,
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { is_active: AtomicBool::new(false), inner: Mutex::default(), changed: Condvar::new() }
    }
}

impl Object {
    /// The first absent piece in a range, taken.
    fn take(&mut self, range: Range<usize>) -> Option<usize> {
        while self.pieces.get(self.first).is_some_and(|(state, _)| *state != State::Absent) {
            self.first += 1;
        }
        let mut places = range.start.max(self.first)..range.end.min(self.pieces.len());
        let found = places.find(|n| self.pieces[*n].0 == State::Absent)?;
        self.pieces[found].0 = State::Taken;
        Some(found)
    }

    /// What is to be done for all of it.
    fn next(&mut self, number: u64) -> Option<Next> {
        if let Some(index) = self.take(0..self.pieces.len()) {
            return Some(Next::Bring(Piece { object: number, index }));
        }
        let is_complete = self.left == 0 && self.whole == Whole::No;
        is_complete.then(|| {
            self.whole = Whole::Making;
            Next::Finish(number)
        })
    }

    fn is_here(&self, range: Range<usize>) -> bool {
        let end = range.end.min(self.pieces.len());
        self.pieces.get(range.start..end).is_none_or(|pieces| pieces.iter().all(|(s, _)| *s == State::Here))
    }
}

/// What there is to do.
#[derive(Clone, Copy)]
enum Next {
    Bring(Piece),
    /// All pieces are here; [`Fill::whole`] is to be called.
    Finish(u64),
}

impl Arrivals {
    /// Whether anything is to come. Costs one load.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Bytes that are to come.
    pub fn left_bytes(&self) -> u64 {
        self.inner.lock().left_bytes
    }

    /// Announces objects with the bytes of each piece, in the order in which they come if none is wanted. A piece of no bytes is
    /// here.
    pub fn announce(&self, objects: impl IntoIterator<Item = (u64, Vec<u64>)>) {
        let mut inner = self.inner.lock();
        for (number, bytes) in objects {
            let left = bytes.iter().filter(|bytes| **bytes > 0).count();
            inner.left_bytes += bytes.iter().sum::<u64>();
            inner.left_objects += 1;
            inner.order.push_back(number);
            let state = |bytes| if bytes > 0 { State::Absent } else { State::Here };
            let pieces = bytes.into_iter().map(|bytes| (state(bytes), bytes)).collect();
            let object = Object {
                pieces,
                first: 0,
                left,
                placing: 0,
                is_held: false,
                is_wanted: false,
                whole: Whole::No,
            };
            inner.objects.insert(number, object);
        }
        let is_active = inner.left_objects > 0;
        // ORDERING: with the Acquire of `is_active`; callers see it behind a gate that opens later, too.
        self.is_active.store(is_active, Ordering::Release);
    }

    /// Whether an object is announced and not whole.
    pub fn is_awaited(&self, object: u64) -> bool {
        !self.inner.lock().is_here(&Want { object, pieces: None })
    }

    /// Brings what is wanted; the calling thread brings what no other is bringing, and waits for the rest.
    ///
    /// # Errors
    /// [`BringError`]; the rest is still to come, and can be wanted again.
    pub fn bring<F: Fill>(&self, wants: &[Want], by: &F, limit: &Limit) -> Result<(), BringError<F::Error>> {
        let mut inner = self.inner.lock();
        for want in wants {
            let Inner { objects, wanted, .. } = &mut *inner;
            if let Some(object) = objects.get_mut(&want.object).filter(|o| o.left > 0 && !o.is_wanted) {
                object.is_wanted = true;
                wanted.push_back(want.object);
            }
        }
        let mut wants = wants;
        loop {
            // What is here stays here.
            while wants.first().is_some_and(|want| inner.is_here(want)) {
                wants = &wants[1..];
            }
            if wants.is_empty() {
                return Ok(());
            }
            // Before a piece is taken, which this thread would have to bring.
            limit.check().map_err(BringError::Stopped)?;
            match inner.next(wants) {
                Some(next) => {
                    drop(inner);
                    self.act(next, by).map_err(BringError::Fill)?;
                    inner = self.inner.lock();
                }
                None => wait_until(&self.changed, &mut inner, Instant::now() + ARRIVAL_POLL),
            }
        }
    }

    /// Brings everything.
    ///
    /// # Errors
    /// As for [`Arrivals::bring`].
    pub fn bring_all<F: Fill>(&self, by: &F, limit: &Limit) -> Result<(), BringError<F::Error>> {
        let all: Vec<Want> =
            self.inner.lock().objects.keys().map(|&object| Want { object, pieces: None }).collect();
        self.bring(&all, by, limit)
    }

    /// Brings one piece, a wanted one first. Whether there was one that no thread had begun.
    ///
    /// # Errors
    /// As for [`Fill`].
    pub fn bring_next<F: Fill>(&self, by: &F) -> Result<bool, F::Error> {
        let next = self.inner.lock().any();
        next.map_or(Ok(false), |next| self.act(next, by).map(|()| true))
    }

    fn act<F: Fill>(&self, next: Next, by: &F) -> Result<(), F::Error> {
        let finished = match next {
            Next::Bring(piece) => self.bring_piece(piece, by)?,
            Next::Finish(object) => Some(object),
        };
        let Some(number) = finished else { return Ok(()) };
        let made = by.whole(number);
        let mut inner = self.inner.lock();
        if let Some(object) = inner.objects.get_mut(&number) {
            object.whole = if made.is_ok() { Whole::Yes } else { Whole::No };
            if made.is_ok() {
                inner.left_objects -= 1;
                self.look(&mut inner);
            }
        }
        self.changed.notify_all();
        made
    }

    /// Brings a piece that was taken. The object, if it is complete now: the caller sees to it.
    fn bring_piece<F: Fill>(&self, piece: Piece, by: &F) -> Result<Option<u64>, F::Error> {
        let read = by.read(piece, &mut |bytes| {
            if self.begin(piece) {
                by.place(piece, bytes);
                self.end(piece);
            }
        });
        let mut inner = self.inner.lock();
        let Some(object) = inner.objects.get_mut(&piece.object) else { return read.map(|()| None) };
        if let Err(error) = read {
            object.pieces[piece.index].0 = State::Absent;
            object.first = object.first.min(piece.index);
            self.changed.notify_all();
            return Err(error);
        }
        object.pieces[piece.index].0 = State::Here;
        let bytes = object.pieces[piece.index].1;
        object.left -= 1;
        let is_complete = object.left == 0;
        if is_complete {
            object.whole = Whole::Making;
        }
        inner.left_bytes -= bytes;
        self.changed.notify_all();
        Ok(is_complete.then_some(piece.object))
    }

    /// Begins to place a piece, once its object is not held; whether the object is there.
    fn begin(&self, piece: Piece) -> bool {
        let mut inner = self.inner.lock();
        loop {
            match inner.objects.get_mut(&piece.object) {
                None => return false,
                Some(object) if object.is_held => {
                    wait_until(&self.changed, &mut inner, Instant::now() + ARRIVAL_POLL);
                }
                Some(object) => {
                    object.placing += 1;
                    return true;
                }
            }
        }
    }

    fn end(&self, piece: Piece) {
        let mut inner = self.inner.lock();
        if let Some(object) = inner.objects.get_mut(&piece.object) {
            object.placing -= 1;
        }
        self.changed.notify_all();
    }

    /// Has no piece of an object be placed until it is released or forgotten; waits for those that are being placed, not for those
    /// that are being read. Whether it is announced.
    pub fn hold(&self, object: u64) -> bool {
        let mut inner = self.inner.lock();
        loop {
            let Some(found) = inner.objects.get_mut(&object) else { return false };
            found.is_held = true;
            if found.placing == 0 {
                return true;
            }
            wait_until(&self.changed, &mut inner, Instant::now() + ARRIVAL_POLL);
        }
    }

    /// Lets pieces of a held object be placed again.
    pub fn release(&self, object: u64) {
        let mut inner = self.inner.lock();
        if let Some(object) = inner.objects.get_mut(&object) {
            object.is_held = false;
        }
        self.changed.notify_all();
    }

    /// Forgets an object, which is held: nothing of it is placed any more, and no thread waits for it.
    pub fn forget(&self, object: u64) {
        let mut inner = self.inner.lock();
        if let Some(forgotten) = inner.objects.remove(&object) {
            let left = forgotten.pieces.iter().filter(|(state, _)| *state != State::Here);
            inner.left_bytes -= left.map(|(_, bytes)| bytes).sum::<u64>();
            if forgotten.whole != Whole::Yes {
                inner.left_objects -= 1;
            }
            self.look(&mut inner);
        }
        self.changed.notify_all();
    }

    /// Forgets everything. No thread may be bringing a piece.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.left_objects = 0;
        self.look(&mut inner);
        self.changed.notify_all();
    }

    fn look(&self, inner: &mut Inner) {
        if inner.left_objects == 0 {
            *inner = Inner::default();
            self.is_active.store(false, Ordering::Release);
        }
    }
}

impl Inner {
    fn is_here(&self, want: &Want) -> bool {
        match (self.objects.get(&want.object), &want.pieces) {
            (None, _) => true,
            (Some(object), None) => object.whole == Whole::Yes,
            (Some(object), Some(range)) => object.is_here(range.clone()),
        }
    }

    /// What a thread that wants these is to do; nothing if others are bringing them.
    fn next(&mut self, wants: &[Want]) -> Option<Next> {
        wants.iter().find_map(|want| {
            let object = self.objects.get_mut(&want.object)?;
            match &want.pieces {
                None => object.next(want.object),
                Some(range) => {
                    object.take(range.clone()).map(|index| Next::Bring(Piece { object: want.object, index }))
                }
            }
        })
    }

    /// What a thread that wants nothing of its own is to do.
    fn any(&mut self) -> Option<Next> {
        let Inner { objects, wanted, order, .. } = self;
        for queue in [wanted, order] {
            while let Some(&number) = queue.front() {
                let next = objects.get_mut(&number).and_then(|object| object.next(number));
                if let Some(next @ Next::Bring(_)) = next {
                    return Some(next);
                }
                // No more is to be brought of it. If `whole` fails now, a thread that wants the object calls it again.
                queue.pop_front();
                if next.is_some() {
                    return next;
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    /// Bytes that are the piece's number, and what was done with them.
    #[derive(Default)]
    struct Shelf {
        placed: RefCell<Vec<Piece>>,
        whole: RefCell<Vec<u64>>,
        /// Pieces that are not to be had.
        lost: RefCell<BTreeSet<Piece>>,
    }

    impl Fill for Shelf {
        type Error = Piece;

        fn read(&self, piece: Piece, give: &mut dyn FnMut(&[u8])) -> Result<(), Piece> {
            if self.lost.borrow().contains(&piece) {
                return Err(piece);
            }
            give(&[piece.index as u8]);
            Ok(())
        }

        fn place(&self, piece: Piece, bytes: &[u8]) {
            assert_eq!(usize::from(bytes[0]), piece.index);
            self.placed.borrow_mut().push(piece);
        }

        fn whole(&self, object: u64) -> Result<(), Piece> {
            self.whole.borrow_mut().push(object);
            Ok(())
        }
    }

    fn piece(object: u64, index: usize) -> Piece {
        Piece { object, index }
    }

    fn all(object: u64) -> Want {
        Want { object, pieces: None }
    }

    #[test]
    fn wanted_pieces_come_first_and_nothing_comes_twice() {
        let (arrivals, shelf) = (Arrivals::default(), Shelf::default());
        assert!(!arrivals.is_active());
        arrivals.announce([(10, vec![4, 4, 4]), (20, vec![4, 0, 4])]);
        assert!(arrivals.is_active() && arrivals.is_awaited(20) && arrivals.left_bytes() == 20);
        let want = Want { object: 10, pieces: Some(1..2) };
        for _ in 0..2 {
            arrivals.bring(std::slice::from_ref(&want), &shelf, &Limit::none()).unwrap();
        }
        assert_eq!((shelf.placed.take(), shelf.whole.take()), (vec![piece(10, 1)], vec![]));
        arrivals.bring(&[all(20)], &shelf, &Limit::none()).unwrap();
        assert_eq!((shelf.placed.take(), shelf.whole.take()), (vec![piece(20, 0), piece(20, 2)], vec![20]));
        assert!(!arrivals.is_awaited(20) && arrivals.is_awaited(10));
        while arrivals.bring_next(&shelf).unwrap() {}
        assert_eq!((shelf.placed.take(), shelf.whole.take()), (vec![piece(10, 0), piece(10, 2)], vec![10]));
        assert!(!arrivals.is_active() && arrivals.left_bytes() == 0);
        // Nothing is to come of what was never announced.
        arrivals.bring(&[all(30)], &shelf, &Limit::none()).unwrap();
    }

    #[test]
    fn object_of_zeros_is_whole_after_it_was_seen_to() {
        let (arrivals, shelf) = (Arrivals::default(), Shelf::default());
        arrivals.announce([(1, vec![0, 0]), (2, vec![])]);
        assert!(arrivals.is_awaited(1));
        arrivals.bring_all(&shelf, &Limit::none()).unwrap();
        assert_eq!(shelf.whole.take(), [1, 2]);
        assert!(!arrivals.is_active());
    }

    #[test]
    fn piece_that_is_not_to_be_had_is_wanted_still() {
        let (arrivals, shelf) = (Arrivals::default(), Shelf::default());
        arrivals.announce([(1, vec![4, 4])]);
        shelf.lost.borrow_mut().insert(piece(1, 0));
        let refused = arrivals.bring(&[all(1)], &shelf, &Limit::none());
        assert!(matches!(refused, Err(BringError::Fill(lost)) if lost == piece(1, 0)));
        assert_eq!(arrivals.left_bytes(), 8);
        shelf.lost.borrow_mut().clear();
        arrivals.bring(&[all(1)], &shelf, &Limit::none()).unwrap();
        assert_eq!(shelf.whole.take(), [1]);
    }

    #[test]
    fn limit_stops_before_anything_is_taken() {
        let (arrivals, shelf) = (Arrivals::default(), Shelf::default());
        arrivals.announce([(1, vec![4])]);
        let stopped = arrivals.bring(&[all(1)], &shelf, &Limit::within(Duration::ZERO));
        assert!(matches!(stopped, Err(BringError::Stopped(_))));
        arrivals.bring(&[all(1)], &shelf, &Limit::none()).unwrap();
        assert_eq!(shelf.placed.take(), [piece(1, 0)]);
    }

    #[test]
    fn forgotten_object_is_neither_placed_nor_awaited() {
        let (arrivals, shelf) = (Arrivals::default(), Shelf::default());
        arrivals.announce([(1, vec![4, 4]), (2, vec![4])]);
        assert!(arrivals.hold(1) && !arrivals.hold(3));
        arrivals.release(1);
        arrivals.bring(&[Want { object: 1, pieces: Some(0..1) }], &shelf, &Limit::none()).unwrap();
        assert!(arrivals.hold(1));
        arrivals.forget(1);
        assert_eq!(arrivals.left_bytes(), 4);
        arrivals.bring(&[all(1)], &shelf, &Limit::none()).unwrap();
        arrivals.bring_all(&shelf, &Limit::none()).unwrap();
        assert_eq!((shelf.placed.take(), shelf.whole.take()), (vec![piece(1, 0), piece(2, 0)], vec![2]));
        arrivals.announce([(4, vec![4])]);
        arrivals.clear();
        assert!(!arrivals.is_active());
    }
}
