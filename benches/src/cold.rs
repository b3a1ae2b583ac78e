// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trivial dispatch from the shell costs: a process that starts, finds or starts the device, reads its topology,
//! makes a queue, runs an empty kernel and ends. The peer is a process that does nothing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::figure::{Report, median, quantile};
use crate::gpu::{Gpu, object};

const RUNS: usize = 40;
/// Not counted: the programs are read from the disk.
const WARM_UP: usize = 3;

/// Milliseconds of each run of what `command` makes for it.
fn times(mut command: impl FnMut(usize) -> Command) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(RUNS);
    for run in 0..WARM_UP + RUNS {
        let mut command = command(run);
        let started = Instant::now();
        let status = command.stdout(Stdio::null()).status().context("Cannot start a process")?;
        if run >= WARM_UP {
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        ensure!(status.success(), "{command:?} failed ({status})");
    }
    Ok(times)
}

fn dispatch(stasis: &Path, file: &Path) -> Command {
    let mut command = Command::new(stasis);
    command.arg("dispatch").arg(file).args(["--kernel", "empty", "--grid", "32", "--block", "32"]);
    command
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    // Stays open: what is found by those that start no device.
    let gpu = Gpu::open()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("kernels.co");
    std::fs::write(&file, object(gpu.agent.name())?)?;
    let stasis = std::env::current_exe()?.with_file_name("stasis");
    ensure!(stasis.exists(), "{} is missing: `cargo xtask bench` builds it", stasis.display());
    let peer = median(&times(|_| Command::new("true"))?);
    let instance = format!("bench-cold-{}", std::process::id());
    let cold = times(|run| {
        let mut command = dispatch(&stasis, &file);
        command.env("STASIS_SOFTGPU_INSTANCE", format!("{instance}-{run}"));
        command
    })?;
    let warm = times(|_| dispatch(&stasis, &file))?;
    for (case, times) in [("the device starts with it", &cold), ("the device runs already", &warm)] {
        report.versus(case, "dispatch_median", median(times), "ms", ("empty_process", peer));
        report.plain(case, "dispatch_p90", quantile(times, 0.9), "ms");
    }
    Ok(())
}
