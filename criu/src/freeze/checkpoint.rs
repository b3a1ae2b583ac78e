// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis checkpoint`: the agent evacuates, CRIU freezes, the manifest makes it count.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde::Serialize;
use stasis::checkpoint::{CheckpointOrder, CheckpointReport, Done, Mode, Request, State, call};
use stasis::criu::{
    CRIU_DIRECTORY, DumpStats, Executable, LAYOUT, Manifest, ManifestError, image_names, prepare, retract,
    write_commit_script,
};

use super::args::CheckpointArgs;
use super::{mebibytes, milliseconds, resume, spinner};
use crate::criu::{Criu, DumpOptions};
use crate::{preflight, timings};

/// What `stasis checkpoint --json` prints.
#[derive(Debug, Serialize)]
struct CheckpointOutcome {
    pid: i32,
    checkpoint_ms: f64,
    criu_ms: f64,
    #[serde(flatten)]
    report: CheckpointReport,
    criu_bytes: u64,
    left_running: bool,
    /// What CRIU says of its dump.
    #[serde(skip_serializing_if = "Option::is_none")]
    criu_stats: Option<DumpStats>,
}

impl CheckpointOutcome {
    /// How long the process stood still for what, milliseconds.
    fn phases(&self) -> Vec<(&'static str, f64)> {
        let stats = self.criu_stats.unwrap_or_default();
        let frozen = stats.freezing_ms + stats.frozen_ms;
        vec![
            ("stop the queues", self.report.lock_ms),
            ("write the buffers", self.report.write_ms),
            ("close the device", self.report.close_ms),
            ("frozen by CRIU", frozen),
            ("CRIU around it", (self.criu_ms - frozen).max(0.0)),
        ]
    }
}

/// Freezes a process into a directory.
pub fn checkpoint(args: &CheckpointArgs) -> Result<()> {
    let started = Instant::now();
    let command = command_line(args.pid)?;
    // Before the process is stopped: it takes milliseconds.
    let executable = Executable::of(args.pid).ok();
    call(args.pid, &Request::Status, Duration::from_secs(5))?;
    let criu = Criu::find()?;
    let told = [args.criu.options(args.pid).dump_arguments(), args.criu_args.clone()].concat();
    if !args.no_preflight {
        preflight::check(args.pid, &criu, &told, args.preempt)?;
    }
    let directory = prepare(&args.directory)?;
    let bar = spinner(args.json);
    let frozen = freeze(args, &criu, &directory, (command, executable), &bar);
    bar.finish_and_clear();
    let (report, criu_ms) = frozen.inspect_err(|_| {
        if is_abandoned(args.pid, &directory) {
            // Only logs are worth keeping of a checkpoint that did not come about; the images would mislead.
            let _ = clear_failed(&directory);
        }
    })?;
    let outcome = CheckpointOutcome {
        pid: args.pid,
        checkpoint_ms: milliseconds(started),
        criu_ms,
        criu_bytes: directory_bytes(&directory.join(CRIU_DIRECTORY)),
        left_running: args.leave_running,
        criu_stats: DumpStats::read(&directory.join(CRIU_DIRECTORY)).ok(),
        report,
    };
    if args.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else if args.no_dump {
        println!(
            "Process {pid} has closed its device; its buffers are in {where_}. Within {} ms:\n  criu dump -t {pid} -D \
             {where_}/{CRIU_DIRECTORY}      freezes it (criu restore -D ... brings it back)\n  stasis resume {pid}      \
             has it run on",
            args.lease_ms,
            pid = outcome.pid,
            where_ = directory.display(),
        );
    } else {
        println!(
            "Process {} is in {}: {:.1} MiB of buffers in {:.1} MiB, {:.0} ms ({:.0} lock, {:.0} write, {:.0} close, \
             {:.0} CRIU){}",
            outcome.pid,
            directory.display(),
            mebibytes(outcome.report.content_bytes),
            mebibytes(outcome.report.image_bytes + outcome.criu_bytes),
            outcome.checkpoint_ms,
            outcome.report.lock_ms,
            outcome.report.write_ms,
            outcome.report.close_ms,
            outcome.criu_ms,
            if args.leave_running { "; it runs on" } else { "; it is gone" },
        );
        if args.timings {
            print!("{}", timings::bars(&outcome.phases()));
        }
    }
    Ok(())
}

