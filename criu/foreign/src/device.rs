// SPDX-License-Identifier: MIT OR Apache-2.0
//! A softgpud for a restored tree, on the socket and with the directory of its run.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kfd::transport::control::ControlError;
use kfd::transport::soft::Launch;

use crate::broker::Broker;
use crate::description::Programs;
use crate::error::{ForeignError, system};
use crate::relocation::launch;
use crate::run::Run;
use crate::run_directory::RunDirectory;

/// How long softgpud may take to listen.
pub(crate) const STARTING: Duration = Duration::from_secs(30);
/// How long a softgpud that nobody uses any more may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Starts one in this process' namespaces, and makes the run's directory anew. It ends, and removes the directory, when the broker's
/// connection ends, unless it is told to stay.
///
/// # Errors
/// Why not; nothing is left then. [`ForeignError::Served`] if the run has one that is in use.
pub fn start(run: &Run, programs: &Programs) -> Result<Broker, ForeignError> {
    let user = programs.owner.0;
    wait_until_free(run, user)?;
    let directory = RunDirectory::of_machine(Path::new(&run.directory))?;
    // No softgpud that would remove it is left.
    directory.remake(&programs.library)?;
    let made = give_away(&directory, programs)
        .and_then(|()| write_machine(programs, &run.devices, &directory.machine()))
        .and_then(|()| {
            let root = directory.path().to_string_lossy();
            let arguments = [
                "serve",
                "--devices",
                &run.devices,
                "--socket",
                &run.socket,
                "--controlled",
                "--remove",
                &root,
            ];
            let mut launch = Launch::new(&programs.softgpud, &arguments);
            launch.user = programs.another_user();
            Ok(launch.start(STARTING)?)
        });
    if made.is_err() {
        let _ = fs::remove_dir_all(directory.path());
    }
    made?;
    let devices = || run.devices.clone();
    Broker::connect(&run.socket, user).map_err(|source| ForeignError::Silent { devices: devices(), source })
}

/// Starts one in the namespaces of the restored tree whose root this is a pidfd of, for a run whose directory CRIU or the container engine
/// has restored. It ends when the broker's connection ends, unless it is told to stay.
///
/// # Errors
/// Why not.
pub fn start_joined(run: &Run, programs: &Programs, root: BorrowedFd<'_>) -> Result<Broker, ForeignError> {
    wait_until_free(run, programs.owner.0)?;
    let directory = RunDirectory::of_machine(Path::new(&run.directory))?;
    let path = directory.path().to_string_lossy();
    let arguments =
        ["serve", "--devices", &run.devices, "--socket", &run.socket, "--controlled", "--remove", &path];
    launch(programs, root, &arguments, None)?;
    let connected = Broker::connect(&run.socket, programs.owner.0);
    connected.map_err(|source| ForeignError::Silent { devices: run.devices.clone(), source })
}

/// Waits until the run has no softgpud.
fn wait_until_free(run: &Run, user: u32) -> Result<(), ForeignError> {
    let begun = Instant::now();
    loop {
        let mut broker = match Broker::connect(&run.socket, user) {
            Err(ControlError::Nobody { .. }) => return Ok(()),
            connected => connected?,
        };
        // One that ends now answers nothing.
        let is_idle = broker.clients().map_or(true, |clients| clients.is_empty());
        if !is_idle || begun.elapsed() >= ENDING {
            return Err(ForeignError::Served { socket: run.socket.clone() });
        }
        // It stays for this connection.
        drop(broker);
        thread::sleep(LOOK);
    }
}

fn give_away(directory: &RunDirectory, programs: &Programs) -> Result<(), ForeignError> {
    match programs.another_user() {
        Some(owner) => Ok(directory.give_to(owner)?),
        None => Ok(()),
    }
}

/// Writes the files of the machine, to know before softgpud serves whether it can be had.
///
/// # Errors
/// [`ForeignError::Machine`], [`ForeignError::System`].
fn write_machine(programs: &Programs, devices: &str, machine: &Path) -> Result<(), ForeignError> {
    let mut command = Command::new(&programs.softgpud);
    command.args(["tree", "--devices", devices]).arg(machine).stdin(Stdio::null());
    command.env("RUST_LIB_BACKTRACE", "0");
    if let Some((user, group)) = programs.another_user() {
        command.uid(user).gid(group);
    }
    let output = command.output().map_err(system(format!("execute {}", programs.softgpud.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(ForeignError::Machine { devices: devices.to_owned(), said })
}
