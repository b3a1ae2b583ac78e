// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that checkpoints itself, and its copies: instead of the original, from a moved directory, several, and
//! beside the original.

#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stasis_tests::gpu::on_a_future_kernel;
use stasis_tests::worker::{refused, stasis, wait_until};
use stasis_tests::{criu, program};
use tempfile::TempDir;

/// The example, with its log and its images.
struct Example {
    directory: TempDir,
    child: Child,
}

impl Example {
    fn start(arguments: &[&str]) -> Self {
        Self::start_program(&program("self_checkpoint"), arguments)
    }

    fn start_program(program: &Path, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = || OpenOptions::new().create(true).append(true).open(directory.path().join("log")).unwrap();
        let child = Command::new("setsid")
            .arg(program)
            .arg(directory.path().join("images"))
            .args(arguments)
            .env("STASIS_CRIU", criu())
            .env("STASIS_SOFTGPU_INSTANCE", format!("self-{}", std::process::id()))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .unwrap();
        Self { directory, child }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Waits until it has ended and was reaped.
    fn end(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    fn restore(&self, name: &str) {
        let output = stasis(&["restore", self.path(name).to_str().unwrap()], &criu());
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
    }

    /// Waits until so many processes have ended with the right result.
    fn wait_for_ends(&self, count: usize) {
        let ends = || self.log().matches("every element is right").count();
        wait_until("the end of the copy", || ends() >= count);
        let pid = self.child.id();
        wait_until("its burial", || !Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn call_returns_in_the_original_and_in_every_copy() {
    let mut example = Example::start(&[]);
    assert!(example.end(), "{}", example.log());
    assert!(
        example.log().contains("original: ") && !example.log().contains("restored: "),
        "{}",
        example.log()
    );
    // The `stasis` beside the example has listed the files.
    let manifest = fs::read(example.path("images/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["layout"], 3);
    let pages = example.path("images/criu/pages-1.img");
    let whole = fs::read(&pages).unwrap();
    fs::write(&pages, &whole[..whole.len() - 1]).unwrap();
    let images = example.path("images");
    let error = refused(&stasis(&["restore", images.to_str().unwrap()], &criu()));
    assert!(error.contains("criu/pages-1.img has"), "{error}");
    fs::write(&pages, whole).unwrap();
    for copies in 1..=2 {
        example.restore("images");
        example.wait_for_ends(1 + copies);
        assert_eq!(example.log().matches("restored: ").count(), copies, "{}", example.log());
    }
}

#[test]
fn process_that_ends_with_its_checkpoint_goes_on_from_a_moved_directory() {
    let mut example = Example::start(&["--exit"]);
    assert!(!example.end(), "CRIU kills it: {}", example.log());
    assert!(!example.log().contains("original: "), "{}", example.log());
    fs::rename(example.path("images"), example.path("moved")).unwrap();
    example.restore("moved");
    example.wait_for_ends(1);
    assert!(example.log().contains("restored: "), "{}", example.log());
}

#[test]
fn preempted_process_checkpoints_itself() {
    on_a_future_kernel();
    let mut example = Example::start(&["--preempt"]);
    assert!(example.end(), "{}", example.log());
    example.restore("images");
    example.wait_for_ends(2);
}

#[test]
fn without_a_stasis_command_the_checkpoint_is_whole_and_its_restore_warns() {
    let directory = tempfile::tempdir().unwrap();
    let log = || OpenOptions::new().create(true).append(true).open(directory.path().join("log")).unwrap();
    let mut command = Command::new("setsid");
    command.arg(program("self_checkpoint")).arg(directory.path().join("images")).arg("--exit");
    command.env("STASIS_CRIU", criu()).env("STASIS_PROGRAM", "/nowhere/stasis");
    command.env("STASIS_SOFTGPU_INSTANCE", format!("alone-{}", std::process::id()));
    let child = command.current_dir("/").stdin(Stdio::null()).stdout(log()).stderr(log()).spawn().unwrap();
    let mut example = Example { directory, child };
    assert!(!example.end(), "CRIU kills it: {}", example.log());
    let images = example.path("images");
    let output = stasis(&["restore", images.to_str().unwrap()], &criu());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Warning: the manifest of") && said.contains("does not list its files"), "{said}");
    example.wait_for_ends(1);
}

#[test]
fn without_criu_the_process_is_told_and_nothing_has_happened() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(program("self_checkpoint"))
        .arg(directory.path().join("images"))
        .env("STASIS_CRIU", "/nowhere/criu")
        .output()
        .unwrap();
    let error = refused(&output);
    assert!(error.contains("No CRIU 4.2 or newer found") && error.contains("/nowhere/criu"), "{error}");
    assert!(!directory.path().join("images").exists());
}

#[test]
fn rebuilt_program_is_refused_and_the_old_one_restores() {
    let place = tempfile::tempdir().unwrap();
    let copied = place.path().join("program");
    fs::copy(program("self_checkpoint"), &copied).unwrap();
    // On the software device the program starts the `softgpud` beside it.
    fs::copy(program("softgpud"), place.path().join("softgpud")).unwrap();
    let mut example = Example::start_program(&copied, &["--exit"]);
    example.end();
    let old = fs::read(&copied).unwrap();
    let mut rebuilt = old.clone();
    let last = rebuilt.len() - 1;
    rebuilt[last] ^= 1;
    // Instead of the original: the same file, of the same size.
    fs::write(&copied, &rebuilt).unwrap();
    let images = example.path("images");
    let error = refused(&stasis(&["restore", images.to_str().unwrap()], &criu()));
    assert!(error.contains("was rebuilt or replaced") && error.contains("program"), "{error}");
    fs::write(&copied, &old).unwrap();
    example.restore("images");
    example.wait_for_ends(1);
}

#[test]
fn two_copies_run_beside_the_living_original() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can make namespaces here");
        return;
    }
    let worker = stasis_tests::worker::Worker::start(&[]);
    let output = worker.checkpoint("images", &["--leave-running"]);
    stasis_tests::worker::succeeded(&output);
    // The copies write to the log of the original; their last lines tell what they did.
    let copies: Vec<_> = (0..2)
        .map(|_| {
            let mut command = Command::new(program("stasis"));
            command.args(["restore", "--beside"]).arg(worker.path("images")).env("STASIS_CRIU", criu());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let log = worker.log().lines().count();
    wait_until("work of all three", || worker.log().lines().count() > log + 30);
    fs::write(worker.path("stop"), "").unwrap();
    for copy in copies {
        let output = copy.wait_with_output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("runs again"), "{said}");
    }
    wait_until("three ends", || worker.log().lines().filter(|line| *line == "done").count() == 3);
    worker.finish();
}
