// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors: which open files CRIU dumps, which it refuses, which come back different.
//!
//! Sockets are judged in `sockets`, memory shared with strangers in `shared`.

use std::collections::{BTreeMap, HashSet};

use kfd::written::FEATURE_WP_ASYNC;
use nix::sys::stat::{major, minor};

use super::finding::{Finding, Severity};
use super::privileges::CAP_DAC_READ_SEARCH;
use super::scene::Scene;
use super::tree::{DELETED, Descriptor, File, FileId, Process};

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const BLOCK: u32 = 0o060_000;
const O_APPEND: u32 = 0o2000;
/// The bits of the flags that say read, write or both.
const ACCESS: u32 = 3;

/// Memory devices (null, zero, full, random, urandom, kmsg): dumped like files.
const MEM_MAJOR: u64 = 1;
/// Terminals: consoles, `/dev/tty` and `/dev/ptmx`, and the slaves of pseudo-terminals.
const TTY_MAJORS: [u64; 2] = [4, 5];
const PTS_MAJORS: std::ops::RangeInclusive<u64> = 136..=143;

/// Kinds of anonymous inodes CRIU has code for.
const ANONYMOUS: [&str; 6] = ["[eventfd]", "[eventpoll]", "inotify", "[fanotify]", "[signalfd]", "[timerfd]"];

/// Why a program cannot be checkpointed that has opened the kernel's driver by itself.
pub const KERNEL_DRIVER: &str = "it is a device file of the kernel's driver, which owns the state of the GPU, and the process has \
                                 no Stasis runtime that would close it";

/// Judges all descriptors of the tree but sockets.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let mounts: HashSet<&str> = scene.tree.iter().flat_map(|p| p.mounts.iter().map(String::as_str)).collect();
    let mut pipes = Pipes::default();
    let mut ghosts = HashSet::new();
    for process in scene.tree {
        for fd in process.descriptors() {
            if process.gives_up(&fd.link) {
                continue;
            }
            pipes.note(process, fd);
            found.extend(anonymous(scene, process, fd));
            found.extend(device(scene, process, fd));
            found.extend(lock(scene, process, fd));
            found.extend(unseen(process, fd, &mounts));
            if !is_file(fd) {
                continue;
            }
            found.extend(log(process, fd));
            if fd.link.ends_with(DELETED) && fd.file.kind() == REGULAR && ghosts.insert(fd.file.id) {
                found.extend(ghost(scene, process.pid, fd.place(), &fd.link, &fd.file));
            }
        }
    }
    found.extend(pipes.cut());
}

/// A file or directory with a name of its own, or that had one.
fn is_file(fd: &Descriptor) -> bool {
    has_path(fd) && matches!(fd.file.kind(), REGULAR | DIRECTORY)
}

/// Whether the link is a path, and not the name of some memory.
fn has_path(fd: &Descriptor) -> bool {
    fd.link.starts_with('/') && !["/memfd:", "/secretmem", "/dmabuf:"].iter().any(|m| fd.link.starts_with(m))
}

fn refused(process: &Process, fd: &Descriptor) -> Finding {
    Finding::new(Severity::Refused, process.pid, fd.place(), fd.link.as_str())
}

