// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMD's HIP and ROCr on a software device whose kernel has shared virtual memory (`SOFTGPU_SVM=on`): queues' save areas and
//! registered memory are plain memory of the program then, and no buffers.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use stasis_tests::clients::{ended, hip_program, on_device, rocm_6_1, with_clients, with_options};

const ONE: &str = "soft:gfx1100";

/// Has the kernel of a device shared virtual memory.
fn with_svm(command: &mut Command) -> &mut Command {
    command.env("SOFTGPU_SVM", "on")
}

/// Runs a program of `tests/clients/hip` that checks its own results. Every ioctl must succeed; answers how many were SVM.
fn passes(devices: &str, name: &str) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let mut command = with_options(&["--trace", trace.to_str().unwrap()], devices);
    let outcome = ended(with_svm(&mut command).arg(hip_program(name, "gfx1100")));
    assert_eq!(outcome.stdout.lines().last(), Some(format!("PASS {name}").as_str()), "{}", outcome.said());
    outcome.computed();
    assert_eq!(outcome.complaints(), [""; 0]);
    let text = fs::read_to_string(trace).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ioctls: Vec<Value> =
        lines.map(|line| line["ioctl"].clone()).filter(|ioctl| !ioctl.is_null()).collect();
    for ioctl in &ioctls {
        assert!(ioctl["result"].as_i64().is_some_and(|result| result >= 0), "{name}: {ioctl}");
    }
    ioctls.iter().filter(|ioctl| ioctl["name"] == "SVM").count()
}

#[test]
fn save_areas_of_queues_are_ranges() {
    with_clients(|| {
        assert!(passes(ONE, "matmul") > 0);
        assert!(passes(ONE, "streams") > 1, "several queues");
    });
}

#[test]
fn managed_and_registered_memory_are_ranges() {
    with_clients(|| {
        let (queues, all) = (passes(ONE, "matmul"), passes(ONE, "host_memory"));
        assert!(all > queues, "{all} of which {queues} are of the queues");
    });
}

#[test]
fn advice_prefetches_and_attributes_reach_the_driver_and_other_pages_are_noticed() {
    // 8 of advice and prefetches, 10 questions, and what makes ranges accessible.
    with_clients(|| assert!(passes(ONE, "svm") > 30));
}

#[test]
fn children_threads_and_peers_have_ranges() {
    with_clients(|| {
        for (devices, name) in
            [(ONE, "fork_memory"), (ONE, "threads"), (ONE, "copies"), ("soft:gfx1100*2", "peers")]
        {
            assert!(passes(devices, name) > 0, "{name}");
        }
    });
}

#[test]
fn range_ends_where_its_pages_are_unmapped_and_nowhere_else() {
    with_clients(|| {
        let touches = |page: &str| {
            let mut command = on_device(ONE);
            ended(with_svm(&mut command).arg(hip_program("unmapped", "gfx1100")).arg(page))
        };
        let gone = touches("5");
        assert_eq!(gone.code(), 128 + Signal::SIGABRT as i32, "{}", gone.said());
        assert!(gone.stderr.contains("Memory access fault by GPU node-1"), "{}", gone.said());
        let there = touches("4");
        assert!(there.stdout.ends_with("the store is answered by hipSuccess\n"), "{}", there.said());
    });
}

#[test]
fn rocminfo_finds_the_same_agents_as_without() {
    with_clients(|| {
        let names = |command: &mut Command| {
            let outcome = ended(command.arg(rocm_6_1().join("bin/rocminfo")));
            let is_whole = outcome.status.success() && outcome.stdout.contains("*** Done ***");
            assert!(is_whole, "{}", outcome.said());
            let lines = outcome.stdout.lines().filter(|line| line.trim_start().starts_with("Name:"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(with_svm(&mut on_device(ONE))), names(&mut on_device(ONE)));
    });
}

#[test]
fn setting_that_means_nothing_is_refused() {
    let outcome = ended(on_device(ONE).env("SOFTGPU_SVM", "yes").args(["echo", "it ran"]));
    assert!(!outcome.status.success());
    assert_eq!(outcome.stdout, "");
    let complaint = "SOFTGPU_SVM is \"yes\"; it can be on, or off (the default)";
    assert!(outcome.stderr.contains(complaint), "{}", outcome.stderr);
}
