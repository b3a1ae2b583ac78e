// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMD's HIP, ROCr and rocminfo, as distributions have them, on the software device by `stasis run`: what they compute,
//! what they find out about the machine, and how their ends pass through.
//!
//! The programs are in `tests/clients/hip`. Each compares what the device computed with its own computation, and prints
//! `PASS` as its last line.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use stasis_tests::clients::{Outcome, Run, hip_program, rocm_5_2, rocm_6_1, run, with_clients};
use stasis_tests::program;

/// One 7900 XTX.
const ONE: &str = "soft:gfx1100";

fn hip(devices: &str, name: &str, arguments: &[&str]) -> Outcome {
    let compiled = hip_program(name, "gfx1100");
    run(devices, &[&[compiled.to_str().unwrap()], arguments].concat())
}

/// Runs a program that checks its own results.
fn passes(devices: &str, name: &str) -> Outcome {
    let outcome = hip(devices, name, &[]);
    has_passed(name, &outcome);
    outcome
}

/// Checks that a program says that it passed, and that its device executed something.
fn has_passed(name: &str, outcome: &Outcome) {
    let last = outcome.stdout.lines().last().unwrap_or_default();
    assert_eq!(last, format!("PASS {name}"), "{}\n{}{}", outcome.status, outcome.stdout, outcome.stderr);
    outcome.computed();
    assert_eq!(outcome.complaints(), [""; 0]);
}

#[test]
fn vectors_are_added() {
    with_clients(|| passes(ONE, "vector_add"));
}

#[test]
fn waves_and_groups_reduce() {
    with_clients(|| passes(ONE, "reduction"));
}

#[test]
fn matrices_are_multiplied_by_tiles_in_lds() {
    with_clients(|| passes(ONE, "matmul"));
}

#[test]
fn atomics_of_every_width_in_every_memory() {
    with_clients(|| passes(ONE, "atomics"));
}

#[test]
fn streams_and_events_keep_their_order_and_tell_times() {
    with_clients(|| passes(ONE, "streams"));
}

#[test]
fn copies_and_fills_write_what_they_should_and_no_more() {
    with_clients(|| {
        let outcome = passes(ONE, "copies");
        assert!(outcome.count("copied_bytes") > 0, "{}", outcome.stderr);
    });
}

#[test]
fn managed_pinned_and_registered_memory_is_used_in_place() {
    with_clients(|| passes(ONE, "host_memory"));
}

#[test]
fn recursion_and_large_arrays_have_scratch() {
    with_clients(|| passes(ONE, "recursion"));
}

#[test]
fn graphs_run_as_captured_and_as_built() {
    with_clients(|| passes(ONE, "graph"));
}

#[test]
fn two_devices_reach_each_other() {
    with_clients(|| passes("soft:gfx1100*2", "peers"));
}

#[test]
fn errors_are_hips_and_work_goes_on() {
    with_clients(|| passes(ONE, "errors"));
}

#[test]
fn occupancy_is_computed_from_the_machine() {
    with_clients(|| passes(ONE, "occupancy"));
}

#[test]
fn threads_share_the_device() {
    with_clients(|| passes(ONE, "threads"));
}

#[test]
fn forked_child_has_no_file_of_its_parents_and_may_have_its_own() {
    with_clients(|| {
        let outcome = passes(ONE, "forks");
        assert!(outcome.stdout.lines().any(|line| line == "PASS child"), "{}", outcome.stdout);
        // The parent, the child that opened a file, the child that executed a program.
        assert_eq!(outcome.count("processes"), 3);
    });
}

#[test]
fn child_has_copies_of_registered_memory() {
    with_clients(|| passes(ONE, "fork_memory"));
}

#[test]
fn programs_without_userfaultfd_have_their_doorbells_noticed_and_their_memory_registered() {
    with_clients(|| {
        let launcher = program("without-userfaultfd");
        for name in ["vector_add", "streams", "threads", "host_memory", "fork_memory"] {
            let compiled = hip_program(name, "gfx1100");
            let outcome = run(ONE, &[launcher.to_str().unwrap(), compiled.to_str().unwrap()]);
            has_passed(name, &outcome);
        }
    });
}

