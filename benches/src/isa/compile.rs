// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long it takes to generate code for the kernels of `softgpu-kernels`.

use anyhow::{Context, Result};
use softgpu_kernels::{Device, WaveSize, cases};
use softgpu_waves::{Compilation, Engine};

use crate::figure::{Report, median, quantile};

/// Devices that a kernel is run on. Each generates its code again.
const ROUNDS: usize = 3;

/// Milliseconds of CPU time for the code of a kernel, functions that it calls included.
fn of_kernel(case: &softgpu_kernels::Case, size: WaveSize, engine: Engine) -> Result<f64> {
    let problem = (case.problem)(size);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let device = Device::with_engine(size, 1, engine)?;
        let before = Compilation::so_far();
        softgpu_kernels::Engine::run(&device, &problem)?;
        times.push((Compilation::so_far().time - before.time).as_secs_f64() * 1e3);
    }
    Ok(median(&times))
}

/// The kernels of the catalogue.
pub fn measure(report: &Report) -> Result<()> {
    let quickly = |size| (size, Engine::Quick, "quick code");
    let all = [WaveSize::W32, WaveSize::W64].map(|size| [(size, Engine::Jit, "full code"), quickly(size)]);
    for (size, engine, code) in all.into_iter().flatten() {
        let name = &format!("catalogue, wave{}, {code}", if size == WaveSize::W32 { 32 } else { 64 });
        let mut times = Vec::new();
        for case in cases() {
            times.push((of_kernel(case, size, engine).with_context(|| case.name)?, case.name));
        }
        times.sort_by(|a, b| b.0.total_cmp(&a.0));
        let all: Vec<f64> = times.iter().map(|(time, _)| *time).collect();
        report.plain(name, "compile_median", median(&all), "ms");
        report.plain(name, "compile_90th_percentile", quantile(&all, 0.9), "ms");
        let slow: Vec<String> =
            times.iter().take(12).map(|(time, name)| format!("{name} {time:.2}")).collect();
        report.note(&format!("{name}: {} kernels; the slowest: {}", all.len(), slow.join(", ")));
    }
    Ok(())
}
