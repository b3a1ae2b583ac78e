// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint or a restore of a program that knows nothing of it fails or is killed: the program goes on, or can be restored.
//!
//! The instants and places are drawn with STASIS_SEED; STASIS_FOREIGN=N makes it N of each.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use stasis_tests::clients::{hip_program, on_device, with_clients};
use stasis_tests::foreign::{Program, bury, is_criu, number};
use stasis_tests::gpu::Numbers;
use stasis_tests::images::files;
use stasis_tests::sample::{numbers_of, setting};
use stasis_tests::worker::{is_alive, kill, refused, succeeded, wait_until};

/// Instants of a test unless more are asked for.
const SAMPLE: u64 = 6;
/// Places of damage likewise, for each instant.
const PLACES: u64 = 15;
/// TIMEOUT: how long a checkpoint may take until CRIU's code is in the program.
const LONG: Duration = Duration::from_secs(60);

fn wanted() -> u64 {
    setting("STASIS_FOREIGN").unwrap_or(SAMPLE)
}

fn part(instants: &mut Numbers, whole: Duration) -> Duration {
    whole.mul_f64(f64::from(instants.next().unwrap()) / f64::from(u32::MAX))
}

fn rounds() -> Program {
    let mut program = Program::hip("rounds", "soft:gfx1100");
    program.wait_lines("round ", 2);
    program
}

/// Whether a program lives that a killed command was to freeze or to restore; all of its commands have ended then.
fn lives(program: &mut Program) -> bool {
    program.wait_commands();
    let is_alive = program.is_alive();
    if is_alive {
        program.goes_on("round ", 2);
    } else {
        bury(program.pid());
        program.wait_run();
    }
    is_alive
}

/// How often a program lived on, was restored from the checkpoint at work, or from the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    lived: u64,
    restored: u64,
    lost: u64,
}

/// Kills whom `victims` names in checkpoints, after `when` has waited with a part of the time that a checkpoint takes. With
/// `has_other`, another checkpoint is taken before each.
fn kill_in_checkpoints(
    test: u64,
    has_other: bool,
    when: impl Fn(&Program, Duration),
    victims: impl Fn(&Program, i32) -> Vec<i32>,
) -> Fates {
    let (mut program, mut instants, mut fates) = (rounds(), numbers_of(test), Fates::default());
    let begun = Instant::now();
    succeeded(&program.checkpointing("images", &["--leave-running"]).output().unwrap());
    let whole = begun.elapsed();
    fs::remove_dir_all(program.path("images")).unwrap();
    for number in 0..wanted() {
        if has_other {
            succeeded(&program.checkpointing("before", &["--leave-running"]).output().unwrap());
        }
        let command = program.checkpointing("images", &[]).stderr(Stdio::piped()).spawn().unwrap();
        // The first at once: on a machine that has become faster meanwhile, all others may be late.
        when(&program, if number == 0 { Duration::ZERO } else { part(&mut instants, whole) });
        victims(&program, command.id().cast_signed()).into_iter().for_each(kill);
        let output = command.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if lives(&mut program) {
            fates.lived += 1;
        } else if program.path("images/manifest.json").exists() {
            fates.restored += 1;
            program.restore("images");
            program.goes_on("round ", 2);
        } else {
            assert!(has_other, "it is gone, and there is no checkpoint: {said}{}", program.log());
            assert!(said.contains("what has ended"), "{said}");
            fates.lost += 1;
            program.restore("before");
            program.goes_on("round ", 2);
        }
        for name in ["images", "before"] {
            let _ = fs::remove_dir_all(program.path(name));
        }
    }
    program.freeze_and_restore("images");
    program.goes_on("round ", 2);
    program.stop("PASS rounds");
    println!("{fates:?}");
    fates
}

/// The CRIUs that a command has started.
fn criu_of(program: &Program, command: i32) -> Vec<i32> {
    program.commands().into_iter().filter(|pid| *pid != command && is_criu(*pid)).collect()
}

/// Stops the CRIU that traces a process; goes on with it unless the process is about to execute what CRIU has put there.
fn is_stopped_with_its_code_in(pid: i32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let status = read("status");
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    let Some(tracer) = tracer.and_then(|pid| pid.trim().parse().ok()).filter(|pid| *pid != 0) else {
        return !is_alive(pid);
    };
    let criu = Pid::from_raw(tracer);
    let _ = signal::kill(criu, Signal::SIGSTOP);
    // What was told to execute the code does so until its trap.
    (0..100).take_while(|_| read("syscall").starts_with("running")).for_each(drop);
    let maps = read("maps");
    let start = maps.lines().find(|line| line.contains(" r-xp ")).and_then(|line| line.split_once('-'));
    let start = start.and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
    // The last of what is said of a thread that is stopped, where it goes on.
    let at = read("syscall")
        .split_whitespace()
        .last()
        .and_then(|at| u64::from_str_radix(at.strip_prefix("0x")?, 16).ok());
    // System call and traps, as in compel's infect.c.
    let is_code = |start: u64| {
        let mut code = [0; 3];
        let memory = fs::File::open(format!("/proc/{pid}/mem"));
        memory.is_ok_and(|memory| memory.read_exact_at(&mut code, start).is_ok())
            && code == [0x0f, 0x05, 0xcc]
    };
    let is_there =
        start.zip(at).is_some_and(|(start, at)| (start..start + 8).contains(&at) && is_code(start));
    if !is_there {
        let _ = signal::kill(criu, Signal::SIGCONT);
    }
    is_there
}

