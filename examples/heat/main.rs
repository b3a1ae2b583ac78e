// SPDX-License-Identifier: MIT OR Apache-2.0
//! Heat that diffuses through a picture: one kernel dispatch per step, between two buffers in VRAM.
//!
//! The program has no code for checkpoints: the example shows that the process may be frozen between any two lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use image::imageops::FilterType;
use image::{GrayImage, ImageReader};
use stasis::{Arg, Buffer, Executable, Kernel, Queue, QueueOptions, Runtime, Signal};
use stasis_examples::{code_for, log_to_stderr};

include!(concat!(env!("OUT_DIR"), "/heat.rs"));

/// Diffusion number of one explicit step; stable up to 0.25.
const RATE: f32 = 0.2;
/// Steps between two waits on the completion signal.
const STEPS_A_WAIT: u32 = 5;

/// Heat diffusion on the GPU.
#[derive(Debug, Parser)]
struct Args {
    /// Steps to take.
    #[arg(long, default_value_t = 300)]
    steps: u32,
    /// Cells a side.
    #[arg(long, default_value_t = 2048)]
    size: u32,
    /// The picture whose brightness is the initial heat.
    #[arg(long)]
    picture: PathBuf,
    /// Where to draw the initial state.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Where to draw the final state.
    #[arg(long)]
    after: Option<PathBuf>,
    /// Where to write the final cells, as raw f32.
    #[arg(long)]
    cells: Option<PathBuf>,
    /// Milliseconds to wait after every five steps, so that there is time to freeze it.
    #[arg(long, default_value_t = 0)]
    pace_ms: u64,
    /// Do not use the GPU: compute on the CPU and compare with these cells.
    #[arg(long)]
    compare: Option<PathBuf>,
}

fn initial(args: &Args) -> Result<Vec<f32>> {
    let picture = ImageReader::open(&args.picture)
        .with_context(|| format!("Cannot open {}", args.picture.display()))?
        .decode()
        .with_context(|| format!("{} is no picture", args.picture.display()))?
        .resize_exact(args.size, args.size, FilterType::Triangle)
        .into_luma8();
    Ok(picture.pixels().map(|p| f32::from(p.0[0]) / 255.0).collect())
}

fn draw(cells: &[f32], size: u32, path: &Path) -> Result<()> {
    // The picture is quantised for viewing; the cells themselves are compared.
    let pixels = cells.iter().map(|c| (c.clamp(0.0, 1.0) * 255.0).round() as u8).collect();
    GrayImage::from_raw(size, size, pixels)
        .context("The cells do not fill the picture")?
        .save(path)
        .with_context(|| format!("Cannot write {}", path.display()))
}

/// The two buffers, and all that a step needs.
struct Plate<'a> {
    kernel: Kernel,
    queue: &'a Queue,
    cells: [Buffer; 2],
    done: Signal,
    size: u32,
}

impl Plate<'_> {
    /// Submits the step from buffer `n % 2` into the other one; returns without waiting.
    fn submit(&self, n: u32) -> Result<()> {
        let (from, to) = (&self.cells[(n % 2) as usize], &self.cells[((n + 1) % 2) as usize]);
        self.queue
            .dispatch(&self.kernel)
            .grid([self.size.next_multiple_of(64), self.size.next_multiple_of(4), 1])
            .block([64, 4, 1])
            .args(&[Arg::Buffer(from), Arg::Buffer(to), Arg::U32(self.size), Arg::F32(RATE)])
            .barrier(true)
            .completion(&self.done)
            .submit()?;
        Ok(())
    }

    fn run(&self, steps: u32, pace: Duration) -> Result<()> {
        let mut taken = 0;
        while taken < steps {
            let batch = STEPS_A_WAIT.min(steps - taken);
            self.done.store(i64::from(batch))?;
            for n in 0..batch {
                self.submit(taken + n)?;
            }
            self.done.wait_done(Some(Duration::from_secs(600)))?;
            taken += batch;
            println!("step {taken}");
            std::thread::sleep(pace);
        }
        Ok(())
    }
}

