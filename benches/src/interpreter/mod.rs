// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wave instructions a second and core, and how far that is from native code for the same job.
//!
//! The interpreter is run directly on one worker thread. Time is CPU time of the process, for both sides, since machines
//! are shared, and the best of some runs, for the same reason. Both sides' results are compared.

pub mod check;
pub mod jobs;
pub mod machine;
mod native;

use std::time::Duration;

use anyhow::{Result, ensure};
use nix::time::ClockId;
use softgpu_waves::Level;

use self::jobs::{Job, jobs};
use self::machine::Machine;
use crate::figure::Report;

const RUNS: usize = 25;
/// Relative: both sides fuse multiply and add, but may sum in another order.
const TOLERANCE: f32 = 1e-4;

/// CPU time of the process, in seconds.
pub fn cpu_seconds() -> f64 {
    let time = ClockId::CLOCK_PROCESS_CPUTIME_ID.now().expect("a clock that every Linux has");
    time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9
}

/// How long a worker may take from saying that it is done to being asleep.
const SETTLED: Duration = Duration::from_micros(500);

/// CPU time of the process while `work` runs, in seconds.
///
/// Linux adds what another thread has used to the process's time only when that thread is interrupted or sleeps: read too
/// early, a run would be up to a tick too cheap, and the best of many runs would be exactly such a one.
pub fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let started = cpu_seconds();
    let result = work();
    std::thread::sleep(SETTLED);
    (cpu_seconds() - started, result)
}

fn compare(job: &Job, ours: &[f32], native: &[f32]) -> Result<()> {
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE * b.abs().max(1.0);
    let same = ours.len() == native.len() && ours.iter().zip(native).all(close);
    ensure!(same, "{}: the interpreter's result is not that of native code", job.kernel);
    Ok(())
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let machine = Machine::new()?;
    report.note(&format!("CPU level {:?}, one worker", Level::current()));
    for job in jobs() {
        let launch = machine.launch(&job)?;
        let mut native = job.buffers.clone();
        // Once for memory, caches and the predecoder; and to compare, since the jobs add up on what is there.
        machine.complete(&launch)?;
        (job.native)(&mut native);
        compare(&job, &launch.numbers(job.result)?, &native[job.result])?;
        let (mut ours, mut theirs, mut instructions) = (f64::MAX, f64::MAX, 0);
        for _ in 0..RUNS {
            let (seconds, count) = timed(|| machine.complete(&launch));
            instructions = count?;
            ours = ours.min(seconds);
            theirs = theirs.min(timed(|| (job.native)(&mut native)).0);
        }
        let rate = instructions as f64 / ours / 1e6;
        // How much of native speed it has: the times are divided the other way round.
        let peer = ("native", theirs / ours);
        report.ratio(job.case, "wave_instructions_per_second", rate, "M/s", peer);
        report.note(&format!(
            "{}: {instructions} wave instructions in {:.3} ms, native code {:.3} ms",
            job.case,
            ours * 1e3,
            theirs * 1e3
        ));
    }
    Ok(())
}
