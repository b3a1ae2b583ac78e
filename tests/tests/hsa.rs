// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that load our `libhsa-runtime64.so.1` in place of AMD's: what they compute, what they are told, and that they freeze.
//!
//! HIP programs are those of `tests/clients/hip`, as AMD's runtime runs them in `hip.rs`; those in C, of `tests/clients/hsa`, are
//! run on both runtimes.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use stasis_tests::clients::{Outcome, ended, hip_program, on_device, rocm_6_1, with_clients};
use stasis_tests::foreign::Program;
use stasis_tests::gpu::OTHER_ORDER;
use stasis_tests::hsa::{c_program, code_object, library, on_library, on_rocr, own_device};
use stasis_tests::worker::{refused, succeeded};

/// One 7900 XTX.
const ONE: &str = "soft:gfx1100";

/// Runs a HIP program that checks its own results on our library.
fn passes(devices: &str, name: &str) {
    with_clients(|| {
        let outcome = ended(on_library(devices).arg(hip_program(name, "gfx1100")));
        let last = outcome.stdout.lines().last().unwrap_or_default();
        assert!(outcome.status.success() && last == format!("PASS {name}"), "{}", outcome.said());
    });
}

macro_rules! hip_programs {
    ($($test:ident: $name:literal on $devices:expr;)*) => {
        $(#[test]
        fn $test() {
            passes($devices, $name);
        })*
    };
}

hip_programs! {
    vectors_are_added: "vector_add" on ONE;
    waves_and_groups_reduce: "reduction" on ONE;
    matrices_are_multiplied_by_tiles_in_lds: "matmul" on ONE;
    atomics_of_every_width_in_every_memory: "atomics" on ONE;
    streams_and_events_keep_their_order_and_tell_times: "streams" on ONE;
    copies_and_fills_write_what_they_should_and_no_more: "copies" on ONE;
    managed_pinned_and_registered_memory_is_used_in_place: "host_memory" on ONE;
    recursion_and_large_arrays_have_scratch: "recursion" on ONE;
    graphs_run_as_captured_and_as_built: "graph" on ONE;
    errors_are_hips_and_work_goes_on: "errors" on ONE;
    occupancy_is_computed_from_the_machine: "occupancy" on ONE;
    threads_share_the_device: "threads" on ONE;
    printf_prints_from_the_device: "printf" on ONE;
    two_devices_reach_each_other: "peers" on "soft:gfx1100*2";
    two_processes_have_the_same_memory: "ipc" on ONE;
    two_processes_have_the_same_memory_of_several_devices: "ipc" on "soft:gfx1100*2";
}

#[test]
fn memory_fault_ends_the_program_by_its_queues_callback() {
    with_clients(|| {
        let outcome = ended(on_library(ONE).arg(hip_program("fault", "gfx1100")));
        assert_eq!(outcome.code(), 128 + 6, "{}", outcome.said());
        assert!(outcome.said().contains("aborting with error"), "{}", outcome.said());
    });
}