fn freeze(
    args: &CheckpointArgs,
    criu: &Criu,
    directory: &Path,
    (command, executable): (Vec<String>, Option<Executable>),
    bar: &ProgressBar,
) -> Result<(CheckpointReport, f64)> {
    bar.set_message("stopping the queues and writing the buffers");
    let order = Request::Checkpoint(CheckpointOrder {
        deadline_ms: args.deadline_ms,
        lease_ms: args.lease_ms,
        mode: if args.preempt { Mode::Preempt } else { Mode::Drain },
        write_deadline_ms: args.write_deadline_ms,
        self_contained: args.self_contained,
        outlives_controller: args.no_dump,
        ..CheckpointOrder::into_directory(directory.into())
    });
    // Beyond the drain the time goes into writing; a disk may be slow.
    let patience = Duration::from_millis(args.deadline_ms) + Duration::from_secs(600);
    let report = match call(args.pid, &order, patience)? {
        (State::Checkpointed, Done::Checkpointed(report)) => report,
        (state, _) => bail!("the agent of process {} answered out of turn: it is {state}", args.pid),
    };
    if args.no_dump {
        return Ok((report, 0.0));
    }
    bar.set_message("CRIU dumps the process");
    let started = Instant::now();
    let options = args.criu.options(args.pid);
    let dumped = (|| -> Result<()> {
        Manifest {
            layout: LAYOUT,
            pid: args.pid,
            command,
            executable,
            criu: criu.version().to_owned(),
            options: options.clone(),
            images: image_names(directory)?,
            report: report.clone(),
        }
        .write_pending(directory)?;
        let commit = write_commit_script(directory)?;
        criu.dump(
            args.pid,
            &directory.join(CRIU_DIRECTORY),
            &DumpOptions {
                commit: &commit,
                leave_running: args.leave_running,
                criu: &options,
                extra: &args.criu_args,
            },
        )?;
        Ok(())
    })();
    let criu_ms = milliseconds(started);
    if args.leave_running || dumped.is_err() {
        bar.set_message("the process takes its device back");
        let resumed = resume(args.pid, None, None, Duration::from_secs(120));
        if dumped.is_err() && resumed.is_ok() {
            // CRIU may fail after the commit; a process that has gone on must not be restored from before that.
            retract(directory)?;
        }
        dumped.with_context(|| match &resumed {
            Ok(_) => format!("Process {} was not frozen and runs on unharmed", args.pid),
            Err(error) => {
                format!("Process {} was not frozen, and did not come back by itself yet: {error}", args.pid)
            }
        })?;
        resumed.context("The checkpoint is complete, but the process did not come back")?;
    }
    Ok((report, criu_ms))
}

fn command_line(pid: i32) -> Result<Vec<String>> {
    let raw = fs::read(format!("/proc/{pid}/cmdline"))
        .with_context(|| format!("There is no process {pid} to checkpoint"))?;
    Ok(raw
        .split(|b| *b == 0)
        .filter(|a| !a.is_empty())
        .map(|a| String::from_utf8_lossy(a).into_owned())
        .collect())
}

/// Whether nobody needs the images: they are not complete, and the process has taken its contents back.
fn is_abandoned(pid: i32, directory: &Path) -> bool {
    let status = call(pid, &Request::Status, Duration::from_secs(5));
    let needed = matches!(status, Ok((state, _)) if state != State::Running);
    !needed && matches!(Manifest::read(directory), Err(ManifestError::Incomplete { .. }))
}

/// Leaves only CRIU's log of a failed checkpoint, or nothing where there is none.
fn clear_failed(directory: &Path) -> std::io::Result<()> {
    let log = directory.join(CRIU_DIRECTORY).join("dump.log");
    let kept = fs::read(&log).ok();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    match kept {
        Some(text) => {
            fs::create_dir(directory.join(CRIU_DIRECTORY))?;
            fs::write(log, text)
        }
        None => fs::remove_dir(directory),
    }
}

fn directory_bytes(directory: &Path) -> u64 {
    fs::read_dir(directory)
        .map(|entries| entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum())
        .unwrap_or(0)
}
