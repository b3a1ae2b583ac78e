// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a device inside the tree that is dumped: in a container, process 1 inherits the software device and the
//! keepers of render files. Elsewhere these processes are outside the tree.
//!
//! INVARIANT: such a process is never dumped, and no client loses anything. A process outside the tree takes a keeper's
//! place before the keeper ends. The software device would outlive the release by its clients; it is ended only when
//! every process of the tree has closed its device and no process outside the tree is a client. A process that resumes
//! starts a new software device and rebuilds its state there (`runtime/src/checkpoint/`). A GPU's driver is no process;
//! with a GPU nothing is ended.
//!
//! INVARIANT: when [`clear`] returns, nothing of a device is about to end in the tree. The threads of a killed process
//! end one by one; a leader that ends first stays as a zombie until the other threads have ended, and CRIU refuses such
//! a process. So a process has ended when the kernel lists no other thread of it. (A pidfd becomes readable at the same
//! moment, when the thread group has ended. But a pidfd says nothing of processes that had begun to end before it was
//! opened.)

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kfd::linux::{pidfd_getfd, pidfd_kill, pidfd_open, set_nonblocking, set_receive_timeout};
use nix::errno::Errno;
use nix::sys::socket::{UnixAddr, connect};
use nix::unistd::Pid;
use stasis::checkpoint::{Culprit, KEEPER_NAME, KeeperError, audit_process, succeed_keeper};
use stasis_criu_foreign::members;
use thiserror::Error;

use crate::agent::{AgentError, socket_of};
use crate::host::{Level, log};
use crate::process::{Process, proc_directory};

/// File name of the program that is the software device.
const PROGRAM: &str = "softgpud";
/// TIMEOUT: how long a killed process may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// The pause between two looks.
const AGAIN: Duration = Duration::from_millis(2);

/// What stays in the tree.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum InsideError {
    #[error(
        "Process {pid} of the tree has a device and no agent to let go of it: {culprit}. The tree is not dumped; all \
         its processes run on"
    )]
    Held { pid: i32, culprit: Culprit },
    #[error(
        "The software device, process {device}, belongs to the tree and serves process {client} (0: one that is not to \
         be seen), which does not. The tree is not dumped; all its processes run on"
    )]
    Foreign { device: i32, client: i32 },
    #[error("Cannot end process {pid}, which belongs to a device, in the tree")]
    End {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("Process {pid}, which belongs to a device, has not ended within {} s", ENDING.as_secs())]
    Stays { pid: i32 },
    #[error("Cannot reach process {keeper}, which keeps the render files of process {pid}")]
    Keeper {
        keeper: i32,
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("Cannot take the place of process {keeper}, which keeps the render files of process {pid}")]
    Succeed {
        keeper: i32,
        pid: i32,
        #[source]
        source: KeeperError,
    },
    #[error(transparent)]
    Enter(#[from] AgentError),
}

/// Ends the processes of a device in the tree below `root`. `ours` are the processes of the tree with an agent; they
/// have closed their devices.
pub(crate) fn clear<'p>(root: i32, ours: impl Iterator<Item = &'p Process>) -> Result<(), InsideError> {
    let members = members(root);
    let mut keepers = Vec::new();
    for process in ours {
        for keeper in find_keepers(process, &members) {
            keepers.push(keeper.pid);
            keeper.relieve(process)?;
        }
    }
    keepers.iter().try_for_each(|pid| wait_for_the_end_of(*pid))?;
    // Devices whose clients have ended end by themselves, and may be about to end now.
    members.iter().filter(|pid| is_ending(**pid)).try_for_each(|pid| wait_for_the_end_of(*pid))?;
    let (devices, others): (Vec<i32>, Vec<i32>) =
        members.iter().filter(|pid| !keepers.contains(pid)).partition(|pid| is_device(**pid));
    if devices.is_empty() {
        return Ok(());
    }
    for pid in others {
        // A process that has ended has no device.
        if let Some(culprit) = audit_process(&proc_directory(pid)).unwrap_or_default().into_iter().next() {
            return Err(InsideError::Held { pid, culprit });
        }
    }
    for device in &devices {
        if let Some(client) = clients_of(*device).into_iter().find(|client| !members.contains(client)) {
            return Err(InsideError::Foreign { device: *device, client });
        }
    }
    devices.iter().try_for_each(|pid| end(*pid))?;
    devices.iter().try_for_each(|pid| wait_for_the_end_of(*pid))?;
    log(
        Level::Info,
        &format!("the software device has ended with its clients' device ({} processes)", devices.len()),
    );
    Ok(())
}

/// Whether a process is the software device. A process that has ended has no program any more.
fn is_device(pid: i32) -> bool {
    programs(pid).any(|program| is_named(&program))
}