/// The lines of rocminfo, without the ends that it fills with spaces.
fn lines(outcome: &Outcome) -> Vec<String> {
    assert!(outcome.stdout.contains("*** Done ***"), "{}", outcome.said());
    outcome.stdout.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Lines of rocminfo that our library has otherwise than AMD's. ROCr takes the caches of the host's processor from the topology, where
/// the software device has its last one only, as L1.
const OTHERWISE: [&str; 3] = ["    L1:", "    L2:", "    L3:"];

#[test]
fn rocminfo_says_of_our_library_what_it_says_of_amds() {
    with_clients(|| {
        for devices in [ONE, "soft:gfx1100*3"] {
            let rocminfo = rocm_6_1().join("bin/rocminfo");
            let amd = lines(&ended(on_device(devices).arg(&rocminfo)));
            // Of a machine without the driver rocminfo says nothing; so it has the files of `stasis run`, and our library beside them.
            let library = library();
            let preload = format!("LD_PRELOAD={}:$LD_PRELOAD exec {}", library.display(), rocminfo.display());
            let mut command = on_device(devices);
            command.arg("env").args(own_device(devices).map(|(name, value)| format!("{name}={value}")));
            let ours = lines(&ended(command.args(["sh", "-c", &preload])));
            let is_of_host = |at: usize, all: &[String]| {
                let mut agents = all[..at].iter().rev().filter(|line| line.starts_with("Agent "));
                agents.next().is_some_and(|agent| agent == "Agent 1")
            };
            let comparable = |all: &[String]| -> Vec<String> {
                let numbered = all.iter().enumerate();
                let kept = numbered.filter(|(at, line)| {
                    let is_cache = OTHERWISE.iter().any(|name| line.starts_with(name));
                    !(is_cache && is_of_host(*at, all))
                });
                kept.map(|(_, line)| line.clone()).collect()
            };
            assert_eq!(comparable(&ours), comparable(&amd), "{devices}");
        }
    });
}

/// The cases that a run of the conformance suite has passed.
fn cases(outcome: &Outcome) -> Vec<String> {
    assert!(outcome.status.success(), "{}", outcome.said());
    assert!(outcome.stdout.lines().last().unwrap().ends_with(" cases, 0 failed"), "{}", outcome.said());
    outcome.stdout.lines().filter_map(|line| line.strip_prefix("ok ")).map(str::to_owned).collect()
}

#[test]
fn conformance_suite_passes_on_both_runtimes() {
    with_clients(|| {
        let directory = tempfile::tempdir().unwrap();
        let (suite, code) =
            (c_program(directory.path(), "conformance"), code_object(directory.path(), "gfx1100"));
        let ours = cases(&ended(on_library(ONE).arg(&suite).arg("--hostile").arg(&code)));
        let amd = cases(&ended(on_rocr(ONE).arg(&suite).arg(&code)));
        assert!(amd.len() >= 300 && ours.len() > amd.len(), "{} and {}", ours.len(), amd.len());
        assert!(amd.iter().all(|case| ours.contains(case)));
    });
}

#[test]
fn newer_functions_do_what_their_header_says() {
    let directory = tempfile::tempdir().unwrap();
    let passed = cases(&ended(on_library(ONE).arg(c_program(directory.path(), "newer"))));
    assert!(passed.len() >= 11, "{passed:?}");
}

/// Freezes a program at moments of its work, restores it each time, and has it end.
fn freezes(mut program: Program, name: &str, times: u64) {
    program.wait_lines("round ", 1);
    for nth in 0..times {
        // Moments that differ from run to run as the machine does.
        std::thread::sleep(Duration::from_millis(nth * 37 % 200));
        let checkpoint = format!("checkpoint{nth}");
        let outcome = program.freeze_and_restore(&checkpoint);
        assert_eq!(outcome["preempted"], serde_json::Value::Null, "{outcome}");
        program.goes_on("round ", 1);
    }
    program.stop(&format!("PASS {name}"));
}

fn started(name: &str, devices: &str) -> Program {
    let mut command = on_library(devices);
    command.arg(hip_program(name, "gfx1100"));
    Program::plain(&command, &["stop"])
}

fn hip_program_freezes(name: &str, devices: &str, times: u64) {
    with_clients(|| freezes(started(name, devices), name, times));
}

#[test]
fn hip_program_freezes_in_the_middle_of_its_streams() {
    hip_program_freezes("rounds", ONE, 6);
}

#[test]
fn graphs_functions_of_the_host_and_times_go_on_across_freezes() {
    hip_program_freezes("moments", ONE, 6);
}

#[test]
fn streams_that_wait_for_what_the_program_does_later_freeze() {
    with_clients(|| {
        let mut command = on_library(ONE);
        // HIP has kernels wait for values otherwise.
        command.arg(hip_program("waits", "gfx1100")).env("GPU_STREAMOPS_CP_WAIT", "1");
        let mut program = Program::plain(&command, &["stop", "rounds"]);
        for nth in 1..=6 {
            program.wait_lines("round ", nth);
            program.freeze_and_restore(&format!("checkpoint{nth}"));
            if nth == 6 {
                std::fs::write(program.path("stop"), "").unwrap();
            }
            // Not before: nothing ends the streams' waits while it is frozen.
            std::fs::write(program.path("rounds"), "n".repeat(nth)).unwrap();
        }
        program.finish("PASS waits");
    });
}

#[test]
fn hip_program_with_several_devices_freezes() {
    hip_program_freezes("rounds", "soft:gfx1100*2", 3);
}

#[test]
fn threads_that_use_device_memory_by_pointers_are_held_back() {
    hip_program_freezes("pointers", ONE, 6);
}

/// A kernel that gives its state out; the drivers of today drain.
const KERNEL: (&str, &str) = ("SOFTGPU_KERNEL", "fixed");

fn preempted(name: &str, line: &str) -> Program {
    let mut command = on_library(ONE);
    command.arg(hip_program(name, "gfx1100")).env(KERNEL.0, KERNEL.1);
    let mut program = Program::plain(&command, &["stop"]);
    program.wait_lines(line, 1);
    program
}

fn freezes_preempted(program: &mut Program, nth: u64) {
    let checkpoint = format!("checkpoint{nth}");
    program.freeze_with(&checkpoint, &["--preempt"]);
    succeeded(&program.restoring(&checkpoint, &[]).env(KERNEL.0, KERNEL.1).output().unwrap());
}

#[test]
fn kernel_without_end_is_named_by_a_drain_and_preempted_where_the_driver_can() {
    with_clients(|| {
        let mut program = preempted("spin", "spinning");
        let error = refused(&program.checkpointing("drained", &["--deadline-ms=300"]).output().unwrap());
        assert!(error.contains("still runs _Z4spin"), "{error}");
        (0..3).for_each(|nth| freezes_preempted(&mut program, nth));
        program.stop("PASS spin");
    });
}

#[test]
fn hip_program_is_preempted_in_the_middle_of_its_streams_where_the_driver_can() {
    with_clients(|| {
        let mut program = preempted("rounds", "round ");
        for nth in 0..3 {
            freezes_preempted(&mut program, nth);
            program.goes_on("round ", 1);
        }
        program.stop("PASS rounds");
    });
}

#[test]
fn two_processes_with_the_same_memory_freeze_together() {
    hip_program_freezes("ipc", ONE, 3);
}

/// A machine where the GPU that fits is not the first, and is in another place and larger, and one with that GPU alone.
const OTHER_MACHINES: [&str; 2] = [
    OTHER_ORDER,
    r#"
[[gpu]]
chip = "gfx1100"
unique_id = "0x00c0ffee00c0ffee"
render_minor = 177
vram_bytes = "48GiB"
"#,
];

fn hip_program_moves(name: &str) {
    with_clients(|| {
        let mut program = started(name, ONE);
        program.wait_lines("round ", 1);
        for (nth, shape) in OTHER_MACHINES.into_iter().enumerate() {
            let machine = program.path(&format!("machine{nth}.toml"));
            std::fs::write(&machine, shape).unwrap();
            let checkpoint = format!("checkpoint{nth}");
            program.freeze(&checkpoint);
            let mut restore = program.restoring(&checkpoint, &[]);
            restore
                .env("STASIS_DEVICE", format!("soft:{}", machine.display()))
                .env("STASIS_SOFTGPU_INSTANCE", format!("{checkpoint}-{}", program.pid()));
            succeeded(&restore.output().unwrap());
            program.goes_on("round ", 1);
        }
        program.stop(&format!("PASS {name}"));
    });
}

#[test]
fn hip_program_moves_to_machines_of_other_shapes() {
    hip_program_moves("rounds");
}

#[test]
fn times_go_on_on_machines_whose_gpus_count_otherwise() {
    hip_program_moves("moments");
}

/// A kernel with shared virtual memory.
const SVM: (&str, &str) = ("SOFTGPU_SVM", "on");

#[test]
fn shared_memory_has_the_same_cases_on_both_runtimes() {
    with_clients(|| {
        let directory = tempfile::tempdir().unwrap();
        let shared = c_program(directory.path(), "shared");
        let ours = cases(&ended(on_library(ONE).arg(&shared).arg("--hostile").env(SVM.0, SVM.1)));
        let amd = cases(&ended(on_rocr(ONE).arg(&shared).env(SVM.0, SVM.1)));
        assert!(amd.len() >= 19 && ours.len() > amd.len(), "{} and {}", ours.len(), amd.len());
        assert!(amd.iter().all(|case| ours.contains(case)));
    });
}

#[test]
fn hip_programs_share_memory_of_their_own() {
    with_clients(|| {
        for name in ["svm", "host_memory", "copies", "streams"] {
            let outcome = ended(on_library(ONE).arg(hip_program(name, "gfx1100")).env(SVM.0, SVM.1));
            let last = outcome.stdout.lines().last().unwrap_or_default();
            assert!(outcome.status.success() && last == format!("PASS {name}"), "{}", outcome.said());
        }
    });
}

#[test]
fn hip_program_that_shares_memory_of_its_own_freezes() {
    with_clients(|| {
        let mut command = on_library(ONE);
        command.arg(hip_program("managed", "gfx1100")).env(SVM.0, SVM.1);
        freezes(Program::plain(&command, &["stop"]), "managed", 5);
    });
}

#[test]
fn program_that_writes_its_ring_and_doorbell_itself_freezes() {
    let directory = tempfile::tempdir().unwrap();
    let ring = c_program(directory.path(), "ring");
    let mut command = on_library(ONE);
    command.arg(&ring);
    freezes(Program::plain(&command, &["stop"]), "ring", 6);
}
