// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the Python package takes (`bench python`): the released wheel in the Python that the setup keeps for it.
//!
//! | case | peer |
//! | --- | --- |
//! | import stasis | import numpy |
//! | a launch, of ours and of Triton's, submitted | numpy's addition of one element |
//! | Triton's kernels: an addition, a product of matrices | numpy's, on the same cores |
//!
//! INVARIANT: results are compared with numpy's before they are timed.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{installed, source};
use crate::figure::Report;

/// A line of the program's.
#[derive(Debug, Deserialize)]
struct Line {
    case: String,
    metric: String,
    value: f64,
    unit: String,
    peer: Option<String>,
    of_peer: Option<f64>,
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let python = installed("STASIS_PACKAGE_PYTHON", "package-python/bin/python")?;
    let mut command = Command::new(python);
    command.arg("-I").arg(source("package.py")).env("STASIS_DEVICE", "soft:gfx1100");
    command.env("STASIS_SOFTGPU_INSTANCE", format!("bench-{}", std::process::id()));
    for variable in ["STASIS_SOFTGPUD", "STASIS_PROGRAM", "PYTHONPATH"] {
        command.env_remove(variable);
    }
    let output = command.output().context("Cannot start the package's Python")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Line { case, metric, value, unit, peer, of_peer } =
            serde_json::from_str(line).with_context(|| format!("{line:?} is no figure"))?;
        match (peer, of_peer) {
            (Some(peer), Some(number)) => report.versus(&case, &metric, value, &unit, (&peer, number)),
            _ => report.plain(&case, &metric, value, &unit),
        }
    }
    Ok(())
}
