// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole processes through real CRIU: `examples/heat` is frozen, thawed, refused and disturbed, and must end with the
//! same cells as an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use stasis_tests::{criu, program};
use tempfile::TempDir;

const STEPS: u32 = 1500;
/// After every five steps: on a busy machine commands need seconds to start, and must find a process that still runs.
const PACE_MS: u32 = 20;
const SIZE: u32 = 192;

/// One heat process in a directory and on a device of its own.
struct Heat {
    directory: TempDir,
    child: Child,
    instance: String,
}

fn picture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/heat/snowflake.png")
}

impl Heat {
    fn start(name: &str) -> Self {
        Self::at_pace(name, PACE_MS)
    }

    fn at_pace(name: &str, pace_ms: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = || OpenOptions::new().create(true).append(true).open(directory.path().join("log")).unwrap();
        let instance = format!("freeze-{name}-{}", std::process::id());
        let child = Command::new("setsid")
            .arg(program("heat"))
            .args(["--steps", &STEPS.to_string(), "--size", &SIZE.to_string()])
            .args(["--pace-ms", &pace_ms.to_string(), "--picture"])
            .arg(picture())
            .arg("--cells")
            .arg(directory.path().join("cells"))
            .env("STASIS_SOFTGPU_INSTANCE", &instance)
            .env("STASIS_SOFTGPUD", program("softgpud"))
            .env_remove("STASIS_DEVICE")
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .unwrap();
        Self { directory, child, instance }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn is_alive(&self) -> bool {
        // A zombie child has ended, too.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn step(&self) -> u32 {
        self.log().lines().filter_map(|l| l.strip_prefix("step ")?.parse().ok()).next_back().unwrap_or(0)
    }

    fn wait_for_step(&self, step: u32) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.step() < step {
            assert!(self.is_alive() && Instant::now() < deadline, "no step {step}: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stasis(&self, arguments: &[&str]) -> Output {
        Command::new(program("stasis")).args(arguments).env("STASIS_CRIU", criu()).output().unwrap()
    }

    fn checkpoint(&self, extra: &[&str]) -> Output {
        let directory = self.path("images");
        let mut arguments = vec!["checkpoint", "--json"];
        let pid = self.pid();
        arguments.extend([pid.as_str(), directory.to_str().unwrap()]);
        arguments.extend(extra);
        self.stasis(&arguments)
    }

    fn freeze(&mut self) {
        succeeded(&self.checkpoint(&[]));
        self.child.wait().unwrap();
    }

    fn restore(&self, directory: &Path) -> Output {
        self.stasis(&["restore", "--json", directory.to_str().unwrap()])
    }

    /// Waits for the end and returns the final cells.
    fn cells(mut self) -> Vec<u8> {
        let deadline = Instant::now() + Duration::from_secs(90);
        while self.is_alive() {
            assert!(Instant::now() < deadline, "heat does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.wait();
        assert!(self.log().lines().any(|l| l == "done"), "{}", self.log());
        fs::read(self.path("cells")).unwrap()
    }

    fn devices(&self) -> usize {
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|e| fs::read(e.path().join("cmdline")).ok())
            .filter(|c| String::from_utf8_lossy(c).contains(&self.instance))
            .count()
    }
}

impl Drop for Heat {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.pid()]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

fn succeeded(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn undisturbed() -> Vec<u8> {
    Heat::at_pace("undisturbed", 0).cells()
}

#[test]
fn frozen_process_and_device_are_gone_and_the_thawed_one_ends_alike() {
    let mut heat = Heat::start("thaw");
    heat.wait_for_step(100);
    heat.freeze();
    assert!(!heat.is_alive());
    let deadline = Instant::now() + Duration::from_secs(5);
    while heat.devices() > 0 {
        assert!(Instant::now() < deadline, "softgpud is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mode = |name: &str| fs::metadata(heat.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("images"), mode("images/runtime-0.img")), (0o700, 0o600));
    let frozen_at = heat.step();
    let restored = succeeded(&heat.restore(&heat.path("images")));
    assert!(restored["content_bytes"].as_u64().unwrap() > 0);
    assert!(frozen_at < STEPS, "it was frozen after its end");
    assert_eq!(heat.cells(), undisturbed());
}

#[test]
fn thawed_process_can_be_frozen_again_and_again() {
    let mut heat = Heat::start("generations");
    for generation in 1..=4 {
        heat.wait_for_step(generation * 20);
        let status = heat.checkpoint(&[]);
        assert!(status.status.success(), "{generation}: {status:?} {}", heat.log());
        let _ = heat.child.wait();
        let moved = heat.path(&format!("moved-{generation}"));
        fs::rename(heat.path("images"), &moved).unwrap();
        succeeded(&heat.restore(&moved));
    }
    assert_eq!(heat.cells(), undisturbed());
}

#[test]
fn left_running_process_goes_on_in_place() {
    let heat = Heat::start("leave");
    heat.wait_for_step(50);
    let outcome = succeeded(&heat.checkpoint(&["--leave-running"]));
    assert_eq!(outcome["left_running"], true);
    assert!(heat.is_alive());
    assert_eq!(heat.cells(), undisturbed());
}

#[test]
fn failing_criu_leaves_the_process_running_unharmed() {
    let heat = Heat::start("failing");
    heat.wait_for_step(50);
    let script = heat.path("criu");
    fs::write(&script, "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Version: 4.2' && exit 0\nexit 3\n")
        .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(program("stasis"))
        .args(["checkpoint", &heat.pid()])
        .arg(heat.path("images"))
        .env("STASIS_CRIU", &script)
        .output()
        .unwrap();
    let error = refused(&output);
    assert!(error.contains("runs on unharmed") && error.contains("criu dump failed"), "{error}");
    assert_eq!(heat.cells(), undisturbed());
}

#[test]
fn criu_that_is_missing_or_too_old_is_refused_before_anything_is_touched() {
    // Not the heat example, which ends by itself.
    let worker = stasis_tests::worker::Worker::start(&[]);
    let script = worker.path("criu");
    let run = || refused(&worker.checkpoint_with(&script, "images", &[]));
    let error = run();
    assert!(error.contains("No CRIU 4.2"), "{error}");
    fs::write(&script, "#!/bin/sh\necho 'Version: 3.17.1'\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let error = run();
    assert!(error.contains("version 3.17.1 is older than 4.2"), "{error}");
    assert!(!worker.path("images").exists());
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn dump_without_the_runtime_knowing_fails_and_harms_nothing() {
    let heat = Heat::start("raw");
    heat.wait_for_step(50);
    let images = heat.path("raw");
    fs::create_dir(&images).unwrap();
    let dumped = Command::new(criu()).args(["dump", "-t", &heat.pid(), "-D"]).arg(&images).output().unwrap();
    assert!(!dumped.status.success(), "CRIU took a process that holds a device");
    assert_eq!(heat.cells(), undisturbed());
}

#[test]
fn process_takes_its_device_back_when_the_lease_is_over() {
    use stasis::checkpoint::{CheckpointOrder, Request, State, call};
    let heat = Heat::start("lease");
    heat.wait_for_step(50);
    let directory = heat.path("images");
    fs::create_dir(&directory).unwrap();
    let pid = heat.pid().parse().unwrap();
    let order =
        Request::Checkpoint(CheckpointOrder { lease_ms: 300, ..CheckpointOrder::into_directory(directory) });
    let (state, _) = call(pid, &order, Duration::from_secs(30)).unwrap();
    assert_eq!(state, State::Checkpointed);
    let deadline = Instant::now() + Duration::from_secs(10);
    while call(pid, &Request::Status, Duration::from_secs(5)).unwrap().0 != State::Running {
        assert!(Instant::now() < deadline, "nobody came and it did not go on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heat.cells(), undisturbed());
}

#[test]
fn damaged_images_are_refused_with_section_and_offset_and_the_whole_one_restores() {
    let mut heat = Heat::start("damaged");
    heat.wait_for_step(50);
    heat.freeze();
    let image = heat.path("images/runtime-0.img");
    let whole = fs::read(&image).unwrap();
    let damage = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let newer = {
        let mut bytes = whole.clone();
        bytes[8] = 2;
        bytes
    };
    for (bytes, expected) in [
        (whole[..whole.len() / 2].to_vec(), "truncated"),
        (damage(4096 + 17), "corrupt in section contents at offset"),
        (damage(whole.len() - 5), "corrupt in section metadata at offset"),
        (newer, "format 2."),
    ] {
        fs::write(&image, bytes).unwrap();
        let error = refused(&heat.restore(&heat.path("images")));
        assert!(error.contains(expected), "{error}");
        assert!(!heat.is_alive(), "CRIU was started on a damaged image");
    }
    fs::write(&image, &whole).unwrap();
    let manifest = heat.path("images/manifest.json");
    let kept = fs::read(&manifest).unwrap();
    fs::remove_file(&manifest).unwrap();
    assert!(refused(&heat.restore(&heat.path("images"))).contains("not a complete checkpoint"));
    fs::write(&manifest, kept).unwrap();
    succeeded(&heat.restore(&heat.path("images")));
    assert_eq!(heat.cells(), undisturbed());
}