#[test]
fn printf_of_kernels_arrives() {
    with_clients(|| {
        let outcome = passes(ONE, "printf");
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        let (formats, others) = lines.split_at(14);
        let digits = "0123456789".repeat(7);
        let long = format!(
            "a string of more than the seven doublewords that one packet of the host call carries: {digits}, and 42"
        );
        let wanted = [
            "d 42 -42 +42 00042 42    |  42",
            "u 3000000000 beef BEEF 0xff 10 010",
            "l -5000000000 5000000000 123456789ab -9223372036854775808 ffffffffffffffff 77",
            "h -3 -4 65535",
            "f 3.141590 3.14      3.142 3.1       | +3",
            "e 3.141590e+00 3.142E+00 3.14159 3.14159E+10 0x1p+0",
            "c abq     z|",
            "s hello   hello hello  | he|      hello",
            "star     42 42    | 3.142",
            "special inf -inf nan",
            "percent % and nothing",
            "pointer 0x1234",
            "many 1 2 3 4 5 6 7 8 9 10 11 12",
            &long,
        ];
        assert_eq!(formats, wanted);
        // Of two thirds of the lanes, in any order of the waves.
        let names = ["zero", "one", "two", "three"];
        let all = (0..6).flat_map(|block| (0..48).map(move |lane| (block, lane)));
        let said = all.filter(|(_, lane)| lane % 3 != 1);
        let mut wanted: Vec<String> = said
            .map(|(block, lane)| format!("block {block:02} lane {lane:02} {}", names[lane % 4]))
            .chain((1000..1003).map(|number| number.to_string()))
            .collect();
        let mut found = others[..others.len() - 1].to_vec();
        wanted.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, wanted);
    });
}

#[test]
fn assertion_of_a_kernel_prints_and_aborts() {
    with_clients(|| {
        let outcome = hip(ONE, "assertion", &[]);
        assert_eq!(outcome.code(), 128 + Signal::SIGABRT as i32, "{}", outcome.stderr);
        assert_eq!(outcome.stdout, "one holds\n");
        // Three of the eight lanes.
        let said = outcome.stderr.matches("Device-side assertion `n < 0 || threadIdx.x < 5' failed.").count();
        assert_eq!(said, 3, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("HSA_STATUS_ERROR_EXCEPTION"), "{}", outcome.stderr);
    });
}

