// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis preflight`: what a checkpoint of a process tree would move, and what would be refused and why, before
//! anything is touched. `stasis checkpoint` runs the same first.
//!
//! INVARIANT: nothing is changed and nobody is stopped: all is read from /proc, from the kernel's socket tables and
//! from the agents' own words. Where something cannot be seen, that is said; it is never taken for fine silently.
//!
//! What CRIU refuses was measured with CRIU 4.2.1 on kernel 6.18; `tests/tests/preflight.rs` has it refuse again.

mod descriptors;
mod device_memory;
mod diag;
mod dump_flags;
mod finding;
mod mappings;
mod print;
mod privileges;
mod process;
mod run_device;
mod runtime;
mod scene;
mod shared;
#[cfg(test)]
mod sleeper;
mod sockets;
mod stalled;
#[cfg(test)]
mod tests;
mod tree;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use stasis::checkpoint::ProcessInfo;
use stasis_criu::Criu;
use thiserror::Error;

use self::dump_flags::DumpFlags;
use self::finding::{Finding, Severity};
use self::privileges::Own;
use self::run_device::Executors;
use self::scene::Scene;
use self::tree::{Process, TreeError};
use crate::output;

pub use self::descriptors::KERNEL_DRIVER;
pub use self::print::run_status;
pub use self::run_device::{DeviceState, RunClient, RunDevice, names_a_run};
#[cfg(test)]
pub use self::sleeper::sleep_with;

/// Arguments of `stasis preflight`.
#[derive(Debug, Args)]
pub struct PreflightArgs {
    /// The root of the process tree.
    pub(crate) pid: i32,
    /// For a CRIU without root.
    #[arg(long)]
    unprivileged: bool,
    /// Established TCP connections would be kept.
    #[arg(long, conflicts_with = "tcp_close")]
    tcp_established: bool,
    /// Established TCP connections would be closed.
    #[arg(long)]
    tcp_close: bool,
    /// File locks would be kept.
    #[arg(long)]
    file_locks: bool,
    /// Kernels would be stopped in the middle.
    #[arg(long)]
    preempt: bool,
    /// These process trees would be frozen with it.
    #[arg(long, visible_alias = "with", value_name = "PID", value_delimiter = ',')]
    session: Vec<i32>,
    /// What else `criu dump` would be flags (repeat as needed).
    #[arg(long = "criu-arg", value_name = "ARG", allow_hyphen_values = true)]
    criu_args: Vec<String>,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// What was found out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The root.
    pub pid: i32,
    /// Whether nothing stands in the way.
    pub possible: bool,
    /// The CRIU that would be called.
    pub criu: Option<String>,
    /// The device, if it is a tree of a `stasis run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunReport>,
    /// Bytes of buffers that would be saved beside CRIU's images.
    pub buffer_bytes: u64,
    /// Bytes of memory that CRIU would dump, about.
    pub memory_bytes: u64,
    /// The processes, parents first.
    pub processes: Vec<ProcessReport>,
    /// The worst first.
    pub findings: Vec<Finding>,
}

/// The device of a tree of a `stasis run`.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The device.
    #[serde(flatten)]
    pub device: RunDevice,
    /// Bytes of its memory that are among those that CRIU would dump.
    pub task_bytes: u64,
}

/// A process of the tree.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// Its pid.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Bytes of anonymous memory that CRIU would dump, about; what is shared counts in the report's sum only.
    pub memory_bytes: u64,
    /// Its runtime.
    pub runtime: Option<ProcessInfo>,
}

/// A checkpoint that would not come about.
#[derive(Debug, Error)]
#[error("{} not touched; {} in the way (--no-preflight tries nevertheless): {}",
    were(pids), stand(findings.len()), list(findings))]
pub struct Refused {
    /// The roots.
    pids: Vec<i32>,
    findings: Vec<Finding>,
}

