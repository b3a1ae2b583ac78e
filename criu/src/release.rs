// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends a CRIU that dumps, at an instant at which nothing of it is in a task, so that all tasks go on as they were.
//!
//! When a tracer ends, Linux lets its stopped tasks go on with the registers that they have. CRIU's own code is in a task (compel's
//! `infect.c`) while a mapping of a memfd `CRIUMFD` is, and, for a system call in the task's name, while the first bytes of
//! its first executable mapping are those of `code_syscall`, or the name of the memfd stands behind their place. CRIU is stopped while
//! that is looked for, so that it stays true.
//!
//! INVARIANT: a CRIU that locks the network has to undo that itself, and is not ended by this module.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use stasis::checkpoint::Process;

/// How often it is tried.
const AGAIN: Duration = Duration::from_millis(1);
/// The name of the memfd by which CRIU's code comes into a task (compel's `infect-priv.h`).
const CODE_NAME: &str = "/memfd:CRIUMFD";
/// `code_syscall` of compel for x86-64: syscall, int3.
const CODE_SYSCALL: [u8; 8] = [0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
/// What compel writes behind it while the task makes that memfd.
const CODE_ARGUMENT: [u8; 8] = *b"CRIUMFD\0";
/// What the names begin with that CRIU gives to files without one (`--link-remap`), beside where they were.
const LINK: &str = "link_remap.";

/// Ends a CRIU, the leader of a process group, and the rest of the group, within `limit`; whether it has ended.
pub(crate) fn release(criu: Process, limit: Duration) -> bool {
    let pid = Pid::from_raw(criu.pid);
    let until = Instant::now() + limit;
    while criu.is_alive() {
        // One that ends meanwhile needs no signal.
        let _ = kill(pid, Signal::SIGSTOP);
        let is_stopped = wait_stopped(criu, until);
        let tasks = if is_stopped { traced_by(criu.pid) } else { Vec::new() };
        if is_stopped && tasks.iter().all(|task| is_untouched(*task, criu.pid).unwrap_or(false)) {
            let links: Vec<_> = tasks.iter().flat_map(|task| links_of(*task)).collect();
            let _ = killpg(pid, Signal::SIGKILL);
            let _ = kill(pid, Signal::SIGKILL);
            links.iter().for_each(|link| drop(fs::remove_file(link)));
            return true;
        }
        let _ = kill(pid, Signal::SIGCONT);
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
    true
}

/// Waits, at most until `until`, until a task whose CRIU was killed has ended, or nothing of CRIU is in it: one that was killed while
/// its code was there has the task end a moment later, by the trap behind that code.
pub(crate) fn settle(task: Process, until: Instant) {
    let goes_on = || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", task.pid))?;
        // One that is about to end has no mappings any more.
        Ok::<_, io::Error>(!maps.is_empty() && is_without_code(task.pid, &maps)?)
    };
    while task.is_alive() && !goes_on().unwrap_or(false) && Instant::now() < until {
        std::thread::sleep(AGAIN);
    }
}

/// Waits until a process that was told to has stopped; whether it has.
fn wait_stopped(process: Process, until: Instant) -> bool {
    while process.is_alive() && Instant::now() < until {
        match state(&format!("/proc/{}/stat", process.pid)) {
            Some('T') => return true,
            // A few microseconds, or as long as a system call takes to notice.
            Some(_) => std::thread::yield_now(),
            None => return false,
        }
    }
    false
}

/// The letter of a state, of the file `stat` of a process or thread.
fn state(path: &str) -> Option<char> {
    let text = fs::read_to_string(path).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// The processes that a process traces.
fn traced_by(tracer: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_traced_by(&format!("/proc/{pid}"), tracer)).collect()
}

fn is_traced_by(directory: &str, tracer: i32) -> bool {
    let status = fs::read_to_string(format!("{directory}/status")).unwrap_or_default();
    let found = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    found.is_some_and(|found| found.trim().parse() == Ok(tracer))
}

/// Whether nothing of CRIU is in a task, none of whose threads executes anything now.
fn is_untouched(pid: i32, tracer: i32) -> io::Result<bool> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let directory = thread?.path().display().to_string();
        let is_still = matches!(state(&format!("{directory}/stat")), Some('t' | 'Z' | 'X') | None);
        if !is_still && is_traced_by(&directory, tracer) {
            return Ok(false);
        }
    }
    is_without_code(pid, &fs::read_to_string(format!("/proc/{pid}/maps"))?)
}

