// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that were written for AMD's driver, run by `stasis run`: where they are, the HIP compiler, one run of one.
//!
//! INVARIANT: what a run leaves is known. Its files are in a directory of this run alone ([`Run`] has `XDG_RUNTIME_DIR` and
//! `TMPDIR` there), and each of its processes has the name of that directory in its environment. So [`Run::finish`] sees
//! whatever is left, beside other tests and other users of the machine.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::program;

/// TIMEOUT: how long a client may run on a busy machine; on a quiet one none takes half a minute.
const PATIENCE: Duration = Duration::from_secs(400);
/// How often a test looks again.
const PAUSE: Duration = Duration::from_millis(5);

/// Does a test that needs the clients; prints that it is ignored where the suite is run without them
/// (`cargo xtask test --without-clients`).
pub fn with_clients<R>(test: impl FnOnce() -> R) {
    if std::env::var_os("STASIS_WITHOUT_CLIENTS").is_some() {
        println!("ignored: the programs that run unmodified on the software device were left out");
    } else {
        drop(test());
    }
}

/// ROCr 5.2.3 and rocminfo, as Debian 12 has them.
#[must_use]
pub fn rocm_5_2() -> PathBuf {
    installed("STASIS_ROCM_5_2", "rocm-5.2", "bin/rocminfo")
}

/// ROCr 6.1.2, rocminfo and HIP 5.7, as Debian 13 has them.
#[must_use]
pub fn rocm_6_1() -> PathBuf {
    installed("STASIS_ROCM_6_1", "rocm-6.1", "bin/hipcc")
}

/// A directory that `cargo xtask setup` found or made, with this file in it.
fn installed(variable: &str, name: &str, witness: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis").join(name);
    named
        .into_iter()
        .chain([private])
        .find(|path| path.join(witness).is_file())
        .unwrap_or_else(|| panic!("no {name}: run `cargo xtask setup --clients`"))
}

/// A program of `tests/clients/hip`, compiled for a target. It stays beside the programs of this build, under a name that
/// has the hash of all that it was made from.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn hip_program(name: &str, target: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/hip");
    let (source, compiler) = (sources.join(name).with_extension("hip"), rocm_6_1().join("bin/hipcc"));
    let mut hash = DefaultHasher::new();
    for input in [&source, &sources.join("check.h"), &compiler] {
        let bytes = fs::read(input).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
        bytes.hash(&mut hash);
    }
    (&compiler, target).hash(&mut hash);
    let all = program("stasis").with_file_name("hip-clients");
    let made = all.join(format!("{name}-{target}-{:016x}", hash.finish()));
    if made.is_file() {
        return made;
    }
    fs::create_dir_all(&all).expect("a directory beside the programs");
    // Other tests may compile the same program now, or run it already: the first one that is made stays.
    let own = tempfile::Builder::new().prefix(name).tempdir_in(&all).expect("a directory to compile in");
    let output = own.path().join("program");
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-Wno-format", &format!("--offload-arch={target}")]).arg(&source).arg("-o");
    let compiled = command.arg(&output).output().expect("the HIP compiler");
    assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
    match fs::hard_link(&output, &made) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        linked => linked.expect("the program's name"),
    }
    made
}

/// `stasis run --verbose` with these devices; the program and its arguments follow.
#[must_use]
pub fn on_device(devices: &str) -> Command {
    with_options(&[], devices)
}

/// The same with more options of `stasis run`.
#[must_use]
pub fn with_options(options: &[&str], devices: &str) -> Command {
    // A core would be as large as the device's memory, and a file that is left.
    let mut stasis = Command::new("prlimit");
    stasis.arg("--core=0").arg(program("stasis"));
    stasis.args(["run", "--verbose", "--device", devices]).args(options).arg("--");
    stasis
}

/// A directory for one run: in memory, since `stasis run` takes no other, and with those that [`surround`] names.
pub(crate) fn own_directory(prefix: &str) -> TempDir {
    let memory = Some(Path::new("/dev/shm")).filter(|path| path.is_dir());
    let parent = memory.map_or_else(std::env::temp_dir, Path::to_owned);
    let directory = TempDir::with_prefix_in(prefix, parent).expect("a directory");
    for own in ["runtime", "temporary"] {
        fs::create_dir(directory.path().join(own)).expect("a directory");
    }
    directory
}

/// Has a command and what it starts make their files in such a directory, and see no variable of the caller's that would change what
/// they do.
pub(crate) fn surround(command: &mut Command, directory: &Path) {
    command.env("XDG_RUNTIME_DIR", directory.join("runtime")).env("TMPDIR", directory.join("temporary"));
    for unwanted in ["STASIS_LOG", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"] {
        command.env_remove(unwanted);
    }
}

/// A client, or a program that prepares something for one.
#[derive(Debug)]
pub struct Run {
    child: Child,
    directory: TempDir,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of the command: `stasis run`, where a program was run on a device.
    pub status: ExitStatus,
    /// What the program printed.
    pub stdout: String,
    /// What the program and `stasis run` said.
    pub stderr: String,
}