fn were(pids: &[i32]) -> String {
    match pids {
        [pid] => format!("Process {pid} was"),
        pids => format!("Processes {} were", pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn stand(count: usize) -> String {
    if count == 1 { "1 thing stands".to_owned() } else { format!("{count} things stand") }
}

fn list(findings: &[Finding]) -> String {
    findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("; ")
}

/// Looks at the tree of `pid`, with those of `others` in the same session, or with the device of its `stasis run`.
fn look(
    (pid, others): (i32, &[i32]),
    flags: &DumpFlags,
    preempt: bool,
    criu: &Result<Criu, String>,
    device: Option<RunDevice>,
) -> Result<Report, TreeError> {
    let own = Own::here(criu.as_ref().map(|criu| criu.program().to_owned()).map_err(Clone::clone));
    let mut tree = tree::read(pid)?;
    let executors = device.map(Executors::read);
    if executors.is_none() {
        runtime::ask(&mut tree);
    }
    let session = others.iter().flat_map(|other| stasis_criu_foreign::members(*other)).collect();
    let scene = Scene { tree: &tree, flags, own: &own, session: &session, executors: executors.as_ref() };
    let mut findings = Vec::new();
    privileges::judge(&scene, &mut findings);
    runtime::judge(&scene, preempt, &mut findings);
    process::judge(&scene, &mut findings);
    descriptors::judge(&scene, &mut findings);
    mappings::judge(&scene, &mut findings);
    sockets::judge(&scene, &mut findings);
    shared::judge(&scene, &mut findings);
    device_memory::judge(&scene, &mut findings);
    run_device::judge(&scene, &mut findings);
    findings.sort_by_key(|finding| finding.severity);
    let processes: Vec<_> = tree.iter().map(ProcessReport::of).collect();
    let saved = |report: &ProcessReport| Some(report.runtime.as_ref()?.objects.as_ref()?.saved_bytes);
    let own_bytes: u64 = processes.iter().map(|process| process.memory_bytes).sum();
    let shared_bytes = if executors.is_some() { shared::all_bytes(&tree) } else { shared::bytes(&tree) };
    let of_tasks = executors.as_ref().map(|_| run_device::task_bytes(&tree)).unwrap_or_default();
    let run = executors
        .as_ref()
        .map(|executors| RunReport { device: executors.device.clone(), task_bytes: of_tasks.carried });
    Ok(Report {
        pid,
        possible: findings.iter().all(|finding| finding.severity != Severity::Refused),
        criu: criu.as_ref().ok().map(|criu| criu.version().to_owned()),
        buffer_bytes: match &executors {
            Some(executors) => executors.stored_bytes(&tree) + of_tasks.beside,
            None => processes.iter().filter_map(saved).sum(),
        },
        memory_bytes: own_bytes + shared_bytes.saturating_sub(of_tasks.beside),
        run,
        processes,
        findings,
    })
}

/// For how long the tree of a `stasis run` is looked at again while something stands in the way. On a busy machine a client may be
/// in the middle of a call for some time.
const LOOKING: Duration = Duration::from_secs(1);
/// Between the first two looks; then twice as long each time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// As [`look`], at the tree of a `stasis run`. A client has descriptors for moments, in calls to its device that a checkpoint lets
/// end before CRIU comes: what a later look does not find does not stand in the way.
fn look_at_run(
    pid: i32,
    flags: &DumpFlags,
    criu: &Result<Criu, String>,
    device: &RunDevice,
) -> Result<Report, TreeError> {
    let look = || look((pid, &[]), flags, true, criu, Some(device.clone()));
    let mut report = look()?;
    let (begun, mut pause) = (Instant::now(), BETWEEN_LOOKS);
    while !report.possible && begun.elapsed() < LOOKING {
        thread::sleep(pause);
        pause *= 2;
        let before = std::mem::replace(&mut report, look()?).findings;
        let is_refused = |finding: &Finding| finding.severity == Severity::Refused;
        report.findings.retain(|finding| !is_refused(finding) || before.contains(finding));
        report.possible = !report.findings.iter().any(is_refused);
    }
    Ok(report)
}

impl ProcessReport {
    fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            name: process.name.clone(),
            memory_bytes: process.kilobytes("RssAnon") + process.kilobytes("VmSwap"),
            runtime: process.info().cloned(),
        }
    }
}

impl DumpFlags {
    /// With what `stasis checkpoint` tells CRIU of every tree of a `stasis run`.
    fn of_run(self) -> Self {
        Self { file_locks: true, shell_job: true, link_remap: true, ..self }
    }
}

/// Prints what would happen; says whether a checkpoint would come about. `device` is that of the process's `stasis run`, with the
/// root of its program.
///
/// # Errors
/// When the tree cannot be looked at.
pub fn run(args: &PreflightArgs, device: Option<(i32, RunDevice)>) -> Result<bool> {
    let flags = DumpFlags::from_args(&args.criu_args);
    let flags = DumpFlags {
        unprivileged: flags.unprivileged || args.unprivileged,
        tcp_established: flags.tcp_established || args.tcp_established,
        tcp_close: flags.tcp_close || args.tcp_close,
        file_locks: flags.file_locks || args.file_locks,
        ..flags
    };
    let criu = Criu::find().map_err(|error| error.to_string());
    let report = match device {
        Some((root, device)) => {
            ensure!(args.session.is_empty(), "--session is not for a program under `stasis run`");
            look_at_run(root, &flags.of_run(), &criu, &device)?
        }
        None => look((args.pid, &args.session), &flags, args.preempt, &criu, None)?,
    };
    if args.json {
        output::show(serde_json::to_string(&report)? + "\n");
    } else {
        output::show(print::report(&report));
    }
    Ok(report.possible)
}

/// Refuses a checkpoint of these trees, in one session, that `criu dump` with the arguments it is `flags` for each root, or
/// the runtime, would refuse later.
///
/// # Errors
/// [`Refused`] with everything that stands in the way, [`TreeError`].
pub fn check(pids: &[i32], criu: &Criu, flags: impl Fn(i32) -> Vec<String>, preempt: bool) -> Result<()> {
    let criu = Ok(criu.clone());
    let mut findings = Vec::new();
    for pid in pids {
        let others: Vec<i32> = pids.iter().copied().filter(|other| other != pid).collect();
        findings.extend(
            look((*pid, &others), &DumpFlags::from_args(&flags(*pid)), preempt, &criu, None)?.findings,
        );
    }
    refuse(pids, findings)
}

/// Refuses a checkpoint of the tree of a `stasis run`, as [`check`] does; `args` is what `criu dump` is told.
///
/// # Errors
/// As [`check`].
pub fn check_run(pid: i32, criu: &Criu, args: &[String], device: RunDevice) -> Result<()> {
    let flags = DumpFlags::from_args(args).of_run();
    refuse(&[pid], look_at_run(pid, &flags, &Ok(criu.clone()), &device)?.findings)
}

fn refuse(pids: &[i32], mut findings: Vec<Finding>) -> Result<()> {
    findings.retain(|finding| finding.severity == Severity::Refused);
    if findings.is_empty() { Ok(()) } else { Err(Refused { pids: pids.to_vec(), findings }.into()) }
}

/// The first process of a tree, with the name of the file, that has opened the kernel's driver by itself.
pub fn kernel_driver_user(pid: i32) -> Option<(i32, String)> {
    tree::read(pid).ok()?.iter().find_map(|process| {
        let opened = process.descriptors().iter().find(|fd| descriptors::is_kernel_driver(fd))?;
        Some((process.pid, opened.link.clone()))
    })
}

/// Prints the state of a process and what its runtime has.
///
/// # Errors
/// When the process has no agent.
pub fn status(pid: i32, json: bool) -> Result<()> {
    print::status(pid, json)
}
