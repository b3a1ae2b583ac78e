// SPDX-License-Identifier: MIT OR Apache-2.0
//! How near gfx1100 machine code on the software GPU comes to the best native code for the same job, and to PoCL.
//!
//! INVARIANT: both sides' results are compared before either is timed, and both use vectors of the same width. One worker runs waves; time is CPU time of the
//! process for both sides, and the best of some runs taken in turns, since machines are shared. `ratio` is always our
//! rate divided by the peer's (`native`, `pocl`, or the interpreter, `interp`). The engine is what `SOFTGPU_ENGINE` names.

mod blas;
pub mod cases;
mod compile;
mod native;
mod opencl;
pub mod plot;
pub mod pocl;
mod scaling;
pub mod short;
pub mod variant;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use softgpu_kernels::Array;
use softgpu_waves::Level;

use self::blas::Blas;
use self::cases::{CASES, Case, Metric, Peer};
use crate::figure::Report;
use crate::gpu;
use crate::interpreter::machine::{Machine, Placed};
use crate::interpreter::timed;

include!(concat!(env!("OUT_DIR"), "/isa.rs"));

/// The variable that names the one case to measure.
pub const CASE: &str = "STASIS_BENCH_CASE";

/// CPU time that one side of a case may take, in seconds, beyond the least number of runs.
const BUDGET: f64 = 0.3;
const FEWEST: usize = 3;
const MOST: usize = 200;
/// TIMEOUT: when the parts that come last are left out, so that what was measured is still reported.
const ENOUGH: Duration = Duration::from_secs(40);

/// The engine that runs waves in this process, as softgpu-waves reads it.
pub fn engine_of_run() -> String {
    std::env::var("SOFTGPU_ENGINE").unwrap_or_else(|_| "auto".to_owned())
}

fn load(workers: usize) -> Result<Machine> {
    Machine::load(gpu::find(OBJECTS, "gfx1100")?, workers)
}

fn place(machine: &Machine, case: &Case) -> Result<Placed> {
    let buffers: Vec<&[u8]> = case.buffers.iter().map(Vec::as_slice).collect();
    machine.place(case.shape(&case.scalars()), &buffers)
}

/// The best of runs of several, in seconds of CPU time: each gets `budget` in all and [`FEWEST`] runs, and the one that
/// has had least of it is next, so that what else the machine does meets all of them.
fn best_of<const N: usize>(budget: f64, runs: [&mut dyn FnMut() -> Result<()>; N]) -> Result<[f64; N]> {
    let (mut best, mut spent, mut turns) = ([f64::MAX; N], [0.0; N], [0; N]);
    loop {
        let wanting = (0..N).filter(|k| turns[*k] < FEWEST || spent[*k] < budget && turns[*k] < MOST);
        let Some(next) = wanting.min_by(|a, b| spent[*a].total_cmp(&spent[*b])) else { return Ok(best) };
        let (seconds, done) = timed(&mut *runs[next]);
        done?;
        best[next] = best[next].min(seconds);
        spent[next] += seconds;
        turns[next] += 1;
    }
}

/// As [`best_of`], of one.
fn best(budget: f64, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    best_of(budget, [&mut run]).map(|[best]| best)
}

/// Native code for a case, with buffers of its own.
struct Native<'a> {
    case: &'a Case,
    blas: Option<&'a Blas>,
    buffers: Vec<Array<u8>>,
}

impl<'a> Native<'a> {
    fn new(machine: &Machine, case: &'a Case, blas: Option<&'a Blas>) -> Result<Self> {
        let buffers = case.buffers.iter().map(|bytes| machine.buffer(bytes)).collect::<Result<Vec<_>>>()?;
        Ok(Self { case, blas, buffers })
    }

    fn run(&self) {
        match (self.case.peer, self.blas) {
            (Peer::Blas(_), Some(blas)) => blas.gemm(self.case.size, &self.buffers),
            (Peer::C(function) | Peer::Peak(function) | Peer::Blas(function), _) => {
                native::run(function, self.case, &self.buffers);
            }
        }
    }

    fn result(&self) -> Result<Vec<u8>> {
        Ok(self.buffers.get(self.case.result).context("no such buffer")?.get())
    }
}

/// What was measured of a case.
#[derive(Debug)]
pub struct Measured {
    case: &'static str,
    metric: Metric,
    /// 10⁹ of what the metric counts, a second.
    rate: f64,
}

/// Runs a case once on both sides and compares; gives our side, and what one run does.
fn prepare(machine: &Machine, case: &Case, native: &Native<'_>) -> Result<(Placed, f64)> {
    let placed = place(machine, case)?;
    machine.complete(&placed)?;
    native.run();
    let expected = native.result()?;
    case.compare("the software GPU", &placed.bytes(case.result)?, &expected)?;
    Ok((placed, case.amount(&expected)))
}

