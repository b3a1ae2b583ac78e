// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate with real threads; the models of `tests/model` look at every interleaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{CloseError, Closed, Gate, GatedCell, Lost};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn close(gate: &Arc<Gate>) -> Result<Closed, CloseError> {
    gate.close(soon(), &AtomicBool::new(false))
}

#[test]
fn enter_open_gate_counts_and_leaves() {
    let gate = Arc::new(Gate::new());
    let pass = gate.enter().unwrap();
    assert_eq!(gate.passes(), 1);
    drop(pass);
    assert_eq!(gate.passes(), 0);
}

#[test]
fn close_waits_for_passes_and_holds_new_ones() {
    let gate = Arc::new(Gate::new());
    let (g, started) = (Arc::clone(&gate), Arc::new(AtomicBool::new(false)));
    let s = Arc::clone(&started);
    let worker = thread::spawn(move || {
        let pass = g.enter().unwrap();
        s.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(50));
        drop(pass);
        let _second = g.enter().unwrap();
    });
    while !started.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let closed = close(&gate).unwrap();
    thread::sleep(Duration::from_millis(30));
    assert!(!worker.is_finished());
    assert!(gate.try_enter().unwrap().is_none());
    closed.open();
    worker.join().unwrap();
}

#[test]
fn close_past_deadline_reopens() {
    let gate = Arc::new(Gate::new());
    let g = Arc::clone(&gate);
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (inside, is_inside) = std::sync::mpsc::channel();
    let worker = thread::spawn(move || {
        let _pass = g.enter().unwrap();
        inside.send(()).unwrap();
        told.recv().unwrap();
    });
    is_inside.recv().unwrap();
    let error = gate.close(Instant::now() + Duration::from_millis(20), &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, CloseError::Timeout { passes: 1 }));
    assert!(!gate.is_closed());
    drop(gate.enter().unwrap());
    tell.send(()).unwrap();
    worker.join().unwrap();
}

#[test]
fn close_cancelled_reopens_and_closing_from_inside_is_refused() {
    let gate = Arc::new(Gate::new());
    let pass = gate.enter().unwrap();
    assert!(matches!(close(&gate), Err(CloseError::HeldByCaller)));
    let g = Arc::clone(&gate);
    let error = thread::spawn(move || g.close(soon(), &AtomicBool::new(true)).unwrap_err()).join().unwrap();
    assert!(matches!(error, CloseError::Cancelled { passes: 1 }));
    assert!(!gate.is_closed());
    drop(pass);
}

#[test]
fn nested_enter_while_closing_does_not_deadlock() {
    let gate = Arc::new(Gate::new());
    let pass = gate.enter().unwrap();
    let g = Arc::clone(&gate);
    let closer = thread::spawn(move || close(&g).map(drop));
    while !gate.is_closed() {
        thread::yield_now();
    }
    drop(gate.enter().unwrap());
    drop(pass);
    closer.join().unwrap().unwrap();
}

#[test]
fn lost_gate_refuses_waiters_until_opened() {
    let gate = Arc::new(Gate::new());
    let closed = close(&gate).unwrap();
    let g = Arc::clone(&gate);
    let waiter = thread::spawn(move || g.enter().map(drop));
    closed.refuse(Lost { what: "test", source: None });
    assert_eq!(waiter.join().unwrap().unwrap_err().what, "test");
    assert!(matches!(close(&gate), Err(CloseError::Lost(_))));
    closed.open();
    drop(gate.enter().unwrap());
}

#[test]
fn gated_cell_set_is_seen_by_the_next_pass() {
    let gate = Arc::new(Gate::new());
    let cell = GatedCell::new(&gate, 1);
    assert_eq!(*cell.get(&gate.enter().unwrap()), 1);
    let mut closed = close(&gate).unwrap();
    cell.set(&mut closed, 2);
    closed.open();
    assert_eq!(*cell.get(&gate.enter().unwrap()), 2);
}

#[test]
fn hammering_enter_and_close_never_overlaps() {
    let gate = Arc::new(Gate::new());
    let inside = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (gate, inside, stop) = (Arc::clone(&gate), Arc::clone(&inside), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _pass = gate.enter().unwrap();
                    inside.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..200 {
        let closed = close(&gate).unwrap();
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        closed.open();
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|w| w.join().unwrap());
}
