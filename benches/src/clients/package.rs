// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the Python package takes (`bench python`): the released wheel in the Python that the setup keeps for it.
//!
//! | case | peer |
//! | --- | --- |
//! | import stasis | import numpy |
//! | a launch, of ours and of Triton's, submitted | numpy's addition of one element |
//! | actors of Ray until they serve, with what others have saved (`bench ray`) | as many that begin with a file |
//! | Triton's kernels: an addition, a product of matrices | numpy's, on the same cores |
//!
//! INVARIANT: results are compared with numpy's before they are timed.

use std::path::Path;
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

/// A program in the package's Python, on one software device.
fn command(program: &Path) -> Result<Command> {
    let python = installed("STASIS_PACKAGE_PYTHON", "package-python/bin/python")?;
    let mut command = Command::new(python);
    command.arg(program).env("STASIS_DEVICE", "soft:gfx1100");
    command.env("STASIS_SOFTGPU_INSTANCE", format!("bench-{}", std::process::id()));
    for variable in ["STASIS_SOFTGPUD", "STASIS_PROGRAM", "PYTHONPATH"] {
        command.env_remove(variable);
    }
    Ok(command)
}

/// What it prints.
fn printed(mut command: Command) -> Result<String> {
    let output = command.output().context("Cannot start the package's Python")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How long actors of one kind took.
#[derive(Debug, Deserialize)]
struct Actors {
    /// Until the last could serve, with Ray's own part.
    last_ready_s: f64,
    /// Until one could, from its beginning.
    median_s: f64,
}

/// What the example of actors prints.
#[derive(Debug, Deserialize)]
struct Fleet {
    replicas: u32,
    table_mbytes: f64,
    cold: Actors,
    adopted: Actors,
}

/// Measures how long ten actors of Ray take until they serve.
pub fn run_ray(report: &Report) -> Result<()> {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ray_embed");
    let directory = tempfile::tempdir()?;
    let code = directory.path().join("embed.co");
    let mut clang = Command::new(std::env::var_os("STASIS_CLANG").unwrap_or_else(|| "clang-19".into()));
    clang.args(["--target=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-O3", "-nogpulib", "-ffreestanding", "-o"]);
    let compiled = clang.arg(&code).arg(example.join("embed.c")).status().context("Cannot start clang")?;
    ensure!(compiled.success(), "clang failed ({compiled})");
    let mut program = command(&example.join("embed.py"))?;
    program.arg("--code").arg(&code).env("RAY_AUTH_MODE", "disabled");
    let text = printed(program)?;
    let line = text.lines().last().context("the example says nothing")?;
    let Fleet { replicas, table_mbytes, cold, adopted } =
        serde_json::from_str(line).with_context(|| format!("{line:?} is no figure"))?;
    let case = format!("{replicas} actors of Ray with {table_mbytes:.0} MB that others have saved");
    let peer = "with the same from a file";
    report.versus(&case, "until the last serves", adopted.last_ready_s, "s", (peer, cold.last_ready_s));
    report.versus(&case, "one, the median", adopted.median_s, "s", (peer, cold.median_s));
    Ok(())
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let mut program = command(&source("package.py"))?;
    program.env("PYTHONSAFEPATH", "1");
    for line in printed(program)?.lines() {
        let Line { case, metric, value, unit, peer, of_peer } =
            serde_json::from_str(line).with_context(|| format!("{line:?} is no figure"))?;
        match (peer, of_peer) {
            (Some(peer), Some(number)) => report.versus(&case, &metric, value, &unit, (&peer, number)),
            _ => report.plain(&case, &metric, value, &unit),
        }
    }
    Ok(())
}
