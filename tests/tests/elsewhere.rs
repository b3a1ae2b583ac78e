// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restores by real CRIU onto machines of another shape. They are admitted and moved, or refused with the name of the
//! reason and without changes; then the same image restores on the right machine.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use stasis::checkpoint::{Metadata, Request, State, call};
use stasis::image::Image;
use stasis_tests::gpu::{OTHER_ORDER, on_a_future_kernel, skip_on_kernel_driver};
use stasis_tests::worker::{Worker, refused, succeeded, wait_until};
use stasis_tests::{criu, program};

const REASON: &str = "it needs machines of other shapes";

/// A worker on this machine, `STASIS_DEVICE=soft:gfx1100` and the like.
fn worker(directory: &Path, device: &str, arguments: &[&str]) -> Worker {
    let script = directory.join("on-its-machine");
    let program = program("counter-worker");
    let text = format!("#!/bin/sh\nSTASIS_DEVICE='{device}' exec {} \"$@\"\n", program.display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    Worker::start_program(&script, arguments)
}

/// Machines of other shapes, each with a softgpud of its own beside the worker's.
struct Elsewhere {
    directory: tempfile::TempDir,
    instance: String,
}

impl Elsewhere {
    fn new(worker: &Worker) -> Self {
        let instance = format!("elsewhere-{}-{}", std::process::id(), worker.pid());
        Self { directory: tempfile::tempdir().unwrap(), instance }
    }

    /// The device of a topology file.
    fn machine(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        format!("soft:{}", path.display())
    }

    fn run(&self, device: &str, by_option: bool, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("stasis"));
        let instance = format!("{}-{device}", self.instance);
        command.args(arguments).env("STASIS_CRIU", criu()).env("STASIS_SOFTGPU_INSTANCE", instance);
        match by_option {
            true => command.args(["--device", device]).env_remove("STASIS_DEVICE"),
            false => command.env("STASIS_DEVICE", device),
        };
        command.output().unwrap()
    }

    /// `stasis restore`, where the machine is what `STASIS_DEVICE` says.
    fn restore(&self, device: &str, worker: &Worker, name: &str, more: &[&str]) -> Output {
        let path = worker.path(name);
        self.run(device, false, &[&["restore", "--json", path.to_str().unwrap()], more].concat())
    }

    /// `stasis resume --device`.
    fn resume(&self, device: &str, worker: &Worker, more: &[&str]) -> Output {
        self.run(device, true, &[&["resume", &worker.pid().to_string()], more].concat())
    }
}

fn resumed(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn metadata(worker: &Worker, name: &str) -> Metadata {
    Image::open(&worker.path(name).join("runtime-0.img")).unwrap().metadata().unwrap()
}

fn is_checkpointed(worker: &Worker) {
    let (state, _) = call(worker.pid(), &Request::Status, Duration::from_secs(60)).unwrap();
    assert_eq!(state, State::Checkpointed);
}

#[track_caller]
fn names(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
}

const TWO: &str = r#"
[[gpu]]
chip = "gfx1100"

[[gpu]]
chip = "gfx1100"
pci = "0000:41:00.0"
unique_id = "0x00c0ffee00c0ffee"
render_minor = 177
"#;

#[test]
fn process_moves_from_machine_to_machine_and_computes_on() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "soft:gfx1100", &[]);
    let elsewhere = Elsewhere::new(&worker);
    worker.freeze("first");
    let first = metadata(&worker, "first");
    assert_eq!(first.transport, "soft:gfx1100");

    // More GPUs than needed, and by the map onto the one that would not be chosen.
    let map = format!("{}=GPU-00c0ffee00c0ffee", first.agents[0].uuid());
    let two = elsewhere.machine("two", TWO);
    succeeded(&elsewhere.restore(&two, &worker, "first", &["--map", &map]));
    worker.wait_rounds(3);
    worker.freeze("second");
    let second = metadata(&worker, "second");
    assert!(second.transport.starts_with(&two), "{}", second.transport);
    assert_eq!((second.agents[0].unique_id, second.agents[0].ordinal), (0x00c0_ffee_00c0_ffee, Some(1)));
    assert!(second.agents[0].gpu_id != first.agents[0].gpu_id);

    // Ids, minors and order of a third machine, with more memory.
    let third = elsewhere.machine("third", OTHER_ORDER);
    succeeded(&elsewhere.restore(&third, &worker, "second", &[]));
    worker.wait_rounds(3);
    succeeded(&worker.checkpoint("third", &["--leave-running"]));
    let third = metadata(&worker, "third");
    assert_eq!((third.agents[0].unique_id, third.agents[0].ordinal), (0xfeed_face_cafe_beef, Some(1)));
    assert_eq!(third.agents[0].properties["vram_bytes"], 32 << 30);
    assert!(second.agents[0].properties["vram_bytes"] < 32 << 30);
    worker.finish();
}