#[test]
fn fault_of_a_kernel_is_reported_with_its_address_and_aborts() {
    with_clients(|| {
        let outcome = hip(ONE, "fault", &[]);
        assert_eq!(outcome.code(), 128 + Signal::SIGABRT as i32, "{}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
        assert!(outcome.stderr.contains("Memory access fault by GPU node-1"), "{}", outcome.stderr);
        let reason = "on address 0x7000. Reason: Page not present or supervisor privilege.";
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    });
}

#[test]
fn registered_memory_that_has_lost_pages_faults_and_other_memory_stays() {
    with_clients(|| {
        for page in ["5", "2"] {
            let outcome = hip(ONE, "unmapped", &[page]);
            assert_eq!(outcome.code(), 128 + Signal::SIGABRT as i32, "{}", outcome.said());
            let gone = outcome.stdout.strip_prefix("gone: ").and_then(|line| line.strip_suffix('\n'));
            let gone = gone.unwrap_or_else(|| panic!("{}", outcome.stdout));
            let reason = format!("on address {gone}. Reason: Page not present or supervisor privilege.");
            assert!(outcome.stderr.contains(&reason), "{gone}: {}", outcome.stderr);
        }
    });
}

#[test]
fn exit_code_passes_through_while_a_kernel_runs() {
    with_clients(|| assert_eq!(hip(ONE, "ends", &["exit"]).code(), 7));
}

#[test]
fn crash_passes_through_while_a_kernel_runs() {
    with_clients(|| assert_eq!(hip(ONE, "ends", &["crash"]).code(), 128 + Signal::SIGSEGV as i32));
}

#[test]
fn signal_to_stasis_run_reaches_the_program_while_a_kernel_runs() {
    with_clients(|| {
        let compiled = hip_program("ends", "gfx1100");
        let mut run = Run::start(ONE, &[compiled.to_str().unwrap(), "wait"]);
        run.wait_line("running");
        run.signal(Signal::SIGTERM);
        let outcome = run.finish();
        assert_eq!(outcome.code(), 128 + Signal::SIGTERM as i32, "{}", outcome.stderr);
        assert!(outcome.count("dispatches") > 0);
    });
}

#[test]
fn device_ends_with_a_stasis_run_that_is_killed() {
    with_clients(|| {
        let compiled = hip_program("ends", "gfx1100");
        // The shell is the program of the run: it ends its own child when nobody else does.
        let script = format!("{} wait & trap 'kill -9 $!; exit' TERM; wait", compiled.display());
        let mut run = Run::start(ONE, &["sh", "-c", &script]);
        run.wait_line("running");
        let shell = run.children().pop().expect("the program of the run");
        run.signal(Signal::SIGKILL);
        nix::sys::signal::kill(shell, Signal::SIGTERM).unwrap();
        assert_eq!(run.finish().code(), 128 + Signal::SIGKILL as i32);
    });
}

#[test]
fn wrong_device_is_named_and_nothing_is_run() {
    for devices in ["soft:gfx4711", "soft:gfx1100*0", "soft:/no/such/file.toml", "kfd", "potato"] {
        let outcome = run(devices, &["echo", "it ran"]);
        assert_ne!(outcome.code(), 0, "{devices}");
        assert_eq!(outcome.stdout, "", "{devices}");
        let name = devices.trim_start_matches("soft:");
        assert!(outcome.stderr.lines().next().is_some_and(|line| line.contains(name)), "{}", outcome.stderr);
    }
}

#[test]
fn kernel_of_a_chip_that_is_not_executed_is_one_line_beside_the_programs_own_error() {
    with_clients(|| {
        let compiled = hip_program("vector_add", "gfx90a");
        let outcome = run("soft:gfx90a", &[compiled.to_str().unwrap()]);
        assert_eq!(outcome.code(), 128 + Signal::SIGABRT as i32, "{}", outcome.stderr);
        // HIP's own, which blames the packet.
        assert!(outcome.stderr.contains("HSA_STATUS_ERROR_INVALID_PACKET_FORMAT"), "{}", outcome.stderr);
        let [complaint] = outcome.complaints()[..] else { panic!("{}", outcome.stderr) };
        assert!(
            complaint.contains("GPU 0 is a gfx90a") && complaint.contains("--device soft:gfx1100"),
            "{complaint}"
        );
        assert!(!outcome.stdout.contains("PASS"), "{}", outcome.stdout);
    });
}

/// The values of a file of lines `name value`.
fn properties(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap();
    let words = text.lines().filter_map(|line| line.split_once(' '));
    words.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect()
}

/// The properties of what a directory numbers.
fn all_properties(directory: &Path) -> Vec<BTreeMap<String, u64>> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| properties(&entry.unwrap().path().join("properties")))
        .collect()
}

/// What rocminfo says of each agent: the values of its lines, the sizes of its pools among them.
fn agents(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut agents = Vec::new();
    for block in text.split("*******                  \nAgent ").skip(1) {
        let (mut agent, mut segment) = (BTreeMap::new(), String::new());
        for line in block.lines() {
            let Some((name, value)) = line.trim().split_once(':') else { continue };
            let (name, value) = (name.trim(), value.trim().trim_start_matches(':').trim());
            match name {
                "Segment" => segment = value.split(';').next().unwrap().to_owned(),
                "Size" => drop(agent.entry(format!("{segment} pool")).or_insert(value.to_owned())),
                // The first is the agent's, later ones are those of pools and ISAs.
                _ => drop(agent.entry(name.to_owned()).or_insert(value.to_owned())),
            }
        }
        agents.push(agent);
    }
    agents
}

/// The name that compilers have for `gfx_target_version` (`kfd_topology.c`): two decimal digits each for major, minor and
/// stepping number.
fn target_name(version: u64) -> String {
    format!("gfx{}{}{:x}", version / 10000, version / 100 % 100, version % 100)
}

/// The first number of a value such as `64(0x40) KB`.
fn number(value: &str) -> u64 {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    value[..digits].parse().unwrap_or_else(|_| panic!("{value:?} is no number"))
}

