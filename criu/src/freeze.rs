// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis checkpoint` and `stasis restore`: the agent evacuates, CRIU freezes; CRIU thaws, the agent comes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use stasis::checkpoint::{
    Admission, CallError, CheckpointOrder, CheckpointReport, Done, Mode, Place, Request, RestoreReport,
    Standing, State, call,
};
use stasis::criu::{
    CRIU_DIRECTORY, CriuOptions, DumpStats, Executable, LAYOUT, Manifest, ManifestError, NetworkLock,
    has_terminal, image_names, prepare, retract, write_commit_script,
};
use stasis::image::Image;

use crate::criu::{Criu, DumpOptions};
use crate::{beside, preflight, timings};

/// Arguments of `stasis checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// The process to freeze.
    pid: i32,
    /// Directory for the images: must be empty or not exist.
    directory: PathBuf,
    /// Let the process run on afterwards.
    #[arg(long)]
    leave_running: bool,
    /// Stop kernels in the middle instead of waiting for their end.
    #[arg(long)]
    preempt: bool,
    /// How long the queues may take to stop.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    deadline_ms: u64,
    /// How long writing the buffers may take; no limit unless given.
    #[arg(long, value_name = "MS")]
    write_deadline_ms: Option<u64>,
    /// How long the process waits for CRIU before it runs on by itself.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    lease_ms: u64,
    /// Put the buffers into the process's own memory, so that CRIU's images alone are the whole checkpoint (slower).
    #[arg(long)]
    self_contained: bool,
    /// Stop once the device is closed, and leave the dump to a `criu` of your own within the lease.
    #[arg(long, conflicts_with_all = ["leave_running", "self_contained"])]
    no_dump: bool,
    #[command(flatten)]
    criu: CriuArgs,
    /// Show how long the process stood still for what.
    #[arg(long, conflicts_with = "json")]
    timings: bool,
    /// More arguments for `criu dump` (repeat as needed).
    #[arg(long = "criu-arg", value_name = "ARG", allow_hyphen_values = true)]
    criu_args: Vec<String>,
    /// Do not look first for what CRIU or the runtime would refuse (`stasis preflight`).
    #[arg(long)]
    no_preflight: bool,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// What CRIU is to be told of the process.
#[derive(Clone, Debug, Args)]
struct CriuArgs {
    /// Keep established TCP connections; their peers notice a pause.
    #[arg(long, conflicts_with = "tcp_close")]
    tcp_established: bool,
    /// Reset established TCP connections; listening sockets stay.
    #[arg(long)]
    tcp_close: bool,
    /// How packets are kept from the connections meanwhile: nftables (the default), iptables or skip.
    #[arg(long, value_name = "METHOD", value_parser = network_lock)]
    network_lock: Option<NetworkLock>,
    /// Keep file locks.
    #[arg(long)]
    file_locks: bool,
    /// As an ordinary user, with CAP_CHECKPOINT_RESTORE (and CAP_SETPCAP, if the process cannot have every capability).
    #[arg(long)]
    unprivileged: bool,
}

fn network_lock(name: &str) -> Result<NetworkLock, String> {
    [NetworkLock::Nftables, NetworkLock::Iptables, NetworkLock::Skip]
        .into_iter()
        .find(|lock| lock.to_string() == name)
        .ok_or_else(|| "it is none of nftables, iptables, skip".to_owned())
}

impl CriuArgs {
    fn options(&self, pid: i32) -> CriuOptions {
        CriuOptions {
            shell_job: has_terminal(pid),
            tcp_established: self.tcp_established,
            tcp_close: self.tcp_close,
            network_lock: self.network_lock,
            file_locks: self.file_locks,
            unprivileged: self.unprivileged,
        }
    }
}

/// Arguments of `stasis restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Directory made by `stasis checkpoint`.
    directory: PathBuf,
    /// In pid and network namespaces of its own, beside a process that has its pid. The command stays as their init,
    /// and ends with the process and its exit status.
    #[arg(long)]
    beside: bool,
    /// How long the process may take to bring its device back.
    #[arg(long, default_value_t = 120_000, value_name = "MS")]
    deadline_ms: u64,
    #[command(flatten)]
    terms: TermsArgs,
    /// More arguments for `criu restore` (repeat as needed).
    #[arg(long = "criu-arg", value_name = "ARG", allow_hyphen_values = true)]
    criu_args: Vec<String>,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// On what terms a process takes its device back; the KFD_*_CHECK switches of the environment are among them.
#[derive(Debug, Args)]
pub struct TermsArgs {
    /// Put an agent of the process on this GPU here (repeat as needed): each by index, or uuid as `stasis agents` prints.
    #[arg(long = "map", value_name = "OLD=NEW")]
    map: Vec<Place>,
}

impl TermsArgs {
    /// With the switches of this program's environment.
    pub fn admission(&self) -> Result<Admission> {
        Ok(Admission { places: self.map.clone(), ..Admission::from_env()? })
    }
}

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

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn spinner(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
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
        Image::open(&directory.join(name))?.verify()?;
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

/// Orders the agent to take the device back; also the retry after a failed restore.
pub fn resume(
    pid: i32,
    directory: Option<PathBuf>,
    admission: Option<Admission>,
    patience: Duration,
) -> Result<RestoreReport> {
    let deadline = Instant::now() + patience;
    loop {
        let order = Request::Resume { directory: directory.clone(), admission: admission.clone() };
        match call(
            pid,
            &order,
            deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
        ) {
            Ok((State::Running, Done::Running(report))) => return Ok(report),
            Ok((state, _)) => bail!("the agent of process {pid} answered out of turn: it is {state}"),
            // Just restored, the agent may not listen yet.
            Err(CallError::NoAgent { .. })
                if Instant::now() < deadline && alive(pid) && !is_buried_soon(pid) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
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

fn alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether it has ended and only its parent has not looked yet.
fn is_buried_soon(pid: i32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state == "Z" || state == "X")
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

/// A field of /proc/PID/stat, counted from the one after the parenthesised name (the state, field 3).
fn stat_field(pid: i32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(index)?.to_owned())
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
