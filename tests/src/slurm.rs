// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs under `stasis slurm-run` on nodes that are pid and network namespaces, with a program in the place of `scontrol`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::tree::descendants;
use crate::{criu, program};

/// TIMEOUT: how long anything that is to happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The exit status of a job that goes on elsewhere.
pub const LEFT: i32 = 75;

/// Answers as `scontrol` does, by files beside it: the job's state, and whether there is a controller.
const SCONTROL: &str = "#!/bin/sh\n\
    here=$(dirname \"$0\")\n\
    [ -e \"$here/down\" ] && { echo 'Unable to contact slurm controller' >&2; exit 1; }\n\
    case \"$*\" in *show*) echo \"JobId=1 JobState=$(cat \"$here/state\")\";; esac\n\
    echo \"$(cat \"$here/node\" 2>/dev/null) $*\" >> \"$here/calls\"\n";

/// A job of a test: its state directory, what it printed, and what it has told Slurm.
#[derive(Debug)]
pub struct Job {
    directory: TempDir,
    options: Vec<String>,
    command: Vec<String>,
    settings: Vec<(String, String)>,
    starts: AtomicU32,
}

/// A node on which the job was started. It fails with its handle.
#[derive(Debug)]
pub struct Node {
    /// `unshare`, whose end is that of all processes in the namespaces.
    child: Child,
    log: PathBuf,
}

impl Job {
    /// A job that trains, so many steps with a pause after each.
    ///
    /// # Panics
    /// When there can be no directory for it.
    #[must_use]
    pub fn training(steps: u32, pace_ms: u32, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let weights = directory.path().join("weights");
        let words = [
            program("train").display().to_string(),
            format!("--steps={steps}"),
            format!("--pace-ms={pace_ms}"),
            format!("--weights={}", weights.display()),
        ];
        Self::of(directory, &words, options)
    }

    /// A job of any program.
    ///
    /// # Panics
    /// When there can be no directory for it.
    #[must_use]
    pub fn running(command: &[&str], options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self::of(directory, &command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), options)
    }

    fn of(directory: TempDir, command: &[String], options: &[&str]) -> Self {
        let scontrol = directory.path().join("scontrol");
        fs::write(&scontrol, SCONTROL).expect("a script");
        fs::set_permissions(&scontrol, fs::Permissions::from_mode(0o755)).expect("a script");
        fs::write(directory.path().join("state"), "RUNNING").expect("a file");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Self {
            directory,
            options,
            command: command.to_vec(),
            settings: Vec::new(),
            starts: AtomicU32::new(0),
        }
    }

    /// With a variable in the environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another job that Slurm gives the same number.
    #[must_use]
    pub fn anew(self) -> Self {
        Self { starts: AtomicU32::new(0), ..self }
    }

    /// A path in its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where its starts are.
    #[must_use]
    pub fn state(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.path("jobs")).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .find(|path| path.file_name().is_some_and(|name| !name.to_string_lossy().contains('.')))
    }

    /// The directories of its images that are complete, the oldest first.
    #[must_use]
    pub fn images(&self) -> Vec<PathBuf> {
        let sorted = |directory: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            let number = |path: &PathBuf| {
                path.to_string_lossy().rsplit('-').next().and_then(|n| n.parse::<u64>().ok())
            };
            paths.sort_by_key(number);
            paths
        };
        let all = self
            .state()
            .map(|state| sorted(&state))
            .unwrap_or_default()
            .into_iter()
            .flat_map(|epoch| sorted(&epoch));
        all.filter(|path| path.join("manifest.json").is_file()).collect()
    }

    /// What it has asked of Slurm, a line an act.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Starts it on a node, again if it was started before.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(&self, node: &str) -> Node {
        let log = self.path(&format!("{node}.log"));
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--net", "--fork", "--kill-child", "--mount-proc", "--"]);
        // CRIU wants a loopback.
        command.args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        command.arg(program("stasis")).arg("slurm-run").args(&self.options);
        command.arg("--state").arg(self.path("jobs")).arg("--").args(&self.command);
        command.env("PATH", format!("{}:{path}", self.directory.path().display()));
        let starts = self.starts.fetch_add(1, Ordering::Relaxed);
        command.env("SLURM_RESTART_COUNT", starts.to_string());
        command.env("SLURM_JOB_ID", "7").env("SLURMD_NODENAME", node).env("STASIS_CRIU", criu());
        command.env("STASIS_DEVICE", "soft:gfx1100*2").env_remove("STASIS_SOFTGPU_INSTANCE");
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(file.try_clone().expect("a log")).stderr(file);
        Node { child: command.spawn().expect("unshare (util-linux)"), log }
    }
}

impl Node {
    /// What the job has printed there.
    #[must_use]
    pub fn said(&self) -> String {
        let mut text = String::new();
        let read = fs::File::open(&self.log).and_then(|mut log| log.read_to_string(&mut text));
        read.map(|_| text).unwrap_or_default()
    }

    /// Waits until the job has printed this.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for(&self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said().contains(what) {
            assert!(Instant::now() < deadline, "no {what:?} in {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal to the job, as Slurm does.
    ///
    /// # Panics
    /// When it is gone.
    pub fn tell(&self, signal: Signal) {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let job: i32 =
            children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("the job lives");
        kill(Pid::from_raw(job), signal).expect("the job lives");
    }

    /// Sends a signal to all processes of the job at once, as Slurm does where it ends one.
    ///
    /// # Panics
    /// When it is gone.
    pub fn tell_all(&self, signal: Signal) {
        let all = descendants(self.child.id().cast_signed());
        assert!(!all.is_empty(), "the job lives");
        // The program first, as it may come.
        for pid in all.into_iter().rev() {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Waits for its end; its exit status.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "no end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the job has ended there, and how.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().expect("a child").map(|status| status.code().unwrap_or(-1))
    }

    /// The node loses its power.
    pub fn fail(&mut self) {
        // Both fail where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.fail();
    }
}
