// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that were written for AMD's driver are frozen at any instant and thawed, and compute what they would have.
//!
//! The instants are drawn with STASIS_SEED; STASIS_FOREIGN=N makes it N checkpoints of a program, STASIS_BUFFERS=N a program with N
//! buffers.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use stasis_tests::clients::{hip_program, on_device, with_clients};
use stasis_tests::foreign::{Program, bury, compare_losses, number, training, tree_of, two_below_a_shell};
use stasis_tests::gpu::Numbers;
use stasis_tests::python::{source, tinygrad};
use stasis_tests::sample::{numbers_of, setting};
use stasis_tests::worker::{open_files, refused, succeeded};

/// Checkpoints of a program unless more are asked for.
const SAMPLE: usize = 8;
/// More of them are taken until waves and calls of WAIT_EVENTS were met, up to so many times as many.
const MOST: usize = 8;

/// How many checkpoints are taken of a program.
fn wanted() -> usize {
    setting("STASIS_FOREIGN").unwrap_or(SAMPLE)
}

/// Waits a part of this time.
fn wait_some(instants: &mut Numbers, most: Duration) {
    let part = f64::from(instants.next().unwrap()) / f64::from(u32::MAX);
    sleep(most.mul_f64(part));
}

/// What was met by checkpoints.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    checkpoints: usize,
    with_waves: usize,
    with_waits: usize,
}

impl Met {
    fn add(&mut self, outcome: &Value) {
        self.checkpoints += 1;
        self.with_waves += usize::from(number(outcome, "waves_saved") > 0);
        self.with_waits += usize::from(number(outcome, "waits") > 0);
    }

    /// Whether there were enough checkpoints, and a fifth of them in the middle of kernels and of waits each.
    fn is_enough(&self, checkpoints: usize) -> bool {
        let share = checkpoints.div_ceil(5);
        self.checkpoints >= checkpoints && self.with_waves >= share && self.with_waits >= share
    }
}

/// Freezes and restores a program at instants until enough was met.
fn freeze_often(program: &mut Program, mut instants: Numbers, most: Duration) -> Met {
    let (wanted, mut met) = (wanted(), Met::default());
    while !met.is_enough(wanted) {
        assert!(met.checkpoints < wanted * MOST, "{met:?}");
        wait_some(&mut instants, most);
        met.add(&program.freeze_and_restore("images"));
    }
    println!("{met:?}");
    met
}

#[test]
fn training_frozen_at_any_instant_has_the_losses_of_one_that_was_not() {
    with_clients(|| {
        let mut program = training(1_000_000);
        // Everything is compiled then, and the same commands are given again and again.
        program.wait_lines("loss ", 2);
        freeze_often(&mut program, numbers_of(1), Duration::from_millis(600));
        compare_losses(&mut program);
    });
}

#[test]
fn kernel_without_end_is_frozen_in_its_middle_twice() {
    with_clients(|| {
        let mut program = Program::hip("spin", "soft:gfx1100");
        program.wait_lines("spinning", 1);
        for outcome in [program.freeze_and_restore("first"), program.freeze_and_restore("second")] {
            assert!(number(&outcome, "waves_saved") > 0, "{outcome}");
        }
        program.stop("PASS spin");
    });
}

#[test]
fn streams_of_kernels_and_copies_have_right_results_when_frozen_at_any_instant() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        freeze_often(&mut program, numbers_of(2), Duration::from_millis(40));
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
    });
}

#[test]
fn shared_virtual_memory_is_there_when_its_program_is_restored() {
    with_clients(|| {
        let start = |name: &str| {
            let mut command = on_device("soft:gfx1100");
            Program::start(command.env("SOFTGPU_SVM", "on").arg(hip_program(name, "gfx1100")), &["stop"])
        };
        let mut program = start("spin");
        program.wait_lines("spinning", 1);
        // The variable is not set for the commands: the device is that of the checkpoint.
        for outcome in [program.freeze_and_restore("first"), program.freeze_and_restore("second")] {
            assert!(number(&outcome, "waves_saved") > 0, "{outcome}");
        }
        program.stop("PASS spin");
        let mut program = start("rounds");
        program.wait_lines("round ", 2);
        freeze_often(&mut program, numbers_of(3), Duration::from_millis(40));
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
    });
}

