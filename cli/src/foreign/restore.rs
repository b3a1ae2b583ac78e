// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore` of a program that knows nothing of it.
//!
//! INVARIANT: the tasks are stopped until their devices are whole. If anything fails before, nothing is left of them, and the
//! checkpoint is as it was.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kfd::transport::soft::find_softgpud;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getegid, geteuid};
use serde::Serialize;
use serde_json::Value;
use stasis::criu::{CRIU_DIRECTORY, Manifest, OpenDirectory};
use stasis_criu::Criu;
use stasis_criu_foreign::{self as foreign, Broker, Description, Programs, Run, RunDirectory, Task, members};

use super::cancel::Claim;
use super::thaw::Thaw;
use crate::freeze::{RestoreArgs, check_files, wait_for_pid};
use crate::library::OF_PROGRAMS;
use crate::progress::{milliseconds, spinner};
use crate::{beside, output};

/// How often it is looked whether CRIU has made the tasks.
const LOOK: Duration = Duration::from_millis(1);

/// What `stasis restore --json` prints.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    pid: i32,
    foreign: bool,
    restore_ms: f64,
    /// CRIU, from its start to its end, the next included.
    criu_ms: f64,
    /// Devices, while the tasks were stopped.
    device_ms: f64,
    clients: usize,
    queues: u32,
    waves_restored: u64,
}

/// The checkpoint of a program that knows nothing of it, if that is what is in the directory.
///
/// # Errors
/// When the directory or its manifest cannot be read.
pub fn find(args: &RestoreArgs) -> Result<Option<(OpenDirectory, Manifest)>> {
    let Ok(directory) = args.place().canonicalize() else { return Ok(None) };
    let opened = OpenDirectory::open(&directory, args.trust())?;
    match Manifest::read_in(&opened) {
        Ok(manifest) if manifest.foreign.is_some() => Ok(Some((opened, manifest))),
        // What else is wrong is said where other checkpoints are restored.
        _ => Ok(None),
    }
}

/// Brings the tree back.
///
/// # Errors
/// Why it is not back; nothing is left of it then.
pub fn run(args: &RestoreArgs, opened: &OpenDirectory, manifest: &Manifest) -> Result<()> {
    match args.beside {
        true if std::process::id() != 1 => beside::enter(args),
        true => {
            beside::furnish()?;
            args.finish(thaw(args, opened, manifest))?;
            beside::stay(&[manifest.pid])
        }
        false => args.finish(thaw(args, opened, manifest)),
    }
}

fn thaw(args: &RestoreArgs, opened: &OpenDirectory, manifest: &Manifest) -> Result<()> {
    if args.terms.lazy.is_some() {
        bail!(
            "--lazy is for programs that use Stasis's runtime: those under `stasis run` have pointers to all of their memory"
        );
    }
    let started = Instant::now();
    let criu = Criu::find()?;
    let bar = spinner(args.json);
    check_files(manifest, opened, args.no_verify, false, &bar)?;
    let name = manifest.foreign.as_deref().context("The checkpoint has no device")?;
    let description = Description::read(opened, name)?;
    bar.set_message("waiting for the pid");
    let others = description.clients.iter().map(|client| client.pid).filter(|pid| *pid != manifest.pid);
    let pids: Vec<i32> = std::iter::once(manifest.pid).chain(others).collect();
    pids.iter().chain(&description.processes).try_for_each(|pid| wait_for_pid(*pid))?;
    bar.set_message("starting the device");
    let _claim = Claim::take_restore(&description.run)?;
    if args.beside {
        cover(&description.run)?;
    }
    let mut broker = foreign::start(&description.run, &programs()?)?;
    let images = opened.path().join(CRIU_DIRECTORY);
    let limit = args.deadline(std::iter::once(images.as_path()));
    bar.set_message("CRIU restores the processes");
    let script = Thaw::write()?;
    let mut extra = args.criu_args.clone();
    extra.extend(["--action-script".to_owned(), script.script().to_string_lossy().into_owned()]);
    let criu_began = Instant::now();
    let has_ended = AtomicBool::new(false);
    let (made, devices) = thread::scope(|scope| {
        let at_work = scope.spawn(|| {
            let made = criu.restore(&images, &manifest.options, &extra, pids.clone(), limit);
            has_ended.store(true, Ordering::Release);
            made
        });
        let devices =
            attend(&script, &has_ended, || restore_devices(&mut broker, opened, manifest.pid, &description));
        if matches!(devices, Some(Err(_))) {
            // Before the word: nothing of them runs without its device.
            members(manifest.pid).into_iter().for_each(end);
        }
        let told = if devices.is_some() { script.go() } else { Ok(()) };
        let made = at_work.join();
        (told.map(|()| made), devices)
    });
    let criu_ms = milliseconds(criu_began);
    bar.finish_and_clear();
    let device_ms = devices
        .transpose()
        .context("The devices of the processes cannot be restored; the checkpoint is as it was")?;
    match made? {
        Ok(made) => made?,
        Err(_) => bail!("The thread that called CRIU has failed"),
    }
    let device_ms =
        device_ms.context("CRIU restored the processes without telling; their devices are missing")?;
    let outcome = Outcome {
        pid: manifest.pid,
        foreign: true,
        restore_ms: milliseconds(started),
        criu_ms,
        device_ms,
        clients: description.clients.len(),
        queues: description.clients.iter().map(|client| client.queues).sum(),
        waves_restored: description.clients.iter().map(|client| client.waves).sum(),
    };
    if args.json {
        output::report(serde_json::to_string(&outcome)? + "\n");
    } else {
        output::report(restored(&serde_json::to_value(&outcome)?));
    }
    Ok(())
}