#[test]
fn killed_command_leaves_the_program_or_its_checkpoint() {
    with_clients(|| {
        let fates = kill_in_checkpoints(1, false, |_, part| sleep(part), |_, command| vec![command]);
        assert!(fates.lived > 0);
    });
}

#[test]
fn killed_criu_leaves_the_program_or_a_checkpoint() {
    with_clients(|| {
        // A CRIU that is killed while its code is in a task kills the task: what is left is the checkpoint before.
        let fates = kill_in_checkpoints(2, true, |_, part| sleep(part), criu_of);
        assert!(fates.lost <= fates.lived, "{fates:?}");
    });
}

#[test]
fn criu_that_is_killed_while_its_code_is_in_the_program_is_told_as_the_end_of_it() {
    with_clients(|| {
        let when = |program: &Program, _| {
            let begun = Instant::now();
            while begun.elapsed() < LONG && !is_stopped_with_its_code_in(program.pid()) {
                std::thread::yield_now();
            }
        };
        let fates = kill_in_checkpoints(4, true, when, criu_of);
        assert!(fates.lost > 0, "{fates:?}");
    });
}

#[test]
fn killed_restore_leaves_all_of_the_program_or_nothing_and_can_be_repeated() {
    with_clients(|| {
        let (mut program, mut instants, mut found) = (rounds(), numbers_of(3), [0, 0]);
        program.freeze("images");
        let begun = Instant::now();
        program.restore("images");
        let whole = begun.elapsed();
        program.goes_on("round ", 1);
        fs::remove_dir_all(program.path("images")).unwrap();
        program.freeze("images");
        for _ in 0..wanted() {
            let mut command = program.restoring("images", &[]).spawn().unwrap();
            sleep(part(&mut instants, whole));
            kill(command.id().cast_signed());
            let _ = command.wait().unwrap();
            let is_whole = lives(&mut program);
            // A command that is killed cannot remove the directory of its script.
            for left in fs::read_dir(program.path("temporary")).unwrap() {
                let left = left.unwrap().path();
                assert!(left.to_str().unwrap().contains("stasis-restore-"), "{}", left.display());
                fs::remove_dir_all(left).unwrap();
            }
            found[usize::from(is_whole)] += 1;
            if is_whole {
                fs::remove_dir_all(program.path("images")).unwrap();
                program.freeze("images");
            }
        }
        program.restore("images");
        program.goes_on("round ", 2);
        program.stop("PASS rounds");
        println!("nothing {}, whole {}", found[0], found[1]);
        assert!(found[0] > 0);
    });
}

#[test]
fn directory_that_cannot_be_written_leaves_the_program() {
    with_clients(|| {
        let mut program = rounds();
        // As a full disk: neither CRIU nor the command may make a file larger than this.
        for bytes in [4096, 1 << 20] {
            let inner = program.checkpointing("images", &[]);
            let mut command = std::process::Command::new("prlimit");
            command.arg(format!("--fsize={bytes}")).arg(inner.get_program()).args(inner.get_args());
            command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = command.output().unwrap();
            assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            assert!(!program.path("images/manifest.json").exists());
            assert!(lives(&mut program), "{}", program.log());
            let _ = fs::remove_dir_all(program.path("images"));
        }
        fs::write(program.path("file"), "").unwrap();
        let error = refused(&program.checkpointing("file/images", &[]).output().unwrap());
        assert!(error.contains("file"), "{error}");
        program.goes_on("round ", 2);
        program.freeze_and_restore("images");
        program.stop("PASS rounds");
    });
}

#[test]
fn program_whose_device_was_killed_is_not_checkpointed_and_the_command_ends() {
    with_clients(|| {
        let program = rounds();
        program.executors().into_iter().for_each(kill);
        wait_until("the end of the executor", || !program.executors().into_iter().any(is_alive));
        let error = refused(&program.checkpointing("images", &[]).output().unwrap());
        assert!(error.contains(&program.pid().to_string()), "{error}");
        assert!(!program.path("images/manifest.json").exists());
        program.wait_commands();
        // The program itself was not seen to end: it goes on polling for its signals.
    });
}

