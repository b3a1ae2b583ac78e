// SPDX-License-Identifier: MIT OR Apache-2.0
//! All-reduce over several agents: every agent gets the sum of all agents' vectors.
//!
//! By a ring and by direct reads, over every path between the agents. Results are compared with the CPU's, and times
//! with memcpy in the same run.

mod direct;
mod ring;
mod team;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use serde::Serialize;
use stasis::{CopyPath, Direction, LogicalDevice, Runtime};
use stasis_examples::log_to_stderr;

use self::team::{Member, Team};

/// All-reduce between GPUs.
#[derive(Debug, Parser)]
struct Args {
    /// Which agents, such as stasis://0,1; up to 4.
    #[arg(long, default_value = "stasis://")]
    agents: String,
    /// Floats of each agent's vector.
    #[arg(long, default_value_t = 1 << 18)]
    floats: u32,
    /// How often each way is measured; the best counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    algorithm: &'static str,
    asked: String,
    /// The paths of the bytes.
    paths: BTreeSet<String>,
    seconds: f64,
    /// Bytes that crossed from one agent to another.
    moved_bytes: u64,
    gigabytes_per_second: f64,
    of_memcpy: f64,
}

#[derive(Debug, Serialize)]
struct Summary {
    device: String,
    agents: Vec<String>,
    floats: u32,
    memcpy_gigabytes_per_second: f64,
    rows: Vec<Row>,
    /// Ways that do not exist, and why.
    refused: Vec<String>,
}

/// Seconds of the best of `rounds` runs, and the result of the last.
fn best<T>(rounds: u32, mut run: impl FnMut() -> Result<T>) -> Result<(f64, T)> {
    let mut once = || {
        let start = Instant::now();
        run().map(|result| (start.elapsed().as_secs_f64(), result))
    };
    let (mut least, mut last) = once()?;
    for _ in 1..rounds {
        let (seconds, result) = once()?;
        (least, last) = (least.min(seconds), result);
    }
    Ok((least, last))
}

/// GB/s of memcpy over as many bytes as the agents' vectors have.
fn memcpy(bytes: usize, rounds: u32) -> Result<f64> {
    let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    let (seconds, ()) = best(rounds.max(3), || {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        Ok(())
    })?;
    Ok(bytes as f64 / seconds / 1e9)
}

/// Runs one way over one path; the inputs are written again before every run, outside the measured time.
fn measure(team: &Team, algorithm: &'static str, rounds: u32, memcpy: f64) -> Result<Row> {
    let (n, bytes) = (team.members.len() as u64, team.bytes());
    let (mut seconds, mut paths) = (f64::INFINITY, BTreeSet::new());
    for _ in 0..rounds {
        team.fill()?;
        let start = Instant::now();
        paths = if algorithm == "ring" { ring::run(team)? } else { direct::run(team)? };
        seconds = seconds.min(start.elapsed().as_secs_f64());
        let result: fn(&Member) -> &stasis::Buffer =
            if algorithm == "ring" { |member| &member.data } else { |member| &member.sums };
        team.check(result)?;
    }
    let moved_bytes = if algorithm == "ring" { 2 * (n - 1) * bytes } else { n * (n - 1) * bytes };
    let speed = moved_bytes as f64 / seconds / 1e9;
    Ok(Row {
        algorithm,
        asked: team.forced.map_or("best".to_owned(), |path| path.to_string()),
        paths,
        seconds,
        moved_bytes,
        gigabytes_per_second: speed,
        of_memcpy: speed / memcpy,
    })
}

/// Whether every agent of the ring can send by this path, or the first reason why not.
fn why_not(device: &LogicalDevice, path: CopyPath) -> Option<String> {
    let agents = device.agents();
    (0..agents.len()).find_map(|at| {
        let (from, to) = (&agents[at], &agents[(at + 1) % agents.len()]);
        let reach = match path {
            CopyPath::PeerSdma(Direction::Pull) | CopyPath::PeerShader(Direction::Pull) => to.reach(from),
            CopyPath::PeerSdma(Direction::Push) | CopyPath::PeerShader(Direction::Push) => from.reach(to),
            _ => return None,
        };
        reach.err().map(|error| format!("{path}: {error}"))
    })
}

fn run(args: &Args, device: LogicalDevice) -> Result<Summary> {
    let agents = device.agents().iter().map(|agent| format!("{} {}", agent.uuid(), agent.name())).collect();
    let transport = device.runtime().transport_name().to_owned();
    let mut team = Team::new(device, args.floats)?;
    let memcpy = memcpy(team.bytes() as usize * team.members.len(), args.rounds)?;
    let (mut rows, mut refused) = (Vec::new(), Vec::new());
    direct::grant(&team)?;
    rows.push(measure(&team, "direct", args.rounds, memcpy)?);
    rows.push(measure(&team, "ring", args.rounds, memcpy)?);
    for path in [
        CopyPath::PeerSdma(Direction::Pull),
        CopyPath::PeerSdma(Direction::Push),
        CopyPath::PeerShader(Direction::Pull),
        CopyPath::PeerShader(Direction::Push),
        CopyPath::Staged,
    ] {
        match why_not(&team.device, path) {
            Some(why) => refused.push(why),
            None => {
                team.forced = Some(path);
                rows.push(measure(&team, "ring", args.rounds, memcpy)?);
            }
        }
    }
    let memcpy_gigabytes_per_second = memcpy;
    Ok(Summary {
        device: transport.to_string(),
        agents,
        floats: args.floats,
        memcpy_gigabytes_per_second,
        rows,
        refused,
    })
}

fn print(summary: &Summary) {
    println!("{} floats on each of", summary.floats);
    summary.agents.iter().for_each(|agent| println!("  {agent}"));
    println!("memcpy: {:.2} GB/s", summary.memcpy_gigabytes_per_second);
    for row in &summary.rows {
        let paths: Vec<&str> = row.paths.iter().map(String::as_str).collect();
        println!(
            "{:6} {:16} {:8.2} ms {:8.3} GB/s {:6.3} x memcpy, by {}",
            row.algorithm,
            row.asked,
            row.seconds * 1e3,
            row.gigabytes_per_second,
            row.of_memcpy,
            paths.join(", ")
        );
    }
    summary.refused.iter().for_each(|why| println!("not there: {why}"));
    println!("all sums are the CPU's");
}

fn try_main(args: &Args) -> Result<ExitCode> {
    ensure!(args.floats > 0 && args.rounds > 0, "--floats and --rounds are at least 1");
    let runtime = Runtime::open_default()?;
    let device = runtime.logical(&args.agents)?;
    let count = device.agents().len();
    if count < 2 {
        eprintln!(
            "p2p_allreduce needs two to {} agents and {} is one of {}: run it on a machine with several GPUs, or on the \
             software device with STASIS_DEVICE=soft:gfx1100,gfx1100 or STASIS_DEVICE=soft:gfx1100*4",
            direct::MOST,
            args.agents,
            runtime.transport_name(),
        );
        return Ok(ExitCode::from(2));
    }
    ensure!(count <= direct::MOST, "{count} agents are more than {}: choose with --agents", direct::MOST);
    let summary = run(args, device)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print(&summary);
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    log_to_stderr();
    try_main(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("Error: {error:#}");
        ExitCode::FAILURE
    })
}
