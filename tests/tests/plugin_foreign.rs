// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain `criu dump` and `criu restore`, with the plugin, of programs under `stasis run`, which know nothing of it.
//!
//! The instants are drawn with STASIS_SEED; STASIS_FOREIGN=N makes it N dumps of a program.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use stasis_criu_foreign::{ForeignError, Programs, Run, start};
use stasis_tests::clients::{on_device, with_clients};
use stasis_tests::criu;
use stasis_tests::foreign::{Program, bury, compare_losses, training, tree_of, two_below_a_shell};
use stasis_tests::plain_criu::{Outcome, Plugins, at_post_dump, dump_command, run};
use stasis_tests::sample::{numbers_of, setting};
use stasis_tests::worker::{kill, wait_until};

/// What CRIU has to be told of a program that leads no session.
const IN_A_SESSION: &str = "--shell-job";

/// How many dumps are made of a program; `usual` unless more are asked for.
fn wanted(usual: usize) -> usize {
    setting("STASIS_FOREIGN").unwrap_or(usual)
}

/// `criu dump` of a program, or of the tree below another process of its run.
fn dump(program: &Program, pid: i32, name: &str, plugins: &Plugins, more: &[&str]) -> Outcome {
    let images = program.path(name);
    let mut command = dump_command(pid, &images, plugins);
    program.surround(&mut command);
    run(command.args([IN_A_SESSION, "--file-locks"]).args(more), &images.join("dump.log"))
}

/// `criu restore`.
fn restore(program: &Program, name: &str, plugins: &Plugins) -> Outcome {
    let images = program.path(name);
    // CRIU puts the tasks into its own session, which may have its leader outside of this pid namespace.
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(criu());
    command.args(["restore", "-v4", "-o", "restore.log", "-d", IN_A_SESSION, "--file-locks", "-D"]);
    command.arg(&images).arg("-L").arg(plugins.path());
    program.surround(&mut command);
    run(&mut command, &images.join("restore.log"))
}

/// Freezes a program, and waits until nothing of it is left.
fn freeze(program: &mut Program, name: &str, plugins: &Plugins) -> Outcome {
    let tree = tree_of(program.pid());
    let outcome = dump(program, program.pid(), name, plugins, &[]);
    outcome.succeeded();
    tree.into_iter().for_each(bury);
    program.wait_run();
    outcome
}

#[test]
fn program_is_dumped_in_the_middle_of_kernels_and_restored_by_criu_alone() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        // The third dump goes into the directory of the first, over its files.
        for (name, instant) in ["first", "second"].into_iter().cycle().zip(numbers_of(3)).take(wanted(3)) {
            sleep(Duration::from_millis(u64::from(instant % 40)));
            let outcome = freeze(&mut program, name, &plugins);
            assert!(outcome.log.contains("the devices of 1 processes are paused"), "{}", outcome.log);
            restore(&program, name, &plugins).succeeded();
            program.goes_on("round ", 3);
        }
        program.stop("PASS rounds");
    });
}

/// Waits for the end of a restored `stasis run`.
fn status(pid: i32) -> WaitStatus {
    let mut found = None;
    wait_until("the end of the run", || {
        found = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)).ok();
        !matches!(found, Some(WaitStatus::StillAlive))
    });
    found.expect("a child of this process")
}

#[test]
fn whole_run_is_dumped_with_its_softgpud_outside() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        let run = program.run_pid();
        for name in ["left", "again"] {
            let outcome = dump(&program, run, name, &plugins, &["--leave-running"]);
            outcome.succeeded();
            program.goes_on("round ", 3);
        }
        for name in ["first", "second"] {
            let tree = tree_of(run);
            dump(&program, run, name, &plugins, &[]).succeeded();
            tree.into_iter().for_each(bury);
            // Also the softgpud that was killed: no number of its session is free before.
            while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|ended| ended != WaitStatus::StillAlive)
            {
            }
            restore(&program, name, &plugins).succeeded();
            program.goes_on("round ", 3);
        }
        fs::write(program.path("stop"), "").unwrap();
        assert_eq!(status(run), WaitStatus::Exited(Pid::from_raw(run), 0), "{}", program.log());
        assert_eq!(program.count("PASS rounds"), 1, "{}", program.log());
        program.leaves_nothing();
    });
}

#[test]
fn training_frozen_by_criu_alone_has_the_losses_of_one_that_was_not() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = training(1_000_000);
        program.wait_lines("loss ", 2);
        let mut waves = 0;
        for instant in numbers_of(1).take(wanted(4)) {
            sleep(Duration::from_millis(u64::from(instant % 600)));
            let log = freeze(&mut program, "images", &plugins).log;
            waves += usize::from(!log.contains(" 0 waves in kernels"));
            restore(&program, "images", &plugins).succeeded();
        }
        assert!(waves > 0, "no kernel was in its middle");
        compare_losses(&mut program);
    });
}

