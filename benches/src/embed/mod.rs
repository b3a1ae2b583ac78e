// SPDX-License-Identifier: MIT OR Apache-2.0
//! The embedding server against the same model elsewhere: candle and ONNX Runtime on the CPU, behind the same HTTP and
//! batching, driven by the same clients.
//!
//! INVARIANT: all servers of a case run on the same cores and are driven in turns, one idle while another is measured. What
//! the ratios tell is what the software device costs; they say nothing about a GPU.

mod kernels;
pub mod peer;
mod replicas;
mod restore;
mod serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use self::serving::{Serving, beside};
use crate::figure::Report;

pub use self::kernels::run as run_kernels;
pub use self::replicas::run as run_replicas;
pub use self::restore::run as run_restore;

/// Seconds that clients drive a server for one figure.
const SECONDS: &str = "2.5";
/// Clients at once.
const CLIENTS: [u32; 3] = [1, 8, 32];
/// The server's own, which is not linked but run, as a user runs it.
const OURS: &str = "ours";

/// What `embed-load --json` says in the end.
#[derive(Debug, Deserialize)]
struct Summary {
    requests: u64,
    ok: u64,
    sentences_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// The directory of the model that the setup fetched.
pub fn model() -> Result<PathBuf> {
    let named =
        std::env::var_os("STASIS_MODEL").context("STASIS_MODEL is not set: run `cargo xtask bench`")?;
    Ok(named.into())
}

/// What is asked for: the sentences of the load that the demo drives.
fn sentences() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/embed-server/load/sentences.txt")
}

fn drive(serving: &Serving, sentences: &Path, clients: u32, core: Option<usize>) -> Result<Summary> {
    let mut command = match core {
        None => Command::new(beside("embed-load")?),
        Some(core) => {
            let mut pinned = Command::new("taskset");
            pinned.args(["-c", &core.to_string()]).arg(beside("embed-load")?);
            pinned
        }
    };
    command.args(["--url", &serving.url(), "--seconds", SECONDS, "--json"]);
    command.args(["--clients", &clients.to_string(), "--sentences"]).arg(sentences);
    let output = command.stderr(Stdio::inherit()).output().context("Cannot start embed-load")?;
    ensure!(output.status.success(), "embed-load failed ({})", output.status);
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().next_back().context("embed-load said nothing")?;
    let summary: Summary = serde_json::from_str(last).context("embed-load's last line is no summary")?;
    ensure!(summary.ok == summary.requests && summary.ok > 0, "{summary:?}");
    Ok(summary)
}

/// Servers on the first `cores` cores; on all, their clients share them, on one, clients have another.
fn on(report: &Report, cores: usize) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let sentences = sentences();
    let there = std::thread::available_parallelism().map_or(1, usize::from);
    let clients_on = (cores < there).then_some(there - 1);
    let servers = [OURS, peer::CANDLE, peer::ONNX]
        .map(|engine| Serving::start(engine, cores, scratch.path()))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    // A first round that nobody counts: threads, caches, generated code.
    for server in &servers {
        drive(server, &sentences, 2, clients_on)?;
    }
    for clients in CLIENTS {
        let case = format!("{cores} cores, {clients} clients").replace("1 cores", "1 core");
        let mut all = Vec::new();
        for server in &servers {
            all.push((server.engine, drive(server, &sentences, clients, clients_on)?));
        }
        let Some(((_, ours), peers)) = all.split_first() else { continue };
        for (engine, peer) in peers {
            let engine = *engine;
            report.versus(
                &case,
                "sentences_per_s",
                ours.sentences_per_s,
                "1/s",
                (engine, peer.sentences_per_s),
            );
            report.versus(&case, "p50_ms", ours.p50_ms, "ms", (engine, peer.p50_ms));
            report.versus(&case, "p99_ms", ours.p99_ms, "ms", (engine, peer.p99_ms));
        }
    }
    let (ours, peers) = servers.split_first().context("no server")?;
    let case = format!("{cores} cores").replace("1 cores", "1 core");
    for peer in peers {
        let (mine, theirs) = (ours.memory()? as f64 / 1e6, peer.memory()? as f64 / 1e6);
        report.versus(&case, "memory_mb", mine, "MB", (peer.engine, theirs));
    }
    Ok(())
}

/// All cores, which the clients share.
pub fn run(report: &Report) -> Result<()> {
    on(report, std::thread::available_parallelism().map_or(1, usize::from))
}

/// One core, with the clients on another.
pub fn run_one_core(report: &Report) -> Result<()> {
    on(report, 1)
}
