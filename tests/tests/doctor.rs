// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis doctor`: all is well on the software device, and each probe notices the misbehaviour that it is for.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};
use std::sync::Mutex;

use serde_json::Value;
use softgpu::misbehaviour::Misbehaviour;
use stasis_tests::gpu::{machine_file, skip_on_kernel_driver};
use stasis_tests::program;

/// Probes at the same time: most of them wait.
const AT_A_TIME: usize = 6;
/// Half of it is what a probe waits for the device.
const DEADLINE_MS: &str = "60000";
/// Of a device that does not answer.
const SHORT_MS: &str = "12000";

fn doctor(instance: &str, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    let instance = format!("doctor-{}-{instance}", std::process::id());
    Command::new(program("stasis"))
        .args(["doctor", "--device", "soft:gfx1100"])
        .args(arguments)
        .env("STASIS_SOFTGPU_INSTANCE", instance)
        .envs(settings.iter().copied())
        .output()
        .unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    value["probes"].as_array().unwrap().clone()
}

#[test]
fn every_probe_passes_on_the_software_device() {
    if skip_on_kernel_driver("it is about the software device") {
        return;
    }
    let future = [("SOFTGPU_KERNEL", "fixed")];
    let output = doctor("well", &future, &["--json", "--deadline-ms", DEADLINE_MS]);
    let rows = rows(&output);
    let bad: Vec<_> = rows.iter().filter(|row| row["verdict"] != "passed").collect();
    assert!(bad.is_empty() && rows.len() >= 30, "{bad:#?}");
    assert!(output.status.success());
}

#[test]
fn released_kernel_skips_the_preemption_that_it_refuses() {
    if skip_on_kernel_driver("it is about the software device") {
        return;
    }
    let released = [("SOFTGPU_KERNEL", "7.3")];
    let output = doctor("released", &released, &["--json", "--deadline-ms", DEADLINE_MS, "preempt", "agent"]);
    let rows = rows(&output);
    assert_eq!(
        (&rows[0]["verdict"], &rows[1]["verdict"]),
        (&"skipped".into(), &"passed".into()),
        "{rows:#?}"
    );
    assert!(rows[0]["seen"].as_str().unwrap().contains("gfx1100"), "{rows:#?}");
    assert!(output.status.success());
}

#[test]
fn each_probe_fails_when_the_device_misbehaves_in_its_way() {
    if skip_on_kernel_driver("only the software device misbehaves when it is told to") {
        return;
    }
    let left = Mutex::new(Misbehaviour::ALL.to_vec());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((name, _)) = { left.lock().unwrap().pop() } {
                    let settings = [("SOFTGPU_KERNEL", "fixed"), ("SOFTGPU_MISBEHAVE", name)];
                    let output = doctor(name, &settings, &["--json", "--deadline-ms", SHORT_MS, name]);
                    let rows = rows(&output);
                    let row = &rows[0];
                    assert!(row["verdict"] != "passed" && row["verdict"] != "skipped", "{row:#?}");
                    assert!(row["advice"].is_string(), "{row:#?}");
                    assert_eq!(output.status.success(), row["grade"] != "required", "{row:#?}");
                }
            });
        }
    });
}

#[test]
fn board_with_a_small_bar_is_told() {
    if skip_on_kernel_driver("it describes a machine of its own") {
        return;
    }
    let (_directory, file) = machine_file("[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n");
    let device = format!("soft:{}", file.display());
    let output = Command::new(program("stasis"))
        .args(["doctor", "--device", &device, "--json", "--deadline-ms", DEADLINE_MS, "large-bar"])
        .env("STASIS_SOFTGPU_INSTANCE", format!("doctor-{}-small", std::process::id()))
        .output()
        .unwrap();
    let rows = rows(&output);
    assert_eq!((&rows[0]["verdict"], &rows[0]["grade"]), (&"failed".into(), &"optional".into()), "{rows:#?}");
    assert!(output.status.success(), "an optional probe");
}

#[test]
fn wrong_words_are_refused_and_the_list_names_every_probe() {
    let output = doctor("words", &[], &["no-such-probe"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no-such-probe") && said.contains("--list"), "{said}");
    let listed = doctor("words", &[], &["--list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|probe| probe["name"].as_str().unwrap()).collect();
    let unknown: Vec<_> = Misbehaviour::ALL.iter().filter(|(name, _)| !names.contains(name)).collect();
    assert!(unknown.is_empty() && names.len() >= 30, "{unknown:?}");
}