#[test]
fn tree_of_two_clients_is_dumped_below_a_shell() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = two_below_a_shell("soft:gfx1100*2");
        program.wait_lines("round 1", 2);
        for _ in 0..2 {
            let outcome = freeze(&mut program, "images", &plugins);
            assert!(outcome.log.contains("the devices of 2 processes are paused"), "{}", outcome.log);
            restore(&program, "images", &plugins).succeeded();
            program.goes_on("round ", 6);
        }
        // What was restored is frozen by the command as any other program.
        program.freeze_and_restore("of-the-command");
        program.goes_on("round ", 6);
        program.stop("both have ended");
    });
}

#[test]
fn images_of_a_program_that_runs_on_are_restored_after_its_end_and_not_before() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        dump(&program, program.pid(), "images", &plugins, &["--leave-running"]).succeeded();
        program.goes_on("round ", 3);
        let error = restore(&program, "images", &plugins).refused();
        assert!(
            error.contains("A softgpud serves the run") && error.contains("Nothing was restored"),
            "{error}"
        );
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
        fs::remove_file(program.path("stop")).unwrap();
        restore(&program, "images", &plugins).succeeded();
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
        assert_eq!(program.count("PASS"), 2, "{}", program.log());
    });
}

#[test]
fn program_whose_dump_fails_or_whose_criu_is_killed_runs_on() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        let veto = at_post_dump(&program.path(""), "exit 3");
        let veto = ["--action-script", veto.to_str().unwrap()];
        assert!(!dump(&program, program.pid(), "images", &plugins, &veto).output.status.success());
        program.goes_on("round ", 3);
        // CRIU waits in its script, with all tasks frozen and their devices saved, when it is killed.
        let waits = at_post_dump(
            &program.path(""),
            "touch \"${0%action}saved\"; while kill -0 $PPID; do sleep 0.01; done",
        );
        let mut command = dump_command(program.pid(), &program.path("killed"), &plugins);
        command.args([IN_A_SESSION, "--file-locks", "--action-script"]).arg(waits);
        program.surround(&mut command);
        let mut criu = command.spawn().unwrap();
        wait_until("the end of the images", || program.path("saved").exists());
        assert!(program.path("killed/foreign.json").exists());
        let lines = program.count("round ");
        criu.kill().unwrap();
        criu.wait().unwrap();
        program.goes_on("round ", 3);
        assert!(program.count("round ") > lines);
        program.wait_commands();
        // Those images are whole, and the program is not what they say any more; it can be frozen again.
        freeze(&mut program, "images", &plugins);
        restore(&program, "images", &plugins).succeeded();
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
    });
}

/// The marker's text, with the hash of this file as it is now.
fn mark(program: &Program, name: &str) {
    let path = program.path("images/stasis.json");
    let mut marker: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let bytes = fs::read(program.path("images").join(name)).unwrap();
    let files = marker["devices"].as_array_mut().unwrap();
    let file = files.iter_mut().find(|file| file["name"] == name).unwrap();
    file["bytes"] = bytes.len().into();
    file["hash"] = blake3::hash(&bytes).to_hex().to_string().into();
    fs::write(path, marker.to_string()).unwrap();
}