/// Runs rocminfo and compares what it says of each GPU with the files of the same machine.
fn rocminfo_agrees(rocm: &Path, devices: &str, gpus: usize) {
    let outcome = run(devices, &[rocm.join("bin/rocminfo").to_str().unwrap()]);
    assert!(outcome.status.success(), "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("*** Done ***"), "{}", outcome.stdout);
    assert!(outcome.count("ioctls") > 0, "{}", outcome.stderr);
    let tree = tempfile::tempdir().unwrap();
    let mut softgpud = Command::new(program("softgpud"));
    softgpud.args(["tree", "--devices", devices.strip_prefix("soft:").unwrap()]).arg(tree.path());
    assert!(softgpud.status().unwrap().success());
    let nodes = tree.path().join("sys/devices/virtual/kfd/kfd/topology/nodes");
    let agents = agents(&outcome.stdout);
    let found = agents.iter().filter(|agent| agent["Device Type"] == "GPU").count();
    assert_eq!((agents.len(), found), (gpus + 1, gpus), "{}", outcome.stdout);
    for (number_of_node, agent) in agents.iter().enumerate() {
        let node = nodes.join(number_of_node.to_string());
        let is = properties(&node.join("properties"));
        let value = |name: &str| number(&agent[name]);
        assert_eq!(value("Node"), number_of_node as u64);
        assert_eq!(value("Internal Node ID"), number_of_node as u64);
        let banks = all_properties(&node.join("mem_banks"));
        let memory: u64 = banks.iter().map(|bank| bank["size_in_bytes"]).sum();
        assert_eq!(value("GLOBAL pool"), memory / 1024, "{agent:?}");
        if is["simd_count"] == 0 {
            assert_eq!(agent["Device Type"], "CPU");
            assert_eq!(value("Compute Unit"), is["cpu_cores_count"]);
            continue;
        }
        assert_eq!(agent["Name"], target_name(is["gfx_target_version"]));
        assert_eq!(agent["Uuid"], format!("GPU-{:016x}", is["unique_id"]));
        assert_eq!(value("Compute Unit"), is["simd_count"] / is["simd_per_cu"]);
        assert_eq!(value("SIMDs per CU"), is["simd_per_cu"]);
        assert_eq!(value("Wavefront Size"), is["wave_front_size"]);
        assert_eq!(value("GROUP pool"), is["lds_size_in_kb"]);
        assert_eq!(value("Max Clock Freq. (MHz)"), is["max_engine_clk_fcompute"]);
        assert_eq!(value("Chip ID"), is["device_id"]);
        assert_eq!(value("BDFID"), is["location_id"]);
        assert_eq!(value("Shader Arrs. per Eng."), is["simd_arrays_per_engine"]);
        assert_eq!(value("Shader Engines"), is["array_count"] / is["simd_arrays_per_engine"]);
        assert_eq!(value("Max Waves Per CU"), is["max_waves_per_simd"] * is["simd_per_cu"]);
        // The caches of data, of which ROCr shows one a level (`kfd_crat.h`: data 1, of compute units 8).
        let caches = all_properties(&node.join("caches"));
        for level in 1..=3 {
            let sizes = caches.iter().filter(|cache| cache["level"] == level && cache["type"] & 9 == 9);
            let sizes: Vec<u64> = sizes.map(|cache| cache["size"]).collect();
            let shown = agent.get(&format!("L{level}")).map(|value| number(value));
            assert_eq!(shown.is_none(), sizes.is_empty(), "level {level}: {agent:?}");
            assert!(shown.is_none_or(|size| sizes.contains(&size)), "level {level}: {shown:?}, {sizes:?}");
        }
    }
}

#[test]
fn rocminfo_6_1_sees_the_machine() {
    with_clients(|| rocminfo_agrees(&rocm_6_1(), ONE, 1));
}

#[test]
fn rocminfo_6_1_sees_a_machine_of_four() {
    with_clients(|| rocminfo_agrees(&rocm_6_1(), "soft:gfx1100*4", 4));
}

#[test]
fn rocminfo_5_2_sees_the_machine() {
    with_clients(|| rocminfo_agrees(&rocm_5_2(), "soft:gfx90a", 1));
}

#[test]
fn rocminfo_5_2_sees_a_machine_of_two() {
    with_clients(|| rocminfo_agrees(&rocm_5_2(), "soft:gfx90a*2", 2));
}