/// What is said of a restored tree, of what `--json` prints.
pub fn restored(outcome: &Value) -> String {
    format!(
        "Process {} runs, restored in {:.0} ms with {} waves in kernels\n",
        outcome["pid"],
        outcome["restore_ms"].as_f64().unwrap_or(0.0),
        outcome["waves_restored"]
    )
}

/// Hides the run's directory from the copies of a session, as [`cover`] does, if the checkpoint is of a tree of a run.
///
/// # Errors
/// When it cannot be hidden.
pub fn hide_directory(args: &RestoreArgs, directory: &Path, manifest: &Manifest) -> Result<()> {
    let Some(name) = &manifest.foreign else { return Ok(()) };
    cover(&Description::read(&OpenDirectory::open(directory, args.trust())?, name)?.run)
}

/// Does `restore` once the tasks are complete; `None` if CRIU ends before.
fn attend(
    script: &Thaw,
    has_ended: &AtomicBool,
    restore: impl FnOnce() -> Result<f64>,
) -> Option<Result<f64>> {
    while !script.is_ready() {
        if has_ended.load(Ordering::Acquire) {
            return None;
        }
        thread::sleep(LOOK);
    }
    Some(restore())
}

fn end(pid: i32) {
    // One that is gone needs no signal.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// What is started for a restored tree.
fn programs() -> Result<Programs> {
    let softgpud = find_softgpud().context("softgpud cannot be started")?;
    let owner = (geteuid().as_raw(), getegid().as_raw());
    Ok(Programs { softgpud, library: OF_PROGRAMS.find()?, owner, joined: false })
}

/// Hides the run's directory from a copy in a mount namespace of its own, where the copy gets another one under that name: the
/// original may use it.
fn cover(run: &Run) -> Result<()> {
    let directory = RunDirectory::of_machine(Path::new(&run.directory))?;
    if !directory.path().is_dir() {
        return Ok(());
    }
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "mode=700", "stasis-run"]).arg(directory.path()).stdin(Stdio::null());
    let output = mount.output().context("Cannot execute mount (util-linux)")?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // The original may have ended meanwhile, and removed it.
    let is_hidden = output.status.success() || !directory.path().is_dir();
    ensure!(is_hidden, "Cannot mount a tmpfs on {}: {said}", directory.path().display());
    Ok(())
}

/// Gives each client its device back; milliseconds that took.
fn restore_devices(
    broker: &mut Broker,
    opened: &OpenDirectory,
    root: i32,
    description: &Description,
) -> Result<f64> {
    let began = Instant::now();
    let tasks: Vec<Task> = members(root).into_iter().map(Task::here).collect();
    foreign::restore(broker, geteuid().as_raw(), opened, &tasks, description)?;
    Ok(milliseconds(began))
}