#[test]
fn images_that_are_not_what_was_written_are_refused_and_can_be_mended() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        freeze(&mut program, "images", &plugins);
        let state = format!("device-{}.state", program.pid());
        let files = ["foreign.json", "foreign-memory.bin", &state, "stasis.json"];
        for (name, place) in files.iter().flat_map(|name| numbers_of(2).take(3).map(move |n| (name, n))) {
            let path = program.path("images").join(name);
            let whole = fs::read(&path).unwrap();
            let mut wrong = whole.clone();
            let place = place as usize % whole.len();
            wrong[place] ^= 1 << (place % 8);
            fs::write(&path, wrong).unwrap();
            let error = restore(&program, "images", &plugins).refused();
            assert!(!program.is_alive(), "{name} {place}: {error}");
            fs::remove_file(&path).unwrap();
            let error = restore(&program, "images", &plugins).refused();
            assert!(error.contains(name) && !program.is_alive(), "{error}");
            fs::write(&path, whole).unwrap();
        }
        program.leaves_nothing();
        let without = restore(&program, "images", &Plugins::none());
        assert!(!without.output.status.success() && without.log.contains("stasis"), "{}", without.log);
        assert!(!program.is_alive());
        // What is found out only when the tasks are there: they are ended.
        let (path, marker) = (program.path("images/foreign.json"), program.path("images/stasis.json"));
        let (whole, marked) = (fs::read_to_string(&path).unwrap(), fs::read(&marker).unwrap());
        let mut description: Value = serde_json::from_str(&whole).unwrap();
        description["memories"].as_array_mut().unwrap().clear();
        fs::write(&path, description.to_string()).unwrap();
        mark(&program, "foreign.json");
        let error = restore(&program, "images", &plugins).refused();
        assert!(error.contains("is not described") && error.contains("the processes are ended"), "{error}");
        wait_until("the end of the tasks", || !program.is_alive());
        bury(program.pid());
        program.leaves_nothing();
        // Another machine is refused before.
        fs::write(&path, whole.replace("\"gfx1100\"", "\"gfx9999\"")).unwrap();
        mark(&program, "foreign.json");
        let error = restore(&program, "images", &plugins).refused();
        assert!(error.contains("gfx9999") && error.contains("Nothing was restored"), "{error}");
        program.leaves_nothing();
        fs::write(path, whole).unwrap();
        fs::write(marker, marked).unwrap();
        restore(&program, "images", &plugins).succeeded();
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
    });
}

#[test]
fn program_whose_softgpud_is_gone_is_refused_by_name_and_an_earlier_dump_stays() {
    with_clients(|| {
        let plugins = Plugins::ours();
        let mut program = Program::hip("rounds", "soft:gfx1100");
        program.wait_lines("round ", 2);
        dump(&program, program.pid(), "images", &plugins, &["--leave-running"]).succeeded();
        program.goes_on("round ", 1);
        program.devices().into_iter().for_each(kill);
        let error = dump(&program, program.pid(), "images", &plugins, &[]).refused();
        assert!(error.contains("whose executor has ended"), "{error}");
        kill(program.pid());
        program.wait_run();
        // No softgpud was left to remove the run's directory.
        fs::remove_dir_all(program.path("runtime")).unwrap();
        fs::create_dir(program.path("runtime")).unwrap();
        restore(&program, "images", &plugins).succeeded();
        program.goes_on("round ", 3);
        program.stop("PASS rounds");
    });
}

#[test]
fn softgpud_of_another_user_stays_for_a_process_of_root() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let own = directory.path().join("stasis-run-x");
    let run = Run {
        socket: format!("stasis-test.{}", std::process::id()),
        directory: own.join("machine").to_str().unwrap().to_owned(),
        devices: "gfx1100".to_owned(),
    };
    let [softgpud, library] = ["softgpud", "libstasis_kfd.so"].map(stasis_tests::program);
    let programs = Programs { softgpud, library, owner: (NOBODY, NOBODY), joined: false };
    let mut broker = start(&run, &programs).unwrap();
    broker.stay(std::process::id().cast_signed()).unwrap();
    assert!(broker.clients().unwrap().is_empty());
    let softgpud = broker.pid();
    for path in [own.clone(), own.join("machine"), format!("/proc/{softgpud}").into()] {
        assert_eq!(fs::metadata(&path).unwrap().uid(), NOBODY, "{}", path.display());
    }
    assert!(own.join("libstasis_kfd.so").exists());
    assert!(matches!(start(&run, &programs), Err(ForeignError::Served { .. })));
    kill(softgpud);
}

#[test]
fn program_of_another_user_gets_a_softgpud_of_that_user() {
    const NOBODY: u32 = 65_534;
    let plugins = Plugins::ours();
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    let run = on_device("soft:gfx1100");
    command.arg(run.get_program()).args(run.get_args()).arg(stasis_tests::program("counter-worker"));
    run.get_envs().for_each(|(name, value)| {
        value.map(|value| command.env(name, value));
    });
    let mut program = Program::of_user(NOBODY, command.arg("--until"), &["stop"]);
    program.wait_lines("round ", 2);
    let outcome = dump(&program, program.pid(), "images", &plugins, &[]);
    if outcome.log.contains("Can't get rlimit") {
        // A root without CAP_SYS_RESOURCE may not read the limits of others: CRIU gives up, and the program runs on.
        program.goes_on("round ", 2);
        program.stop("done");
        return;
    }
    outcome.succeeded();
    bury(program.pid());
    program.wait_run();
    restore(&program, "images", &plugins).succeeded();
    let owners = program.devices().into_iter().map(|pid| fs::metadata(format!("/proc/{pid}")).unwrap().uid());
    assert_eq!(owners.collect::<Vec<_>>(), [NOBODY; 2]);
    program.goes_on("round ", 3);
    program.stop("done");
}
