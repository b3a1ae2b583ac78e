// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain `criu dump` and `criu restore` of processes that were not prepared, with the plugin in CRIU's plugin
//! directory.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use stasis_tests::criu;
use stasis_tests::gpu::on_a_future_kernel;
use stasis_tests::plain_criu::{Plugins, at_post_dump, dump, dump_command, restore, run};
use stasis_tests::worker::{Worker, is_alive, wait_until};

const NOTHING: [&str; 0] = [];

/// Dumps a worker and reaps it.
fn freeze(worker: &mut Worker, name: &str, plugins: &Plugins) {
    dump(worker.pid(), &worker.path(name), plugins, &NOTHING).succeeded();
    worker.bury();
}

/// Checks that a worker goes on and finds no wrong value.
fn goes_on(worker: Worker) {
    worker.wait_rounds(3);
    worker.finish();
}

fn contents(worker: &Worker, images: &str) -> std::path::PathBuf {
    worker.path(images).join(format!("stasis-{}", worker.pid()))
}

#[test]
fn unprepared_process_is_dumped_and_restored() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&["--threads", "3"]);
    freeze(&mut worker, "images", &plugins);
    wait_until("the end of its device", || worker.devices().is_empty());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let place = contents(&worker, "images");
    assert_eq!([mode(&place), mode(&place.join("runtime-0.img"))], [0o700, 0o600]);
    restore(&worker.path("images"), &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn plugin_is_found_by_the_environment_and_preempts_when_told() {
    on_a_future_kernel();
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&[]);
    let images = worker.path("images");
    fs::create_dir(&images).unwrap();
    let mut command = Command::new(criu());
    command.args(["dump", "-v4", "-o", "dump.log", "-t", &worker.pid().to_string(), "-D"]).arg(&images);
    command.env("CRIU_LIBS_DIR", plugins.path()).env("STASIS_CRIU_MODE", "preempt");
    run(&mut command, &images.join("dump.log")).succeeded();
    worker.bury();
    restore(&images, &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn generation_after_generation_is_dumped_and_restored() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&["--threads", "2"]);
    // The third dump goes into the directory of the first, over its files.
    for name in ["first", "second", "first"] {
        freeze(&mut worker, name, &plugins);
        restore(&worker.path(name), &plugins).succeeded();
        worker.wait_rounds(2);
    }
    goes_on(worker);
}

#[test]
fn moved_images_restore() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&[]);
    freeze(&mut worker, "images", &plugins);
    fs::rename(worker.path("images"), worker.path("moved")).unwrap();
    let outcome = restore(&worker.path("moved"), &plugins);
    outcome.succeeded();
    assert!(outcome.log.contains("will find its contents in"), "{}", outcome.log);
    goes_on(worker);
}

