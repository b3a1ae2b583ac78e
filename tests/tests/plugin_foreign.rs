// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain `criu dump` and `criu restore`, with the plugin, of programs under `stasis run`, which know nothing of it.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use stasis_tests::clients::with_clients;
use stasis_tests::criu;
use stasis_tests::foreign::{Program, bury, tree_of};
use stasis_tests::plain_criu::{Outcome, Plugins, dump_command, run};
use stasis_tests::worker::wait_until;

/// What CRIU has to be told of a program that leads no session.
const IN_A_SESSION: &str = "--shell-job";

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
    let mut command = Command::new(criu());
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
        for name in ["first", "second", "first"] {
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
            while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|ended| ended != WaitStatus::StillAlive) {}
            restore(&program, name, &plugins).succeeded();
            program.goes_on("round ", 3);
        }
        std::fs::write(program.path("stop"), "").unwrap();
        assert_eq!(status(run), WaitStatus::Exited(Pid::from_raw(run), 0), "{}", program.log());
        assert_eq!(program.count("PASS rounds"), 1, "{}", program.log());
        program.leaves_nothing();
    });
}