/// Things without a file: by what the link calls them.
fn anonymous(scene: &Scene<'_>, process: &Process, fd: &Descriptor) -> Option<Finding> {
    let refused = refused(process, fd);
    if fd.link.starts_with("/secretmem") {
        let why = "CRIU cannot dump memory of memfd_secret";
        return Some(refused.why(why).remedy("unmap and close it before the checkpoint"));
    }
    if fd.link.starts_with("/dmabuf:") {
        let why = "CRIU cannot dump a DMABuf, and no Stasis runtime of this process closes it";
        return Some(refused.why(why).remedy("close it before the checkpoint"));
    }
    let kind = fd.link.strip_prefix("anon_inode:").or_else(|| {
        // Since pidfs a pidfd may be named like a namespace.
        fd.link.starts_with("pidfd:").then_some("[pidfd]")
    })?;
    if kind == "[pidfd]" {
        return pidfd(scene, process, fd);
    }
    if kind == "inotify" && scene.flags.unprivileged && !scene.own.has(CAP_DAC_READ_SEARCH) {
        let why = "CRIU finds watched files by handle, which takes CAP_DAC_READ_SEARCH";
        return Some(refused.why(why).remedy("give stasis this capability, or close the inotify"));
    }
    if ANONYMOUS.contains(&kind) || (kind == "[userfaultfd]" && process.is_ours() && tells_of_stores(fd)) {
        return None;
    }
    let (why, remedy) = match kind {
        "[io_uring]" => {
            ("CRIU cannot dump io_uring", "close the ring before the checkpoint, or do without it")
        }
        "[userfaultfd]" => ("CRIU cannot dump userfaultfd", "close it; registered memory may stay"),
        "[perf_event]" => ("CRIU cannot dump performance counters", "detach the profiler"),
        "seccomp notify" => {
            ("CRIU cannot dump a listener of seccomp", "close it; a filter without listener is fine")
        }
        kind if kind.starts_with("bpf") => {
            ("CRIU does not dump BPF objects", "close it before the checkpoint")
        }
        _ => ("CRIU does not know this kind of file", "close it before the checkpoint"),
    };
    Some(refused.why(why).remedy(remedy))
}

/// Whether a userfaultfd is one by which a runtime hears of stores (UFFD_FEATURE_WP_ASYNC): a checkpoint closes it. One of the program's
/// own is found when the device is closed.
fn tells_of_stores(fd: &Descriptor) -> bool {
    let features = fd.field("API").and_then(|api| u64::from_str_radix(api.split(':').nth(1)?, 16).ok());
    features.is_some_and(|features| features & FEATURE_WP_ASYNC != 0)
}

/// A pidfd: of a process of the tree, or of one that has ended (`Pid: -1`).
fn pidfd(scene: &Scene<'_>, process: &Process, fd: &Descriptor) -> Option<Finding> {
    let pid: i32 = fd.field("Pid")?.parse().ok()?;
    let inside = pid < 0 || scene.tree.iter().any(|other| other.pid == pid);
    (!inside).then(|| {
        refused(process, fd)
            .why(format!("it is of process {pid}, which is not in the tree"))
            .remedy("close it before the checkpoint")
    })
}

fn device(scene: &Scene<'_>, process: &Process, fd: &Descriptor) -> Option<Finding> {
    let (major, minor) = (major(fd.file.device), minor(fd.file.device));
    let refused = refused(process, fd);
    match fd.file.kind() {
        BLOCK => {
            Some(refused.why("CRIU cannot dump a block device").remedy("close it before the checkpoint"))
        }
        CHARACTER if major == MEM_MAJOR => None,
        CHARACTER if PTS_MAJORS.contains(&major) => {
            let index = (major - PTS_MAJORS.start()) << 20 | minor;
            let has_master = |p: &Process| {
                p.descriptors().iter().any(|d| d.field("tty-index") == Some(&index.to_string()))
            };
            let fine = scene.shell_job() || scene.tree.iter().any(has_master);
            (!fine).then(|| {
                refused.why("the other end of this terminal is not in the tree").remedy(
                    "redirect it to a file or /dev/null, or --criu-arg=--shell-job here and at restore",
                )
            })
        }
        CHARACTER if TTY_MAJORS.contains(&major) => None,
        CHARACTER if is_kernel_driver(fd) => Some(
            refused
                .why(KERNEL_DRIVER)
                .remedy("run the program under `stasis run`, or use CRIU's plugin for that driver"),
        ),
        CHARACTER => Some(
            refused
                .why(format!("CRIU cannot dump this device ({major}:{minor})"))
                .remedy("close it before the checkpoint"),
        ),
        _ => None,
    }
}

/// Whether it is a device file of the kernel's driver.
pub fn is_kernel_driver(fd: &Descriptor) -> bool {
    fd.file.kind() == CHARACTER && stasis::checkpoint::is_of_device(&fd.link)
}

/// Terminals are found by their numbers, not by path.
fn is_terminal(fd: &Descriptor) -> bool {
    let major = major(fd.file.device);
    fd.file.kind() == CHARACTER && (TTY_MAJORS.contains(&major) || PTS_MAJORS.contains(&major))
}

