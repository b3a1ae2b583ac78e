// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a batch's time goes, kernel by kernel, and what an engine holds.

use anyhow::{Context, Result};
use embed_server::embedder::{Embedder, Sentence, warm_up};
use embed_server::engine::{Engine, Parameters, Precision};
use embed_server::model::{Config, Weights};

use super::model;
use crate::figure::Report;

/// Tokens of a batch.
const BATCH_TOKENS: usize = 2048;
/// Tokens of its sentences: as short as people's, and as long as the model takes.
const LENGTHS: [usize; 2] = [32, 256];

/// Measures both precisions.
pub fn run(report: &Report) -> Result<()> {
    let directory = model()?;
    let config = Config::open(&directory)?;
    let weights = Weights::open(&directory)?;
    let runtime = stasis::Runtime::open_default()?;
    let agent = runtime.agent(0).context("there is no agent")?;
    for precision in [Precision::F16, Precision::F32] {
        let parameters = Parameters::new(&config, &weights, precision)?;
        let mut engine = Engine::open(&runtime, &agent, &parameters, BATCH_TOKENS)?;
        let name = precision.name();
        // CAST: bytes of one engine.
        report.plain(name, "device_memory_mb", engine.bytes() as f64 / 1e6, "MB");
        warm_up(&mut engine, config.max_seq_length)?;
        for length in LENGTHS {
            let case = format!("{name}, {} sentences of {length} tokens", BATCH_TOKENS / length);
            let batch = vec![Sentence::new(vec![7; length]); BATCH_TOKENS / length];
            let mut out = Vec::new();
            let started = std::time::Instant::now();
            engine.embed(&batch, &mut out)?;
            let seconds = started.elapsed().as_secs_f64();
            report.plain(&case, "tokens_per_s", BATCH_TOKENS as f64 / seconds, "1/s");
            let times = engine.profile(&runtime, &agent, &batch)?;
            let total: f64 = times.iter().map(|kernel| kernel.time.as_secs_f64()).sum();
            for kernel in &times {
                let share = kernel.time.as_secs_f64() / total;
                report.ratio(
                    &case,
                    &kernel.kernel,
                    kernel.time.as_secs_f64() * 1e3,
                    "ms",
                    ("kernels", share),
                );
            }
        }
    }
    Ok(())
}
