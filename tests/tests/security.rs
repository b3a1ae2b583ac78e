// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other users, planted files and unauthorised clients: they get no data of a process, no file of others is changed for
//! them, and the process goes on serving its own controller.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, send, socket,
};
use stasis::checkpoint::contact::reach;
use stasis::checkpoint::{CallError, CheckpointOrder, Request, State, call};
use stasis_tests::linux::become_user;
use stasis_tests::worker::{Worker, refused, succeeded, wait_until};
use stasis_tests::{criu, program};

const SOON: Duration = Duration::from_secs(60);

/// Another user's id, and its groups'.
const NOBODY: &str = "65534";

/// Whether this test can become another user; prints the reason if not.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("ignored: only root can become another user");
    }
    is_root
}

/// A command run by nobody.
fn by_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
    command
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// A connection to the agent of `pid`; `None` if the agent has too many.
fn connection(pid: i32) -> Option<OwnedFd> {
    reach(pid, Instant::now() + SOON).ok()
}

/// The agent's answer to this message; empty if the agent closes the connection.
fn answer(pid: i32, message: &[u8]) -> String {
    let socket = connection(pid).expect("an agent that listens");
    send(socket.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL).unwrap();
    let mut answer = vec![0; 64 << 10];
    let heard = loop {
        match recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            heard => break heard.unwrap_or(0),
        }
    };
    String::from_utf8_lossy(&answer[..heard]).into_owned()
}

fn serves(worker: &Worker) {
    let (state, _) = call(worker.pid(), &Request::Status, SOON).unwrap();
    assert_eq!(state, State::Running);
}

#[test]
fn everything_of_a_checkpoint_is_private_whatever_the_umask() {
    let worker = Worker::start(&[]);
    let directory = worker.path("images");
    let output = Command::new("sh")
        .args(["-c", "umask 0; exec \"$@\"", "sh"])
        .arg(program("stasis"))
        .args(["checkpoint", "--leave-running", &worker.pid().to_string()])
        .arg(&directory)
        .env("STASIS_CRIU", criu())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!([mode(&directory), mode(&directory.join("criu"))], [0o700, 0o700]);
    for name in ["runtime-0.img", "manifest.json"] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
    worker.finish();
}

#[test]
fn symbolic_link_planted_for_an_image_is_not_followed() {
    let worker = Worker::start(&[]);
    let directory = worker.path("images");
    fs::create_dir(&directory).unwrap();
    let precious = worker.path("precious");
    fs::write(&precious, "mine").unwrap();
    for name in ["runtime-0.img".to_owned(), format!("runtime-0.tmp-{}", worker.pid())] {
        symlink(&precious, directory.join(name)).unwrap();
    }
    let order = Request::Checkpoint(CheckpointOrder::into_directory(directory.clone()));
    call(worker.pid(), &order, SOON).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
    let image = fs::symlink_metadata(directory.join("runtime-0.img")).unwrap();
    assert!(image.is_file() && image.permissions().mode() & 0o777 == 0o600, "{image:?}");
    call(worker.pid(), &Request::Resume { directory: None, admission: None }, SOON).unwrap();
    worker.finish();
}

#[test]
fn directory_with_anything_planted_in_it_is_refused() {
    let worker = Worker::start(&[]);
    let directory = worker.path("images");
    fs::create_dir(&directory).unwrap();
    let precious = worker.path("precious");
    fs::write(&precious, "mine").unwrap();
    for name in ["runtime-0.img", "manifest.json", "manifest.pending", "criu"] {
        symlink(&precious, directory.join(name)).unwrap();
        let error = refused(&worker.checkpoint("images", &[]));
        assert!(error.contains("is not empty"), "{error}");
        fs::remove_file(directory.join(name)).unwrap();
    }
    // The directory itself may be a link of the user's: its target is used, and is made private.
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
    worker.finish();
}

/// A manifest as earlier versions wrote it: without a hash at its end, which would show a change.
fn without_files(manifest: &serde_json::Value) -> serde_json::Value {
    let mut earlier = manifest.clone();
    let fields = earlier.as_object_mut().unwrap();
    fields.remove("files");
    fields.remove("blake3");
    fields.insert("layout".to_owned(), 1.into());
    earlier
}

#[test]
fn image_names_that_lead_elsewhere_are_refused_before_anything_is_read() {
    let worker = Worker::start(&[]);
    succeeded(&worker.checkpoint("images", &["--leave-running"]));
    let path = worker.path("images/manifest.json");
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for name in ["../precious", "/etc/passwd", "..", "criu/../../precious", ""] {
        let mut hostile = without_files(&manifest);
        hostile["images"] = serde_json::json!([name]);
        fs::write(&path, hostile.to_string()).unwrap();
        let error = refused(&worker.restore("images"));
        assert!(
            error.contains("is not a plain file name") && error.contains("manifest.json"),
            "{name}: {error}"
        );
    }
    worker.finish();
}