#[test]
fn tree_of_which_one_device_was_killed_is_not_checkpointed() {
    with_clients(|| {
        let mut command = on_device("soft:gfx1100");
        let script = "\"$0\" \"$1\" & \"$0\" \"$1\"; wait";
        command.args(["sh", "-c", script]).arg(hip_program("rounds", "gfx1100"));
        let mut program = Program::start(&command, &["stop"]);
        program.wait_lines("round 1", 2);
        let (pid, status) = (program.pid().to_string(), ["status", "--json"]);
        let status = succeeded(&program.command(&[&status[..], &[&pid]].concat()).output().unwrap());
        let of_first = |name: &str| i32::try_from(number(&status["clients"][0], name)).unwrap();
        // It would end at its next call.
        signal::kill(Pid::from_raw(of_first("pid")), Signal::SIGSTOP).unwrap();
        let killed = of_first("executor");
        kill(killed);
        wait_until("the end of the executor", || !is_alive(killed));
        for more in [&[][..], &["--no-preflight"]] {
            let error = refused(&program.checkpointing("images", more).output().unwrap());
            assert!(error.contains("executor") && error.contains("it goes on"), "{error}");
            assert!(!program.path("images/manifest.json").exists());
            let _ = fs::remove_dir_all(program.path("images"));
            // The other program of the tree.
            program.goes_on("round ", 2);
        }
    });
}

#[test]
fn program_that_exists_is_not_restored_beside_itself() {
    with_clients(|| {
        let mut program = rounds();
        succeeded(&program.checkpointing("images", &["--leave-running"]).output().unwrap());
        let devices = program.devices();
        let error = refused(&program.restoring("images", &[]).output().unwrap());
        assert!(error.contains(&format!("Process {} exists", program.pid())), "{error}");
        assert_eq!(program.devices(), devices);
        program.goes_on("round ", 2);
        program.stop("PASS rounds");
    });
}

#[test]
fn softgpud_that_serves_others_is_not_replaced() {
    with_clients(|| {
        let mut command = on_device("soft:gfx1100");
        let script = "\"$0\" \"$1-first\" & \"$0\" \"$1\"; wait";
        command.args(["sh", "-c", script]).arg(hip_program("rounds", "gfx1100"));
        let mut program = Program::start(&command, &["stop"]);
        program.wait_lines("round 1", 2);
        let first = stasis_tests::tree::descendants(program.pid())[0];
        let directory = program.path("images");
        let arguments =
            ["checkpoint", &first.to_string(), directory.to_str().unwrap(), "--leave-running", "--json"];
        succeeded(&program.command(&arguments).output().unwrap());
        fs::write(program.path("stop-first"), "").unwrap();
        wait_until("the end of the first", || !is_alive(first));
        program.goes_on("round ", 2);
        // The shell reaps it when the other has ended.
        wait_until("the end of its executor", || program.executors().len() == 1);
        let devices = program.devices();
        let error = refused(&program.restoring("images", &[]).output().unwrap());
        println!("{error}");
        assert!(!is_alive(first), "{error}");
        assert_eq!(program.devices(), devices);
        program.goes_on("round ", 2);
        program.stop("PASS rounds");
    });
}

/// Restores with these options; the error.
fn not_restored(program: &Program, options: &[&str], path: &Path) -> String {
    let error = refused(&program.restoring("images", options).output().unwrap());
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(name), "{name}: {error}");
    assert!(!program.is_alive(), "{name}: {error}");
    error
}

#[test]
fn damage_of_any_file_is_found_and_named() {
    with_clients(|| {
        let mut program = Program::hip("spin", "soft:gfx1100");
        program.wait_lines("spinning", 1);
        program.freeze("images");
        let (mut instants, images) = (numbers_of(4), program.path("images"));
        let files = files(&images);
        let kinds =
            ["manifest.json", "foreign.json", "foreign-memory.bin", "device-", "pages-1.img", "core-"];
        let mut groups: Vec<Vec<&PathBuf>> = Vec::new();
        for kind in kinds {
            let of = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(kind);
            groups.push(files.iter().filter(of).collect());
            assert!(!groups.last().unwrap().is_empty(), "{kind}: {files:?}");
        }
        groups.push(files.iter().filter(|path| !path.ends_with("commit.sh")).collect());
        for place in 0..wanted() * PLACES {
            let group = &groups[usize::try_from(place).unwrap() % groups.len()];
            let mut draw = || usize::try_from(instants.next().unwrap()).unwrap();
            let path = group[draw() % group.len()];
            let whole = fs::read(path).unwrap();
            match (draw() % 8, whole.len()) {
                (0, _) | (_, 0) => fs::remove_file(path).unwrap(),
                (1, length) => fs::write(path, &whole[..draw() % length]).unwrap(),
                (_, length) => {
                    let (mut bytes, at) = (whole.clone(), draw() % length);
                    bytes[at] ^= 1 << (draw() % 8);
                    fs::write(path, bytes).unwrap();
                }
            }
            not_restored(&program, &[], path);
            fs::write(path, whole).unwrap();
        }
        // The state has a hash of its own.
        let state = groups[3][0];
        for _ in 0..wanted() {
            let mut bytes = fs::read(state).unwrap();
            let whole = bytes.clone();
            let at = usize::try_from(instants.next().unwrap()).unwrap() % bytes.len();
            bytes[at] ^= 1 << (at % 8);
            fs::write(state, bytes).unwrap();
            let error = refused(&program.restoring("images", &["--no-verify"]).output().unwrap());
            assert!(error.contains("devices of the processes cannot be restored"), "bit of {at}: {error}");
            program.wait_commands();
            bury(program.pid());
            fs::write(state, whole).unwrap();
        }
        program.restore("images");
        program.stop("PASS spin");
    });
}
