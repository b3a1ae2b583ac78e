// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other users, planted files and talkative strangers: nothing of a process is told or given to them, nothing of others
//! is touched for them, and the process goes on serving its own controller.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use stasis::checkpoint::{CallError, CheckpointOrder, Request, State, call};
use stasis_tests::worker::{Worker, refused, succeeded, wait_until};
use stasis_tests::{criu, program};

const SOON: Duration = Duration::from_secs(60);

/// Another user's id, and its groups'.
const NOBODY: &str = "65534";

/// Whether this test can make itself another user; says why not.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
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

/// A connection to the agent of `pid`, which may have too many and then answers with nothing.
fn connection(pid: i32) -> Option<OwnedFd> {
    let address = SocketAddrUnix::new_abstract_name(format!("stasis-agent.{pid}").as_bytes()).unwrap();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &address).is_ok().then_some(socket)
}

/// What the agent says to this message, or nothing if it hangs up.
fn answer(pid: i32, message: &[u8]) -> String {
    let socket = connection(pid).expect("an agent that listens");
    send(&socket, message, SendFlags::NOSIGNAL).unwrap();
    let mut answer = vec![0; 64 << 10];
    let heard = rustix::io::retry_on_intr(|| recv(&socket, &mut answer[..], RecvFlags::empty()));
    String::from_utf8_lossy(&answer[..heard.map_or(0, |(length, _)| length)]).into_owned()
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
    // The directory itself may be a link of the user's: what it names is what counts, and is made private.
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
    worker.finish();
}

#[test]
fn image_names_that_lead_elsewhere_are_refused_before_anything_is_read() {
    let worker = Worker::start(&[]);
    succeeded(&worker.checkpoint("images", &["--leave-running"]));
    let path = worker.path("images/manifest.json");
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for name in ["../precious", "/etc/passwd", "..", "criu/../../precious", ""] {
        let mut hostile = manifest.clone();
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

#[test]
fn stranger_gets_no_answer_and_no_checkpoint() {
    if !is_root() {
        return;
    }
    let worker = Worker::start(&["--threads", "2"]);
    // Where nobody may write, and whose program nobody may run.
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
        assert!(
            error.contains("gave no answer") || error.contains("no Stasis agent"),
            "{arguments:?}: {error}"
        );
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
    // Longer than any message: cut, and so not understood; never more memory than a message has.
    let said = answer(pid, &vec![b' '; 100 << 10]);
    assert!(said.contains("is not understood"), "{said}");
    // An order for a place that does not exist, or is none.
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
    // Connecting blocks while the backlog is full; so each is a process that can be ended.
    let silent: Vec<OwnedFd> = (0..100).filter_map(|_| connection(pid)).collect();
    for _ in 0..100 {
        drop(connection(pid));
        // Speaks and does not wait.
        if let Some(socket) = connection(pid) {
            let _ = send(&socket, b"\"status\"", SendFlags::NOSIGNAL);
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
    // A process of ours without a runtime, whose agent's name another user has taken.
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = process.id().cast_signed();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let heard = directory.path().join("heard");
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.bind('\\0stasis-agent.{pid}')\n\
         s.listen(8)\nopen('{0}', 'wb').close()\nwhile True:\n c, _ = s.accept()\n b = c.recv(65536)\n \
         open('{0}', 'ab').write(b)\n c.send(b'{{\"state\":\"running\",\"done\":{{\"Ok\":{{\"cancelled\":{{\"was_at_work\":true}}}}}}}}')\n",
        heard.display()
    );
    let mut impostor =
        by_nobody(Path::new("python3")).args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the impostor", || heard.exists() || impostor.try_wait().unwrap().is_some());
    if heard.exists() {
        let images = directory.path().join("images");
        for request in [
            Request::Status,
            Request::Cancel,
            Request::Checkpoint(CheckpointOrder::into_directory(images)),
            Request::Resume { directory: None, admission: None },
        ] {
            let error = call(pid, &request, SOON).unwrap_err();
            assert!(matches!(error, CallError::Impostor { uid: 65534, .. }), "{error}");
        }
        assert_eq!(fs::read(&heard).unwrap(), b"", "it was told something");
    } else {
        println!("ignored: no python3 for another user");
    }
    let _ = impostor.kill();
    let _ = impostor.wait();
    process.kill().unwrap();
    process.wait().unwrap();
}
