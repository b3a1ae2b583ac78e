// SPDX-License-Identifier: MIT OR Apache-2.0
//! tinygrad's forward pass, on our device and on its own CPU device.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{check_executed, installed, source, stasis_run};
use crate::figure::{Report, median};

const PASSES: &str = "30";
/// What tinygrad's mock of a GPU takes for this pass, ms: published, not measured here.
const MOCK_PASS_MS: f64 = 19_200.0;
/// How far sums of another order may be apart.
const TOLERANCE: f64 = 1e-4;

/// What forward.py prints.
#[derive(Debug, Deserialize)]
struct Outcome {
    first_s: f64,
    passes_ms: Vec<f64>,
    result: Vec<f64>,
}

/// Runs forward.py by a command that ends with Python; answers its outcome and its errors.
fn forward(mut command: Command, device: &str) -> Result<(Outcome, String)> {
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| "clang-19".into());
    command.arg(source("forward.py")).arg(PASSES);
    command.envs([("DEV", device), ("CACHELEVEL", "0"), ("PARALLEL", "0"), ("PYTHONDONTWRITEBYTECODE", "1")]);
    // For the CPU tinygrad compiles functions of its own with a C compiler, whatever compiles the kernels.
    command.env("CC", clang);
    for variable in ["AMD_AQL", "AMD_DISABLE_SDMA", "BEAM", "DEBUG", "NOOPT", "PYTHONPATH"] {
        command.env_remove(variable);
    }
    let output = command.output().with_context(|| format!("Cannot start {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "forward.py on {device} failed ({}): {errors}", output.status);
    let outcome = serde_json::from_slice(&output.stdout).context("forward.py printed no outcome")?;
    Ok((outcome, errors))
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let python = installed("STASIS_CLIENTS_PYTHON", "clients-python/bin/python")?;
    let (cpu, _) = forward(Command::new(&python), "CPU:LLVM")?;
    let mut command = stasis_run()?;
    command.arg(&python);
    let (soft, errors) = forward(command, "KFD+AMD:LLVM")?;
    check_executed(&errors)?;
    let pairs = cpu.result.iter().zip(&soft.result);
    let is_equal = pairs.fold(true, |equal, (one, other)| equal && (one - other).abs() <= TOLERANCE);
    let (one, other) = (&cpu.result, &soft.result);
    ensure!(!one.is_empty() && one.len() == other.len() && is_equal, "{one:?} is not {other:?}");
    let case = "tinygrad, MNIST forward, batch 32";
    let pass = median(&soft.passes_ms);
    report.versus(case, "pass_median", pass, "ms", ("tinygrad_cpu", median(&cpu.passes_ms)));
    report.ratio(case, "pass_median", pass, "ms", ("tinygrad_mock_published", pass / MOCK_PASS_MS));
    report.versus(case, "first_result", soft.first_s, "s", ("tinygrad_cpu", cpu.first_s));
    Ok(())
}
