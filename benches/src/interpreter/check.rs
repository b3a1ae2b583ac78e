// SPDX-License-Identifier: MIT OR Apache-2.0
//! What it costs that every wave can be stopped: the same kernels with a control that waves look at on every backward
//! branch, and with one that no wave looks at.
//!
//! The two take turns, and take turns in going first; time is CPU time of the process and the best of some runs, as for
//! the interpreter itself. The median of the pairs' ratios is beside it: where the two agree, neither is noise. Each
//! kernel's result is compared with native code's.

use anyhow::{Result, ensure};
use softgpu_waves::{Control, Level};

use super::jobs::{Job, jobs, tight_loop};
use super::machine::{Machine, Placed};
use super::{compare, timed};
use crate::figure::{Report, median};

const ROUNDS: usize = 101;
const PEER: &str = "deaf";

/// Milliseconds of both, and the instructions of one.
struct Pairs {
    heeding: Vec<f64>,
    deaf: Vec<f64>,
    instructions: u64,
}

fn measure(machine: &Machine, placed: &Placed) -> Result<Pairs> {
    let mut pairs = Pairs { heeding: Vec::new(), deaf: Vec::new(), instructions: 0 };
    for round in 0..ROUNDS {
        let mut counts = [0; 2];
        for (half, counted) in counts.iter_mut().enumerate() {
            let is_deaf = (round + half) % 2 == 0;
            let control = if is_deaf { Control::uninterruptible() } else { Control::new() };
            let (seconds, count) = timed(|| machine.complete_under(placed, &control));
            *counted = count?;
            if is_deaf { &mut pairs.deaf } else { &mut pairs.heeding }.push(seconds * 1e3);
        }
        ensure!(counts[0] == counts[1], "the two executed {counts:?} instructions");
        pairs.instructions = counts[0];
    }
    Ok(pairs)
}

fn check(machine: &Machine, job: &Job) -> Result<Placed> {
    let placed = machine.launch(job)?;
    let mut native = job.buffers.clone();
    machine.complete_under(&placed, &Control::uninterruptible())?;
    (job.native)(&mut native);
    compare(job, &placed.numbers(job.result)?, &native[job.result])?;
    Ok(placed)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let machine = Machine::new()?;
    report.note(&format!("CPU level {:?}, one worker, best of {ROUNDS}", Level::current()));
    for job in jobs().into_iter().chain([tight_loop()]) {
        let placed = check(&machine, &job)?;
        let pairs = measure(&machine, &placed)?;
        let best = |times: &[f64]| times.iter().copied().fold(f64::MAX, f64::min);
        let (heeding, deaf) = (best(&pairs.heeding), best(&pairs.deaf));
        report.versus(job.case, "cpu_best", heeding, "ms", (PEER, deaf));
        let ratios: Vec<f64> =
            pairs.heeding.iter().zip(&pairs.deaf).map(|(ours, theirs)| ours / theirs).collect();
        report.ratio(job.case, "cpu_median", median(&pairs.heeding), "ms", (PEER, median(&ratios)));
        report
            .note(&format!("{}: {} wave instructions, {deaf:.3} ms unheeded", job.case, pairs.instructions));
    }
    Ok(())
}