fn lock(scene: &Scene<'_>, process: &Process, fd: &Descriptor) -> Option<Finding> {
    let held = fd.field("lock")?;
    if scene.flags.file_locks {
        return None;
    }
    // `1: FLOCK  ADVISORY  WRITE 123 fe:00:17 0 EOF`
    let kind = held.split_ascii_whitespace().nth(1).unwrap_or("lock");
    Some(
        refused(process, fd)
            .why(format!("a lock is held on it ({kind}), which CRIU leaves alone unless flags"))
            .remedy("--file-locks (at checkpoint and restore --criu-arg=--file-locks)"),
    )
}

fn unseen(process: &Process, fd: &Descriptor, mounts: &HashSet<&str>) -> Option<Finding> {
    let mount = fd.field("mnt_id").filter(|_| has_path(fd) && !is_terminal(fd))?;
    (!mounts.is_empty() && !mounts.contains(mount)).then(|| {
        refused(process, fd)
            .why("it is on a mount that no process of the tree sees: detached, of another namespace, or a message queue")
            .remedy("close it before the checkpoint (or before the program is started: it may have been inherited)")
    })
}

/// Whether a restore may find it longer than it was: CRIU compares sizes (`bad size`), except of O_APPEND files.
fn log(process: &Process, fd: &Descriptor) -> Option<Finding> {
    let flags = fd.flags();
    let output = matches!(fd.number, 1 | 2) || fd.link.ends_with(".log");
    let grows = fd.file.kind() == REGULAR && flags & ACCESS != 0 && flags & O_APPEND == 0;
    (output && grows && !fd.link.ends_with(DELETED)).then(|| {
        Finding::new(Severity::Warning, process.pid, fd.place(), fd.link.as_str())
            .why("it is written without O_APPEND: a restore is refused (bad size) once somebody changes its length")
            .remedy("open it with O_APPEND (>> in a shell)")
    })
}

/// A file whose name is gone: carried along if it is small, given a name if it has another one.
pub fn ghost(scene: &Scene<'_>, pid: i32, place: String, name: &str, file: &File) -> Option<Finding> {
    let refused = Finding::new(Severity::Refused, pid, place, name);
    if file.links > 0 {
        let fine = scene.flags.link_remap;
        return (!fine).then(|| {
            refused
                .why("its name is gone and another one is left, which CRIU does not look for")
                .remedy("--criu-arg=--link-remap")
        });
    }
    (file.allocated > scene.flags.ghost_limit).then(|| {
        let mebibytes = file.allocated.div_ceil(1 << 20);
        refused
            .why(format!(
                "it is deleted and takes {} bytes; CRIU carries deleted files up to {}",
                file.allocated, scene.flags.ghost_limit
            ))
            .remedy(format!("--criu-arg=--ghost-limit={mebibytes}M, or close it"))
    })
}

/// The pipes of the tree.
#[derive(Default)]
struct Pipes<'t> {
    seen: BTreeMap<FileId, Ends<'t>>,
}

/// Which ends of a pipe are in the tree, and where one was first seen.
struct Ends<'t> {
    process: &'t Process,
    fd: &'t Descriptor,
    read: bool,
    written: bool,
}

impl<'t> Pipes<'t> {
    fn note(&mut self, process: &'t Process, fd: &'t Descriptor) {
        if fd.link.starts_with("pipe:[") {
            let new = Ends { process, fd, read: false, written: false };
            let ends = self.seen.entry(fd.file.id).or_insert(new);
            // 0 reads, 1 writes, 2 does both.
            let access = fd.flags() & ACCESS;
            ends.read |= access != 1;
            ends.written |= access != 0;
        }
    }

    fn cut(self) -> impl Iterator<Item = Finding> {
        let cut = self.seen.into_values().filter(|ends| !(ends.read && ends.written));
        cut.map(|Ends { process, fd, .. }| {
            Finding::new(Severity::Warning, process.pid, fd.place(), fd.link.as_str())
                .why("the pipe's other end is closed or outside the tree: a restore makes a pipe that leads nowhere")
                .remedy("nothing, or --criu-arg=--inherit-fd at restore")
        })
    }
}
