// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freeze and thaw by an ordinary user who has only CAP_CHECKPOINT_RESTORE and CAP_SETPCAP. CAP_SETPCAP is needed
//! because the machine's bounding set may lack a capability, which CRIU then has to drop for the restored process, too.

#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use stasis_tests::worker::{is_alive, kill, refused, succeeded, wait_until};
use stasis_tests::{criu, program};
use tempfile::TempDir;

/// A user and group that own nothing.
const USER: u32 = 54_321;

/// The user, the user's copies of the programs, and the user's directory.
struct User {
    directory: TempDir,
    capabilities: &'static str,
}

impl User {
    /// `None`, with the reason printed, where this test cannot become another user.
    fn new(capabilities: &'static str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: only root can become another user");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        // The build may be in a directory that only its owner may search.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in [
            "stasis",
            "softgpud",
            "libstasis_kfd.so",
            "libstasis_criu_beside.so",
            "counter-worker",
            "self_checkpoint",
            "train",
        ] {
            fs::copy(program(name), directory.path().join(name)).unwrap();
        }
        let prefix = criu().canonicalize().unwrap();
        if let Some(prefix) = prefix.ancestors().nth(2).filter(|p| p.join("root").is_dir()) {
            let copied = Command::new("cp").arg("-r").arg(prefix).arg(directory.path().join("criu")).status();
            assert!(copied.unwrap().success());
        }
        let home = directory.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(USER), Some(USER)).unwrap();
        Some(Self { directory, capabilities })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("home").join(name)
    }

    fn criu(&self) -> PathBuf {
        let copied = self.directory.path().join("criu/bin/criu");
        if copied.exists() { copied } else { criu() }
    }

    /// One of the programs, as the user, with these capabilities and no other.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
        for set in ["inh-caps", "ambient-caps", "bounding-set"] {
            command.arg(format!("--{set}=-all{}", self.capabilities));
        }
        command.arg("setsid").arg(self.directory.path().join(program));
        command.env("STASIS_CRIU", self.criu()).current_dir("/").stdin(Stdio::null());
        command
    }

    /// The same, into a log of the user's.
    fn start(&self, program: &str, arguments: &[&Path], log: &Path) -> Child {
        let open = || OpenOptions::new().create(true).append(true).open(log).unwrap();
        let (out, err) = (open(), open());
        chown(log, Some(USER), Some(USER)).unwrap();
        let instance = format!("user-{}-{program}", std::process::id());
        let mut command = self.command(program);
        command.args(arguments).env("STASIS_SOFTGPU_INSTANCE", instance).stdout(out).stderr(err);
        command.spawn().unwrap()
    }

    fn stasis(&self, arguments: &[&str]) -> Output {
        self.command("stasis").args(arguments).output().unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn rounds(log: &Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.starts_with("round ")).count()
}

fn uid_of(pid: i32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}

/// Restores the user's process from `images` when it is gone; it goes on, and ends when told.
fn restored(user: &User, pid: i32) {
    wait_until("the end of the frozen process", || !Path::new(&format!("/proc/{pid}")).exists());
    let log = user.path("log");
    let before = rounds(&log);
    succeeded(&user.stasis(&["restore", "--json", text(&user.path("images"))]));
    assert_eq!(uid_of(pid), USER, "the copy belongs to somebody else");
    wait_until("rounds of the copy", || rounds(&log) > before + 2);
    fs::write(user.path("stop"), "").unwrap();
    wait_until("its end", || !is_alive(pid));
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.lines().any(|line| line == "done"), "{log}");
}

#[test]
fn ordinary_user_freezes_and_thaws_his_own_process() {
    let Some(user) = User::new(",+checkpoint_restore,+setpcap") else { return };
    let (stop, log, images) = (user.path("stop"), user.path("log"), user.path("images"));
    let mut parent = user.start("counter-worker", &[Path::new("--until"), &stop], &log);
    wait_until("the first rounds", || rounds(&log) > 2);
    let pid = parent.id().cast_signed();
    assert_eq!(uid_of(pid), USER);
    let order = ["checkpoint", "--unprivileged", "--json", &pid.to_string(), text(&images)];
    let outcome = succeeded(&user.stasis(&order));
    assert_eq!(outcome["pid"], pid);
    parent.wait().unwrap();
    restored(&user, pid);
}

