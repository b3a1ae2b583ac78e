// SPDX-License-Identifier: MIT OR Apache-2.0
//! A softgpud for a restored tree, on the socket and with the directory of its run.

use std::ffi::OsString;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kfd::transport::control::ControlError;
use kfd::transport::soft::Launch;
use nix::errno::Errno;

use crate::broker::Broker;
use crate::description::Programs;
use crate::error::{ForeignError, system};
use crate::run::Run;
use crate::run_directory::RunDirectory;

/// How long softgpud may take to listen.
const STARTING: Duration = Duration::from_secs(30);
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
    wait_until_free(run, programs.owner.0)?;
    let directory = RunDirectory::of_machine(Path::new(&run.directory))?;
    // No softgpud that would remove it is left.
    let made = make_directory(&directory, programs)
        .and_then(|()| write_machine(programs, &run.devices, &directory.machine()))
        .and_then(|()| Start { run, programs, root: None, environment: None }.serve(&run.socket, true));
    if made.is_err() {
        remove_directory(&directory, programs);
    }
    made
}

/// Starts one in the namespaces of a restored tree, whose root is given by a pidfd and its pid, for a run whose directory CRIU or the
/// container engine has restored. It ends when the broker's connection ends, unless it is told to stay.
///
/// # Errors
/// Why not.
pub fn start_joined(
    run: &Run,
    programs: &Programs,
    root: (BorrowedFd<'_>, i32),
) -> Result<Broker, ForeignError> {
    wait_until_free(run, programs.owner.0)?;
    Start { run, programs, root: Some(root), environment: None }.serve(&run.socket, true)
}

/// A softgpud that is to be started for a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub run: &'a Run,
    pub programs: &'a Programs,
    /// A pidfd and the pid of the root of a tree in whose namespaces it is to be, if its programs are joined.
    pub root: Option<(BorrowedFd<'a>, i32)>,
    /// Its environment; `None`: that of this process.
    pub environment: Option<&'a [(OsString, OsString)]>,
}

impl Start<'_> {
    /// Starts it on a socket, in the network namespace of this thread; with `removes` it removes the run's directory at its end. What
    /// is started in a container is a program of the container: it must not have what the container has not.
    pub fn serve(&self, socket: &str, removes: bool) -> Result<Broker, ForeignError> {
        let Self { run, programs, root, environment } = *self;
        let directory = RunDirectory::of_machine(Path::new(&run.directory))?;
        let directory = directory.path().to_string_lossy();
        let mut arguments = vec!["serve", "--devices", &run.devices, "--socket", socket, "--controlled"];
        if removes {
            arguments.extend(["--remove", &directory]);
        }
        let mut launch = Launch::new(&programs.softgpud, &arguments);
        launch.user = programs.another_user();
        if let Some((root, pid)) = root.filter(|_| programs.joined) {
            launch.namespaces_of = Some(root);
            launch.capabilities = Some(capabilities(pid)?);
        }
        launch.environment = environment.map(<[_]>::to_vec);
        launch.start(STARTING)?;
        let connected = Broker::connect(socket, programs.owner.0);
        connected.map_err(|source| ForeignError::Silent { devices: run.devices.clone(), source })
    }
}

/// The capabilities that a process can have at most.
fn capabilities(pid: i32) -> Result<u64, ForeignError> {
    let path = format!("/proc/{pid}/status");
    let failed = || system(format!("read the capabilities of process {pid}"));
    let text = fs::read_to_string(path).map_err(failed())?;
    let mask = text.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.ok_or_else(|| failed()(Errno::EINVAL.into()))
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

/// Makes the run's directory anew, with the rights of its user: the path is the word of a process of that user.
fn make_directory(directory: &RunDirectory, programs: &Programs) -> Result<(), ForeignError> {
    if programs.another_user().is_none() {
        return Ok(directory.remake(&programs.library)?);
    }
    const SCRIPT: &str =
        r#"rm -rf -- "$1" "$2" && mkdir -p -m 700 -- "$3" && mkdir -- "$1" && ln -s -- "$4" "$2""#;
    let (machine, link) = (directory.machine(), directory.library());
    let words = [&machine, &link, directory.path(), &programs.library];
    let done = of_user(Command::new("/bin/sh"), programs).args(["-c", SCRIPT, "sh"]).args(words).output();
    let act = || format!("make {} as user {}", directory.path().display(), programs.owner.0);
    let output = done.map_err(system(act()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(system(act())(std::io::Error::other(said)))
        }
    }
}

fn remove_directory(directory: &RunDirectory, programs: &Programs) {
    if programs.another_user().is_none() {
        let _ = fs::remove_dir_all(directory.path());
        return;
    }
    let _ = of_user(Command::new("/bin/rm"), programs).args(["-rf", "--"]).arg(directory.path()).output();
}

/// Has a command become the user of the programs, if this process is root and they are not.
fn of_user(mut command: Command, programs: &Programs) -> Command {
    if let Some((user, group)) = programs.another_user() {
        command.uid(user).gid(group);
    }
    command.stdin(Stdio::null()).current_dir("/");
    command
}

/// Writes the files of the machine, to know before softgpud serves whether it can be had.
///
/// # Errors
/// [`ForeignError::Machine`], [`ForeignError::System`].
fn write_machine(programs: &Programs, devices: &str, machine: &Path) -> Result<(), ForeignError> {
    let mut command = of_user(Command::new(&programs.softgpud), programs);
    command.args(["tree", "--devices", devices]).arg(machine);
    command.env("RUST_LIB_BACKTRACE", "0");
    let output = command.output().map_err(system(format!("execute {}", programs.softgpud.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(ForeignError::Machine { devices: devices.to_owned(), said })
}
