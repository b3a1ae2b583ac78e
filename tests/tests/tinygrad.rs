// SPDX-License-Identifier: MIT OR Apache-2.0
//! tinygrad as its package index distributes it, on the software device, by AMD's driver interface: its own programs in
//! `tests/clients/tinygrad` compare what it computes with NumPy and with its CPU.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use stasis_tests::clients::{Outcome, ended, with_clients};
use stasis_tests::python::{source, tinygrad};

/// The files in which one result is compared with NumPy's.
const OPERATIONS: [&str; 5] =
    ["test_elementwise.py", "test_reductions.py", "test_matrices.py", "test_movement.py", "test_memory.py"];

/// Those of them that are run by one process, too.
const IN_ONE_PROCESS: [&str; 2] = ["test_elementwise.py", "test_memory.py"];

/// pytest for some files, with `arguments`.
fn pytest(devices: &str, files: &[&str], arguments: &[&str]) -> Outcome {
    // pytest leaves its directory when it distributes tests over processes.
    let temporary = tempfile::tempdir().unwrap();
    let mut command = tinygrad(devices);
    command.env("PYTEST_DEBUG_TEMPROOT", temporary.path());
    command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(arguments);
    command.args(files.iter().map(|file| source("tinygrad").join(file)));
    ended(&mut command)
}

/// How many tests pytest says have passed.
fn passed(ended: &Outcome) -> u32 {
    let words: Vec<&str> = ended.stdout.lines().last().unwrap_or_default().split_whitespace().collect();
    let found = words.windows(2).find(|pair| pair[1].trim_end_matches(',') == "passed");
    found.and_then(|pair| pair[0].parse().ok()).unwrap_or_else(|| panic!("{}", ended.said()))
}

#[test]
fn operations_of_every_type_have_numpys_results() {
    with_clients(|| {
        let ended = pytest("soft:gfx1100", &IN_ONE_PROCESS, &[]);
        ended.computed();
        assert!(passed(&ended) > 150, "{}", ended.said());
        // Copies that are more than the arguments of kernels.
        assert!(ended.count("copied_bytes") > 5 << 20, "{}", ended.said());
        assert_eq!(ended.count("processes"), 1);
    });
}

#[test]
fn operations_have_these_results_with_two_processes_on_one_device() {
    with_clients(|| {
        let ended = pytest("soft:gfx1100", &OPERATIONS, &["-n", "2"]);
        ended.computed();
        assert!(passed(&ended) > 250, "{}", ended.said());
        // Whichever worker takes no test opens the device all the same.
        assert_eq!(ended.count("processes"), 2);
    });
}

#[test]
fn memory_has_its_contents_without_a_copy_engine_and_with_architected_queues() {
    with_clients(|| {
        for (variable, is_copying) in [("AMD_DISABLE_SDMA", false), ("AMD_AQL", true)] {
            let mut command = tinygrad("soft:gfx1100");
            command.env(variable, "1").args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
            let ended = ended(command.arg(source("tinygrad/test_memory.py")));
            ended.computed();
            assert_eq!(ended.count("copied_bytes") > 0, is_copying, "{variable}: {}", ended.said());
        }
    });
}

#[test]
fn training_has_the_losses_of_the_cpu() {
    with_clients(|| {
        let ended = pytest("soft:gfx1100", &["test_training.py"], &[]);
        ended.computed();
        assert_eq!(passed(&ended), 5, "{}", ended.said());
    });
}

#[test]
fn tensors_have_parts_on_two_gpus() {
    with_clients(|| {
        let ended = pytest("soft:gfx1100*2", &["test_sharding.py"], &[]);
        ended.computed();
        assert_eq!(passed(&ended), 10, "{}", ended.said());
    });
}

#[test]
fn children_of_a_process_use_the_device_themselves() {
    with_clients(|| {
        // fork-open: the child of a process that has the device open has none, so only the parent counts.
        for (way, processes) in [("spawn", 3), ("fork", 3), ("fork-open", 1)] {
            let ended = ended(tinygrad("soft:gfx1100").arg(source("tinygrad/processes.py")).arg(way));
            ended.computed();
            assert_eq!(ended.stdout, "right\n", "{way}: {}", ended.said());
            assert_eq!(ended.count("processes"), processes, "{way}: {}", ended.said());
        }
    });
}

#[test]
fn exit_status_of_a_failing_pytest_passes_through() {
    with_clients(|| {
        let directory = tempfile::tempdir().unwrap();
        let wrong = directory.path().join("test_wrong.py");
        let text =
            "from tinygrad import Tensor\n\ndef test_wrong():\n    assert (Tensor([2]) + 2).item() == 5\n";
        fs::write(&wrong, text).unwrap();
        let run = |arguments: &[&str]| {
            let mut command: Command = tinygrad("soft:gfx1100");
            ended(command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(arguments).arg(&wrong))
        };
        let failed = run(&[]);
        assert_eq!(failed.status.code(), Some(1), "{}", failed.said());
        assert!(failed.stdout.contains("assert 4 == 5"), "{}", failed.said());
        assert!(failed.count("dispatches") > 0);
        // pytest's status for no tests at all.
        let none = run(&["-k", "nothing"]);
        assert_eq!(none.status.code(), Some(5), "{}", none.said());
        assert_eq!(none.count("dispatches"), 0);
    });
}