#[test]
fn checkpoint_of_a_program_that_runs_on_is_restored_after_its_end() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        let output = program.checkpointing("images", &["--leave-running"]).output().unwrap();
        assert_eq!(succeeded(&output)["left_running"], true);
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
        std::fs::remove_file(program.path("stop")).unwrap();
        program.restore("images");
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
        assert_eq!(program.count("PASS"), 2, "{}", program.log());
    });
}

/// What could grow from one generation to the next.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Resident memory of the program and of its executor, KiB.
    resident: [u64; 2],
    descriptors: usize,
    memories: usize,
}

impl Used {
    fn by(program: &Program) -> Self {
        let resident = |pid: i32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let [executor] = program.executors()[..] else { panic!("{:?}", program.executors()) };
        let pid = program.pid();
        // A call of the driver has a connection as long as it lasts.
        let descriptors = (0..50).map(|_| {
            sleep(Duration::from_millis(1));
            open_files(pid).len()
        });
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        Self {
            resident: [resident(pid), resident(executor)],
            descriptors: descriptors.min().unwrap(),
            memories: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        }
    }
}

#[test]
fn ten_generations_of_a_program_use_what_the_first_did() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        let mut used = Vec::new();
        for _ in 0..10 {
            program.freeze_and_restore("images");
            program.goes_on("round ", 3);
            used.push(Used::by(&program));
        }
        println!("{used:?}");
        let (first, last) = (used[0], used[9]);
        assert_eq!(last.memories, first.memories, "{used:?}");
        // A call may be under way at every look; a leak would come to nine.
        assert!(last.descriptors <= first.descriptors + 1, "{used:?}");
        for (first, last) in first.resident.into_iter().zip(last.resident) {
            // A leak of a copy of anything would come to more, nine times.
            assert!(last < first + first / 4 + 8192, "{used:?}");
        }
        program.stop("PASS rounds");
    });
}

#[test]
fn processes_with_devices_of_their_own_are_frozen_as_one_tree() {
    with_clients(|| {
        for devices in ["soft:gfx1100", "soft:gfx1100*2"] {
            let mut program = two_below_a_shell(devices);
            // Each has had the first round.
            program.wait_lines("round 1", 2);
            for _ in 0..2 {
                let outcome = program.freeze_and_restore("images");
                assert_eq!(number(&outcome, "clients"), 2, "{outcome}");
                program.goes_on("round ", 6);
            }
            program.stop("both have ended");
            assert_eq!(program.count("PASS rounds"), 2, "{}", program.log());
        }
    });
}

