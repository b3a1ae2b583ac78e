// SPDX-License-Identifier: MIT OR Apache-2.0
//! The softgpud of one run, and the directory that it fills.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kfd::linux::unique_name;
use kfd::transport::run::{DEVICES_VARIABLE, DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use kfd::transport::soft::{StartError, find_softgpud};
use kfd::transport::{DEVICE_VARIABLE, DeviceSpec, OpenError, name_of};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};
use stasis_criu_foreign::{CHECKPOINTED_FILE, RunDirectory, RunDirectoryError};
use thiserror::Error;

use crate::library::{LibraryError, OF_PROGRAMS, PRELOAD_VARIABLE, preloaded};
use crate::output;

/// How long softgpud may go on after the program: then processes of the run that have a device are left.
const LINGER: Duration = Duration::from_secs(5);

/// Why there is no device for a run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The specification means hardware.
    #[error("{spec} is no software device; `stasis run` is for soft, soft:gfx1100*2 or soft:FILE.toml")]
    Hardware {
        /// What was asked for.
        spec: String,
    },
    /// The preloaded library is missing.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// There is no directory for it.
    #[error(transparent)]
    Directory(#[from] RunDirectoryError),
    /// The topology file cannot be read.
    #[error("The devices cannot be known")]
    Devices(#[source] OpenError),
    /// softgpud is missing.
    #[error("softgpud cannot be started")]
    Softgpud(#[source] StartError),
    /// A directory or a link in it could not be made, or softgpud not be executed.
    #[error("Cannot {act} {}", path.display())]
    System {
        /// What was tried.
        act: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// softgpud ended at once.
    #[error("softgpud ended ({status}): {said}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it wrote to its standard error.
        said: String,
    },
}

/// A device for the processes of this run alone.
#[derive(Debug)]
pub struct Device {
    directory: PathBuf,
    library: PathBuf,
    socket: String,
    devices: String,
    softgpud: Child,
    /// What softgpud tells of each client.
    report: File,
}

impl Device {
    /// Starts softgpud; returns when it listens and has written the directory.
    ///
    /// # Errors
    /// [`RunError`]; nothing is left then.
    pub fn start(spec: &DeviceSpec, trace: Option<PathBuf>) -> Result<Self, RunError> {
        let soft = match spec {
            DeviceSpec::Auto => DeviceSpec::Soft(kfd::transport::default_devices()),
            DeviceSpec::Kfd => return Err(RunError::Hardware { spec: spec.to_string() }),
            soft => soft.clone(),
        };
        let name = name_of(&soft).map_err(RunError::Devices)?;
        let devices = name.strip_prefix("soft:").unwrap_or(&name).to_owned();
        let program = find_softgpud().map_err(RunError::Softgpud)?;
        let (directory, made) = RunDirectory::make_in(&parent(), &OF_PROGRAMS.find()?)?;
        let tree = directory.machine();
        // Not the directory's name: others may have one of that name, in another directory or another mount namespace.
        let socket = unique_name(&format!("stasis-softgpud.{}.run-", nix::unistd::geteuid()));
        let socket = socket.map_err(|errno| system("name the socket of", &program)(errno.into()))?;
        let mut command = Command::new(&program);
        command.args([
            "serve",
            "--devices",
            &devices,
            "--socket",
            &socket,
            "--while-stdin",
            "--controlled",
            "--machine",
        ]);
        command.arg(&tree).arg("--remove").arg(directory.path());
        // Kept open: softgpud removes its name.
        let report = directory.report();
        command.arg("--report").arg(&report);
        let report = File::options().read(true).write(true).create_new(true).open(&report);
        let report = report.map_err(system("make a file in", directory.path()))?;
        if let Some(trace) = trace {
            command.arg("--trace").arg(trace);
        }
        command.env_remove(PRELOAD_VARIABLE).process_group(0);
        // Its errors are shown in one line.
        command.env("RUST_LIB_BACKTRACE", "0");
        // A log is for the person who asked for one.
        let is_logging = std::env::var_os("STASIS_LOG").is_some();
        let errors = if is_logging { Stdio::inherit() } else { Stdio::piped() };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut softgpud = command.spawn().map_err(system("execute", &program))?;
        // It closes its output when it serves, or by ending.
        let (output, errors) = (softgpud.stdout.take(), softgpud.stderr.take());
        let mut said = String::new();
        let ends = output.map(|mut end| end.read_to_string(&mut String::new()));
        let tells = errors.map(|mut end| end.read_to_string(&mut said));
        ends.into_iter()
            .chain(tells)
            .collect::<Result<Vec<_>, _>>()
            .map_err(system("listen to", &program))?;
        // It writes the machine before it serves; without one it is ending, though perhaps not gone yet.
        let serves = std::fs::read_dir(&tree).is_ok_and(|mut files| files.next().is_some());
        let ended = if serves { softgpud.try_wait() } else { softgpud.wait().map(Some) };
        if let Ok(Some(status)) = ended {
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            return Err(RunError::Ended { status, said });
        }
        // From here on softgpud removes it.
        let _ = made.keep();
        Ok(Self { directory: tree, library: directory.library(), socket, devices, softgpud, report })
    }

    /// The environment variables of a program on this device.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            (PRELOAD_VARIABLE, preloaded(self.library.clone())),
            (DIRECTORY_VARIABLE, self.directory.clone().into()),
            (SOCKET_VARIABLE, OsStr::new(&self.socket).to_owned()),
            (DEVICES_VARIABLE, OsStr::new(&self.devices).to_owned()),
            // A program of ours finds the same machine, as it would find the kernel's driver.
            (DEVICE_VARIABLE, "kfd".into()),
        ]
    }

    /// The directory that the program was checkpointed into, if it has ended for that.
    pub fn checkpoint(&self) -> Option<String> {
        let mark = self.directory.parent()?.join(CHECKPOINTED_FILE);
        std::fs::read_to_string(mark).ok()
    }

    /// Lets softgpud end; answers what it told of the clients that have ended, a line of JSON each.
    pub fn end(&mut self) -> String {
        self.softgpud.stdin = None;
        let begun = Instant::now();
        while begun.elapsed() < LINGER {
            if let Ok(Some(_)) | Err(_) = self.softgpud.try_wait() {
                return self.told();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        output::complain(format_args!(
            "stasis run: processes of this run still use its device; {} stays until they end\n",
            self.directory.display()
        ));
        self.told()
    }

    fn told(&mut self) -> String {
        let mut text = String::new();
        // What cannot be read is not shown; nothing depends on it.
        let _ = self.report.read_to_string(&mut text);
        text
    }
}

/// Makes an empty file; answers its whole name, since softgpud has another directory.
///
/// # Errors
/// [`RunError::System`].
pub fn empty_file(path: &Path) -> Result<PathBuf, RunError> {
    File::create(path).and_then(|_| path.canonicalize()).map_err(system("write", path))
}

/// Where directories of runs are: in memory if possible, since there are thousands of small files in each.
fn parent() -> PathBuf {
    let is_memory = |path: &PathBuf| statfs(path).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    let may_write = |path: &PathBuf| access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut candidates = runtime.into_iter().chain(["/dev/shm".into()]).filter(is_memory);
    candidates.find(may_write).unwrap_or_else(std::env::temp_dir)
}

fn system(act: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RunError + use<> {
    let path = path.to_owned();
    move |source| RunError::System { act, path, source }
}
