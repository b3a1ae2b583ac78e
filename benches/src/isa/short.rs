// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first launch of a kernel, from one workgroup to many: `auto` against the better of the interpreter and generated code.
//!
//! INVARIANT: every run has a device of its own, which has executed nothing, so that everything that a first launch takes is in the
//! time: predecoding, generating or loading code, running it. It is wall time, since what matters is how long a client waits. The ways
//! to run take turns.

use std::time::Instant;

use anyhow::Result;
use softgpu_waves::{Engine, Level, Store, Vm, Workers};

use super::OBJECTS;
use super::cases::{self, Case};
use crate::figure::{Report, median};
use crate::gpu;
use crate::interpreter::machine::Machine;

/// What is measured, and at how many workgroups.
const SHORT: [(&str, &[u32]); 6] = [
    ("gemm_f32_8x8", &[1, 4, 16]),
    ("gemm_f32_lds16", &[1, 4, 16, 64, 256]),
    ("hash", &[1, 4, 16, 64, 256]),
    ("axpy", &[1, 16, 64, 256, 1024, 4096]),
    ("gelu", &[1, 16, 64, 256, 1024, 4096]),
    ("softmax", &[1, 4, 16, 64, 128]),
];
/// Devices for each way to run.
const ROUNDS: usize = 9;

/// A way to run waves.
struct Way {
    engine: Engine,
    is_warm: bool,
}

const WAYS: [Way; 4] = [
    Way { engine: Engine::Interp, is_warm: false },
    Way { engine: Engine::Jit, is_warm: false },
    Way { engine: Engine::Auto, is_warm: false },
    Way { engine: Engine::Auto, is_warm: true },
];

/// A case with fewer workgroups: x first.
fn shortened(mut case: Case, groups: u32) -> Case {
    let [x, y, _] = std::array::from_fn(|k| case.grid[k] / u32::from(case.block[k]).max(1));
    let across = groups.min(x);
    let down = (groups / across).clamp(1, y.max(1));
    case.grid = [across * u32::from(case.block[0]), down * u32::from(case.block[1]), 1];
    case
}

/// Seconds that the first launch takes on a new device.
fn first_launch(case: &Case, way: &Way, store: &std::path::Path) -> Result<f64> {
    let object = gpu::find(OBJECTS, "gfx1100")?;
    let store = if way.is_warm { Store::in_directory(store) } else { None };
    let machine = Machine::over(object, Workers::with_engine(1, way.engine), Vm::with_store(store))?;
    let placed = super::place(&machine, case)?;
    let started = Instant::now();
    machine.complete(&placed)?;
    Ok(started.elapsed().as_secs_f64())
}

/// `auto` with nothing in files, and with its code there.
pub fn run(_: &Report) -> Result<()> {
    let report = &Report::new(&format!("isa-first-{}", Level::current().name()));
    super::compile::measure(report)?;
    let directory = tempfile::tempdir()?;
    let store = directory.path().join("code");
    let mut worst: [f64; 2] = [0.0; 2];
    for (name, lengths) in SHORT {
        let saving = Way { engine: Engine::Jit, is_warm: true };
        first_launch(&shortened(cases::case(name)?, 1), &saving, &store)?;
        for &groups in lengths {
            let case = shortened(cases::case(name)?, groups);
            let mut times: [Vec<f64>; WAYS.len()] = Default::default();
            for _ in 0..ROUNDS {
                for (way, times) in WAYS.iter().zip(&mut times) {
                    times.push(first_launch(&case, way, &store)?);
                }
            }
            let [interp, jit, cold, warm] = times.map(|times| median(&times) * 1e3);
            let better = interp.min(jit);
            let length = format!("{name}, {groups} workgroups");
            for (k, (metric, time)) in
                [("first_launch", cold), ("first_launch_warm", warm)].into_iter().enumerate()
            {
                report.ratio(&length, metric, time, "ms", ("the better of interp and jit", time / better));
                worst[k] = worst[k].max(time / better);
            }
            report.note(&format!(
                "{length}: interp {interp:.3} ms, jit {jit:.3}, auto {cold:.3}, auto warm {warm:.3}"
            ));
        }
    }
    report.note(&format!(
        "first launches by auto take at most {:.2} of the better of both; warm {:.2}",
        worst[0], worst[1]
    ));
    Ok(())
}