/// Reports a case, our side against native code's.
fn measure(report: &Report, machine: &Machine, case: &Case, blas: Option<&Blas>) -> Result<Measured> {
    let native = Native::new(machine, case, blas)?;
    let (placed, amount) = prepare(machine, case, &native)?;
    let mut ours = || machine.complete(&placed).map(drop);
    let mut theirs = || {
        match case.peer {
            Peer::Peak(_) => native::peak(),
            Peer::C(_) | Peer::Blas(_) => native.run(),
        }
        Ok(())
    };
    let [ours, theirs] = best_of(BUDGET, [&mut ours, &mut theirs])?;
    let their_amount = if let Peer::Peak(_) = case.peer { native::peak_amount() } else { amount };
    let (rate, their_rate) = (amount / ours / 1e9, their_amount / theirs / 1e9);
    let Metric { name: counted, unit } = case.metric;
    report.versus(case.name, counted, rate, unit, ("native", their_rate));
    report.note(&format!("{}: {:.3} ms, native {their_rate:.2} {unit}", case.name, ours * 1e3));
    Ok(Measured { case: case.name, metric: case.metric, rate })
}

/// The report of the level in use.
fn report() -> Report {
    Report::new(&format!("isa-{}", Level::current().name()))
}

/// Measures at the level in use.
pub fn run(_: &Report) -> Result<()> {
    let report = &report();
    let bits = native::check()?;
    report.note(&format!(
        "engine {}, CPU level {:?}, one worker; native code with vectors of {bits} bits",
        engine_of_run(),
        Level::current()
    ));
    let blas = match Blas::load() {
        Ok(blas) => {
            report.note(&format!("gemm is compared with OpenBLAS for {} on one thread", blas.core));
            Some(blas)
        }
        Err(why) => {
            report
                .note(&format!("gemm is compared with native/isa.c, because there is no OpenBLAS: {why:#}"));
            None
        }
    };
    let peak = best(BUDGET, || {
        native::peak();
        Ok(())
    })?;
    report.plain("native_fma_peak", "arithmetic", native::peak_amount() / peak / 1e9, "GFLOP/s");
    let machine = load(1)?;
    let (mut measured, mut failures) = (Vec::new(), Vec::new());
    let wanted = std::env::var(CASE).ok();
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    let known = CASES.map(|(name, _)| name);
    ensure!(known.into_iter().any(is_wanted), "there is no such case; there are {}", known.join(", "));
    for (name, make) in CASES.into_iter().filter(|(name, _)| is_wanted(name)) {
        match measure(report, &machine, &make(), blas.as_ref()) {
            Ok(case) => measured.push(case),
            Err(why) => {
                report.note(&format!("{why:#}"));
                failures.push(name);
            }
        }
    }
    for (what, part) in [
        ("compilation", variant::measure_compilation as fn(&Report, &[Measured]) -> Result<()>),
        ("two cores", scaling::measure),
        ("other engines", variant::measure),
        ("PoCL", pocl::measure),
    ]
    .into_iter()
    // One case that was asked for is all.
    .filter(|_| wanted.is_none())
    {
        if report.elapsed() > ENOUGH {
            report.note(&format!("{what} was left out: no time"));
        } else if let Err(why) = part(report, &measured) {
            report.note(&format!("{what} could not be measured: {why:#}"));
        }
    }
    ensure!(failures.is_empty(), "{} went wrong", failures.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cases::gemm_8x8;
    use super::*;

    #[test]
    fn best_of_gives_everyone_the_fewest_runs_and_passes_a_failure_on() {
        let (mut first, mut second) = (0, 0);
        let mut counting = || {
            first += 1;
            Ok(())
        };
        let mut counting_too = || {
            second += 1;
            Ok(())
        };
        let best = best_of(0.0, [&mut counting, &mut counting_too]).unwrap();
        assert!(best.iter().all(|seconds| *seconds < 1.0));
        assert_eq!((first, second), (FEWEST, FEWEST));
        assert!(best_of(0.0, [&mut || anyhow::bail!("no")]).is_err());
    }

    #[test]
    fn native_multiplications_are_the_sums_of_products() {
        native::check().unwrap();
        let n = 128;
        let machine = load(1).unwrap();
        let case = gemm_8x8(n);
        let floats = |at: usize| softgpu_kernels::values_of::<f32>(&case.buffers[at]);
        let (a, b, n) = (floats(0), floats(1), n as usize);
        let expected: Vec<f32> =
            (0..n * n).map(|i| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum()).collect();
        for function in [native::GEMM, native::GEMM_LDS16] {
            let case = Case { peer: Peer::C(function), ..gemm_8x8(128) };
            let native = Native::new(&machine, &case, None).unwrap();
            native.run();
            let result = native.result().unwrap();
            case.compare("native code", &result, bytemuck::cast_slice(&expected)).unwrap();
        }
    }
}
