// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tinygrad program with a gigabyte on the device, which knows nothing of checkpoints: how long it stands still for one that it
//! survives, in memory and on the disk, how long until it goes on when the command is killed meanwhile, and how long it takes to come
//! back.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::{installed, source, stasis_run};
use crate::figure::{Report, median};

/// Checkpoints of each kind.
const TIMES: usize = 3;
/// TIMEOUT: how long the program may take to make its numbers, and to compare them.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);
/// Instants at which the command is killed.
const KILLS: u32 = 20;
/// How soon the program is to go on then.
const LIMIT_MS: f64 = 50.0;

/// What `stasis checkpoint --json` says.
#[derive(Debug, Deserialize)]
struct Frozen {
    pid: i32,
    checkpoint_ms: f64,
    criu_bytes: u64,
    stored_bytes: u64,
    criu_stats: Stats,
}

impl Frozen {
    fn bytes(&self) -> u64 {
        self.criu_bytes + self.stored_bytes
    }
}

#[derive(Debug, Deserialize)]
struct Stats {
    frozen_ms: f64,
}

/// What `stasis restore --json` says.
#[derive(Debug, Deserialize)]
struct Thawed {
    restore_ms: f64,
}

fn stasis(arguments: &[&str]) -> Result<Vec<u8>> {
    let program = std::env::current_exe()?.with_file_name("stasis");
    let output =
        Command::new(&program).args(arguments).arg("--json").output().context("Cannot start stasis")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "stasis {} failed: {said}", arguments.join(" "));
    Ok(output.stdout)
}

fn wait_for(log: &Path, word: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(log)?;
        if text.lines().any(|line| line == word) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < PATIENCE && !text.contains("Error"),
            "the program did not say {word:?}: {text}"
        );
        std::thread::sleep(LOOK);
    }
}

/// Milliseconds of writing so many bytes, by one thread, to a file of a directory, and to the disk if it is on one.
fn write_ms(directory: &Path, bytes: u64) -> Result<f64> {
    let chunk = vec![7_u8; 4 << 20];
    let path = directory.join("peer");
    let began = Instant::now();
    let mut file = File::create(&path)?;
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left)?.min(chunk.len());
        file.write_all(&chunk[..part])?;
        left -= part as u64;
    }
    file.sync_all()?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    fs::remove_file(path)?;
    Ok(took)
}

/// Whether a process is traced.
fn is_traced(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.lines().any(|line| line == "TracerPid:\t0")
}

/// Milliseconds from the end of a command, killed while CRIU has the program, until the program goes on; for each of some instants of a
/// checkpoint that takes `whole`.
fn goes_on_ms(run: &str, program: i32, directory: &Path, whole: Duration) -> Result<Vec<f64>> {
    let own = std::env::current_exe()?.with_file_name("stasis");
    let mut all = Vec::new();
    for part in 1..=KILLS {
        let mut command = Command::new(&own);
        command
            .args(["checkpoint", "--leave-running", run])
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut command = command.stderr(Stdio::null()).spawn().context("Cannot start stasis")?;
        std::thread::sleep(whole.mul_f64(f64::from(part) / f64::from(KILLS + 1)));
        let was_traced = is_traced(program);
        command.kill()?;
        command.wait()?;
        let began = Instant::now();
        while is_traced(program) {
            ensure!(began.elapsed() < PATIENCE, "the program does not go on");
            std::thread::sleep(Duration::from_micros(100));
        }
        if was_traced {
            all.push(began.elapsed().as_secs_f64() * 1e3);
        }
        // Wherever it was killed, the program lives.
        std::thread::sleep(LOOK * 20);
        ensure!(Path::new(&format!("/proc/{program}")).exists(), "the program has ended");
        fs::remove_dir_all(directory)?;
    }
    Ok(all)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("only root, or who has CAP_CHECKPOINT_RESTORE, may run CRIU");
    }
    let work = tempfile::tempdir_in(std::env::current_exe()?.parent().context("no directory")?)?;
    let (log, asked) = (work.path().join("log"), work.path().join("ask"));
    let out = File::create(&log)?;
    let mut command = stasis_run()?;
    command.arg(installed("STASIS_CLIENTS_PYTHON", "clients-python/bin/python")?);
    command.arg(source("gigabyte.py")).arg(&asked).env("DEV", "KFD+AMD:LLVM").env("PARALLEL", "0");
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
    let mut program = command.spawn().context("Cannot start stasis")?;
    let measured =
        wait_for(&log, "ready").and_then(|()| measure(report, &mut program, work.path(), &log, &asked));
    if measured.is_err() {
        // It may have ended by itself.
        let _ = program.kill();
        let _ = program.wait();
    }
    measured
}

fn measure(report: &Report, program: &mut Child, work: &Path, log: &Path, asked: &Path) -> Result<()> {
    let pid = program.id().to_string();
    let memory = Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir());
    let places = memory.into_iter().map(|path| ("in memory", path)).chain([("on the disk", work.to_owned())]);
    for (name, parent) in places {
        let place = tempfile::tempdir_in(&parent)?;
        let directory = place.path().join("checkpoint");
        let (mut frozen, mut total, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let shown = directory.to_string_lossy().into_owned();
            let said: Frozen =
                serde_json::from_slice(&stasis(&["checkpoint", &pid, &shown, "--leave-running"])?)?;
            fs::remove_dir_all(&directory)?;
            frozen.push(said.criu_stats.frozen_ms);
            total.push(said.checkpoint_ms);
            peers.push(write_ms(place.path(), said.bytes())?);
        }
        let case = format!("1 GiB of tinygrad, checkpoint {name}");
        report.versus(
            &case,
            "stands_still_median",
            median(&frozen),
            "ms",
            ("write_same_bytes", median(&peers)),
        );
        report.versus(&case, "complete_median", median(&total), "ms", ("write_same_bytes", median(&peers)));
    }
    let directory = work.join("last");
    let began = Instant::now();
    let shown = directory.to_string_lossy().into_owned();
    let whole: Frozen = serde_json::from_slice(&stasis(&["checkpoint", &pid, &shown, "--leave-running"])?)?;
    let took = began.elapsed();
    fs::remove_dir_all(&directory)?;
    let mut late = goes_on_ms(&pid, whole.pid, &directory, took)?;
    late.sort_by(f64::total_cmp);
    if let (Some(most), false) = (late.last(), late.is_empty()) {
        let case = "1 GiB of tinygrad, the command killed";
        report.versus(case, "goes_on_median", median(&late), "ms", ("limit", LIMIT_MS));
        report.versus(case, "goes_on_longest", *most, "ms", ("limit", LIMIT_MS));
    }
    let shown = directory.to_string_lossy().into_owned();
    let ended: Frozen = serde_json::from_slice(&stasis(&["checkpoint", &pid, &shown])?)?;
    program.wait()?;
    let peer = write_ms(work, ended.bytes())?;
    let case = "1 GiB of tinygrad, on the disk";
    report.versus(case, "running_to_gone", ended.checkpoint_ms, "ms", ("write_same_bytes", peer));
    let thawed: Thawed = serde_json::from_slice(&stasis(&["restore", &shown])?)?;
    report.versus(case, "gone_to_running", thawed.restore_ms, "ms", ("write_same_bytes", peer));
    fs::write(asked, "")?;
    wait_for(log, "right")?;
    while Path::new(&format!("/proc/{}", ended.pid)).exists() {
        std::thread::sleep(LOOK);
    }
    Ok(())
}
