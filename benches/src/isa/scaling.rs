// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two cores against one: the only figure here in wall time, so the only one that other processes can spoil.

use std::time::Instant;

use anyhow::Result;

use super::{Measured, cases, load, place};
use crate::figure::Report;
use crate::interpreter::timed;

const ROUNDS: usize = 15;
/// Wall time below which a larger matrix is taken, in seconds: workers take some microseconds to start.
const SHORT: f64 = 0.05;

/// Wall and CPU time, in seconds.
#[derive(Clone, Copy)]
struct Times {
    wall: f64,
    cpu: f64,
}

/// Takes both in turns; the best wall time of each, and the CPU time of the same run.
pub fn measure(report: &Report, measured: &[Measured]) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        report.note("two cores: this machine has one");
        return Ok(());
    }
    let small = cases::gemm_8x8(cases::SIDE);
    let rate = measured.iter().find(|measured| measured.case == small.name).map_or(f64::NAN, |m| m.rate);
    let seconds = small.amount.unwrap_or(f64::NAN) / rate / 1e9;
    let case = if seconds < SHORT { cases::gemm_8x8(2 * cases::SIDE) } else { small };
    let machines = [load(1)?, load(2)?];
    let placed = [place(&machines[0], &case)?, place(&machines[1], &case)?];
    let mut best = [Times { wall: f64::MAX, cpu: f64::MAX }; 2];
    for _ in 0..ROUNDS {
        for ((machine, placed), best) in machines.iter().zip(&placed).zip(&mut best) {
            let started = Instant::now();
            let (cpu, done) = timed(|| machine.complete(placed));
            done?;
            let wall = started.elapsed().as_secs_f64();
            if wall < best.wall {
                *best = Times { wall, cpu };
            }
        }
    }
    let [one, two] = best;
    let rate = case.amount.unwrap_or(f64::NAN) / two.wall / 1e9;
    report.ratio(case.name, "two_cores_wall", rate, "GFLOP/s", ("one core", one.wall / two.wall));
    report.note(&format!(
        "two cores: {:.2} ms of wall time for {:.2} of CPU time; one: {:.2} for {:.2}",
        two.wall * 1e3,
        two.cpu * 1e3,
        one.wall * 1e3,
        one.cpu * 1e3
    ));
    Ok(())
}
