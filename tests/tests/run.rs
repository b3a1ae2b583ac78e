// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis run`: programs that use the kernel's driver, on the software device. Among them is this repository's own runtime,
//! which has its transport for the kernel's driver tested here.

use std::process::{Command, Stdio};

use stasis_tests::clients::{Run, run};
use stasis_tests::program;
use stasis_tests::sample::setting;

/// How many clients are started to see where their executors lie, if not as many as this says.
const STARTS_VARIABLE: &str = "STASIS_STARTS";

/// Standard output of a run that succeeds.
fn output(devices: &str, command: &[&str]) -> String {
    let done = run(devices, command);
    assert_eq!(done.code(), 0, "{}{}", done.stdout, done.stderr);
    done.stdout
}

fn path(name: &str) -> String {
    program(name).to_str().expect("a path in UTF-8").to_owned()
}

#[test]
fn every_probe_passes_through_the_transport_for_the_kernels_driver() {
    let done = run("soft", &[&path("stasis"), "doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON and nothing else");
    let failed = report.to_string().matches("\"failed\"").count();
    assert_eq!(done.code(), 0, "{failed} failed: {report:#}");
    assert!(done.count("waves") > 1000 && done.count("instructions") > 100_000);
    assert!(done.count("processes") > 20, "each probe is a process");
}

#[test]
fn agents_are_those_of_the_machine_that_was_asked_for() {
    let of = |spec: &str| {
        let text = output(spec, &[&path("stasis"), "agents", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let agents = report["agents"].as_array().expect("agents").clone();
        agents.iter().map(|agent| agent["target"].as_str().expect("a target").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("soft:gfx1100*4"), ["gfx1100"; 4]);
    assert_eq!(of("soft:gfx1201,gfx1100"), ["gfx1201", "gfx1100"]);
}

#[test]
fn descriptors_of_the_driver_are_duplicated_inherited_and_refused_as_the_kernels() {
    assert_eq!(output("soft", &[&path("device-files")]), "FILES right\n");
}

#[test]
fn executors_leave_room_for_their_clients() {
    let starts = setting(STARTS_VARIABLE).unwrap_or(60);
    let script = format!("set -e; for i in $(seq {starts}); do \"$0\"; done");
    let said = output("soft", &["sh", "-c", &script, &path("addresses")]);
    assert_eq!(said.lines().filter(|line| *line == "ADDRESSES apart").count(), starts, "{said}");
}

#[test]
fn trace_has_a_line_for_each_call_and_dispatch() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.json");
    let options = ["--trace", file.to_str().unwrap()];
    let done = Run::with(&options, "soft", &[&path("stasis"), "doctor", "kernel"]).finish();
    assert_eq!(done.code(), 0, "{}", done.stdout);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| !line[kind].is_null()).count() as u64;
    assert_eq!((of("ioctl"), of("dispatch")), (done.count("ioctls"), done.count("dispatches")));
    assert!(of("dispatch") > 0 && lines.iter().any(|line| line["ioctl"]["name"] == "CREATE_QUEUE"));
}

#[test]
fn program_has_a_session_of_its_namespace() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(program("stasis"));
    let output = command.args(["run", "--", "cat", "/proc/self/stat"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let session = said.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(3));
    assert!(output.status.success() && session.is_some_and(|leader| leader != "0"), "{said}");
}
