// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same jobs by PoCL, in OpenCL C: a process of its own, because PoCL brings an LLVM and threads with it.
//!
//! INVARIANT: PoCL has one thread; its compilation is not timed, and every result is compared with native code's.

use anyhow::{Context, Result};

use super::cases::{CASES, Case, Peer};
use super::opencl::{Buffers, Platform, Program};
use super::variant::child;
use super::{BUDGET, Measured, Native, best_of, load, native, prepare};
use crate::figure::Report;

/// Of the process.
pub const ROLE: &str = "isa-pocl";
const SOURCE: &str = include_str!("../../kernels/isa.cl");
/// One thread: the variable's names in PoCL before and since 4.0. Compiled kernels are not kept.
const ENVIRONMENT: [(&str, &str); 3] =
    [("POCL_MAX_PTHREAD_COUNT", "1"), ("POCL_CPU_MAX_CU_COUNT", "1"), ("POCL_KERNEL_CACHE", "0")];

/// What we have over PoCL.
pub fn measure(report: &Report, _: &[Measured]) -> Result<()> {
    child(ROLE, &[], &ENVIRONMENT, |figure| {
        report.hand_on(&figure);
        Ok(())
    })
}

/// One figure for each case that PoCL can do: ours, measured again in turns with PoCL, against PoCL's.
pub fn play() -> Result<()> {
    native::check()?;
    let report = super::report();
    let platform = Platform::open("Portable Computing Language")
        .context("packages pocl-opencl-icd and ocl-icd-libopencl1")?;
    report.note(&format!("PoCL: {}", platform.version));
    let program = platform.build(SOURCE)?;
    for (name, make) in CASES {
        let case = make();
        if matches!(case.peer, Peer::Peak(_)) {
            report.note(&format!("{name}: OpenCL C has no matrix instructions"));
            continue;
        }
        if let Err(why) = measure_case(&report, &platform, &program, &case) {
            report.note(&format!("{name} by PoCL: {why:#}"));
        }
    }
    Ok(())
}

fn measure_case(report: &Report, platform: &Platform, program: &Program<'_>, case: &Case) -> Result<()> {
    let machine = load(1)?;
    let native = Native::new(&machine, case, None)?;
    let (placed, amount) = prepare(&machine, case, &native)?;
    let buffers = Buffers::new(platform, &case.buffers)?;
    let kernel = program.kernel(case.kernel, &buffers, case.last)?;
    platform.run(&kernel, case.grid, case.block)?;
    case.compare("PoCL", &buffers.read(case.result)?, &native.result()?)?;
    let mut ours = || machine.complete(&placed).map(drop);
    let mut theirs = || platform.run(&kernel, case.grid, case.block);
    let [ours, theirs] = best_of(BUDGET / 2.0, [&mut ours, &mut theirs])?;
    let (rate, their_rate) = (amount / ours / 1e9, amount / theirs / 1e9);
    report.versus(case.name, case.metric.name, rate, case.metric.unit, ("pocl", their_rate));
    Ok(())
}