#[test]
fn trees_of_two_runs_are_frozen_as_one_session_or_not_at_all() {
    with_clients(|| {
        let mut one = Program::hip("rounds", "soft:gfx1100");
        let mut two = two_below_a_shell("soft:gfx1100*2");
        one.wait_lines("round 1", 1);
        two.wait_lines("round 1", 2);
        let with = |other: &Program| ["--session".to_owned(), other.pid().to_string()];
        for name in ["first", "second"] {
            let trees: Vec<i32> =
                [&one, &two].into_iter().flat_map(|program| tree_of(program.pid())).collect();
            let session = with(&two);
            let outcome = one.checkpointing(name, &session.each_ref().map(String::as_str)).output().unwrap();
            let outcome = succeeded(&outcome);
            assert_eq!(number(&outcome, "clients"), 3, "{outcome}");
            assert_eq!(outcome["trees"].as_array().unwrap().len(), 2, "{outcome}");
            trees.into_iter().for_each(bury);
            let outcome = one.restore(name);
            assert_eq!(outcome["trees"].as_array().unwrap().len(), 2, "{outcome}");
            one.goes_on("round ", 3);
            two.goes_on("round ", 6);
        }
        // Copies of both, while the originals run.
        let session = [&with(&two)[..], &["--leave-running".to_owned()]].concat();
        let arguments: Vec<&str> = session.iter().map(String::as_str).collect();
        succeeded(&one.checkpointing("left", &arguments).output().unwrap());
        let mut copies = one.restoring("left", &["--beside"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(copies.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.next().is_some_and(|outcome| outcome.contains("waves_restored")));
        // A file without a name, of more bytes than CRIU takes along: CRIU fails for this tree only.
        let mut command = on_device("soft:gfx1100");
        let script = "head -c 2000000 /dev/zero > \"$1-file\"; exec 9< \"$1-file\"; rm \"$1-file\"; exec \"$0\" \"$1\"";
        command.args(["sh", "-c", script]).arg(hip_program("rounds", "gfx1100"));
        let mut third = Program::start(&command, &["stop"]);
        third.wait_lines("round ", 2);
        let session = [&with(&third)[..], &["--no-preflight".to_owned()]].concat();
        let arguments: Vec<&str> = session.iter().map(String::as_str).collect();
        let error = refused(&one.checkpointing("third", &arguments).output().unwrap());
        let all = format!("Processes {}, {} were not checkpointed; they go on", one.pid(), third.pid());
        assert!(error.contains(&all) && error.contains("ghost"), "{error}");
        third.goes_on("round ", 3);
        third.stop("PASS rounds");
        one.goes_on("round ", 6);
        two.goes_on("round ", 12);
        fs::write(two.path("stop"), "").unwrap();
        one.stop("PASS rounds");
        two.stop("both have ended");
        assert!(copies.wait().unwrap().success());
        assert_eq!((one.count("PASS"), two.count("PASS"), two.count("both")), (2, 4, 2), "{}", two.log());
    });
}

#[test]
fn one_run_has_one_tree_of_a_session() {
    with_clients(|| {
        let mut program = two_below_a_shell("soft:gfx1100");
        program.wait_lines("round 1", 2);
        let below = tree_of(program.pid());
        let [_, one, other] = below[..] else { panic!("{below:?}") };
        let directory = program.path("images");
        let [one, other] = [one, other].map(|pid| pid.to_string());
        let words = ["checkpoint", &one, directory.to_str().unwrap(), "--session", &other];
        let error = refused(&program.command(&words).output().unwrap());
        assert!(error.contains("belong to one `stasis run`"), "{error}");
        let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
        let other = sleep.id().to_string();
        let words = ["checkpoint", &one, directory.to_str().unwrap(), "--session", &other];
        let error = refused(&program.command(&words).output().unwrap());
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        assert!(error.contains(&format!("process {other} has none")), "{error}");
        program.stop("both have ended");
    });
}

/// Workers of a run of pytest.
const WORKERS: usize = 4;

#[test]
fn pytest_with_four_workers_is_frozen_as_one_tree() {
    with_clients(|| {
        // pytest leaves its directory when it distributes tests over processes.
        let temporary = tempfile::tempdir().unwrap();
        let mut command = tinygrad("soft:gfx1100");
        command.env("PYTEST_DEBUG_TEMPROOT", temporary.path());
        command.args(["-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", &WORKERS.to_string()]);
        command.args(["test_elementwise.py", "test_memory.py"].map(|file| source("tinygrad").join(file)));
        let mut program = Program::start(&command, &[]);
        program.wait_lines("[gw", 10);
        for _ in 0..3 {
            let outcome = program.freeze_and_restore("images");
            assert_eq!(number(&outcome, "clients"), WORKERS as u64, "{outcome}");
            program.goes_on("[gw", 5);
        }
        let (status, log) = (program.status(), program.log());
        assert!(status.success() && log.contains(" passed in ") && !log.contains("failed"), "{log}");
        program.leaves_nothing();
    });
}

#[test]
fn program_that_a_restored_shell_starts_has_a_device() {
    with_clients(|| {
        let mut command = on_device("soft:gfx1100");
        command
            .args(["sh", "-c", "\"$0\" \"$1-first\"; sleep 0.5; exec \"$0\" \"$1\""])
            .arg(hip_program("rounds", "gfx1100"));
        let mut program = Program::start(&command, &["stop"]);
        program.wait_lines("round 1", 1);
        program.freeze_and_restore("images");
        program.goes_on("round ", 1);
        fs::write(program.path("stop-first"), "").unwrap();
        program.wait_lines("PASS rounds", 1);
        program.goes_on("round ", 2);
        program.freeze_and_restore("images");
        program.goes_on("round ", 1);
        let log = program.stop("PASS rounds");
        assert_eq!(log.matches("PASS rounds").count(), 2, "{log}");
    });
}

#[test]
fn copy_beside_its_original_has_a_directory_of_its_own() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round 1", 1);
        succeeded(&program.checkpointing("images", &["--leave-running"]).output().unwrap());
        let directories = || fs::read_dir(program.path("runtime")).unwrap().count();
        let mut copy = program.restoring("images", &["--beside"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(copy.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.next().is_some_and(|outcome| outcome.contains("waves_restored")));
        assert_eq!(directories(), 1);
        program.goes_on("round ", 4);
        program.stop("PASS rounds");
        assert!(said.next().is_some_and(|end| end.starts_with("The copy ended")));
        assert!(copy.wait().unwrap().success());
        assert_eq!(program.log().matches("PASS rounds").count(), 2, "{}", program.log());
    });
}

#[test]
fn half_a_directory_that_a_killed_restore_has_left_is_made_again() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round 1", 1);
        let directories =
            || fs::read_dir(program.path("runtime")).unwrap().map(|entry| entry.unwrap().path());
        let directory = directories().next().unwrap();
        program.freeze("images");
        assert!(!directory.exists());
        fs::create_dir_all(directory.join("machine/sys")).unwrap();
        program.restore("images");
        assert!(
            directory.join("machine/sys/devices").exists() || directory.join("machine/sys/class").exists()
        );
        program.goes_on("round ", 2);
        program.stop("PASS rounds");
    });
}

