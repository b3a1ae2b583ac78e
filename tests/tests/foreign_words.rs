// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis` says of programs under `stasis run`, and what it refuses to checkpoint: preflight, status, cancel, inspect.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use serde_json::Value;
use stasis_tests::clients::with_clients;
use stasis_tests::criu;
use stasis_tests::foreign::{Program, number};
use stasis_tests::worker::{refused, succeeded, wait_until};

fn spinning() -> Program {
    let mut program = Program::hip("spin", "soft:gfx1100");
    program.wait_lines("spinning", 1);
    program
}

/// What a command says of the program, whether it succeeds or not.
fn told(program: &Program, arguments: &[&str]) -> (Output, String) {
    let output = program.command(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

fn json((output, text): (Output, String)) -> Value {
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// What `stasis preflight` refuses.
fn obstacles(report: &Value) -> Vec<&Value> {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().filter(|finding| finding["severity"] == "refused").collect()
}

/// A CRIU that does not begin to dump, so that the devices stay paused meanwhile.
fn criu_that_waits(program: &Program) -> PathBuf {
    let path = program.path("criu-that-waits");
    let text = format!("#!/bin/sh\n[ \"$1\" != dump ] || exec sleep 300\nexec {} \"$@\"\n", criu().display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn preflight_and_status_know_the_device_and_inspect_what_was_saved() {
    with_clients(|| {
        let mut program = spinning();
        let (pid, run) = (program.pid().to_string(), program.run_pid().to_string());
        // The pid of the run names its program.
        for named in [&pid, &run] {
            let report = json(told(&program, &["preflight", "--json", named]));
            assert_eq!(
                (&report["pid"], &report["possible"]),
                (&program.pid().into(), &true.into()),
                "{report}"
            );
            let client = &report["run"]["clients"][0];
            assert_eq!(
                (&client["pid"], &client["state"]),
                (&program.pid().into(), &"running".into()),
                "{report}"
            );
            assert_eq!(client["executor"], program.executors()[0], "{report}");
            assert!(number(client, "queues") > 0, "{report}");
            let status = json(told(&program, &["status", "--json", named]));
            assert_eq!((&status["clients"], &status["foreign"]), (&report["run"]["clients"], &true.into()));
        }
        let report = json(told(&program, &["preflight", "--json", &pid]));
        let (output, text) = told(&program, &["status", &pid]);
        assert!(
            output.status.success() && text.contains("`stasis run`, on gfx1100: running, executor"),
            "{text}"
        );

        let outcome = succeeded(&program.checkpointing("images", &["--leave-running"]).output().unwrap());
        let (expected, found) = (number(&report, "memory_bytes"), number(&outcome, "criu_bytes"));
        assert!(expected.abs_diff(found) < expected / 4, "{expected} bytes were expected, CRIU has {found}");
        let (expected, found) = (number(&report, "buffer_bytes"), number(&outcome, "stored_bytes"));
        // The pause saves waves into memory that had holes.
        let more = found.checked_sub(expected);
        assert!(
            more.is_some_and(|more| more < 256 << 10),
            "{expected} bytes were expected, {found} are beside"
        );

        let images = program.path("images");
        let images = images.to_str().unwrap();
        let inspected = json(told(&program, &["inspect", "--verify", "--json", images]));
        let devices = &inspected["devices"];
        assert_eq!(devices["processes"], Value::from(vec![program.pid()]));
        let client = &devices["clients"][0];
        assert_eq!((&client["pid"], &client["waves"]), (&program.pid().into(), &outcome["waves_saved"]));
        let sums = devices["sums"].as_array().unwrap();
        let stored: u64 = sums.iter().map(|sum| number(sum, "stored_bytes")).sum();
        assert_eq!(stored, number(&outcome, "stored_bytes"));
        assert!(sums.iter().any(|sum| sum["kind"] == "vram" && sum["place"] == "beside"), "{devices}");
        let (_, text) = told(&program, &["inspect", images]);
        assert!(text.contains("Devices of `stasis run`: gfx1100"), "{text}");

        let timings = program.path("timings");
        let timed = ["checkpoint", "--leave-running", "--timings", &pid, timings.to_str().unwrap()]
            .map(str::to_owned);
        let (output, text) = told(&program, &timed.each_ref().map(String::as_str));
        assert!(
            output.status.success() && text.contains("save the devices, frozen") && text.contains('█'),
            "{text}"
        );
        program.stop("PASS spin");
    });
}

#[test]
fn memory_of_the_device_in_another_process_is_refused_by_name() {
    with_clients(|| {
        let mut program = spinning();
        let pid = program.pid().to_string();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let range = maps.lines().find(|line| line.contains("/memfd:softgpu:vram")).unwrap();
        let range = range.split(' ').next().unwrap();
        let held = File::open(format!("/proc/{pid}/map_files/{range}")).unwrap();
        let (output, text) = told(&program, &["preflight", "--json", &pid]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        let found = obstacles(&report);
        assert!(found.len() == 1 && found[0]["what"].as_str().unwrap().contains("softgpu:vram"), "{report}");
        let own = format!("process {} ", std::process::id());
        assert!(found[0]["why"].as_str().unwrap().contains(&own), "{report}");
        let refusal = refused(&program.checkpointing("images", &[]).output().unwrap());
        assert!(refusal.contains("softgpu:vram") && refusal.contains("was not touched"), "{refusal}");
        assert!(!program.path("images").exists());
        drop(held);
        assert_eq!(json(told(&program, &["preflight", "--json", &pid]))["possible"], true);
        program.stop("PASS spin");
    });
}

#[test]
fn checkpoint_under_way_is_told_and_can_be_cancelled() {
    with_clients(|| {
        let mut program = spinning();
        let pid = program.pid().to_string();
        let (output, text) = told(&program, &["cancel", &pid]);
        assert!(output.status.success() && text.contains("Nothing is at work"), "{text}");
        let mut checkpoint = program.checkpointing("images", &[]);
        checkpoint
            .env("STASIS_CRIU", criu_that_waits(&program))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let checkpoint = checkpoint.spawn().unwrap();
        let state = || json(told(&program, &["status", "--json", &pid]))["clients"][0]["state"].clone();
        wait_until("the pause", || state() == "paused");
        let (output, text) = told(&program, &["preflight", "--json", &pid]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("paused already"), "{text}");
        let second = refused(&program.checkpointing("second", &[]).output().unwrap());
        let first = format!("Another `stasis checkpoint` (process {})", checkpoint.id());
        assert!(second.contains(&first), "{second}");
        let (output, text) = told(&program, &["cancel", &pid]);
        assert!(output.status.success() && text.contains("the process goes on"), "{text}");
        let given_up = refused(&checkpoint.wait_with_output().unwrap());
        assert!(given_up.contains("was not checkpointed; it goes on"), "{given_up}");
        wait_until("the device to run again", || state() == "running");
        succeeded(&program.checkpointing("third", &["--leave-running"]).output().unwrap());
        program.stop("PASS spin");
    });
}