impl Run {
    /// Starts a program and its arguments on these devices.
    ///
    /// # Panics
    /// As [`Run::spawn`].
    #[must_use]
    pub fn start(devices: &str, command: &[&str]) -> Self {
        Self::with(&[], devices, command)
    }

    /// The same with more options of `stasis run`.
    ///
    /// # Panics
    /// As [`Run::spawn`].
    #[must_use]
    pub fn with(options: &[&str], devices: &str, command: &[&str]) -> Self {
        Self::spawn(with_options(options, devices).args(command))
    }

    /// Starts a command in a directory of its own, with its output in files there, so that it never waits for a reader.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        let directory = own_directory("stasis-client-");
        fs::create_dir(directory.path().join("log")).expect("a directory");
        let log = |name| File::create(directory.path().join("log").join(name)).expect("a log");
        surround(command, directory.path());
        // A group of its own: a run that a test gives up ends with all its processes.
        command.current_dir(directory.path().join("temporary")).process_group(0).stdin(Stdio::null());
        command.stdout(log("stdout")).stderr(log("stderr"));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, directory }
    }

    /// Sends a signal to `stasis run` alone.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("stasis run");
    }

    /// Waits for a line of the program.
    ///
    /// # Panics
    /// When the program has ended, or the line does not come.
    pub fn wait_line(&mut self, line: &str) {
        let begun = Instant::now();
        while !self.log("stdout").lines().any(|found| found == line) {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended ({ended:?}) before it said {line:?}: {}", self.log("stderr"));
            assert!(begun.elapsed() < PATIENCE, "it did not say {line:?}: {}", self.log("stderr"));
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for the end; nothing of the run may be left then.
    ///
    /// # Panics
    /// When the run does not end, or leaves a process or a file.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "it does not end: {}{}",
                self.log("stdout"),
                self.log("stderr")
            );
            std::thread::sleep(PAUSE);
        };
        let outcome = Outcome { status, stdout: self.log("stdout"), stderr: self.log("stderr") };
        loop {
            let left = self.left();
            if left.is_empty() {
                return outcome;
            }
            assert!(begun.elapsed() < PATIENCE, "the run left {left:?}\n{}", outcome.stderr);
            std::thread::sleep(PAUSE);
        }
    }

    /// The children of `stasis run`: its device first, then the program.
    #[must_use]
    pub fn children(&self) -> Vec<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn log(&self, name: &str) -> String {
        let bytes = fs::read(self.directory.path().join("log").join(name)).expect("a log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The run's processes and files.
    fn left(&self) -> Vec<String> {
        let mut found = Vec::new();
        for own in ["runtime", "temporary"] {
            let entries = fs::read_dir(self.directory.path().join(own)).expect("the run's directory");
            found.extend(entries.flatten().map(|entry| entry.path().display().to_string()));
        }
        let own = self.directory.path().as_os_str().as_encoded_bytes();
        for process in fs::read_dir("/proc").expect("/proc").flatten() {
            // A process that ends meanwhile, or of another user, has none.
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            if environment.windows(own.len()).any(|window| window == own) {
                let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
                let command = String::from_utf8_lossy(&command).replace('\0', " ");
                found.push(format!("{}: {command}", process.path().display()));
            }
        }
        found
    }
}

impl Drop for Run {
    /// A run that a test gives up ends: its program, and with `stasis run` its device.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = killpg(self.pid(), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end.
///
/// # Panics
/// As [`Run::start`] and [`Run::finish`].
#[must_use]
pub fn run(devices: &str, command: &[&str]) -> Outcome {
    Run::start(devices, command).finish()
}

/// Runs a command to its end.
///
/// # Panics
/// As [`Run::spawn`] and [`Run::finish`].
#[must_use]
pub fn ended(command: &mut Command) -> Outcome {
    Run::spawn(command).finish()
}

impl Outcome {
    /// Everything that it printed, for a failure.
    #[must_use]
    pub fn said(&self) -> String {
        format!("{}\n{}{}", self.status, self.stdout, self.stderr)
    }

    /// Checks that the program ended well and had its device execute something.
    ///
    /// # Panics
    /// When it did not.
    pub fn computed(&self) {
        assert!(self.status.success(), "{}", self.said());
        for name in ["processes", "ioctls", "dispatches", "waves", "instructions"] {
            assert!(self.count(name) > 0, "no {name}: {}", self.said());
        }
    }

    /// The exit code; 128 and the number of the signal where `stasis run` itself was ended by one.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| Some(128 + self.status.signal()?)).unwrap_or(-1)
    }

    /// The lines of standard error that `stasis run` wrote, without its counters.
    #[must_use]
    pub fn complaints(&self) -> Vec<&str> {
        let lines = self.stderr.lines().filter(|line| line.starts_with("stasis run: "));
        lines.filter(|line| !line.contains("processes=")).collect()
    }

    /// A number in the line in which `stasis run --verbose` says what the device did.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        let lines = self.stderr.lines().filter_map(|line| line.strip_prefix("stasis run: "));
        let mut words = lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='));
        let found = words.find_map(|(key, value)| (key == name).then(|| value.parse().ok()).flatten());
        found.unwrap_or_else(|| panic!("no {name}= in what stasis run says: {}", self.said()))
    }
}
