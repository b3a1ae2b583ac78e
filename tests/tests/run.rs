// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis run`: programs that use the kernel's driver, on the software device. Among them is this repository's own runtime,
//! which has its transport for the kernel's driver tested here.

use std::process::{Command, Output, Stdio};

use stasis_tests::program;

/// How many clients are started to see where their executors lie, if not as many as this says.
const STARTS_VARIABLE: &str = "STASIS_STARTS";

fn run(options: &[&str], command: &[&str]) -> Output {
    let mut stasis = Command::new(program("stasis"));
    stasis.arg("run").args(options).arg("--").args(command).stdin(Stdio::null());
    stasis.output().expect("stasis can be executed")
}

/// Standard output of a run that succeeds.
fn output(options: &[&str], command: &[&str]) -> String {
    let done = run(options, command);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{:?}: {}{errors}", done.status, String::from_utf8_lossy(&done.stdout));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A number of the line that `--verbose` prints.
fn counted(done: &Output, what: &str) -> u64 {
    let text = String::from_utf8_lossy(&done.stderr);
    let line =
        text.lines().find(|line| line.starts_with("stasis run: processes=")).expect("a line of counts");
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(what)?.strip_prefix('=')?.parse().ok()).expect("the count")
}

fn path(name: &str) -> String {
    program(name).to_str().expect("a path in UTF-8").to_owned()
}

#[test]
fn every_probe_passes_through_the_transport_for_the_kernels_driver() {
    let done = run(&["--verbose"], &[&path("stasis"), "doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON and nothing else");
    let failed = report.to_string().matches("\"failed\"").count();
    assert!(done.status.success(), "{failed} failed: {report:#}");
    assert!(counted(&done, "waves") > 1000 && counted(&done, "instructions") > 100_000);
    assert!(counted(&done, "processes") > 20, "each probe is a process");
}

#[test]
fn agents_are_those_of_the_machine_that_was_asked_for() {
    let of = |spec: &str| {
        let text = output(&["--device", spec], &[&path("stasis"), "agents", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let agents = report["agents"].as_array().expect("agents").clone();
        agents.iter().map(|agent| agent["target"].as_str().expect("a target").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("soft:gfx1100*4"), ["gfx1100"; 4]);
    assert_eq!(of("soft:gfx1201,gfx1100"), ["gfx1201", "gfx1100"]);
}

#[test]
fn descriptors_of_the_driver_are_duplicated_inherited_and_refused_as_the_kernels() {
    assert_eq!(output(&[], &[&path("device-files")]), "FILES right\n");
}

#[test]
fn executors_leave_room_for_their_clients() {
    let starts = std::env::var(STARTS_VARIABLE).ok().and_then(|starts| starts.parse().ok()).unwrap_or(60);
    let script = format!("set -e; for i in $(seq {starts}); do \"$0\"; done");
    let said = output(&[], &["sh", "-c", &script, &path("addresses")]);
    assert_eq!(said.lines().filter(|line| *line == "ADDRESSES apart").count(), starts, "{said}");
}

#[test]
fn trace_has_a_line_for_each_call_and_dispatch() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.json");
    let done = run(&["--verbose", "--trace", file.to_str().unwrap()], &[&path("stasis"), "doctor", "kernel"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| !line[kind].is_null()).count() as u64;
    assert_eq!((of("ioctl"), of("dispatch")), (counted(&done, "ioctls"), counted(&done, "dispatches")));
    assert!(of("dispatch") > 0 && lines.iter().any(|line| line["ioctl"]["name"] == "CREATE_QUEUE"));
}
