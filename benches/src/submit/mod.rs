// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a dispatch costs the thread that submits it: time, instructions, system calls, allocations.
//!
//! The processor is kept busy at a barrier while the clock runs, so that nothing but the host's side is measured and the
//! soft device is never parked (its futex wake, the one system call a doorbell may make, is counted apart). Instructions
//! and system calls are counted by a tracer from outside ([`tracer`]), which needs no performance counters.

pub mod line;
pub mod traced;
mod tracer;

use std::time::Instant;

use anyhow::{Result, ensure};

use self::line::{Bare, Line};
use self::traced::{DISPATCHES, Part};
use self::tracer::Counted;
use crate::allocations;
use crate::figure::{Report, median};

/// The role of the traced process.
pub const ROLE: &str = "submit-traced";
/// Packets of an ordinary queue, and how many are submitted at a time: room is left for barriers.
const PACKETS: u32 = 1024;
const BATCH: u32 = 1000;
const BATCHES: u32 = 101;
/// The bare work a submission contains.
const PEER: &str = "memcpy+doorbell";

/// Submits so many packets.
type Submit = fn(&mut Line, u32) -> Result<()>;

/// What is submitted, how, and the part in which the tracer counts it.
const CASES: [(&str, Submit, Part); 6] = [
    ("empty kernel", |line, count| line.submit_empty(count), Part::EmptyStepped),
    ("empty kernel, batches of 50", |line, count| line.submit_empty_batch(count), Part::EmptyBatchStepped),
    ("empty kernel, list of 50", |line, count| line.submit_empty_list(count), Part::EmptyListStepped),
    ("axpy: 4 arguments, completion", |line, count| line.submit_axpy(count), Part::AxpyStepped),
    ("axpy, batches of 50", |line, count| line.submit_axpy_batch(count), Part::AxpyBatchStepped),
    ("axpy, list of 50, 1 argument replaced", Line::submit_axpy_list, Part::AxpyListStepped),
];

/// Nanoseconds a dispatch, and allocations during all of them.
fn time(line: &mut Line, submit: Submit) -> Result<(f64, u64)> {
    // With room for all: our own growth must not be counted.
    let mut times = Vec::with_capacity(BATCHES as usize);
    let mut allocated = 0;
    for _ in 0..BATCHES {
        line.hold()?;
        let (before, started) = (allocations::count(), Instant::now());
        submit(line, BATCH)?;
        times.push(started.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
        allocated += allocations::count() - before;
        line.release()?;
    }
    Ok((median(&times), allocated))
}

fn time_bare() -> f64 {
    let mut bare = Bare::new(PACKETS);
    let mut times = Vec::new();
    for _ in 0..BATCHES {
        let started = Instant::now();
        bare.submit(BATCH);
        times.push(started.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
    }
    median(&times)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let mut line = Line::open(PACKETS)?;
    let bare = time_bare();
    report.plain("bare 64-byte memcpy and doorbell store", "ns_per_packet", bare, "ns");
    for (case, submit, _) in CASES {
        let (ns, allocated) = time(&mut line, submit)?;
        report.versus(case, "ns_per_dispatch", ns, "ns", (PEER, bare));
        let total = f64::from(BATCH * BATCHES);
        report.plain(case, "allocations_per_dispatch", allocated as f64 / total, "1");
    }
    drop(line);
    count(report)
}

/// What the tracer counts.
fn count(report: &Report) -> Result<()> {
    let mut counted = Counted::default();
    if let Err(error) = tracer::trace(ROLE, &mut counted) {
        report.note(&format!("ptrace could not count everything, which is missing below: {error:#}"));
    }
    let calls = |part| Some(counted.syscalls(part)? - counted.syscalls(Part::Nothing)?);
    let (busy, parked) = (calls(Part::Held), calls(Part::Free));
    let each = |count: Option<u64>, of: u32| count.map_or(f64::NAN, |count| count as f64 / f64::from(of));
    let metric = "syscalls_per_dispatch";
    report.plain("empty kernel, processor busy", metric, each(busy, DISPATCHES), "1");
    report.plain("empty kernel, processor parked at first", metric, each(parked, DISPATCHES), "1");
    let steps = |part: Part| {
        let steps = Some(counted.instructions(part)? - counted.instructions(Part::NothingStepped)?);
        Some(each(steps, part.dispatches()))
    };
    let steps = |part| steps(part).unwrap_or(f64::NAN);
    let bare = steps(Part::BareStepped);
    for (case, _, part) in CASES {
        report.versus(case, "instructions_per_dispatch", steps(part), "1", (PEER, bare));
    }
    let (Some(busy), Some(parked)) = (busy, parked) else { return Ok(()) };
    let wakes = counted.futexes(Part::Free);
    report.note(&format!(
        "{DISPATCHES} dispatches made {busy} system calls with the processor busy; {parked} when it was parked at first, \
         of them {wakes} futex wakes"
    ));
    ensure!(busy == 0, "submitting to a busy processor makes system calls");
    ensure!(parked == wakes, "submitting makes system calls other than the soft device's futex wake");
    Ok(())
}
