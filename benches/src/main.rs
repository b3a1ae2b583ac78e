// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures what the README claims: `cargo xtask bench [NAME...] [--json]`.
//!
//! INVARIANT: every ratio is taken in one run against a peer measured beside it, and no timing is asserted; only results
//! are checked. Each benchmark is a process of its own (this program again, with `--role`), because a process has one
//! runtime, and ends within [`LIMIT`].
#![deny(unsafe_code)]

mod allocations;
mod checkpoint;
mod clients;
mod cold;
mod embed;
mod figure;
mod fleet;
mod gpu;
mod interpreter;
mod isa;
mod memcpy;
mod p2p;
mod packets;
mod ping_pong;
mod preempt;
mod round_trip;
mod sdma;
mod share;
mod submit;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use self::figure::{Figure, Report, machine, table};
use softgpu_waves::Level;

/// TIMEOUT: how long one benchmark may take.
const LIMIT: Duration = Duration::from_secs(240);

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Measures Stasis on this machine.
#[derive(Debug, Parser)]
struct Cli {
    /// Which benchmarks, of submit, packets, round-trip, cold-dispatch, sdma, p2p, share (with share-restore), preempt,
    /// checkpoint (with checkpoint-image, checkpoint-largest, checkpoint-engines, checkpoint-lazy, checkpoint-store, checkpoint-stream, checkpoint-parent,
    /// checkpoint-pre-copy, and the last two on a device that tells what it writes: checkpoint-parent-told, checkpoint-pre-copy-told), criu,
    /// interpreter, preempt-check, isa (with isa-first), embed (with embed-one-core, embed-kernels, embed-restore and embed-replicas), clients, hsa, python, ray and fleet; all
    /// without a name.
    names: Vec<String>,
    /// The instruction set that isa is measured with, on both sides; all that this CPU has without it.
    #[arg(long, value_parser = level, value_name = "avx2|avx512")]
    level: Option<Level>,
    /// The one case of isa that is measured, against native code only; there are no plots then.
    #[arg(long, value_name = "CASE")]
    case: Option<String>,
    /// Print one JSON object a figure instead of a table.
    #[arg(long)]
    json: bool,
    /// What this process is for another one of this program.
    #[arg(long, hide = true)]
    role: Option<String>,
}

/// A level that generated code exists for, and that this CPU has.
fn level(name: &str) -> Result<Level> {
    let known = [Level::Avx2, Level::Avx512].into_iter().find(|level| level.name() == name);
    let level = known.with_context(|| format!("there is no level {name}; there are avx2 and avx512"))?;
    ensure!(level <= Level::best(), "this CPU has no {name}");
    Ok(level)
}

type Bench = fn(&Report) -> Result<()>;

/// The benchmarks, in the order they are run.
const BENCHES: [(&str, Bench); 35] = [
    ("submit", submit::run),
    ("packets", packets::run),
    ("round-trip", round_trip::run),
    ("cold-dispatch", cold::run),
    ("sdma", sdma::run),
    ("p2p", p2p::run),
    ("share", share::run),
    ("share-restore", share::restore::run),
    ("preempt", preempt::run),
    ("checkpoint", checkpoint::run),
    ("checkpoint-image", checkpoint::image::run),
    ("checkpoint-largest", checkpoint::image::run_largest),
    ("checkpoint-engines", checkpoint::engines::run),
    ("checkpoint-parent", checkpoint::parent::run),
    ("checkpoint-parent-told", checkpoint::parent::run),
    ("checkpoint-pre-copy", checkpoint::pre_copy::run),
    ("checkpoint-pre-copy-told", checkpoint::pre_copy::run_told),
    ("checkpoint-lazy", checkpoint::lazy::run),
    ("checkpoint-stream", checkpoint::stream::run),
    ("checkpoint-store", checkpoint::store::run),
    ("criu", checkpoint::criu::run),
    ("interpreter", interpreter::run),
    ("preempt-check", interpreter::check::run),
    ("isa", isa::run),
    ("isa-first", isa::short::run),
    ("embed", embed::run),
    ("embed-one-core", embed::run_one_core),
    ("embed-kernels", embed::run_kernels),
    ("embed-restore", embed::run_restore),
    ("embed-replicas", embed::run_replicas),
    ("clients", clients::run),
    ("hsa", clients::hsa::run),
    ("python", clients::package::run),
    ("ray", clients::package::run_ray),
    ("fleet", fleet::run),
];

/// The variable that chooses the kernel whose driver the software device imitates.
const KERNEL: &str = "SOFTGPU_KERNEL";

/// Starts this program again for a part that needs a process of its own.
fn spawn(role: &str, arguments: &[&str]) -> Result<Command> {
    let own = std::env::current_exe().context("Cannot find this program's own path")?;
    let mut command = Command::new(own);
    command.args(["--role", role]).args(arguments);
    Ok(command)
}