/// The threads of a process that are still listed; for a zombie that was not reaped, its leader.
fn threads(pid: i32) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(proc_directory(pid).join("task")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The program of each thread that executes one: a leader that has ended has none, though its threads may.
fn programs(pid: i32) -> impl Iterator<Item = PathBuf> {
    threads(pid).filter_map(|thread| fs::read_link(thread.join("exe")).ok())
}

/// Whether a process has ended with all its threads. It may be a zombie: CRIU dumps zombies that process 1 of a
/// container has not reaped.
fn has_ended(pid: i32) -> bool {
    threads(pid).count() <= 1 && programs(pid).next().is_none()
}

/// Whether a process is about to end: it executes nothing, and threads of it are left.
fn is_ending(pid: i32) -> bool {
    threads(pid).count() > 1 && programs(pid).next().is_none()
}

fn is_named(program: &Path) -> bool {
    // The kernel adds the suffix to the name of a program whose file was replaced.
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(" (deleted)").unwrap_or(name) == PROGRAM
}

/// The processes that a device serves, or that are part of the device: it has a pidfd of each. Those that have ended do
/// not count.
fn clients_of(device: i32) -> Vec<i32> {
    let entries = fs::read_dir(proc_directory(device).join("fdinfo")).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let pids = texts.filter_map(|text| {
        text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok())
    });
    pids.filter(|pid| *pid >= 0).collect()
}

fn end(pid: i32) -> Result<(), InsideError> {
    let ended = pidfd_open(Pid::from_raw(pid)).and_then(|process| match is_device(pid) {
        true => pidfd_kill(process.as_fd()),
        false => Ok(()),
    });
    match ended {
        // The process ended by itself.
        Err(Errno::ESRCH) => Ok(()),
        ended => ended.map_err(|error| InsideError::End { pid, source: error.into() }),
    }
}

/// Waits until a killed process has ended with all its threads.
pub(crate) fn wait_for_the_end_of(pid: i32) -> Result<(), InsideError> {
    let until = Instant::now() + ENDING;
    while !has_ended(pid) {
        if Instant::now() >= until {
            return Err(InsideError::Stays { pid });
        }
        std::thread::sleep(AGAIN);
    }
    Ok(())
}

/// A keeper in the tree.
#[derive(Debug)]
struct InsideKeeper {
    pid: i32,
    /// Its socket: the number of the keeper's descriptor, and the name.
    fd: i32,
    name: String,
}

/// Inode and name of the sockets that a process's keepers listen on, among those that `/proc/net/unix` lists.
fn keepers_among(sockets: &str, own_pid: i32) -> Vec<(String, String)> {
    const LISTENS: &str = "00010000";
    let prefix = format!("@{KEEPER_NAME}{own_pid}.");
    let fields = sockets.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let found = fields.filter(|fields| fields.get(3) == Some(&LISTENS)).filter_map(|fields| {
        let name = fields.get(7).filter(|name| name.starts_with(&prefix))?.strip_prefix('@')?;
        Some(((*fields.get(6)?).to_owned(), name.to_owned()))
    });
    found.collect()
}

fn find_keepers(process: &Process, members: &[i32]) -> Vec<InsideKeeper> {
    let sockets = fs::read_to_string(proc_directory(process.pid).join("net/unix")).unwrap_or_default();
    let found = keepers_among(&sockets, process.own_pid).into_iter();
    found.filter_map(|(inode, name)| find_keeper(process, members, &inode, name)).collect()
}

/// The process of the tree that listens on the socket of this inode.
fn find_keeper(process: &Process, members: &[i32], inode: &str, name: String) -> Option<InsideKeeper> {
    let link = format!("socket:[{inode}]");
    let (pid, fd) = members.iter().filter(|pid| **pid != process.pid).find_map(|pid| {
        let mut entries = fs::read_dir(proc_directory(*pid).join("fd")).ok()?.flatten();
        let entry = entries.find(|e| fs::read_link(e.path()).is_ok_and(|to| to.as_os_str() == link.as_str()));
        Some((*pid, entry?.file_name().to_str()?.parse().ok()?))
    })?;
    Some(InsideKeeper { pid, fd, name })
}

