// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole way: `stasis checkpoint` and `stasis restore` of another process with 1 GiB of buffers, by real CRIU.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::pieces::Pieces;
use super::{BYTES, Place, memcpy};
use crate::figure::Report;
use crate::gpu::Gpu;

/// The role of the process that is frozen.
pub const ROLE: &str = "criu-frozen";
/// TIMEOUT: for the process to become ready, and to look through its buffers in the end.
const PATIENCE: Duration = Duration::from_secs(20);
/// TIMEOUT: after which the process ends by itself if its maker has gone.
const FORSAKEN: Duration = Duration::from_secs(120);

/// The `stasis` program beside this one.
fn stasis() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("stasis");
    ensure!(path.exists(), "{} was not built (cargo build --release -p stasis-cli)", path.display());
    Ok(path)
}

/// What CRIU would be used: that of STASIS_CRIU, or one that setup installed. `stasis` itself looks further.
pub(crate) fn criu_is_here() -> bool {
    let private = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.stasis/criu/bin/criu"));
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::var_os("STASIS_CRIU").is_some()
        || private.exists()
        || std::env::split_paths(&search).any(|directory| directory.join("criu").exists())
}

/// Runs `stasis`; its seconds and what it said.
pub(crate) fn run_stasis(arguments: &[&str]) -> Result<(f64, serde_json::Value)> {
    let mut command = stasis_command(arguments)?;
    let started = Instant::now();
    let output = command.output().context("Cannot start stasis")?;
    let seconds = started.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("stasis {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok((seconds, serde_json::from_slice(&output.stdout)?))
}

/// `stasis` with these arguments, which says what it has done as JSON.
pub(super) fn stasis_command(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(stasis()?);
    let private = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.stasis/criu/bin/criu"));
    if std::env::var_os("STASIS_CRIU").is_none() && private.exists() {
        command.env("STASIS_CRIU", private);
    }
    command.args(arguments).arg("--json");
    Ok(command)
}

/// Waits for a line of a log.
pub(crate) fn await_word(log: &Path, word: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(log)?.lines().any(|line| line == word) {
        ensure!(Instant::now() < deadline, "the process did not say '{word}': {}", fs::read_to_string(log)?);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Freezes and thaws `child`; gives both times and both reports.
fn freeze_and_thaw(child: &mut Child, place: &Place) -> Result<[(f64, serde_json::Value); 2]> {
    let log = place.path().join("log");
    await_word(&log, "ready")?;
    let image = place.path().join("image");
    let image = image.to_str().context("a directory with a strange name")?;
    let down = run_stasis(&["checkpoint", &child.id().to_string(), image])?;
    // CRIU killed it; its zombie would keep its pid.
    child.wait()?;
    let up = run_stasis(&["restore", image])?;
    fs::write(place.path().join("go"), "")?;
    await_word(&log, "intact")?;
    Ok([down, up])
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let place = Place::disk()?;
    ensure!(place.has_room()?, "{} has no room for an image", place.path().display());
    let copy = memcpy()?;
    let log = File::create(place.path().join("log"))?;
    let directory = place.path().to_str().context("a directory with a strange name")?;
    let mut command = crate::spawn(ROLE, &[directory])?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn()?;
    let result = freeze_and_thaw(&mut child, &place);
    if result.is_err() {
        // Whatever state it is in, it is not needed any more; most likely it is gone.
        let _ = child.kill();
        let _ = child.wait();
    }
    let [(down_seconds, down), (up_seconds, up)] = result?;
    let case = "1 GiB, random, disk, stasis with CRIU";
    let bandwidth = |seconds: f64| BYTES as f64 / seconds * 1e-9;
    report.versus(case, "checkpoint_bandwidth", bandwidth(down_seconds), "GB/s", ("memcpy", copy));
    report.versus(case, "restore_bandwidth", bandwidth(up_seconds), "GB/s", ("memcpy", copy));
    report.plain(case, "checkpoint_ms", down_seconds * 1e3, "ms");
    report.plain(case, "restore_ms", up_seconds * 1e3, "ms");
    let number = |of: &serde_json::Value, key: &str| of[key].as_f64().unwrap_or(f64::NAN);
    report.plain(case, "criu_dump_ms", number(&down, "criu_ms"), "ms");
    report.plain(case, "criu_restore_ms", number(&up, "criu_ms"), "ms");
    report.note(&format!(
        "write {:.0} ms, close {:.0} ms; open {:.0} ms, rebuild {:.0} ms, fill {:.0} ms; CRIU's images {:.1} MiB",
        number(&down, "write_ms"),
        number(&down, "close_ms"),
        number(&up, "open_ms"),
        number(&up, "rebuild_ms"),
        number(&up, "fill_ms"),
        number(&down, "criu_bytes") / f64::from(1 << 20)
    ));
    Ok(())
}

/// The process that is frozen: fills its buffer, waits to be told, and looks whether all is still there.
pub fn play(arguments: &[String]) -> Result<()> {
    let directory = Path::new(arguments.first().context("which directory?")?);
    // CRIU takes no process out of the middle of a session.
    nix::unistd::setsid()?;
    let started = Instant::now();
    let gpu = Gpu::open()?;
    let buffer = gpu.agent.vram().alloc(BYTES as u64)?;
    Pieces::Random.write(0, &buffer)?;
    println!("ready");
    while !directory.join("go").exists() {
        ensure!(started.elapsed() < FORSAKEN, "nobody needs this process any more");
        std::thread::sleep(Duration::from_millis(10));
    }
    Pieces::Random.verify(0, &buffer)?;
    println!("intact");
    Ok(())
}