fn play(role: &str, arguments: &[String]) -> Result<()> {
    match role {
        submit::ROLE => submit::traced::play(),
        checkpoint::criu::ROLE => checkpoint::criu::play(arguments),
        checkpoint::lazy::ROLE => checkpoint::lazy::play(arguments),
        checkpoint::engines::ROLE => checkpoint::engines::play(arguments),
        share::second::ROLE => share::second::play(arguments),
        isa::variant::ROLE => isa::variant::play(arguments),
        isa::variant::COMPILE => isa::variant::compile(),
        isa::pocl::ROLE => isa::pocl::play(),
        embed::peer::CANDLE | embed::peer::ONNX => embed::peer::play(role, arguments),
        name => match BENCHES.iter().find(|(known, _)| *known == name) {
            Some((name, run)) => run(&Report::new(name)),
            None => bail!("there is no role {name}"),
        },
    }
}

/// Runs one benchmark in its process and hands on its figures as they come.
fn measure(
    name: &str,
    level: Option<Level>,
    case: Option<&str>,
    mut take: impl FnMut(Figure) -> Result<()>,
) -> Result<()> {
    let mut command = spawn(name, &[])?;
    // A device of its own, so that other processes' work is not measured with it.
    command.env("STASIS_SOFTGPU_INSTANCE", format!("bench-{name}-{}", std::process::id()));
    if name == "preempt" && std::env::var_os(KERNEL).is_none() {
        // No released kernel restores the queues of the device that is measured.
        command.env(KERNEL, "fixed");
    }
    if name.ends_with("-told") {
        command.env(checkpoint::pre_copy::TELLS, "on");
    }
    if name == "hsa" {
        // What `stasis run` gives to the peer.
        command.env("STASIS_DEVICE", "soft:gfx1100");
    }
    // A kernel set that somebody asked for is not OpenBLAS's best.
    command.env_remove("OPENBLAS_CORETYPE");
    if let Some(case) = case {
        command.env(isa::CASE, case);
    }
    if let Some(level) = level {
        command.env("SOFTGPU_CPU", level.name());
        if level == Level::Avx2 {
            // OpenBLAS's kernels for vectors of 256 bits.
            command.env("OPENBLAS_CORETYPE", "Haswell");
        }
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("Cannot start a process")?;
    let result = follow(&mut child, LIMIT, &mut take);
    if result.is_err() {
        // It may have ended by itself, with an error that it has printed.
        let _ = child.kill();
    }
    let status = child.wait()?;
    checkpoint::sweep(child.id())?;
    result.with_context(|| format!("Benchmark {name}"))?;
    ensure!(status.success(), "Benchmark {name} failed ({status})");
    Ok(())
}

/// Hands on a child's figures until its output ends, which must be within `limit`.
fn follow(child: &mut Child, limit: Duration, take: &mut impl FnMut(Figure) -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + limit;
    let output = child.stdout.take().context("A process has no output")?;
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || BufReader::new(output).lines().try_for_each(|line| send.send(line)));
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => take(serde_json::from_str(&line?).context("A process printed no figure")?)?,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("was not done after {} s", limit.as_secs()),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.role {
        Some(role) => play(role, &cli.names),
        None => measure_all(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(cli: &Cli) -> Result<()> {
    for name in &cli.names {
        let known = BENCHES.map(|(name, _)| name);
        ensure!(
            known.contains(&name.as_str()),
            "there is no benchmark {name}; there are {}",
            known.join(", ")
        );
    }
    eprintln!("machine: {}", machine());
    let mut failures = Vec::new();
    for (name, _) in BENCHES {
        // checkpoint-image and the like are parts of checkpoint, share-restore of share, isa-first of isa and embed-kernels of embed, in processes of their own.
        let is_part = |whole: &str| name.strip_prefix(whole).is_some_and(|rest| rest.starts_with('-'));
        let is_wanted = |wanted: &String| {
            wanted == name
                || (cli.case.is_none()
                    && ["checkpoint", "share", "isa", "embed"].contains(&wanted.as_str())
                    && is_part(wanted))
        };
        if !cli.names.is_empty() && !cli.names.iter().any(is_wanted) {
            continue;
        }
        if let Err(error) = measure_levels(name, cli) {
            eprintln!("Error: {error:#}");
            failures.push(name);
        }
    }
    ensure!(failures.is_empty(), "{} could not be measured", failures.join(", "));
    Ok(())
}

/// Measures one benchmark and shows its figures: isa at each level that is wanted.
fn measure_levels(name: &str, cli: &Cli) -> Result<()> {
    let all = || [Level::Avx2, Level::Avx512].into_iter().filter(|level| *level <= Level::current());
    let levels: Vec<Option<Level>> = match (name, cli.level) {
        ("isa" | "isa-first", None) if all().next().is_some() => all().map(Some).collect(),
        ("isa" | "isa-first", level) => vec![level],
        _ => vec![None],
    };
    let mut all_figures = Vec::new();
    let mut result = Ok(());
    for level in levels {
        let mut figures = Vec::new();
        let measured = measure(name, level, cli.case.as_deref(), |figure| {
            if cli.json {
                println!("{}", serde_json::to_string(&figure)?);
            }
            figures.push(figure);
            Ok(())
        });
        if !cli.json {
            print!("{}", table(&figures));
        }
        all_figures.append(&mut figures);
        result = result.and(measured);
    }
    if name == "isa" && cli.case.is_none() && !all_figures.is_empty() {
        for path in isa::plot::save(&all_figures)? {
            eprintln!("isa: {}", path.display());
        }
    }
    result
}