impl InsideKeeper {
    /// Has a process outside the tree take the keeper's place; the keeper then ends.
    fn relieve(&self, process: &Process) -> Result<(), InsideError> {
        let connection = socket_of(process)?;
        let reach = || -> io::Result<OwnedFd> {
            let listener = pidfd_getfd(pidfd_open(Pid::from_raw(self.pid))?.as_fd(), self.fd)?;
            set_nonblocking(&connection, false)?;
            set_receive_timeout(&connection, ENDING)?;
            connect(connection.as_raw_fd(), &UnixAddr::new_abstract(self.name.as_bytes())?)?;
            Ok(listener)
        };
        let (keeper, pid) = (self.pid, process.pid);
        let listener = reach().map_err(|source| InsideError::Keeper { keeper, pid, source })?;
        succeed_keeper(&listener, &connection, process.pid).map_err(|source| InsideError::Succeed {
            keeper,
            pid,
            source,
        })?;
        log(Level::Info, &format!("the render files of process {} are kept outside the tree", process.pid));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::sync::Mutex;

    use nix::libc;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::wait::waitpid;

    /// A child that has the device's name.
    fn device(directory: &Path) -> Child {
        let program = directory.join(PROGRAM);
        fs::copy("/bin/sleep", &program).unwrap();
        Command::new(program).arg("1000").spawn().unwrap()
    }

    /// Serialises tests whose tree is all children of this process.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn device_in_the_tree_is_ended_and_its_dead_body_is_enough() {
        let _alone = ALONE.lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut child = device(directory.path());
        let pid = child.id().cast_signed();
        let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
        // A device of another tree is not ended.
        clear(bystander.id().cast_signed(), std::iter::empty()).unwrap();
        assert!(is_device(pid));
        clear(std::process::id().cast_signed(), std::iter::empty()).unwrap();
        assert!(!is_device(pid));
        assert!(!child.wait().unwrap().success());
        assert!(bystander.try_wait().unwrap().is_none(), "who is no device is left alone");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }

    #[test]
    fn device_that_somebody_of_the_tree_still_holds_is_not_ended() {
        let _alone = ALONE.lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut child = device(directory.path());
        let held = memfd_create("softgpu:vram", MFdFlags::MFD_CLOEXEC).unwrap();
        let own = std::process::id().cast_signed();
        let error = clear(own, std::iter::empty()).unwrap_err();
        assert!(matches!(error, InsideError::Held { pid, .. } if pid == own), "{error}");
        assert!(error.to_string().contains("memfd:softgpu"), "{error}");
        drop(held);
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn clients_are_those_that_live_and_are_known_by_pidfd() {
        let own = std::process::id().cast_signed();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert_eq!(clients_of(own), [0; 0]);
        let _pidfd = pidfd_open(Pid::from_raw(pid)).unwrap();
        assert_eq!(clients_of(own), [pid]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(clients_of(own), [0; 0]);
    }

    /// How long a process goes on after its leader has ended.
    static LINGERS: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 400_000_000 };

    /// A thread that outlives its leader.
    #[allow(unsafe_code)]
    extern "C" fn linger(_: *mut libc::c_void) -> libc::c_int {
        // SAFETY: reads a constant.
        unsafe { libc::nanosleep(&raw const LINGERS, std::ptr::null_mut()) }
    }

    /// A child whose leader has ended and has left a thread.
    #[allow(unsafe_code)]
    fn headless() -> i32 {
        let stack = Box::leak(vec![0u8; 64 << 10].into_boxed_slice());
        let top = stack.as_mut_ptr_range().end.cast();
        let group =
            libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        // SAFETY: the child only makes system calls, on a stack of its own in its own copy of the memory.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `linger` only makes a system call; the stack is this copy's, and nobody else uses it.
            unsafe { libc::clone(linger, top, group, std::ptr::null_mut()) };
            // SAFETY: ends the leader alone, which `exit` of the C library would not.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        assert!(child > 0, "fork");
        while fs::read_link(proc_directory(child).join("exe")).is_ok() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn leader_that_ended_before_its_threads_is_waited_for() {
        let _alone = ALONE.lock().unwrap();
        let pid = headless();
        assert_eq!(threads(pid).count(), 2, "the thread goes on");
        assert!(programs(pid).next().is_some() && !has_ended(pid) && !is_ending(pid));
        wait_for_the_end_of(pid).unwrap();
        // CRIU refuses a zombie with a second thread.
        assert_eq!(threads(pid).count(), 1);
        waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        assert!(has_ended(pid), "buried, too");
    }

    #[test]
    fn only_the_program_s_name_counts() {
        assert!(is_named(Path::new("/app/softgpud")) && is_named(Path::new("/app/softgpud (deleted)")));
        assert!(!is_named(Path::new("/softgpud/sleep")) && !is_named(Path::new("/app/softgpud2")));
    }

    #[test]
    fn keepers_are_found_by_their_process_s_own_number() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0: 00000002 00000000 00010000 0005 01 101 @stasis-keeper.12.0\n\
             0: 00000002 00000000 00000000 0005 01 102 @stasis-keeper.1.0\n\
             0: 00000002 00000000 00010000 0005 01 103 @stasis-keeper.1.7\n\
             0: 00000002 00000000 00010000 0005 01 104 @stasis-keeper.1.8\n";
        let found = [("103", "stasis-keeper.1.7"), ("104", "stasis-keeper.1.8")]
            .map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(keepers_among(sockets, 1), found);
        assert_eq!(keepers_among(sockets, 2), []);
    }
}
