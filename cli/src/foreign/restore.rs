// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore` of a program that knows nothing of it.
//!
//! INVARIANT: the tasks are stopped until their devices are whole. If anything fails before, nothing is left of them, and the
//! checkpoint is as it was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kfd::transport::control::{Control, ControlError, broker_socket};
use kfd::transport::soft::{find_softgpud, launch_softgpud};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde::Serialize;
use stasis::criu::{CRIU_DIRECTORY, Manifest, OpenDirectory};
use stasis_criu::Criu;

use super::cancel::Claim;
use super::clients::{Run, clients, start_executor, stay};
use super::contents;
use super::description::{CONTENTS_FILE, Description, Memory, Place};
use super::executors::Executor;
use super::tasks::{Held, clock_offset};
use super::thaw::Thaw;
use crate::freeze::{RestoreArgs, check_files, milliseconds, spinner, wait_for_pid};
use crate::run_directory::RunDirectory;
use crate::{beside, output, preflight};

/// How long softgpud may take to listen.
const STARTING: Duration = Duration::from_secs(30);
/// How long a softgpud that nobody uses any more may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK_AT_BROKER: Duration = Duration::from_millis(20);
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
    let Ok(directory) = args.directory.canonicalize() else { return Ok(None) };
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
        true if std::process::id() != 1 => beside::enter(),
        true => {
            beside::furnish()?;
            thaw(args, opened, manifest)?;
            beside::stay(&[manifest.pid])
        }
        false => thaw(args, opened, manifest),
    }
}

fn thaw(args: &RestoreArgs, opened: &OpenDirectory, manifest: &Manifest) -> Result<()> {
    let started = Instant::now();
    let criu = Criu::find()?;
    let bar = spinner(args.json);
    check_files(manifest, opened, args.no_verify, &bar)?;
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
    let mut broker = start_device(&description.run)?;
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
            preflight::tree_of(manifest.pid).into_iter().for_each(end);
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
        let Outcome { pid, restore_ms, waves_restored, .. } = outcome;
        output::report(format!(
            "Process {pid} runs, restored in {restore_ms:.0} ms with {waves_restored} waves in kernels\n"
        ));
    }
    Ok(())
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

/// Starts a softgpud on the run's socket, with the run's directory.
fn start_device(run: &Run) -> Result<Control> {
    let user = geteuid().as_raw();
    let begun = Instant::now();
    loop {
        let mut broker = match Control::connect(&broker_socket(&run.socket), user) {
            Err(ControlError::Nobody { .. }) => break,
            connected => connected?,
        };
        // One that ends now answers nothing.
        let is_idle = clients(&mut broker).map_or(true, |clients| clients.is_empty());
        ensure!(
            is_idle && begun.elapsed() < ENDING,
            "A softgpud serves the run that the checkpoint is of ({}): end its program, or restore beside it (--beside)",
            run.socket
        );
        // It stays for this connection.
        drop(broker);
        thread::sleep(LOOK_AT_BROKER);
    }
    let directory = RunDirectory::of_machine(Path::new(&run.directory))?;
    // No softgpud that would remove it is left.
    directory.remake()?;
    let (machine, root) = (directory.machine(), directory.path().to_string_lossy());
    let written = write_machine(&run.devices, &machine);
    if written.is_err() {
        let _ = fs::remove_dir_all(directory.path());
    }
    written?;
    let arguments =
        ["serve", "--devices", &run.devices, "--socket", &run.socket, "--controlled", "--remove", &root];
    launch_softgpud(&arguments, STARTING).context("softgpud cannot be started")?;
    let connected = Control::connect(&broker_socket(&run.socket), user);
    connected.with_context(|| format!("softgpud does not serve {}", run.devices))
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

/// Writes the files of the machine, to know before softgpud serves whether it can be had.
fn write_machine(devices: &str, machine: &Path) -> Result<()> {
    let program = find_softgpud().context("softgpud cannot be started")?;
    let mut command = Command::new(&program);
    command.args(["tree", "--devices", devices]).arg(machine).stdin(Stdio::null());
    command.env("RUST_LIB_BACKTRACE", "0");
    let output = command.output().with_context(|| format!("Cannot execute {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        bail!("The machine that the checkpoint was made on, {devices}, cannot be had: {said}");
    }
    Ok(())
}

/// Gives each client its device back; milliseconds that took.
fn restore_devices(
    broker: &mut Control,
    opened: &OpenDirectory,
    root: i32,
    description: &Description,
) -> Result<f64> {
    let began = Instant::now();
    stay(broker, root).context("softgpud does not stay for the program")?;
    let held = Held::by(&preflight::tree_of(root))?;
    let known: BTreeMap<&str, &Memory> =
        description.memories.iter().map(|memory| (memory.name.as_str(), memory)).collect();
    let made = Made::all(&held, description, opened)?;
    let user = geteuid().as_raw();
    let mut executors = Vec::new();
    for client in &description.clients {
        let failed = || format!("The device of process {}", client.pid);
        start_executor(broker, client.pid).with_context(failed)?;
        let mut executor =
            Executor::connect_new(&description.run.socket, client.pid, user).with_context(failed)?;
        let wanted = executor.take(&opened.file(&client.state)?).with_context(failed)?;
        let mut given = Vec::new();
        for memory in wanted {
            let known = known
                .get(memory.name.as_str())
                .with_context(|| format!("The memory {:?} is not described", memory.name))?;
            let fd = made.get(&held, known)?;
            given.push((memory.name, !matches!(known.place, Place::Here(_)), fd));
        }
        executor.give(given).with_context(failed)?;
        executor.restore(clock_offset(client.pid)).with_context(failed)?;
        executors.push(executor);
    }
    // When all are whole: they may share memory.
    executors.iter_mut().try_for_each(Executor::resume)?;
    Ok(milliseconds(began))
}

/// Memory whose bytes CRIU has not carried, by name.
#[derive(Debug)]
struct Made(BTreeMap<String, OwnedFd>);

impl Made {
    /// Makes what no task has, finds the rest, and fills all.
    fn all(held: &Held, description: &Description, opened: &OpenDirectory) -> Result<Self> {
        let (mut memories, mut targets) = (BTreeMap::new(), Vec::new());
        for memory in &description.memories {
            let fd = match &memory.place {
                Place::Task => continue,
                Place::Beside(_) => restored(held, memory)?,
                Place::Here(_) => contents::make(memory)?,
            };
            let target = fd.try_clone().context("No descriptor is left")?;
            targets.push((File::from(target), memory, memory.extents()));
            memories.insert(memory.name.clone(), fd);
        }
        if targets.iter().any(|(.., extents)| !extents.is_empty()) {
            contents::fill(&targets, &opened.file(CONTENTS_FILE)?)?;
        }
        Ok(Self(memories))
    }

    /// A descriptor of a memory.
    fn get(&self, held: &Held, memory: &Memory) -> Result<OwnedFd> {
        match self.0.get(&memory.name) {
            Some(made) => made.try_clone().context("No descriptor is left"),
            None => restored(held, memory),
        }
    }
}

/// A memory that a task has.
fn restored(held: &Held, memory: &Memory) -> Result<OwnedFd> {
    let found = held.open(&memory.name)?;
    found.with_context(|| format!("CRIU has not restored the memory {:?}", memory.name))
}
