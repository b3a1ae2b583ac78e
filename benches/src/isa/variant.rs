// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same cases in processes of their own: under another engine, and before anything is compiled.
//!
//! INVARIANT: an engine is chosen by a process's environment and nothing else, so a child is what measures another one.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cases::{CASES, Case};
use super::{BUDGET, Measured, Native, best, cases, engine_of_run, load, native, place, prepare};
use crate::figure::{Figure, Report, median};
use crate::interpreter::timed;

/// Of a process that runs the cases it is given the names of.
pub const ROLE: &str = "isa-variant";
/// Of a process that launches a kernel for the first time.
pub const COMPILE: &str = "isa-compile";

/// TIMEOUT: of a child. What it has printed by then counts.
const LIMIT: Duration = Duration::from_secs(15);
const COMPILED: usize = 5;
/// Other ways to run: what a figure calls them, and the environment that asks for them.
const VARIANTS: [(&str, &str, &str); 1] = [("interp", "SOFTGPU_ENGINE", "interp")];
/// What they are measured by.
const MAIN: [&str; 7] =
    ["gemm_f32_lds16", "gemm_f32_8x8", "gemm_f16_wmma", "hash", "mandelbrot", "axpy", "softmax"];

/// Runs this program in a role and environment of its own, and hands on its figures.
pub fn child(
    role: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    mut take: impl FnMut(Figure) -> Result<()>,
) -> Result<()> {
    let mut command = crate::spawn(role, arguments)?;
    command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("Cannot start a process")?;
    let result = crate::follow(&mut child, LIMIT, &mut take);
    if result.is_err() {
        // It may have ended by itself, with an error that it has printed.
        let _ = child.kill();
    }
    let status = child.wait()?;
    result?;
    ensure!(status.success(), "{role} failed ({status})");
    Ok(())
}

/// One figure for each case that is named.
pub fn play(names: &[String]) -> Result<()> {
    native::check()?;
    let report = super::report();
    let machine = load(1)?;
    for case in names.iter().map(|name| cases::case(name)) {
        let case: Case = case?;
        let native = Native::new(&machine, &case, None)?;
        let (placed, amount) = prepare(&machine, &case, &native)?;
        let seconds = best(BUDGET, || machine.complete(&placed).map(drop))?;
        report.plain(case.name, case.metric.name, amount / seconds / 1e9, case.metric.unit);
    }
    Ok(())
}

/// What the cases have over the same with another environment.
pub fn measure(report: &Report, measured: &[Measured]) -> Result<()> {
    for (peer, variable, value) in VARIANTS {
        if std::env::var(variable).is_ok_and(|set| set == value) {
            continue;
        }
        child(ROLE, &MAIN, &[(variable, value)], |figure| against(report, measured, &figure, peer))?;
    }
    Ok(())
}

/// Reports a case again, beside a child's figure for it.
fn against(report: &Report, measured: &[Measured], theirs: &Figure, peer: &str) -> Result<()> {
    let ours = measured.iter().find(|measured| measured.case == theirs.case);
    let ours = ours.with_context(|| format!("{} was not measured", theirs.case))?;
    let rate = theirs.value.context("A process measured nothing")?;
    report.versus(ours.case, ours.metric.name, ours.rate, ours.metric.unit, (peer, rate));
    Ok(())
}

/// Milliseconds of CPU time that the first launch of `gemm_f32_8x8` takes longer than later ones. Another kernel ran
/// before, so that only this kernel is new; the matrix is one workgroup's, so that a launch is short.
pub fn compile() -> Result<()> {
    let machine = load(1)?;
    let (_, other) = CASES[0];
    machine.complete(&place(&machine, &other())?)?;
    let case = cases::gemm_8x8(128);
    let placed = place(&machine, &case)?;
    let (first, done) = timed(|| machine.complete(&placed));
    done?;
    let later = best(0.0, || machine.complete(&placed).map(drop))?;
    super::report().plain(case.name, "compile", (first - later) * 1e3, "ms");
    Ok(())
}

/// The median of some processes, since a process compiles a kernel once.
pub fn measure_compilation(report: &Report, _: &[Measured]) -> Result<()> {
    // A launch this small might be left to the interpreter.
    let engine = if engine_of_run() == "interp" { "interp" } else { "jit" };
    let mut times = Vec::new();
    for _ in 0..COMPILED {
        child(COMPILE, &[], &[("SOFTGPU_ENGINE", engine)], |figure| {
            times.extend(figure.value);
            Ok(())
        })?;
    }
    report.plain("gemm_f32_8x8", "compile", median(&times), "ms");
    Ok(())
}