/// Whether no code of CRIU is in a task with these mappings.
fn is_without_code(pid: i32, maps: &str) -> io::Result<bool> {
    if maps.contains(CODE_NAME) {
        return Ok(false);
    }
    let has_code = |entry: fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().starts_with(CODE_NAME))
    };
    if fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().any(has_code) {
        return Ok(false);
    }
    let Some(start) = first_executable(maps) else { return Ok(true) };
    // The system call, and behind it the name of the memfd.
    let mut bytes = [0; 16];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, start)?;
    Ok(bytes[..8] != CODE_SYSCALL && bytes[8..] != CODE_ARGUMENT)
}

/// Where the first executable mapping begins.
fn first_executable(maps: &str) -> Option<u64> {
    let line = maps
        .lines()
        .find(|line| line.split(' ').nth(1).is_some_and(|rights| rights.get(2..3) == Some("x")))?;
    u64::from_str_radix(line.split_once('-')?.0, 16).ok()
}

/// The names that CRIU has given to files of a task, open or mapped, that had none: it removes them only when it ends by itself.
fn links_of(pid: i32) -> Vec<std::path::PathBuf> {
    let mut links = Vec::new();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    // The C library maps a semaphore and closes its file.
    let mapped = fs::read_dir(format!("/proc/{pid}/map_files")).into_iter().flatten().flatten();
    for entry in open.chain(mapped) {
        let (Ok(name), Ok(file)) = (fs::read_link(entry.path()), fs::metadata(entry.path())) else {
            continue;
        };
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(" (deleted)")) else { continue };
        // Memory without a name has none that CRIU could link, and no directory.
        let directory =
            Path::new(name).parent().filter(|directory| directory.is_absolute() && file.nlink() > 0);
        let beside =
            directory.and_then(|directory| fs::read_dir(directory).ok()).into_iter().flatten().flatten();
        let is_link = |found: &fs::DirEntry| {
            found.file_name().as_encoded_bytes().starts_with(LINK.as_bytes())
                && found.metadata().is_ok_and(|link| (link.dev(), link.ino()) == (file.dev(), file.ino()))
        };
        links.extend(beside.filter(is_link).map(|found| found.path()));
    }
    links
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").process_group(0).spawn().unwrap()
    }

    #[test]
    fn one_that_has_no_tasks_is_ended_at_once_and_one_that_is_gone_is_no_failure() {
        let mut child = sleeper();
        let process = Process::of(child.id().cast_signed()).unwrap();
        assert!(release(process, LONG));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(release(process, LONG));
    }

    #[test]
    fn task_that_executes_what_another_injected_is_touched() {
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        while state(&format!("/proc/{pid}/stat")) != Some('S') {
            std::thread::yield_now();
        }
        assert!(is_untouched(pid, 1).unwrap());
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let start = first_executable(&maps).unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
        let mut before = CODE_SYSCALL;
        memory.read_exact_at(&mut before, start).unwrap();
        memory.write_all_at(&CODE_SYSCALL, start).unwrap();
        assert!(!is_untouched(pid, 1).unwrap());
        let task = Process::of(pid).unwrap();
        std::thread::scope(|scope| {
            let settled = scope.spawn(|| settle(task, Instant::now() + LONG));
            std::thread::sleep(10 * AGAIN);
            assert!(!settled.is_finished());
            memory.write_all_at(&before, start).unwrap();
        });
        assert!(is_untouched(pid, 1).unwrap());
        memory.write_all_at(&CODE_SYSCALL, start).unwrap();
        std::thread::scope(|scope| {
            let settled = scope.spawn(|| settle(task, Instant::now() + LONG));
            std::thread::sleep(10 * AGAIN);
            assert!(!settled.is_finished());
            child.kill().unwrap();
        });
        settle(task, Instant::now() + LONG);
        child.wait().unwrap();
        settle(task, Instant::now() + LONG);
        assert!(is_untouched(i32::MAX, 1).is_err());
    }

    #[test]
    fn first_executable_mapping_is_found() {
        let maps = "5581a000-5581b000 r--p 00000000 fe:00 7 /bin/x\n5581b000-5581f000 r-xp 00001000 fe:00 7 /bin/x\n";
        assert_eq!(first_executable(maps), Some(0x5581_b000));
        assert_eq!(first_executable("1-2 rw-p 0 0:0 0"), None);
    }

    #[test]
    fn links_of_open_files_without_a_name_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let file = File::create(path("file")).unwrap();
        fs::hard_link(path("file"), path("link_remap.7")).unwrap();
        fs::write(path("link_remap.8"), "").unwrap();
        fs::remove_file(path("file")).unwrap();
        assert_eq!(links_of(std::process::id().cast_signed()), [path("link_remap.7")]);
        drop(file);
    }
}