#[test]
fn ordinary_user_freezes_and_thaws_a_program_of_stasis_run() {
    let Some(user) = User::new(",+checkpoint_restore,+setpcap") else { return };
    let (stop, log, images) = (user.path("stop"), user.path("log"), user.path("images"));
    let worker = user.directory.path().join("counter-worker");
    let command = [Path::new("run"), Path::new("--"), &worker, Path::new("--until"), &stop];
    let mut run = user.start("stasis", &command, &log);
    wait_until("the first rounds", || rounds(&log) > 2);
    let order = ["checkpoint", "--unprivileged", "--json", &run.id().to_string(), text(&images)];
    let outcome = succeeded(&user.stasis(&order));
    assert_eq!(outcome["foreign"], true);
    let pid = i32::try_from(outcome["pid"].as_i64().unwrap()).unwrap();
    run.wait().unwrap();
    restored(&user, pid);
}

#[test]
fn ordinary_users_process_checkpoints_itself() {
    let Some(user) = User::new(",+checkpoint_restore,+setpcap") else { return };
    let (log, images) = (user.path("log"), user.path("images"));
    let status = user.start("self_checkpoint", &[&images, Path::new("--unprivileged")], &log).wait().unwrap();
    let said = fs::read_to_string(&log).unwrap();
    assert!(status.success() && said.contains("original: ") && said.contains("done: "), "{said}");
    let restored = user.stasis(&["restore", text(&images)]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let said = || fs::read_to_string(&log).unwrap();
    wait_until("the copy's end", || said().matches("done: ").count() == 2);
    assert!(said().contains("restored: "), "{}", said());
}

#[test]
fn ordinary_users_job_of_slurm_leaves_and_goes_on() {
    let Some(user) = User::new(",+checkpoint_restore,+setpcap") else { return };
    let (log, weights) = (user.path("log"), user.path("weights"));
    let scontrol = user.directory.path().join("scontrol");
    fs::write(&scontrol, "#!/bin/sh\necho JobId=1 JobState=RUNNING\n").unwrap();
    fs::set_permissions(&scontrol, fs::Permissions::from_mode(0o755)).unwrap();
    let start = |count: &str| {
        let open = || OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut command = user.command("stasis");
        command.args(["slurm-run", "--unprivileged", "--state", text(&user.path("jobs")), "--"]);
        command
            .arg(user.directory.path().join("train"))
            .args(["--steps=100", "--pace-ms=20", "--weights"])
            .arg(&weights);
        let path = format!("{}:{}", user.directory.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("SLURM_JOB_ID", "7").env("STASIS_DEVICE", "soft:gfx1100");
        command.env("SLURM_RESTART_COUNT", count).stdout(open()).stderr(open()).spawn().unwrap()
    };
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let mut job = start("0");
    wait_until("some steps", || said().contains("step 20 "));
    let pid = nix::unistd::Pid::from_raw(job.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(75), "{}", said());
    assert!(start("1").wait().unwrap().success(), "{}", said());
    assert_eq!(said().lines().filter(|line| line.starts_with("step ")).count(), 11, "{}", said());
    assert!(weights.exists());
}

#[test]
fn without_the_capability_nothing_happens_and_the_reason_is_told() {
    let Some(user) = User::new("") else { return };
    let (stop, log, images) = (user.path("stop"), user.path("log"), user.path("images"));
    let mut parent = user.start("counter-worker", &[Path::new("--until"), &stop], &log);
    wait_until("the first rounds", || rounds(&log) > 2);
    let pid = parent.id().cast_signed();
    let error = refused(&user.stasis(&["checkpoint", "--unprivileged", &pid.to_string(), text(&images)]));
    assert!(error.contains("CAP_CHECKPOINT_RESTORE"), "{error}");
    let before = rounds(&log);
    wait_until("more rounds", || rounds(&log) > before + 2);
    fs::write(&stop, "").unwrap();
    assert!(parent.wait().unwrap().success());
}

#[test]
fn another_users_process_is_not_touched() {
    let Some(user) = User::new(",+checkpoint_restore,+setpcap") else { return };
    let mut worker = stasis_tests::worker::Worker::start(&[]);
    let error = refused(&user.stasis(&[
        "checkpoint",
        "--unprivileged",
        &worker.pid().to_string(),
        text(&user.path("images")),
    ]));
    assert!(!user.path("images/runtime-0.img").exists(), "{error}");
    worker.wait_rounds(2);
    kill(worker.pid());
    worker.kill();
}
