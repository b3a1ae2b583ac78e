// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker that checks its results, through real CRIU: many threads, many freezes, and all that can prevent a dump or
//! a restore. (`freeze.rs` has the same cases with the heat example.)

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use stasis::checkpoint::{CallError, CheckpointOrder, Metadata, Request, State, call};
use stasis::image::Image;
use stasis::registry::TableState;
use stasis::registry::state::RegistryState;
use stasis_tests::worker::{Worker, is_alive, refused, stasis, succeeded, wait_until};
use stasis_tests::{criu, program};

fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("criu-script");
    fs::write(
        &path,
        format!("#!/bin/sh\n[ \"$1\" = --version ] && exec {} --version\n{text}\n", criu().display()),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn registry(worker: &Worker, name: &str) -> RegistryState {
    let image = Image::open(&worker.path(name).join("runtime-0.img")).unwrap();
    image.metadata::<Metadata>().unwrap().registry
}

/// Checks that two images of a worker hold the same objects. Its signals come and go with every round, and its packets
/// count on; addresses, handles and keys of all else stay.
fn assert_same(first: &RegistryState, mut later: RegistryState) {
    assert_eq!(later.window, first.window);
    assert_eq!(occupied(&later.bos), occupied(&first.bos));
    assert_eq!(occupied(&later.executables), occupied(&first.executables));
    assert_eq!(later.fixtures, first.fixtures);
    for ((_, queue), (_, before)) in later.queues.entries.iter_mut().zip(&first.queues.entries) {
        assert!(queue.write_index > before.write_index && queue.bias >= before.bias);
        (queue.write_index, queue.bias) = (before.write_index, before.bias);
    }
    assert_eq!(occupied(&later.queues), occupied(&first.queues));
}

/// The entries of a table with their generations, which are part of their keys. Free places count their uses, and a restore
/// uses some for a queue of its own, on which it invalidates the instruction caches.
fn occupied<T: Clone>(table: &TableState<T>) -> Vec<(u32, u32, T)> {
    let entries = table.entries.iter();
    entries.map(|(place, entry)| (*place, table.generations[*place as usize], entry.clone())).collect()
}

/// The dump is refused; the process is unharmed, and no images are left that could mislead.
fn refused_and_unharmed(worker: Worker, output: &std::process::Output, name: &str) -> String {
    let error = refused(output);
    assert!(!worker.path(name).join("manifest.json").exists());
    assert!(
        !worker.path(name).join("runtime-0.img").exists(),
        "images of a failed checkpoint are left: {error}"
    );
    worker.wait_rounds(3);
    worker.finish();
    error
}

#[test]
fn threads_asleep_and_at_the_gate_survive_freeze_and_thaw() {
    let mut worker = Worker::start(&["--threads", "4"]);
    worker.freeze("images");
    assert!(!worker.is_alive());
    wait_until("the end of its device", || worker.devices().is_empty());
    succeeded(&worker.restore("images"));
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn five_generations_have_the_same_registry_and_every_byte() {
    let mut worker = Worker::start(&[]);
    for generation in 0..5 {
        let name = format!("generation-{generation}");
        worker.freeze(&name);
        succeeded(&worker.restore(&name));
        worker.wait_rounds(2);
    }
    let first = registry(&worker, "generation-0");
    for generation in 1..5 {
        assert_same(&first, registry(&worker, &format!("generation-{generation}")));
    }
    worker.finish();
}

#[test]
fn two_checkpoints_in_a_row_are_both_good() {
    let mut worker = Worker::start(&["--threads", "2"]);
    succeeded(&worker.checkpoint("first", &["--leave-running"]));
    let rounds = worker.rounds();
    worker.wait_rounds(2);
    succeeded(&worker.checkpoint("second", &["--leave-running"]));
    worker.wait_rounds(2);
    // Back to the first checkpoint: all later rounds are undone, in its log, too.
    worker.kill();
    let log = fs::read_to_string(worker.path("log")).unwrap();
    let kept: String = log.lines().take(rounds as usize).map(|line| format!("{line}\n")).collect();
    fs::write(worker.path("log"), kept).unwrap();
    succeeded(&worker.restore("first"));
    worker.wait_rounds(2);
    succeeded(&worker.checkpoint("third", &["--leave-running"]));
    let first = registry(&worker, "first");
    assert_same(&first, registry(&worker, "second"));
    assert_same(&first, registry(&worker, "third"));
    worker.finish();
}

#[test]
fn images_are_private_and_sparse() {
    let mut worker = Worker::start(&[]);
    let outcome = worker.freeze("images");
    let mode = |name: &str| fs::metadata(worker.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("images"), mode("images/criu"), mode("images/runtime-0.img")], [0o700, 0o700, 0o600]);
    let number = |key: &str| outcome[key].as_u64().unwrap();
    assert!(number("stored_bytes") < number("content_bytes"), "{outcome}");
    assert!(number("image_bytes") < number("content_bytes"), "zeros were written: {outcome}");
    succeeded(&worker.restore("images"));
    worker.finish();
}

#[test]
fn connection_that_criu_cannot_dump_leaves_the_process_running() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("socket");
    let listener = UnixListener::bind(&address).unwrap();
    let worker = Worker::start(&["--connect", address.to_str().unwrap()]);
    let _other_end = listener.accept().unwrap();
    // After preflight, which would have found it.
    let output = worker.checkpoint("images", &["--no-preflight"]);
    let log = worker.path("images/criu/dump.log");
    let error = refused_and_unharmed(worker, &output, "images");
    assert!(error.contains("runs on unharmed") && error.contains("criu dump failed"), "{error}");
    assert!(error.contains(log.to_str().unwrap()), "{error}");
}

