// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore`: CRIU thaws, the agent comes back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use stasis::checkpoint::{CallError, RestoreReport, Standing};
use stasis::criu::{CRIU_DIRECTORY, Executable, Manifest};
use stasis::image::Image;

use super::args::RestoreArgs;
use super::{alive, is_buried_soon, mebibytes, milliseconds, resume, spinner};
use crate::beside;
use crate::criu::Criu;

/// What `stasis restore --json` prints.
#[derive(Debug, Serialize)]
struct RestoreOutcome {
    pid: i32,
    restore_ms: f64,
    criu_ms: f64,
    #[serde(flatten)]
    report: RestoreReport,
}

/// TIMEOUT: how long a parent (pid 1 for an orphan) may take to reap a process; some look only every few seconds.
const BURIAL: Duration = Duration::from_secs(10);

/// Brings a process back from a directory.
pub fn restore(args: &RestoreArgs) -> Result<()> {
    match args.beside {
        true if std::process::id() != 1 => beside::enter(),
        true => {
            beside::furnish()?;
            beside::stay(thaw(args)?)
        }
        false => thaw(args).map(drop),
    }
}

/// Brings the process back; returns its pid.
fn thaw(args: &RestoreArgs) -> Result<i32> {
    let started = Instant::now();
    let directory = args
        .directory
        .canonicalize()
        .with_context(|| format!("Cannot find the checkpoint directory {}", args.directory.display()))?;
    let manifest = Manifest::read(&directory)?;
    let admission = args.terms.admission()?;
    let criu = Criu::find()?;
    let bar = spinner(args.json);
    bar.set_message("checking the images");
    manifest.executable.as_ref().map_or(Ok(()), Executable::check)?;
    for name in &manifest.images {
        Image::inspect(&directory.join(name))?.verify()?;
    }
    bar.set_message("waiting for the pid");
    wait_for_pid(manifest.pid)?;
    // The copy may wake up and take its device before it can be given an order.
    let standing = Standing::offer(manifest.pid, &admission).with_context(|| {
        format!("Cannot hold the terms of the restore ready for process {}", manifest.pid)
    })?;
    bar.set_message("CRIU restores the process");
    let criu_started = Instant::now();
    criu.restore(&directory.join(CRIU_DIRECTORY), &manifest.options, &args.criu_args)?;
    let criu_ms = milliseconds(criu_started);
    bar.set_message("the process rebuilds its device");
    let patience = Duration::from_millis(args.deadline_ms);
    let report = resume(manifest.pid, Some(directory.clone()), Some(admission), patience);
    drop(standing);
    bar.finish_and_clear();
    let report = report.or_else(|error| match error.downcast_ref() {
        // It came back by itself and ended before it could be asked.
        Some(CallError::NoAgent { .. }) if !alive(manifest.pid) || is_buried_soon(manifest.pid) => {
            Ok(RestoreReport::default())
        }
        _ => Err(error),
    });
    let report = report.with_context(|| {
        format!(
            "Process {} is restored but its gate stays shut; its contents are kept in {}, so the same \
             `stasis restore` of the device can be tried again with `stasis resume {}`",
            manifest.pid,
            directory.display(),
            manifest.pid
        )
    })?;
    let outcome = RestoreOutcome { pid: manifest.pid, restore_ms: milliseconds(started), criu_ms, report };
    if args.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        println!(
            "Process {} runs again: {:.1} MiB of buffers, {:.0} ms ({:.0} CRIU, {:.0} open, {:.0} rebuild, {:.0} fill)",
            outcome.pid,
            mebibytes(outcome.report.content_bytes),
            outcome.restore_ms,
            outcome.criu_ms,
            outcome.report.open_ms,
            outcome.report.rebuild_ms,
            outcome.report.fill_ms,
        );
    }
    Ok(outcome.pid)
}

/// The checkpoint needs its pid back: a living process has it for good, a dead one until its parent has buried it.
fn wait_for_pid(pid: i32) -> Result<()> {
    let deadline = Instant::now() + BURIAL;
    while alive(pid) {
        if !is_buried_soon(pid) {
            bail!(
                "Process {pid} exists; the checkpoint needs its pid back: end that process, or restore in a pid \
                 namespace of its own (unshare -pf --mount-proc)"
            );
        }
        if Instant::now() >= deadline {
            bail!(
                "Process {pid} has ended, but its parent does not reap it; the checkpoint needs its pid back"
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
