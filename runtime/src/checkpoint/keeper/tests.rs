// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keepers that are killed, impersonated, out of descriptors or not to be forked.

use std::time::Instant;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{self, Signal};
use nix::sys::socket::{Backlog, bind, listen};

use super::*;
use crate::linux::process::Process;

fn files(names: &[&str]) -> Vec<OwnedFd> {
    let make = |name: &&str| memfd_create(*name, MFdFlags::MFD_CLOEXEC).unwrap();
    names.iter().map(make).collect()
}

fn inodes(held: &Held) -> Vec<u64> {
    held.files().iter().map(|file| nix::sys::stat::fstat(file).unwrap().st_ino).collect()
}

fn held(image: &[&'static str]) -> Held {
    Held { renders: files(&["a", "b"]), image: files(image) }
}

fn kill(keeper: &Keeper) {
    signal::kill(Pid::from_raw(keeper.pid), Signal::SIGKILL).unwrap();
    wait_for_the_end_of(keeper.pid);
}

#[track_caller]
fn wait_for_the_end_of(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Process::of(pid).is_some_and(|process| process.is_alive()) {
        assert!(Instant::now() < deadline, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn fetch_returns_the_same_open_files_and_keepers_hold_them_until_they_are_released() {
    for image in [&["image"][..], &[], &["image", "earlier", "earliest"]] {
        let held = held(image);
        let expected = inodes(&held);
        let keepers = Keepers::hold(&held).unwrap();
        drop(held);
        for _ in 0..3 {
            let back = keepers.fetch().unwrap();
            assert_eq!(
                (inodes(&back), back.renders.len(), back.image.len()),
                (expected.clone(), 2, image.len())
            );
        }
        let pids: Vec<_> = keepers.keepers.iter().map(|keeper| keeper.pid).collect();
        assert_eq!(pids.len(), 2);
        assert!(pids.iter().all(|pid| Process::of(*pid).is_some_and(|keeper| keeper.is_alive())));
        keepers.release();
        pids.into_iter().for_each(wait_for_the_end_of);
    }
}

#[test]
fn each_keeper_serves_alone() {
    for killed in [0, 1] {
        let held = held(&["image"]);
        let keepers = Keepers::hold(&held).unwrap();
        kill(&keepers.keepers[killed]);
        assert_eq!(inodes(&keepers.fetch().unwrap()), inodes(&held));
        let other = keepers.keepers[1 - killed].pid;
        keepers.release();
        wait_for_the_end_of(other);
    }
}

#[test]
fn keepers_that_are_gone_are_known_to_be_gone_for_good() {
    let keepers = Keepers::hold(&held(&[])).unwrap();
    keepers.keepers.iter().for_each(kill);
    let mut kept = Kept::WithKeepers(keepers);
    assert!(kept.fetch().unwrap().is_none());
    assert!(
        matches!(&kept, Kept::Lost(error) if error.is_final() && error.to_string().contains("is gone")),
        "{kept:?}"
    );
    assert!(kept.fetch().unwrap().is_none());
}

#[test]
fn keeper_that_stands_still_is_passed_over_and_not_given_up() {
    let held = held(&["image"]);
    let keepers = Keepers::hold(&held).unwrap();
    let signal = |keeper: &Keeper, signal: Signal| signal::kill(Pid::from_raw(keeper.pid), signal).unwrap();
    signal(&keepers.keepers[0], Signal::SIGSTOP);
    assert_eq!(inodes(&keepers.fetch().unwrap()), inodes(&held));
    kill(&keepers.keepers[1]);
    let error = keepers.fetch().unwrap_err();
    assert!(!error.is_final(), "{error}");
    signal(&keepers.keepers[0], Signal::SIGCONT);
    assert_eq!(inodes(&keepers.fetch().unwrap()), inodes(&held));
    keepers.release();
}

#[test]
fn stranger_under_the_name_of_a_dead_keeper_is_not_believed() {
    let keepers = Keepers::hold(&held(&[])).unwrap();
    keepers.keepers.iter().for_each(kill);
    // Of our own user even: its pid is not the keeper's.
    let impostors: Vec<_> = keepers
        .keepers
        .iter()
        .map(|keeper| {
            let listener = socket().unwrap();
            let address = UnixAddr::new_abstract(keeper.name.as_bytes()).unwrap();
            bind(listener.as_raw_fd(), &address).unwrap();
            listen(&listener, Backlog::new(4).unwrap()).unwrap();
            listener
        })
        .collect();
    let error = keepers.fetch().unwrap_err();
    assert!(error.is_final(), "{error}");
    let text = error.to_string();
    assert!(text.contains("nothing was taken from it") && text.contains(&keepers.keepers[1].name), "{text}");
    drop(impostors);
}

#[test]
fn names_of_keepers_cannot_be_known_beforehand() {
    let keepers = Keepers::hold(&held(&[])).unwrap();
    let names: Vec<_> = keepers.keepers.iter().map(|keeper| keeper.name.clone()).collect();
    let own = format!("{KEEPER_NAME}{}.", std::process::id());
    let random: Vec<_> = names.iter().map(|name| name.strip_prefix(&own).unwrap()).collect();
    assert_ne!(random[0], random[1]);
    assert!(random.iter().all(|part| part.len() == 32), "{random:?}");
    keepers.release();
}

#[test]
fn too_many_files_are_refused_before_anything_is_forked() {
    let one = files(&["a"]).pop().unwrap();
    let renders = (0..=MAX_FILES).map(|_| one.try_clone().unwrap()).collect();
    let error = Keepers::hold(&Held { renders, image: Vec::new() }).unwrap_err();
    assert!(matches!(error, KeeperError::TooMany { count: 65 }), "{error}");
}

#[test]
fn successor_has_the_same_files_in_the_same_order_under_the_same_name() {
    if !geteuid().is_root() {
        println!("ignored: only root is given another process's files");
        return;
    }
    let held = held(&["image"]);
    let keepers = Keepers::hold(&held).unwrap();
    for keeper in &keepers.keepers {
        let pidfd = linux::pidfd_open(Pid::from_raw(keeper.pid)).unwrap();
        let listener = listener_of(keeper, &pidfd);
        let connection = keeper.connect(ANSWER).unwrap();
        succeed_keeper(&listener, &connection, getpid().as_raw()).unwrap();
        wait_for_the_end_of(keeper.pid);
    }
    assert_eq!(inodes(&keepers.fetch().unwrap()), inodes(&held));
    let keeper = Keeper { name: keepers.keepers[1].name.clone(), pid: keepers.keepers[1].pid };
    keepers.release();
    // Released, the successors are gone too.
    let deadline = Instant::now() + Duration::from_secs(60);
    while keeper.connect(ENDING).is_ok() {
        assert!(Instant::now() < deadline, "a successor stays");
    }
}

/// The socket that a keeper listens on, taken out of it.
fn listener_of(keeper: &Keeper, pidfd: &OwnedFd) -> OwnedFd {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = format!("@{}", keeper.name);
    let line = sockets.lines().find(|line| line.ends_with(&name) && line.contains(" 00010000 ")).unwrap();
    let link = format!("socket:[{}]", line.split_ascii_whitespace().nth(6).unwrap());
    let entries = std::fs::read_dir(format!("/proc/{}/fd", keeper.pid)).unwrap();
    let entry = entries
        .flatten()
        .find(|e| std::fs::read_link(e.path()).is_ok_and(|to| to.as_os_str() == link.as_str()));
    let fd = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
    linux::pidfd_getfd(pidfd.as_fd(), fd).unwrap()
}

/// Processes named `stasis-keeper` that were forked for this one.
fn keepers_here() -> usize {
    let own = format!("@{KEEPER_NAME}{}.", std::process::id());
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().filter(|line| line.contains(&own)).count()
}

#[allow(unsafe_code)]
/// [`Keepers::hold`] in a process of a user of which only 1 to 4 threads may exist.
#[test]
fn no_keeper_is_left_when_not_all_can_be_forked() {
    use std::process::Command;
    const CHILD: &str = "STASIS_TEST_KEEPER_LIMIT";
    if let Ok(limit) = std::env::var(CHILD) {
        let (limit, user) = limit.split_once(' ').unwrap();
        let (limit, user): (u64, u32) = (limit.parse().unwrap(), user.parse().unwrap());
        // The wrappers of setuid change all threads, and each counts.
        // SAFETY: the call has no pointer.
        Errno::result(unsafe { nix::libc::syscall(nix::libc::SYS_setuid, user) }).unwrap();
        setrlimit(Resource::RLIMIT_NPROC, limit, limit).unwrap();
        let held = held(&["image"]);
        match Keepers::hold(&held) {
            Ok(keepers) => {
                assert_eq!(inodes(&keepers.fetch().unwrap()), inodes(&held));
                keepers.release();
                println!("held");
            }
            Err(error) => {
                assert!(matches!(error, KeeperError::Fork(_)), "{error:?}");
                // No other process of this user is left, and this process's files are as they were.
                assert_eq!(inodes(&held).len(), 3);
                println!("refused");
            }
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while keepers_here() != 0 {
            assert!(Instant::now() < deadline, "a keeper is left");
        }
        return;
    }
    if !geteuid().is_root() {
        println!("ignored: only root can become another user");
        return;
    }
    let mut said = Vec::new();
    // One that nobody else is. Each limit leaves room for one more: the fork that forks, and the keepers.
    let user = 0x4000_0000 | std::process::id();
    for limit in 1..=4 {
        let name = "checkpoint::keeper::tests::no_keeper_is_left_when_not_all_can_be_forked";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env(CHILD, format!("{limit} {user}"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{limit}: {text}{}", String::from_utf8_lossy(&output.stderr));
        // The test's name stands before it on the line.
        let found =
            ["held", "refused"].into_iter().find(|word| text.lines().any(|line| line.ends_with(word)));
        said.push(found.unwrap_or_else(|| panic!("{limit}: {text}")));
    }
    println!("{said:?}");
    assert_eq!(said, ["refused", "refused", "refused", "held"]);
}
