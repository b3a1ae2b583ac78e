// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which device and which agents a process gets, and the errors when there are none.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use stasis::{AllocError, OpenError, Options, Runtime};
use stasis_tests::gpu::{Gpu, isolate, open, open_on, skip_on_kernel_driver};
use stasis_tests::program;

const SOFT: &str = "it names software devices";

fn try_open(device: &str, agents: Option<&str>) -> Result<Runtime, OpenError> {
    isolate();
    let device = Some(device.parse().unwrap());
    Runtime::open(Options { device, agents: agents.map(str::to_owned) })
}

#[test]
fn opening_again_gives_the_same_runtime_and_other_agents_are_refused() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let first = open_on("soft:gfx1100,gfx1100", Some("1"));
    assert_eq!(first.agents().len(), 1);
    let buffer = first.agents()[0].vram().alloc(4096).unwrap();
    let second = try_open("soft:gfx1100,gfx1100", None).unwrap();
    assert_eq!(
        second.agent(0).unwrap().vram_available().unwrap(),
        first.agents()[0].vram_available().unwrap()
    );
    drop(buffer);
    let other = try_open("soft:gfx1100,gfx1100", Some("0")).unwrap_err();
    assert!(matches!(other, OpenError::AlreadyOpen { .. }), "{other}");
    assert!(Runtime::current().is_some());
}

#[test]
fn agents_are_chosen_by_index_and_by_uuid_in_the_lists_order() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let devices = "soft:gfx1100,gfx1100,gfx1100";
    let list = |value: Option<&str>| {
        let mut command = Command::new(program("stasis"));
        command.args(["agents", "--json"]).env("STASIS_DEVICE", devices);
        command.env("STASIS_SOFTGPU_INSTANCE", format!("list-{}", std::process::id()));
        value.map(|value| command.env("ROCR_VISIBLE_DEVICES", value));
        let output: Output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let json = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
        let uuids: Vec<String> = json["agents"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|agent| agent["uuid"].as_str().unwrap().to_owned())
            .collect();
        (uuids, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (all, _) = list(None);
    assert_eq!(all.len(), 3);
    assert_eq!(list(Some("2,0")).0, [all[2].clone(), all[0].clone()]);
    assert_eq!(list(Some(&format!("{},0", all[1]))).0, [all[1].clone(), all[0].clone()]);
    for (wrong, said) in [
        ("3", "not here"),
        ("0,0", "same agent"),
        ("GPU-", "expected"),
        ("", "empty"),
        ("x", "expected an index"),
    ] {
        let (none, error) = list(Some(wrong));
        assert!(none.is_empty() && error.contains(said), "{wrong:?}: {error}");
    }
}

#[test]
fn device_that_is_none_is_refused_by_name() {
    for wrong in ["cuda", "soft:", "soft:1100", "soft:gfx1100,", "kfd:0"] {
        assert!(wrong.parse::<kfd::DeviceSpec>().is_err(), "{wrong}");
        let output =
            Command::new(program("stasis")).arg("agents").env("STASIS_DEVICE", wrong).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("STASIS_DEVICE cannot be used") && error.contains("expected"), "{error}");
    }
}

#[test]
fn vram_that_is_not_there_is_refused_with_what_there_is() {
    let agent = open().agent(0).unwrap();
    let there = agent.vram_available().unwrap();
    let error = agent.vram().alloc(1 << 38).unwrap_err();
    let AllocError::OutOfMemory { wanted, available, .. } = &error else { panic!("{error}") };
    assert_eq!((*wanted, *available), (1 << 38, there));
    assert!(error.to_string().contains(agent.uuid()), "{error}");
    assert_eq!(agent.vram_available().unwrap(), there, "nothing is left of the attempt");
    // And when the last memory is used up in small parts.
    let mut held = Vec::new();
    let piece = (there / 8).next_multiple_of(2 << 20);
    let last = loop {
        match agent.vram().alloc(piece) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(matches!(last, AllocError::OutOfMemory { .. }), "{last}");
    assert!(held.len() >= 6, "{}", held.len());
    drop(held);
    assert_eq!(agent.vram_available().unwrap(), there);
    assert!(matches!(agent.vram().alloc(0), Err(AllocError::Empty)));
}

#[test]
fn queue_that_finds_no_memory_leaves_nothing_behind() {
    let agent = open().agent(0).unwrap();
    let there = agent.vram_available().unwrap();
    // More scratch for every lane than the agent has memory.
    let options = stasis::QueueOptions { scratch_lane_bytes: 60_000, ..stasis::QueueOptions::default() };
    for _ in 0..3 {
        match stasis::Queue::create(&agent, options) {
            Err(stasis::QueueError::Memory { .. }) => {}
            Ok(queue) => queue.destroy().unwrap(),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(agent.vram_available().unwrap(), there);
    }
    let gpu = Gpu::new();
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[stasis::Arg::Buffer(&gpu.buffer(&[0u32]))]);
}

#[test]
fn missing_softgpud_is_named_with_every_path_tried() {
    if skip_on_kernel_driver("it needs softgpud") {
        return;
    }
    let output = Command::new(program("stasis"))
        .arg("agents")
        .env("STASIS_DEVICE", "soft")
        .env("STASIS_SOFTGPUD", "/nowhere/softgpud")
        .env("STASIS_SOFTGPU_INSTANCE", format!("missing-{}", std::process::id()))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        error.contains("/nowhere/softgpud") && error.contains("cargo build -p stasis-softgpu"),
        "{error}"
    );
}

#[test]
fn softgpud_that_cannot_run_is_an_error_and_no_hang() {
    if skip_on_kernel_driver("it needs softgpud") {
        return;
    }
    let output = Command::new(program("stasis"))
        .arg("agents")
        .env("STASIS_DEVICE", "soft")
        // This program ends at once, so no device ever answers.
        .env("STASIS_SOFTGPUD", "/bin/true")
        .env("STASIS_SOFTGPU_INSTANCE", format!("true-{}", std::process::id()))
        // How long that takes is the machine's affair; a hang is ended by the harness.
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("No answer from softgpud"), "{error}");
}

#[test]
fn target_that_softgpud_has_not_is_refused_with_those_it_has() {
    let output = Command::new(program("softgpud"))
        .args(["serve", "--devices", "gfx1100,gfx906", "--socket", "nobody"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("gfx906") && error.contains("known are: gfx1100"),
        "{error}"
    );
}
