// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that checkpoints itself in the middle of its work, by one call that returns twice, like fork.
//!
//! It adds x to y on the GPU, one kernel a step. After half of the steps it writes a checkpoint of itself into a
//! directory. The original goes on to the end, and so does every copy that `stasis restore` makes: from the same step,
//! with the same bytes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use stasis::checkpoint::{CheckpointOptions, Life, Mode, SelfCheckpoint};
use stasis::criu::{CriuOptions, has_terminal};
use stasis::{Arg, Executable, Queue, QueueOptions, Runtime, Signal};
use stasis_examples::{code_for, log_to_stderr};

include!(concat!(env!("OUT_DIR"), "/axpy.rs"));

const N: u32 = 1 << 16;
/// Work-items of a work-group, as the kernel assumes.
const GROUP: u16 = 256;
/// TIMEOUT: for a step, on a busy machine.
const STEP: Duration = Duration::from_secs(60);

/// Adds on the GPU, and checkpoints itself half way.
#[derive(Debug, Parser)]
struct Args {
    /// Directory for the checkpoint: must be empty or not exist.
    directory: PathBuf,
    /// Steps altogether.
    #[arg(long, default_value_t = 100)]
    steps: u32,
    /// End with the checkpoint; only copies go on.
    #[arg(long)]
    exit: bool,
    /// Stop the running kernel in its middle instead of waiting for its end.
    #[arg(long)]
    preempt: bool,
    /// Keep the buffers' bytes in the process, so that CRIU's images alone are the checkpoint.
    #[arg(long)]
    self_contained: bool,
    /// CRIU runs as an ordinary user with CAP_CHECKPOINT_RESTORE.
    #[arg(long)]
    unprivileged: bool,
}

fn main() -> Result<()> {
    log_to_stderr();
    let args = Args::parse();
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("There is no agent")?;
    let code = code_for(&agent, "self_checkpoint", OBJECTS)?;
    let kernel = Executable::load(&agent, code)?.kernel("axpy")?;
    let queue = Queue::create(&agent, QueueOptions::default())?;
    let bytes = u64::from(N) * 4;
    let (x, y) = (agent.vram().alloc(bytes)?, agent.vram().alloc(bytes)?);
    // Small whole numbers: every sum is exact.
    let values: Vec<f32> = (0..N).map(|n| (n % 97) as f32).collect();
    x.write(0, bytemuck::cast_slice(&values))?;
    y.write(0, &vec![0; bytes as usize])?;
    let done = Signal::new(&runtime, 1)?;
    let step = || -> Result<()> {
        done.store(1)?;
        let arguments = [Arg::Buffer(&x), Arg::Buffer(&y), Arg::F32(1.0), Arg::U32(N)];
        let dispatch = queue.dispatch(&kernel).grid([N, 1, 1]).block([GROUP, 1, 1]).args(&arguments);
        dispatch.completion(&done).submit()?;
        done.wait_done(Some(STEP))?;
        Ok(())
    };

    let half = args.steps / 2;
    (0..half).try_for_each(|_| step())?;
    let options = SelfCheckpoint {
        mode: if args.preempt { Mode::Preempt } else { Mode::Drain },
        checkpoint: CheckpointOptions { self_contained: args.self_contained, ..CheckpointOptions::default() },
        criu: CriuOptions {
            shell_job: has_terminal(std::process::id().cast_signed()),
            unprivileged: args.unprivileged,
            ..CriuOptions::default()
        },
        leave_running: !args.exit,
        ..SelfCheckpoint::default()
    };
    println!("step {half}: checkpoint into {}", args.directory.display());
    match runtime.checkpoint_to(&args.directory, &options)? {
        Life::Original(report) => println!(
            "original: {:.1} MiB saved in {:.1} ms, going on",
            report.content_bytes as f64 / f64::from(1 << 20),
            report.lock_ms + report.write_ms + report.close_ms
        ),
        Life::Restored(report) => println!(
            "restored: {:.1} MiB back in {:.1} ms, going on",
            report.content_bytes as f64 / f64::from(1 << 20),
            report.open_ms + report.rebuild_ms + report.fill_ms
        ),
    }
    (half..args.steps).try_for_each(|_| step())?;

    let mut sums = vec![0f32; N as usize];
    y.read(0, bytemuck::cast_slice_mut(&mut sums))?;
    let wrong = sums.iter().zip(&values).position(|(sum, value)| *sum != value * args.steps as f32);
    ensure!(wrong.is_none(), "element {wrong:?} is not what {} steps give", args.steps);
    println!("done: {} steps, every element is right", args.steps);
    Ok(())
}
