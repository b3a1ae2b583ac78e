// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission through real CRIU: a restore onto another machine is refused or moved, and nothing is lost.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stasis::checkpoint::{AgentIdentity, Metadata, Request, State, call};
use stasis::image::Image;
use stasis_tests::gpu::skip_on_kernel_driver;
use stasis_tests::worker::{Worker, refused, succeeded};
use stasis_tests::{criu, program};

/// A worker on some of two software GPUs.
fn worker(directory: &Path, agents: &str) -> Worker {
    let script = directory.join("two-gpus");
    let text = format!(
        "#!/bin/sh\nSTASIS_DEVICE=soft:gfx1100,gfx1100 ROCR_VISIBLE_DEVICES={agents} exec {} \"$@\"\n",
        program("counter-worker").display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    Worker::start_program(&script, &[])
}

fn agents(worker: &Worker, name: &str) -> Vec<AgentIdentity> {
    let image = Image::open(&worker.path(name).join("runtime-0.img")).unwrap();
    image.metadata::<Metadata>().unwrap().agents
}

fn restore(worker: &Worker, name: &str, more: &[&str]) -> std::process::Output {
    let path: PathBuf = worker.path(name);
    let mut arguments = vec!["restore", "--json", path.to_str().unwrap()];
    arguments.extend(more);
    worker.stasis(&arguments)
}

#[test]
fn map_moves_a_process_to_another_gpu_where_it_computes_on() {
    if skip_on_kernel_driver("it needs two GPUs of one kind") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "0");
    worker.freeze("first");
    let [before] = &agents(&worker, "first")[..] else { panic!("one agent") };
    assert_eq!(before.ordinal, Some(0));
    succeeded(&restore(&worker, "first", &["--map", "0=1"]));
    worker.wait_rounds(3);
    succeeded(&worker.checkpoint("second", &["--leave-running"]));
    let [after] = &agents(&worker, "second")[..] else { panic!("one agent") };
    assert_eq!(after.ordinal, Some(1));
    assert!(after.unique_id != before.unique_id && after.gpu_id != before.gpu_id);
    assert_eq!(after.properties, before.properties);
    worker.finish();
}

#[test]
fn map_that_names_nothing_leaves_the_process_checkpointed_and_the_next_restore_takes_it() {
    if skip_on_kernel_driver("it needs two GPUs of one kind") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "0");
    worker.freeze("images");
    let error = refused(&restore(&worker, "images", &["--map", "0=7"]));
    assert!(error.contains("The map 0=7 names \"7\", which is not here"), "{error}");
    let (state, _) = call(worker.pid(), &Request::Status, Duration::from_secs(60)).unwrap();
    assert_eq!(state, State::Checkpointed);
    let pid = worker.pid().to_string();
    let output = worker.stasis(&["resume", &pid, "--map", "0=1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn agents_change_places_and_a_map_of_two_into_one_is_refused() {
    if skip_on_kernel_driver("it needs two GPUs of one kind") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "0,1");
    worker.freeze("images");
    let before = agents(&worker, "images");
    let error = refused(&restore(&worker, "images", &["--map", "0=1", "--map", "1=1"]));
    assert!(error.contains("The map 1=1 gives a GPU that 0=1 has given already"), "{error}");
    let (state, _) = call(worker.pid(), &Request::Status, Duration::from_secs(60)).unwrap();
    assert_eq!(state, State::Checkpointed);
    let (pid, first) = (worker.pid().to_string(), format!("0={}", before[1].uuid()));
    let output = worker.stasis(&["resume", &pid, "--map", &first, "--map", "1=0"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    worker.wait_rounds(3);
    succeeded(&worker.checkpoint("second", &["--leave-running"]));
    let ids = |agents: &[AgentIdentity]| agents.iter().map(|agent| agent.unique_id).collect::<Vec<_>>();
    let after = agents(&worker, "second");
    assert_eq!(ids(&after), [before[1].unique_id, before[0].unique_id]);
    worker.finish();
}

#[test]
fn switch_that_says_nonsense_is_named_before_anything_is_restored() {
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let output = Command::new(program("stasis"))
        .args(["restore", "--json"])
        .arg(worker.path("images"))
        .env("STASIS_CRIU", criu())
        .env("KFD_NUMA_CHECK", "perhaps")
        .output()
        .unwrap();
    let error = refused(&output);
    assert!(error.contains("KFD_NUMA_CHECK is \"perhaps\""), "{error}");
    assert!(!Path::new(&format!("/proc/{}", worker.pid())).exists());
    succeeded(&worker.restore("images"));
    worker.finish();
}