#[test]
fn copied_images_restore_whatever_became_of_the_originals() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&[]);
    freeze(&mut worker, "images", &plugins);
    let copied = Command::new("cp").arg("-a").arg(worker.path("images")).arg(worker.path("copy")).status();
    assert!(copied.unwrap().success());
    fs::write(contents(&worker, "images").join("runtime-0.img"), "spoilt").unwrap();
    restore(&worker.path("copy"), &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn contents_left_behind_or_spoilt_are_refused_before_anything_is_restored() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&[]);
    freeze(&mut worker, "images", &plugins);
    // CRIU's files are copied without the directories, and the originals are removed.
    let (place, away) = (contents(&worker, "images"), worker.path("away"));
    fs::rename(&place, &away).unwrap();
    let error = restore(&worker.path("images"), &plugins).refused();
    assert!(error.contains("are missing") && error.contains("cp -a"), "{error}");
    fs::create_dir(&place).unwrap();
    let image = fs::read(away.join("runtime-0.img")).unwrap();
    fs::write(place.join("runtime-0.img"), &image[..image.len() / 2]).unwrap();
    let error = restore(&worker.path("images"), &plugins).refused();
    assert!(error.contains("are not good"), "{error}");
    assert!(!worker.is_alive());
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    restore(&worker.path("images"), &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn images_restore_without_the_plugin() {
    let mut worker = Worker::start(&[]);
    freeze(&mut worker, "images", &Plugins::ours());
    restore(&worker.path("images"), &Plugins::none()).succeeded();
    goes_on(worker);
}

#[test]
fn contents_are_in_criu_s_own_images_when_told() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&["--threads", "2"]);
    let images = worker.path("images");
    let dump_self_contained = |more: &[&str]| {
        let mut command = dump_command(worker.pid(), &images, &plugins);
        command.args(more).env("STASIS_CRIU_SELF_CONTAINED", "1");
        run(&mut command, &images.join("dump.log")).succeeded();
        let ours = fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().file_name());
        let ours: Vec<_> = ours.filter(|name| name.to_string_lossy().starts_with("stasis")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    };
    dump_self_contained(&["--leave-running"]);
    worker.wait_rounds(2);
    dump_self_contained(&[]);
    worker.bury();
    // Nothing but CRIU's files is needed, wherever they are.
    let moved = worker.path("moved");
    fs::rename(&images, &moved).unwrap();
    restore(&moved, &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn process_left_running_runs_on_and_its_images_are_good() {
    let plugins = Plugins::ours();
    let mut worker = Worker::start(&["--threads", "2"]);
    let rounds = worker.rounds();
    dump(worker.pid(), &worker.path("images"), &plugins, &["--leave-running"]).succeeded();
    worker.wait_rounds(3);
    // Back to the dump: all later rounds are undone, in its log, too.
    worker.kill();
    worker.bury();
    let log = fs::read_to_string(worker.path("log")).unwrap();
    let kept: String = log.lines().take(rounds as usize).map(|line| format!("{line}\n")).collect();
    fs::write(worker.path("log"), kept).unwrap();
    restore(&worker.path("images"), &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn failing_dump_leaves_the_process_running() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("socket");
    let listener = UnixListener::bind(&address).unwrap();
    let worker = Worker::start(&["--connect", address.to_str().unwrap()]);
    let _other_end = listener.accept().unwrap();
    let outcome = dump(worker.pid(), &worker.path("images"), &Plugins::ours(), &NOTHING);
    // It is CRIU that refuses, after the device was closed.
    assert_eq!(outcome.refused(), "", "{}", outcome.log);
    assert!(outcome.log.contains("have closed their devices"), "{}", outcome.log);
    goes_on(worker);
}

#[test]
fn vetoed_dump_leaves_the_process_running() {
    let mut worker = Worker::start(&["--threads", "2"]);
    let plugins = Plugins::ours();
    let veto = at_post_dump(&worker.path(""), "exit 3");
    let arguments = [Path::new("--action-script"), &veto];
    let outcome = dump(worker.pid(), &worker.path("vetoed"), &plugins, &arguments);
    assert_eq!(outcome.refused(), "", "{}", outcome.log);
    worker.wait_rounds(3);
    // And nothing is left that would hinder the next dump.
    freeze(&mut worker, "vetoed", &plugins);
    restore(&worker.path("vetoed"), &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn images_can_go_as_soon_as_criu_has_returned() {
    let worker = Worker::start(&["--threads", "2"]);
    let (plugins, images) = (Plugins::ours(), worker.path("images"));
    let veto = at_post_dump(&worker.path(""), "exit 3");
    for arguments in [vec!["--leave-running"], vec!["--action-script", veto.to_str().unwrap()]] {
        let _ = dump(worker.pid(), &images, &plugins, &arguments);
        fs::remove_dir_all(&images).unwrap();
        worker.wait_rounds(3);
    }
    worker.finish();
}

#[test]
fn process_whose_criu_is_killed_runs_on() {
    let worker = Worker::start(&["--threads", "2"]);
    let reached = worker.path("reached");
    let text = format!("touch '{0}'; while [ -e '{0}' ]; do sleep 0.05; done", reached.display());
    let script = at_post_dump(&worker.path(""), &text);
    let plugins = Plugins::ours();
    let mut command = dump_command(worker.pid(), &worker.path("images"), &plugins);
    let mut criu = command.arg("--action-script").arg(script).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the end of the dump", || reached.exists() || criu.try_wait().unwrap().is_some());
    criu.kill().unwrap();
    assert!(!criu.wait().unwrap().success());
    fs::remove_file(&reached).unwrap();
    goes_on(worker);
}

#[test]
fn time_that_agents_take_is_not_criu_s() {
    let mut worker = Worker::start(&[]);
    let pid = Pid::from_raw(worker.pid());
    let plugins = Plugins::ours();
    // A stopped process answers late: after CRIU's time limit of a second, but within the plugin's.
    kill(pid, Signal::SIGSTOP).unwrap();
    let images = worker.path("images");
    let mut criu = dump_command(worker.pid(), &images, &plugins).args(["--timeout", "1"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(criu.wait().unwrap().success(), "{:?}", fs::read_to_string(images.join("dump.log")));
    worker.bury();
    restore(&images, &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn process_that_cannot_be_frozen_stops_the_dump_by_name() {
    let worker = Worker::start(&["--io-uring"]);
    let error = dump(worker.pid(), &worker.path("images"), &Plugins::ours(), &NOTHING).refused();
    assert!(error.contains("io_uring") && error.contains(&worker.pid().to_string()), "{error}");
    assert!(!contents(&worker, "images").exists(), "contents of a process that runs");
    goes_on(worker);
}

#[test]
fn settings_that_mean_nothing_are_refused_before_anything_is_touched() {
    let worker = Worker::start(&[]);
    let (images, plugins) = (worker.path("images"), Plugins::ours());
    let mut command = dump_command(worker.pid(), &images, &plugins);
    let error = run(command.env("STASIS_CRIU_MODE", "later"), &images.join("dump.log")).refused();
    assert!(error.contains("STASIS_CRIU_MODE") && error.contains("later"), "{error}");
    assert!(!contents(&worker, "images").exists());
    goes_on(worker);
}

/// A process without a runtime, in a session of its own.
struct Bystander(std::process::Child);

impl Bystander {
    fn start() -> Self {
        let mut command = Command::new("setsid");
        command.args(["sleep", "1000"]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        stasis_tests::worker::kill(self.pid());
        let _ = self.0.wait();
    }
}

#[test]
fn foreign_process_does_not_notice_the_plugin() {
    let mut process = Bystander::start();
    let directory = tempfile::tempdir().unwrap();
    let (images, plugins) = (directory.path().join("images"), Plugins::ours());
    let mut command = dump_command(process.pid(), &images, &plugins);
    // The plugin ignores what it would refuse for a process with an agent.
    let outcome = run(command.env("STASIS_CRIU_MODE", "later"), &images.join("dump.log"));
    outcome.succeeded();
    assert!(outcome.log.contains("Plugin \"stasis\""), "the plugin was not loaded: {}", outcome.log);
    assert!(!outcome.log.contains("stasis:") && !outcome.log.contains("(stasis)"), "{}", outcome.log);
    let left: Vec<_> = fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("stasis")), "{left:?}");
    process.0.wait().unwrap();
    let outcome = restore(&images, &plugins);
    outcome.succeeded();
    assert!(!outcome.log.contains("stasis:") && is_alive(process.pid()), "{}", outcome.log);
}

/// Another plugin, with this answer to `PAUSE_DEVICES`, and perhaps to `CHECKPOINT_DEVICES`.
fn another_plugin(pause: &str, checkpoint: bool) -> String {
    let checkpoint = if checkpoint { "pause" } else { "0" };
    format!(
        "#include <errno.h>\n\
         extern void print_on_level(unsigned int, const char *, ...);\n\
         static int pause(int pid) {{ print_on_level(3, \"another plugin was asked for %d\\n\", pid); return {pause}; }}\n\
         static int init(int stage) {{ return 0; }}\n\
         static void end(int stage, int result) {{}}\n\
         struct {{ const char *name; int (*init)(int); void (*exit)(int, int); unsigned version, max_hooks;\n\
           void *hooks[12]; }} CR_PLUGIN_DESC = {{ \"another\", init, end, 0x200, 12,\n\
           {{ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, pause, {checkpoint} }} }};\n"
    )
}

#[test]
fn another_plugin_is_asked_before_or_after_ours() {
    for first in [true, false] {
        let plugins = Plugins::with_another(&another_plugin("-ENOTSUP", false), first);
        let mut worker = Worker::start(&[]);
        let outcome = dump(worker.pid(), &worker.path("images"), &plugins, &NOTHING);
        outcome.succeeded();
        let (other, ours) = (
            outcome.log.find("another plugin was asked").unwrap(),
            outcome.log.find("closed their devices").unwrap(),
        );
        assert_eq!(other < ours, first, "{}", outcome.log);
        worker.bury();
        restore(&worker.path("images"), &plugins).succeeded();
        goes_on(worker);
    }
}

#[test]
fn another_plugin_that_answers_for_all_does_no_harm_behind_ours() {
    let plugins = Plugins::with_another(&another_plugin("0", true), false);
    let mut worker = Worker::start(&[]);
    freeze(&mut worker, "images", &plugins);
    restore(&worker.path("images"), &plugins).succeeded();
    goes_on(worker);
}

#[test]
fn another_plugin_that_answers_before_ours_fails_the_dump_by_naming_the_device() {
    let worker = Worker::start(&["--threads", "2"]);
    let plugins = Plugins::with_another(&another_plugin("0", false), true);
    let error = dump(worker.pid(), &worker.path("images"), &plugins, &NOTHING).refused();
    assert!(error.contains("memfd:softgpu") && error.contains("PAUSE_DEVICES did not reach"), "{error}");
    worker.wait_rounds(3);
    // If the other plugin answers every hook, CRIU itself finds what it cannot dump.
    let plugins = Plugins::with_another(&another_plugin("0", true), true);
    let outcome = dump(worker.pid(), &worker.path("again"), &plugins, &NOTHING);
    assert!(!outcome.output.status.success(), "{}", outcome.log);
    goes_on(worker);
}