fn on_gpu(args: &Args, start: &[f32]) -> Result<Vec<f32>> {
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("There is no agent")?;
    let code = code_for(&agent, "heat", OBJECTS)?;
    let executable = Executable::load(&agent, code)?;
    let queue = Queue::create(&agent, QueueOptions::default())?;
    let bytes = size_of_val(start) as u64;
    let plate = Plate {
        kernel: executable.kernel("heat_step")?,
        queue: &queue,
        cells: [agent.vram().alloc(bytes)?, agent.vram().alloc(bytes)?],
        done: Signal::new(&runtime, 0)?,
        size: args.size,
    };
    plate.cells[0].write(0, bytemuck::cast_slice(start))?;
    println!("agent {} {}", agent.uuid(), agent.name());
    plate.run(args.steps, Duration::from_millis(args.pace_ms))?;
    let mut end = vec![0f32; start.len()];
    plate.cells[(args.steps % 2) as usize].read(0, bytemuck::cast_slice_mut(&mut end))?;
    Ok(end)
}

/// The same steps on the CPU, in the same order of operations.
fn on_cpu(start: &[f32], size: usize, steps: u32) -> Vec<f32> {
    let (mut from, mut to) = (start.to_vec(), start.to_vec());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = (size - 2).div_ceil(threads).max(1);
    for _ in 0..steps {
        std::thread::scope(|scope| {
            for (part, rows_of_to) in to[size..size * (size - 1)].chunks_mut(rows * size).enumerate() {
                let from = &from;
                scope.spawn(move || {
                    for (n, row) in rows_of_to.chunks_mut(size).enumerate() {
                        let y = 1 + part * rows + n;
                        let line = |y: usize| &from[y * size..(y + 1) * size];
                        let (above, here, below) = (line(y - 1), line(y), line(y + 1));
                        for x in 1..size - 1 {
                            let around = (here[x - 1] + here[x + 1]) + (above[x] + below[x]);
                            row[x] = here[x] + RATE * (around - 4.0 * here[x]);
                        }
                    }
                });
            }
        });
        std::mem::swap(&mut from, &mut to);
    }
    from
}

/// Compares cells with the CPU's. The GPU fuses multiply and add, so the last bits differ.
fn compare(args: &Args, start: &[f32], path: &Path) -> Result<()> {
    const TOLERANCE: f32 = 1e-4;
    let bytes = fs::read(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let cells: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    ensure!(cells.len() == start.len(), "{} has {} cells, not {}", path.display(), cells.len(), start.len());
    let expected = on_cpu(start, args.size as usize, args.steps);
    let worst =
        cells.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, |w, d| if d > w { d } else { w });
    let any_nan = cells.iter().any(|c| c.is_nan());
    println!("   largest difference to the CPU: {worst:.2e} (allowed {TOLERANCE:.0e})");
    ensure!(!any_nan && worst <= TOLERANCE, "the cells differ from the CPU's by {worst:e}");
    ensure!(cells != start, "nothing diffused");
    Ok(())
}

fn main() -> Result<()> {
    log_to_stderr();
    let args = Args::parse();
    ensure!(args.size >= 3, "a plate has at least 3 cells a side");
    let start = initial(&args)?;
    if let Some(path) = &args.compare {
        return compare(&args, &start, path);
    }
    if let Some(path) = &args.before {
        draw(&start, args.size, path)?;
    }
    let started = Instant::now();
    let end = on_gpu(&args, &start)?;
    if let Some(path) = &args.after {
        draw(&end, args.size, path)?;
    }
    if let Some(path) = &args.cells {
        fs::write(path, bytemuck::cast_slice(&end))
            .with_context(|| format!("Cannot write {}", path.display()))?;
    }
    println!("done");
    eprintln!("{} steps in {:.1} s", args.steps, started.elapsed().as_secs_f64());
    Ok(())
}
