// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every file operation of a checkpoint fails once, and real disks are full or read-only: the checkpoint is refused
//! with the reason, no file of it is left, the process runs on, and the next checkpoint succeeds.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::libc;
use stasis::checkpoint::{CallError, CheckpointOrder, Request, State, call};
use stasis_tests::stepper::{AGENT_THREADS, Act, Stop, walk_agent};
use stasis_tests::worker::{Worker, refused, succeeded};

const SOON: Duration = Duration::from_secs(60);

const ERRNOS: [i32; 3] = [libc::ENOSPC, libc::EIO, libc::EROFS];

/// Operations on the files of an image, and on no socket or eventfd.
const OPERATIONS: [i64; 6] = [
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_rename,
    libc::SYS_openat,
];

/// The path that an `openat` names.
fn path_of(pid: i32, stop: &Stop) -> String {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 256];
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let read = memory.read_at(&mut bytes, stop.arguments[1]).unwrap_or(0);
    String::from_utf8_lossy(bytes[..read].split(|&byte| byte == 0).next().unwrap()).into_owned()
}

fn is_of_the_image(pid: i32, directory: &Path, stop: &Stop) -> bool {
    let call = stop.call.cast_signed();
    OPERATIONS.contains(&call)
        && (call != libc::SYS_openat || path_of(pid, stop).starts_with(directory.to_str().unwrap()))
}

fn checkpoint(pid: i32, directory: &Path) -> Result<(), CallError> {
    let order = Request::Checkpoint(CheckpointOrder {
        lease_ms: 600_000,
        ..CheckpointOrder::into_directory(directory.into())
    });
    call(pid, &order, SOON).map(drop)
}

#[test]
fn every_file_operation_of_the_agent_can_fail_once() {
    assert_eq!(AGENT_THREADS.len(), 2);
    let worker = Worker::start(&[]);
    let (pid, directory) = (worker.pid(), worker.path("images"));
    fs::create_dir(&directory).unwrap();
    let mut failures = 0;
    for errno in ERRNOS {
        for n in 0.. {
            let (mut seen, mut struck) = (0, None);
            let mut act = |stop: &Stop| {
                if struck.is_some() || !stop.is_entry || !is_of_the_image(pid, &directory, stop) {
                    return Act::Step;
                }
                seen += 1;
                if seen <= n {
                    return Act::Step;
                }
                struck = Some(stop.call);
                Act::Fail(errno)
            };
            let outcome = walk_agent(pid, &mut act, || checkpoint(pid, &directory));
            let reason = std::io::Error::from_raw_os_error(errno).to_string();
            match outcome {
                Err(error) => {
                    let text = error.to_string();
                    assert!(struck.is_some(), "without a fault: {text}");
                    assert!(matches!(error, CallError::Refused { state: State::Running, .. }), "{n}: {text}");
                    assert!(text.contains(&reason), "{n}: {text}");
                    assert!(text.contains(directory.to_str().unwrap()), "{n}: {text}");
                    let left: Vec<_> =
                        fs::read_dir(&directory).unwrap().flatten().map(|e| e.file_name()).collect();
                    assert!(left.is_empty(), "operation {n} ({struck:?}), {text}: {left:?} are left");
                    failures += 1;
                    checkpoint(pid, &directory).unwrap();
                }
                Ok(()) => {
                    assert!(struck.is_none(), "{n}: {struck:?} failed with {reason}, and nobody noticed")
                }
            }
            call(pid, &Request::Resume { directory: None, admission: None }, SOON).unwrap();
            fs::remove_file(directory.join("runtime-0.img")).unwrap();
            if struck.is_none() {
                break;
            }
        }
    }
    println!("{failures} operations failed");
    assert!(failures > 10, "{failures}");
    worker.wait_rounds(2);
    worker.finish();
}

/// A file system over a directory, while it lives.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(at: &'a Path, options: &str) -> Option<Self> {
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).output().unwrap();
        if !mount.status.success() {
            println!("ignored: {}", String::from_utf8_lossy(&mount.stderr));
            return None;
        }
        Some(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(self.0).status();
    }
}

#[test]
fn full_disk_is_said_and_leaves_nothing() {
    let worker = Worker::start(&[]);
    let small = worker.path("small");
    fs::create_dir(&small).unwrap();
    // Too small for the buffers; large enough for them, but not for CRIU.
    for (size, by) in [("1m", "No space left on device"), ("7m", "criu dump failed")] {
        let Some(_mounted) = Mounted::new(&small, &format!("mode=700,size={size}")) else { return };
        let error = refused(&worker.checkpoint("small/images", &[]));
        assert!(error.contains(by), "{size}: {error}");
        let images = small.join("images");
        for name in ["runtime-0.img", "manifest.json", "manifest.pending"] {
            assert!(!images.join(name).exists(), "{size}: {name} is left: {error}");
        }
        worker.wait_rounds(2);
    }
    succeeded(&worker.checkpoint("small/images", &["--leave-running"]));
    worker.finish();
}

#[test]
fn read_only_disk_is_said_before_anything_is_stopped() {
    let worker = Worker::start(&[]);
    let place = worker.path("place");
    fs::create_dir(&place).unwrap();
    let Some(_mounted) = Mounted::new(&place, "mode=700,ro") else { return };
    let error = refused(&worker.checkpoint("place/images", &[]));
    assert!(error.contains("Read-only file system") && error.contains("place/images"), "{error}");
    worker.wait_rounds(2);
    worker.finish();
}
