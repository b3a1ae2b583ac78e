// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trains a small network on the GPU, and writes its weights.
//!
//! The program has no code for checkpoints: a job scheduler may freeze it between any two lines, and have it go on elsewhere.

mod model;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use stasis::Runtime;
use stasis_examples::log_to_stderr;

use self::model::{Model, SAMPLES};

/// Training on the GPU.
#[derive(Debug, Parser)]
struct Args {
    /// Steps to take.
    #[arg(long, default_value_t = 200)]
    steps: u32,
    /// Samples of a step.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Milliseconds to wait after every step, so that training takes as long as one that matters.
    #[arg(long, default_value_t = 0)]
    pace_ms: u64,
    /// Where to write the weights, as raw f32.
    #[arg(long)]
    weights: Option<PathBuf>,
}

fn main() -> Result<()> {
    log_to_stderr();
    let args = Args::parse();
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("There is no agent")?;
    println!("agent {} {}", agent.uuid(), agent.name());
    let model = Model::new(&runtime, &agent, args.batch)?;
    for step in 0..args.steps {
        model.compute(step % (SAMPLES / args.batch) * args.batch, 1.0 / args.batch as f32)?;
        let (gradients, loss) = model.gradients()?;
        model.descend(&gradients)?;
        if step % 10 == 0 || step + 1 == args.steps {
            println!("step {step} loss {:.6}", loss / args.batch as f32);
        }
        std::thread::sleep(Duration::from_millis(args.pace_ms));
    }
    if let Some(path) = &args.weights {
        fs::write(path, model.weights()?).with_context(|| format!("Cannot write {}", path.display()))?;
    }
    println!("done");
    Ok(())
}