/// The bytes of memory in each place, as `stasis inspect` says.
fn places(program: &Program, name: &str) -> HashMap<String, u64> {
    let directory = program.path(name);
    let arguments = ["inspect", "--json", directory.to_str().unwrap()];
    let inspected = succeeded(&program.command(&arguments).output().unwrap());
    let mut bytes = HashMap::new();
    for sum in inspected["devices"]["sums"].as_array().unwrap() {
        *bytes.entry(sum["place"].as_str().unwrap().to_owned()).or_default() += number(sum, "bytes");
    }
    bytes
}

#[test]
fn large_memory_is_stored_beside_criu_unless_criu_is_to_carry_it() {
    with_clients(|| {
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        for (options, is_beside) in [(&[][..], true), (&["--self-contained"][..], false)] {
            let outcome = program.freeze_with("images", options);
            let found = places(&program, "images");
            let beside = found.get("beside").copied().unwrap_or(0);
            assert_eq!(beside > 1 << 20, is_beside, "{found:?}");
            assert_eq!(number(&outcome, "stored_bytes") > 1 << 16, is_beside, "{outcome}");
            program.restore("images");
            program.goes_on("round ", 3);
            fs::remove_dir_all(program.path("images")).unwrap();
        }
        program.stop("PASS rounds");
    });
}

#[test]
fn mapped_memory_that_the_device_has_no_longer_is_carried_along() {
    let client = stasis_tests::program("kept-memory");
    let mut program = Program::start(on_device("soft:gfx1100").arg(client), &["stop"]);
    program.wait_lines("kept", 1);
    program.freeze("images");
    let found = places(&program, "images");
    assert!(found.get("beside").is_some_and(|bytes| *bytes >= 4 << 20), "{found:?}");
    program.restore("images");
    program.stop("PASS kept");
}

/// Executes a command without the descriptors above 2: one of another mount namespace CRIU would refuse.
const WITHOUT_DESCRIPTORS: &str = r#"for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || eval "exec $fd>&-"
done
exec "$@""#;

#[test]
fn program_is_restored_where_the_leader_of_the_session_is_outside_of_the_pid_namespace() {
    let test = "foreign::kernel_without_end_is_frozen_in_its_middle_twice";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "bash", "-c", WITHOUT_DESCRIPTORS, "bash"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn program_with_thousands_of_buffers_is_frozen() {
    with_clients(|| {
        let count = setting("STASIS_BUFFERS").unwrap_or(1000_u32).to_string();
        for kind in ["device", "host"] {
            let mut command = on_device("soft:gfx1100");
            command.arg(hip_program("many", "gfx1100")).args([kind, &count]);
            let mut program = Program::start(&command, &["stop"]);
            program.wait_lines("ready", 1);
            for _ in 0..2 {
                let outcome = program.freeze_and_restore("images");
                println!("{kind}: {outcome}");
            }
            program.stop("PASS many");
        }
    });
}