#[test]
fn io_uring_is_named_before_criu_is_started() {
    let worker = Worker::start(&["--io-uring"]);
    // Without the check from outside: the process audits itself.
    let output = worker.checkpoint("images", &["--no-preflight"]);
    let error = refused_and_unharmed(worker, &output, "images");
    assert!(error.contains("io_uring") && error.contains("fd "), "{error}");
}

/// A CRIU that runs one more script when the images are complete and the tasks still frozen.
fn criu_with_last_act(directory: &Path, act: &str) -> PathBuf {
    let last = directory.join("last");
    fs::write(&last, format!("#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n{act}\n"))
        .unwrap();
    fs::set_permissions(&last, fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!("exec {} \"$@\" --action-script {}", criu().display(), last.display());
    script(directory, &text)
}

#[test]
fn criu_that_fails_when_the_images_are_complete_leaves_the_process_running() {
    let worker = Worker::start(&["--threads", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let output = worker.checkpoint_with(&criu_with_last_act(directory.path(), "exit 1"), "images", &[]);
    let error = refused_and_unharmed(worker, &output, "images");
    assert!(error.contains("runs on unharmed"), "{error}");
}

#[test]
fn criu_killed_half_way_leaves_the_process_running() {
    let worker = Worker::start(&["--threads", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let output =
        worker.checkpoint_with(&criu_with_last_act(directory.path(), "kill -9 $PPID"), "images", &[]);
    let error = refused_and_unharmed(worker, &output, "images");
    assert!(error.contains("runs on unharmed") && error.contains("SIGKILL"), "{error}");
}

#[test]
fn controller_that_is_killed_costs_nothing() {
    let worker = Worker::start(&["--threads", "2"]);
    let directory = tempfile::tempdir().unwrap();
    let hanging = script(directory.path(), "exec sleep 1000");
    let mut controller = Command::new(program("stasis"))
        .args(["checkpoint", "--lease-ms", "3600000", &worker.pid().to_string()])
        .arg(worker.path("images"))
        .env("STASIS_CRIU", &hanging)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let state = || call(worker.pid(), &Request::Status, Duration::from_secs(10)).unwrap().0;
    wait_until("the checkpoint", || state() == State::Checkpointed);
    controller.kill().unwrap();
    controller.wait().unwrap();
    // The lease does not last an hour: it ends with the controller.
    wait_until("the end of the lease", || state() == State::Running);
    worker.wait_rounds(3);
    // And it can be frozen again.
    succeeded(&worker.checkpoint("later", &["--leave-running"]));
    worker.finish();
}

#[test]
fn lease_runs_out_when_nobody_comes() {
    let worker = Worker::start(&[]);
    let directory = worker.path("images");
    fs::create_dir(&directory).unwrap();
    let order =
        Request::Checkpoint(CheckpointOrder { lease_ms: 200, ..CheckpointOrder::into_directory(directory) });
    let (state, _) = call(worker.pid(), &order, Duration::from_secs(30)).unwrap();
    assert_eq!(state, State::Checkpointed);
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn second_controller_is_refused_while_the_first_one_works() {
    let worker = Worker::start(&[]);
    let directory = worker.path("images");
    fs::create_dir(&directory).unwrap();
    let order = Request::Checkpoint(CheckpointOrder {
        lease_ms: 60_000,
        ..CheckpointOrder::into_directory(directory)
    });
    call(worker.pid(), &order, Duration::from_secs(30)).unwrap();
    let error = call(worker.pid(), &order, Duration::from_secs(30)).unwrap_err();
    assert!(matches!(&error, CallError::Refused { state: State::Checkpointed, .. }), "{error}");
    let (state, _) =
        call(worker.pid(), &Request::Resume { directory: None, admission: None }, Duration::from_secs(30))
            .unwrap();
    assert_eq!(state, State::Running);
    worker.finish();
}

#[test]
fn raw_dump_of_an_unquiesced_process_fails_and_harms_nothing() {
    let worker = Worker::start(&["--threads", "2"]);
    let images = worker.path("raw");
    fs::create_dir(&images).unwrap();
    let mut dump = Command::new(criu());
    dump.args(["dump", "-t", &worker.pid().to_string(), "-D"]).arg(&images);
    assert!(!dump.output().unwrap().status.success(), "CRIU took a process that holds a device");
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn restore_beside_the_living_process_is_refused() {
    let worker = Worker::start(&[]);
    succeeded(&worker.checkpoint("images", &["--leave-running"]));
    let error = refused(&worker.restore("images"));
    assert!(error.contains(&format!("Process {} exists", worker.pid())), "{error}");
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn process_without_a_runtime_is_refused_and_lives() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let images = directory.path().join("images");
    let arguments = ["checkpoint", &child.id().to_string(), images.to_str().unwrap()];
    let error = refused(&stasis(&arguments, &criu()));
    assert!(error.contains("has no Stasis agent"), "{error}");
    assert!(is_alive(child.id().cast_signed()) && !images.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = ["checkpoint", "2147483", images.to_str().unwrap()];
    assert!(refused(&stasis(&gone, &criu())).contains("There is no process 2147483"));
}

#[test]
fn directory_in_use_is_refused_and_kept() {
    let worker = Worker::start(&[]);
    fs::create_dir(worker.path("images")).unwrap();
    fs::write(worker.path("images/precious"), "mine").unwrap();
    let error = refused(&worker.checkpoint("images", &[]));
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(fs::read(worker.path("images/precious")).unwrap(), b"mine");
    worker.finish();
}

#[test]
fn missing_criu_is_said_before_the_process_is_touched() {
    let worker = Worker::start(&[]);
    let error = refused(&worker.checkpoint_with(Path::new("/nowhere/criu"), "images", &[]));
    assert!(error.contains("/nowhere/criu") && error.contains("cargo xtask setup"), "{error}");
    assert!(!worker.path("images").exists());
    worker.finish();
}

#[test]
fn restore_that_criu_refuses_can_be_tried_again() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    // A file that the process had open is missing: CRIU says so, and nothing of the process is left.
    let (log, away) = (worker.path("log"), worker.path("log.away"));
    fs::rename(&log, &away).unwrap();
    let error = refused(&worker.restore("images"));
    assert!(error.contains("criu restore failed") && error.contains("restore.log"), "{error}");
    wait_until("the end of what CRIU had begun to restore", || !worker.is_alive());
    fs::rename(&away, &log).unwrap();
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn restored_process_whose_device_does_not_come_keeps_its_contents() {
    if stasis_tests::gpu::skip_on_kernel_driver("it hides softgpud") {
        return;
    }
    // The worker starts softgpud from its own directory; with copies of both programs softgpud can be removed.
    let home = tempfile::tempdir().unwrap();
    for name in ["counter-worker", "softgpud"] {
        fs::copy(program(name), home.path().join(name)).unwrap();
    }
    let mut worker = Worker::start_program(&home.path().join("counter-worker"), &["--threads", "2"]);
    worker.freeze("images");
    wait_until("the end of its device", || worker.devices().is_empty());
    fs::rename(home.path().join("softgpud"), home.path().join("away")).unwrap();
    let error = refused(&worker.restore("images"));
    assert!(error.contains("its gate stays shut") && error.contains("stasis resume"), "{error}");
    assert!(worker.is_alive());
    let status = worker.stasis(&["status", &worker.pid().to_string()]);
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(said.contains("checkpointed") && said.contains("softgpud"), "{said}");
    fs::rename(home.path().join("away"), home.path().join("softgpud")).unwrap();
    let resumed = worker.stasis(&["resume", &worker.pid().to_string()]);
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn inspect_shows_the_checkpoint_as_json() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let path = worker.path("images");
    let shown = succeeded(&worker.stasis(&["inspect", "--json", "--verify", path.to_str().unwrap()]));
    assert_eq!(shown["manifest"]["pid"], worker.pid());
    let image = &shown["images"][0];
    assert_eq!(image["verified"], true);
    assert_eq!(image["metadata"]["pid"], worker.pid());
    assert_eq!(image["metadata"]["agents"].as_array().unwrap().len(), 1);
    let prose = worker.stasis(&["inspect", path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&prose.stdout).contains("1 executables"), "{prose:?}");
    succeeded(&worker.restore("images"));
    worker.finish();
}

#[test]
fn self_contained_checkpoint_is_all_in_criu_images() {
    let mut worker = Worker::start(&["--threads", "2"]);
    succeeded(&worker.checkpoint("images", &["--self-contained"]));
    worker.bury();
    assert!(!worker.path("images/runtime-0.img").exists());
    fs::rename(worker.path("images"), worker.path("moved")).unwrap();
    succeeded(&worker.restore("moved"));
    worker.wait_rounds(3);
    // The process has its contents again, and they do not hinder the next freeze.
    worker.freeze("later");
    succeeded(&worker.restore("later"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn stock_criu_freezes_what_was_made_ready_for_it() {
    let mut worker = Worker::start(&["--threads", "2"]);
    let output = worker.stasis(&[
        "checkpoint",
        "--no-dump",
        &worker.pid().to_string(),
        worker.path("images").to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let images = worker.path("images/criu");
    let run = |arguments: &[&str]| {
        let output = Command::new(criu()).args(arguments).arg("-D").arg(&images).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["dump", "-t", &worker.pid().to_string()]);
    worker.bury();
    run(&["restore", "-d"]);
    worker.wait_rounds(3);
    worker.finish();
}