#[test]
fn lesser_machines_are_refused_by_name_and_the_right_one_is_taken_afterwards() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "soft:gfx1100", &[]);
    let elsewhere = Elsewhere::new(&worker);
    worker.freeze("images");
    let gpu = "[[gpu]]\nchip = \"gfx1100\"\n";
    let small = elsewhere.machine("small", &format!("{gpu}vram_bytes = \"16GiB\"\n"));
    let error = refused(&elsewhere.restore(&small, &worker, "images", &[]));
    names(&error, &["had vram_bytes 25753026560", " 17179869184", "set KFD_VRAM_SIZE_CHECK=0"]);
    is_checkpointed(&worker);
    let hidden = elsewhere.machine("hidden", &format!("{gpu}bar = \"small\"\n"));
    for (device, wanted) in [
        (hidden.as_str(), ["had vram_public 1", " 0; the two must be equal"]),
        ("soft:gfx1201", ["had gfx_target_version 110000", " 120001; the two must be equal"]),
        ("soft:gfx1101,gfx942", ["had gfx_target_version 110000", " 110001; the two must be equal"]),
        ("soft:none.toml", ["none.toml", "ends in .toml"]),
    ] {
        names(&refused(&elsewhere.resume(device, &worker, &[])), &wanted);
        is_checkpointed(&worker);
    }
    // And on its first machine, which still exists.
    let pid = worker.pid().to_string();
    resumed(&worker.stasis(&["resume", &pid]));
    worker.wait_rounds(3);
    worker.finish();
}

const NO_PATHS: &str = r#"
pcie_p2p = false

[[gpu]]
chip = "gfx1100"

[[gpu]]
chip = "gfx1100"
"#;

#[test]
fn lost_path_is_refused_by_name_and_borne_with_allow_staged() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "soft:gfx1100*2", &[]);
    let elsewhere = Elsewhere::new(&worker);
    worker.freeze("images");
    let error = refused(&elsewhere.restore("soft:gfx1100", &worker, "images", &[]));
    names(&error, &["had gpus 2, here it is 1"]);
    is_checkpointed(&worker);
    let device = elsewhere.machine("no-paths", NO_PATHS);
    let error = refused(&elsewhere.resume(&device, &worker, &[]));
    names(
        &error,
        &["agent 0 (GPU-", "had agent_link PCIe to agent 1", "agent 1 (GPU-", "give --allow-staged"],
    );
    is_checkpointed(&worker);
    resumed(&elsewhere.resume(&device, &worker, &["--allow-staged"]));
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn mapping_of_a_peer_is_refused_even_with_allow_staged_and_the_image_comes_back_where_it_can() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "soft:gfx1100*2", &["--peer"]);
    let elsewhere = Elsewhere::new(&worker);
    worker.freeze("images");
    let one_way = format!("{}\n[[unreachable]]\nfrom = 1\nto = 0\n", NO_PATHS.replace("false", "true"));
    let lost = elsewhere.machine("lost", &one_way);
    let error = refused(&elsewhere.restore(&lost, &worker, "images", &["--allow-staged", "--map", "0=0"]));
    names(&error, &["buffer #", "of agent 0 is mapped to agent 1", "peer_mapping over PCIe", "none"]);
    assert!(!error.contains("agent_link"), "{error}");
    is_checkpointed(&worker);
    // The same image, once more from the start. With the other placement the missing path is not needed.
    worker.kill();
    let gone = format!("/proc/{}", worker.pid());
    wait_until("the end of the copy", || !Path::new(&gone).exists());
    succeeded(&elsewhere.restore(&lost, &worker, "images", &["--allow-staged"]));
    worker.wait_rounds(3);
    succeeded(&worker.checkpoint("second", &["--leave-running"]));
    let ordinals: Vec<_> = metadata(&worker, "second").agents.iter().map(|agent| agent.ordinal).collect();
    assert_eq!(ordinals, [Some(1), Some(0)]);
    worker.finish();
}

#[test]
fn process_that_lives_on_keeps_its_device() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let worker = worker(directory.path(), "soft:gfx1100", &[]);
    let elsewhere = Elsewhere::new(&worker);
    // Its lease is longer than any machine is slow.
    succeeded(&worker.checkpoint("images", &["--no-dump", "--lease-ms", "600000"]));
    let error = refused(&elsewhere.resume("soft:gfx1100*2", &worker, &[]));
    names(&error, &["known to soft:gfx1100 with its address spaces", "take soft:gfx1100,gfx1100"]);
    is_checkpointed(&worker);
    // Its own device, given by name, counts as the same device.
    resumed(&elsewhere.resume("soft", &worker, &[]));
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn preempted_waves_go_on_only_on_the_gpu_they_were_stopped_on() {
    on_a_future_kernel();
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut worker = worker(directory.path(), "soft:gfx1100", &[]);
    let elsewhere = Elsewhere::new(&worker);
    succeeded(&worker.checkpoint("images", &["--preempt"]));
    worker.bury();
    assert!(metadata(&worker, "images").preempted);
    let third = elsewhere.machine("third", OTHER_ORDER);
    names(&refused(&elsewhere.restore(&third, &worker, "images", &[])), &["agent 0 (GPU-", "had gpu_id "]);
    is_checkpointed(&worker);
    resumed(&worker.stasis(&["resume", &worker.pid().to_string()]));
    worker.wait_rounds(3);
    worker.finish();
}
