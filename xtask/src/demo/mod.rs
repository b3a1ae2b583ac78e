// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask demo`: a real process on the GPU is frozen in the middle, ends, is thawed, and gives the right result.
//!
//! Six demos: heat, whose queues are drained; with `--preempt` a kernel that never ends, whose waves are stopped;
//! with `--server` a server under traffic, whose clients notice a pause; with `--foreign` tinygrad, which knows nothing of it; with
//! `--hip` a HIP program on our HSA runtime; with `--slurm` a job that is longer than its time on a node of a Slurm cluster.

mod foreign;
mod heat;
mod hip;
mod preempt;
mod server;
mod slurm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::setup::Installed;
use crate::workspace;

/// How the demo is run.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Freeze a kernel that never ends, in the middle of its loop, instead of the heat simulation.
    #[arg(long)]
    preempt: bool,
    /// Freeze a server of sentence embeddings under load instead.
    #[arg(long, conflicts_with = "preempt")]
    pub server: bool,
    /// Freeze tinygrad from PyPI, unmodified, while it trains on the software device.
    #[arg(long, conflicts_with_all = ["preempt", "server"])]
    pub foreign: bool,
    /// Freeze a HIP program that runs on our HSA runtime.
    #[arg(long, conflicts_with_all = ["preempt", "server", "foreign"])]
    pub hip: bool,
    /// Have a training job go from node to node of a Slurm cluster; needs root.
    #[arg(long, conflicts_with_all = ["preempt", "server", "foreign", "hip"])]
    pub slurm: bool,
    /// Clients of the server.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// How long the clients send requests before the freeze, and again after the thaw, in seconds.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Reset the clients' connections even where CRIU could keep them.
    #[arg(long, requires = "server")]
    reset: bool,
    /// Steps of the diffusion.
    #[arg(long, default_value_t = 300)]
    steps: u32,
    /// Cells a side.
    #[arg(long, default_value_t = 2048)]
    size: u32,
    /// Where pictures, logs and the checkpoint go.
    #[arg(long, default_value = "out")]
    out: PathBuf,
}

/// Runs the demo; the last line it prints is the verdict.
pub fn run(args: &DemoArgs, installed: &Installed) -> Result<()> {
    fs::create_dir_all(&args.out)?;
    if args.server {
        return server::run(args, &workspace::build_server(installed)?, installed);
    }
    if args.foreign {
        return foreign::run(args, &workspace::build_foreign(installed)?, installed);
    }
    if args.hip {
        return hip::run(args, &workspace::build_hsa(installed)?, installed);
    }
    if args.slurm {
        return slurm::run(args, &workspace::build_training(installed)?, installed);
    }
    let built = workspace::build_demo(installed)?;
    if args.preempt { preempt::run(args, &built, installed) } else { heat::run(args, &built, installed) }
}

/// A directory of the output that does not exist yet.
fn fresh_directory(args: &DemoArgs, name: &str) -> Result<PathBuf> {
    let path = args.out.join(name);
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    Ok(path)
}

fn number(value: &serde_json::Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("no {key} in stasis's JSON"))
}

/// Runs `stasis` and reads what it prints with `--json`.
fn stasis(program: &Path, installed: &Installed, arguments: &[&str]) -> Result<serde_json::Value> {
    let mut command = Command::new(program);
    installed.export(&mut command);
    let output = command
        .args(arguments)
        .arg("--json")
        .output()
        .with_context(|| format!("Cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!("stasis {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("stasis --json did not print JSON")
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Pids of the software device that serves `instance`: its broker, known by its arguments, and the broker's executors.
fn devices(instance: &str) -> Vec<u32> {
    let pids = || {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let arguments = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let contains = |pid: u32, text: &str| String::from_utf8_lossy(&arguments(pid)).contains(text);
    let brokers: Vec<u32> =
        pids().filter(|&pid| contains(pid, "softgpud") && contains(pid, &format!(".{instance}"))).collect();
    let executors = pids().filter(|&pid| parent(pid).is_some_and(|parent| brokers.contains(&parent)));
    brokers.iter().copied().chain(executors).collect()
}

/// Field 4 of /proc/PID/stat, after the parenthesised name.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Waits until a program has come as far as `reached` says, and lives and goes on meanwhile.
fn follow(
    log: &Path,
    patience: Duration,
    alive: &mut dyn FnMut() -> bool,
    reached: impl Fn() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        // Before the look at what it has done: it may end in between.
        let was_alive = alive();
        if reached()? {
            return Ok(());
        }
        ensure!(was_alive, "The program ended early, see {}", log.display());
        ensure!(Instant::now() < deadline, "The program does not go on, see {}", log.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait_until(what: &str, patience: Duration, mut held: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !held() {
        ensure!(Instant::now() < deadline, "{what} did not happen within {} s", patience.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