/// `stasis restore` of the directory `name` with these arguments.
fn restore(worker: &Worker, name: &str, arguments: &[&str]) -> Output {
    let directory = worker.path(name);
    worker.stasis(&[&["restore", directory.to_str().unwrap()], arguments].concat())
}

#[test]
fn files_of_others_and_files_that_others_can_write_are_not_restored_unless_told() {
    if !is_root() {
        return;
    }
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    for name in ["", "manifest.json", "runtime-0.img", "criu", "criu/pages-1.img"] {
        let path = worker.path("images").join(name);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let error = refused(&restore(&worker, "images", &[]));
        assert!(error.contains("belongs to user 65534") && error.contains("--trust-owner"), "{error}");
        assert!(error.contains(path.to_str().unwrap().trim_end_matches('/')), "{name}: {error}");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    // In a directory that others can enter.
    fs::set_permissions(worker.path("images"), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, bits, whole) in [("criu", 0o720, 0o700), ("criu/pages-1.img", 0o646, 0o644)] {
        fs::set_permissions(worker.path("images/criu"), fs::Permissions::from_mode(0o711)).unwrap();
        let path = worker.path("images").join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        let error = refused(&restore(&worker, "images", &[]));
        assert!(error.contains("can be written by others") && error.contains(name), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(whole)).unwrap();
    }
    // A user who became root by sudo counts as root.
    let pages = worker.path("images/criu/pages-1.img");
    std::os::unix::fs::chown(&pages, Some(65534), None).unwrap();
    let mut command = Command::new(program("stasis"));
    command.args(["restore", "--json"]).arg(worker.path("images")).env("STASIS_CRIU", criu());
    succeeded(&command.env("SUDO_UID", NOBODY).env_remove("STASIS_DEVICE").output().unwrap());
    worker.wait_rounds(2);
    worker.freeze("again");
    std::os::unix::fs::chown(worker.path("again/manifest.json"), Some(65534), None).unwrap();
    assert!(refused(&restore(&worker, "again", &[])).contains("belongs to user 65534"));
    succeeded(&restore(&worker, "again", &["--json", "--trust-owner"]));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn stranger_gets_no_answer_and_no_checkpoint() {
    if !is_root() {
        return;
    }
    let worker = Worker::start(&["--threads", "2"]);
    // A directory where the user nobody may not write, and a program that the user nobody may not run.
    let home = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let stasis = home.path().join("stasis");
    fs::copy(program("stasis"), &stasis).unwrap();
    fs::set_permissions(&stasis, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |arguments: &[&str]| -> Output {
        by_nobody(&stasis).args(arguments).env("STASIS_CRIU", criu()).output().unwrap()
    };
    let pid = worker.pid().to_string();
    let directory = home.path().join("images");
    for arguments in [
        &["status", &pid][..],
        &["cancel", &pid],
        &["resume", &pid],
        &["checkpoint", &pid, directory.to_str().unwrap()],
    ] {
        let error = refused(&run(arguments));
        assert!(error.contains("cannot be reached"), "{arguments:?}: {error}");
    }
    assert!(!directory.exists(), "something was begun for a stranger");
    worker.wait_rounds(2);
    serves(&worker);
    worker.finish();
}

#[test]
fn hostile_messages_are_answered_with_a_refusal_and_forgotten() {
    let worker = Worker::start(&["--threads", "2"]);
    let pid = worker.pid();
    let huge = vec![b'['; 60 << 10];
    let deep = br#"{"checkpoint":{"directory":"/","deadline_ms":18446744073709551616,"lease_ms":1}}"#;
    for message in [&b"\0\xff\xfe"[..], b"{", b"\"Status", b"[]", b"{\"checkpoint\":{}}", deep, &huge] {
        let said = answer(pid, message);
        assert!(said.contains("is not understood"), "{:?}: {said}", String::from_utf8_lossy(message));
    }
    // Longer than any message: the message is cut and so refused; it never takes more memory than a message.
    let said = answer(pid, &vec![b' '; 100 << 10]);
    assert!(said.contains("is not understood"), "{said}");
    // An order for a directory that does not exist, or that is not a directory.
    for directory in ["/nowhere/at/all", "/dev/null"] {
        let order = Request::Checkpoint(CheckpointOrder::into_directory(directory.into()));
        let error = call(pid, &order, SOON).unwrap_err();
        assert!(matches!(&error, CallError::Refused { state: State::Running, .. }), "{error}");
        assert!(error.to_string().contains(directory), "{error}");
    }
    worker.wait_rounds(2);
    serves(&worker);
    worker.finish();
}

#[test]
fn silent_and_dying_connections_do_not_keep_the_controller_out() {
    let worker = Worker::start(&["--threads", "2"]);
    let pid = worker.pid();
    // The agent connects to all of them, and keeps few connections.
    let silent: Vec<OwnedFd> = (0..100).filter_map(|_| connection(pid)).collect();
    for _ in 0..100 {
        drop(connection(pid));
        // This client sends and does not wait.
        if let Some(socket) = connection(pid) {
            let _ = send(socket.as_raw_fd(), b"\"status\"", MsgFlags::MSG_NOSIGNAL);
        }
    }
    serves(&worker);
    // Nor do they cost descriptors for ever.
    let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let with_silent = descriptors();
    assert!(with_silent < 100, "{with_silent} descriptors: every silent connection is kept");
    succeeded(&worker.checkpoint("images", &["--leave-running"]));
    drop(silent);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn impostor_at_the_agents_name_is_told_nothing() {
    if !is_root() {
        return;
    }
    // A process of this user without a runtime, and the name that its agent had in earlier versions.
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = process.id().cast_signed();
    let taken = UnixListener::from(squat(vec![format!("stasis-agent.{pid}")]).remove(0));
    for request in [
        Request::Status,
        Request::Cancel,
        Request::Checkpoint(CheckpointOrder::into_directory("/nowhere".into())),
        Request::Resume { directory: None, admission: None },
    ] {
        let error = call(pid, &request, SOON).unwrap_err();
        assert!(matches!(error, CallError::Impostor { uid: 65534, .. }), "{error}");
        let (caller, _) = taken.accept().unwrap();
        let heard = recv(caller.as_raw_fd(), &mut [0; 64], MsgFlags::empty()).unwrap();
        assert_eq!(heard, 0, "it was told something");
    }
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Sockets that listen under these names and belong to the user nobody: a thread with that user id makes them.
fn squat(names: Vec<String>) -> Vec<OwnedFd> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let take = move || {
        become_user(NOBODY.parse().unwrap()).unwrap();
        let listener = |name: String| {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
            bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
            listen(&socket, Backlog::new(8).unwrap()).unwrap();
            socket
        };
        names.into_iter().map(listener).collect()
    };
    std::thread::spawn(take).join().unwrap()
}

/// The names of sockets that anybody can read.
fn names_with(prefix: &str) -> Vec<String> {
    let sockets = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let names = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'));
    names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
}

#[test]
fn names_that_another_user_has_taken_hinder_nobody() {
    if !is_root() {
        return;
    }
    // Those of the pids to come, for the agent and for the terms of a restore.
    for _ in 0..20 {
        let mut last = Command::new("true").spawn().unwrap();
        let first = last.id().cast_signed();
        last.wait().unwrap();
        let pids = first..first + 3000;
        let names = |pid: i32| [format!("stasis-agent.{pid}"), format!("stasis-terms.{pid}")];
        let _taken = squat(pids.clone().flat_map(names).collect());
        let mut worker = Worker::start(&["--threads", "2"]);
        if !pids.contains(&worker.pid()) {
            worker.kill();
            continue;
        }
        serves(&worker);
        succeeded(&worker.checkpoint("left", &["--leave-running"]));
        worker.freeze("images");
        succeeded(&worker.restore("images"));
        worker.wait_rounds(2);
        serves(&worker);
        return worker.finish();
    }
    panic!("no worker ever had one of the next 3000 pids");
}

#[test]
fn name_that_was_seen_during_a_restore_hinders_no_later_one() {
    if !is_root() {
        return;
    }
    let mut worker = Worker::start(&["--threads", "2"]);
    let before = names_with("stasis-terms.");
    worker.freeze("images");
    let restored = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut seen = Vec::new();
            while !restored.load(Ordering::Relaxed) {
                seen.extend(names_with("stasis-terms.").into_iter().filter(|name| !before.contains(name)));
                std::thread::sleep(Duration::from_millis(1));
            }
            seen
        });
        succeeded(&worker.restore("images"));
        restored.store(true, Ordering::Relaxed);
        looking.join().unwrap()
    });
    assert!(!seen.is_empty() && !seen.contains(&format!("stasis-terms.{}", worker.pid())), "{seen:?}");
    worker.wait_rounds(1);
    worker.kill();
    wait_until("the end of the copy", || !Path::new(&format!("/proc/{}", worker.pid())).exists());
    // Other tests may have been at a restore, too, and hold theirs.
    let held = names_with("stasis-terms.");
    let seen: BTreeSet<_> = seen.into_iter().filter(|name| !held.contains(name)).collect();
    let free: Vec<_> = seen.into_iter().collect();
    let _taken = squat(free);
    // The terms still arrive: there is no such GPU.
    let error = refused(&worker.stasis(&[
        "restore",
        "--map",
        "0=GPU-00000000000000ff",
        worker.path("images").to_str().unwrap(),
    ]));
    assert!(error.contains("GPU-00000000000000ff"), "{error}");
    worker.kill();
    wait_until("the end of the copy", || !Path::new(&format!("/proc/{}", worker.pid())).exists());
    succeeded(&worker.restore("images"));
    worker.wait_rounds(2);
    worker.finish();
}
