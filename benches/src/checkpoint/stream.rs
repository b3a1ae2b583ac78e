// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint over a stream: how fast, against a copy of the directory, and how long a process stands still that moves while it runs.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::criu::{criu_is_here, run_stasis, stasis_command};
use super::lazy::Worker;
use super::{BYTES, Place, plot};
use crate::figure::{Report, median};

const RUNS: usize = 3;

/// `stasis` at work beside us.
fn started(arguments: &[&str]) -> Result<Child> {
    let mut command = stasis_command(arguments)?;
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("Cannot start stasis")
}

fn ended(child: Child) -> Result<Value> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn text(place: &Place, name: &str) -> Result<String> {
    Ok(place.path().join(name).to_str().context("a directory with a strange name")?.to_owned())
}

/// A checkpoint is sent and received, in seconds.
fn send(place: &Place, address: &str, key: &str, compression: &str, is_sealed: bool) -> Result<f64> {
    let (from, to) = (text(place, "image")?, text(place, "received")?);
    let sealed: &[&str] = if is_sealed { &["--key-file", key] } else { &["--trust-network"] };
    let began = Instant::now();
    let receiving = started(&[&["receive", address, &to], sealed].concat())?;
    run_stasis(&[&["send", &from, address, "--compress", compression], sealed].concat())?;
    ended(receiving)?;
    let seconds = began.elapsed().as_secs_f64();
    fs::remove_dir_all(to)?;
    Ok(seconds)
}

/// The same by cp, which checks nothing.
fn copy(place: &Place) -> Result<f64> {
    let (from, to) = (text(place, "image")?, text(place, "copied")?);
    let began = Instant::now();
    let copied = Command::new("cp").args(["-r", &from, &to]).status()?;
    ensure!(copied.success(), "cp failed");
    let seconds = began.elapsed().as_secs_f64();
    fs::remove_dir_all(to)?;
    Ok(seconds)
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let place = Place::tmpfs()?;
    let key = text(&place, "key")?;
    fs::write(&key, [7; 32])?;
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    bandwidth(report, &place, &key)?;
    downtime(report, &place, &key)
}

fn bandwidth(report: &Report, place: &Place, key: &str) -> Result<()> {
    if !place.has_room_for(3 * BYTES)? {
        report.note(&format!("{}: no room for images, left out", place.path().display()));
        return Ok(());
    }
    let mut worker = Worker::start(place, BYTES as u64)?;
    worker.freeze()?;
    let unix = format!("unix:{}", text(place, "socket")?);
    let tcp = "tcp://127.0.0.1:18099";
    let cases = [
        ("unix", &*unix, "none", false),
        ("tcp", tcp, "none", false),
        ("tcp, lz4", tcp, "lz4", false),
        ("tcp, sealed", tcp, "none", true),
    ];
    for (name, address, compression, is_sealed) in cases {
        let (mut sent, mut copied) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            copied.push(BYTES as f64 / copy(place)? / 1e9);
            sent.push(BYTES as f64 / send(place, address, key, compression, is_sealed)? / 1e9);
        }
        let case = format!("{} MiB, {name}, tmpfs", BYTES >> 20);
        report.versus(&case, "send_and_receive", median(&sent), "GB/s", ("cp", median(&copied)));
    }
    worker.thaw(&[])?;
    worker.finish()
}

fn downtime(report: &Report, place: &Place, key: &str) -> Result<()> {
    let unix = format!("unix:{}", text(place, "socket")?);
    let mut lines = Vec::new();
    let ways: [(&str, &[&str], &[&str]); 3] = [
        ("moved", &[], &[]),
        ("moved while it runs", &["--pre-copy"], &[]),
        ("moved while it runs, lazy", &["--pre-copy"], &["--lazy"]),
    ];
    for (name, more, lazy) in ways {
        let mut times = Vec::new();
        for bytes in place.sizes(report)? {
            if !place.has_room_for(4 * bytes as usize)? {
                continue;
            }
            let mut worker = Worker::start(place, bytes)?;
            let (from, to) = (text(place, "image")?, text(place, "received")?);
            let receiving = started(&[&["restore", "--from", &unix, "--key-file", key, &to], lazy].concat())?;
            let pid = worker.pid();
            run_stasis(&[&["checkpoint", &pid, &from, "--to", &unix, "--key-file", key], more].concat())?;
            worker.bury()?;
            let restored = ended(receiving)?;
            let stopped = restored["stopped_ms"].as_f64().context("no stopped_ms")?;
            worker.finish()?;
            fs::remove_dir_all(to)?;
            report.plain(&format!("{} MiB, {name}, tmpfs", bytes >> 20), "stood_still", stopped, "ms");
            times.push((bytes, stopped));
        }
        report.plain(&format!("by memory, {name}"), "stood_still", plot::slope(&times), "ms/GiB");
        lines.push((name.to_owned(), times));
    }
    for path in
        plot::save_by_memory("moved-stood-still", "How long a process that moves stands still", &lines)?
    {
        report.note(&format!("figure: {}", path.display()));
    }
    Ok(())
}
