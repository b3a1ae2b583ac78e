// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run costs before and after the program: rocminfo under `stasis run`, against rocminfo alone.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{installed, stasis_run};
use crate::figure::{Report, median, quantile};

const RUNS: usize = 15;
/// Not counted: the programs are read from the disk.
const WARM_UP: usize = 2;

/// Milliseconds of each run; `is_right` looks at what it printed.
fn times(mut command: Command, is_right: fn(&str) -> bool) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for run in 0..RUNS + WARM_UP {
        let started = Instant::now();
        let output = command.output().with_context(|| format!("Cannot start {command:?}"))?;
        if run >= WARM_UP {
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(is_right(&text), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(times)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let rocminfo = installed("STASIS_ROCM_6_1", "rocm-6.1")?.join("bin/rocminfo");
    // On a machine with the driver it would find GPUs, and the difference would not be what a run costs.
    let is_alone = !std::path::Path::new("/dev/kfd").exists();
    let mut command = stasis_run()?;
    command.arg(&rocminfo);
    let found = times(command, |text| text.contains("gfx1100") && text.contains("*** Done ***"))?;
    if is_alone {
        let alone = median(&times(Command::new(&rocminfo), |_| true)?);
        report.versus("rocminfo", "start_to_end_median", median(&found), "ms", ("rocminfo_alone", alone));
        report.plain("rocminfo", "start_to_end_over_alone", median(&found) - alone, "ms");
    } else {
        report.plain("rocminfo", "start_to_end_median", median(&found), "ms");
    }
    report.plain("rocminfo", "start_to_end_p90", quantile(&found, 0.9), "ms");
    Ok(())
}
