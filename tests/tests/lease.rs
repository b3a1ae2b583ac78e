// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a checkpointed process does while it waits to be frozen: CRIU may stop it in the middle of anything, and dumps
//! every file that is open then.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use stasis::checkpoint::{CheckpointOrder, Request, State, call};
use stasis_tests::worker::Worker;

const PATIENCE: Duration = Duration::from_secs(60);
/// Looks at the lease that are watched.
const LOOKS: usize = 10;

/// The thread of process `pid` with this name.
fn thread(pid: i32, name: &str) -> libc::pid_t {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let named = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim_end() == name)
    };
    let found = tasks.into_iter().find(named).unwrap();
    found.file_name().to_str().unwrap().parse().unwrap()
}

/// A thread that stops at every system call.
struct Traced(libc::pid_t);

impl Traced {
    fn seize(thread: libc::pid_t) -> Self {
        let traced = Self(thread);
        // CAST: a flag.
        traced.ptrace(libc::PTRACE_SEIZE, 0, libc::PTRACE_O_TRACESYSGOOD as usize);
        traced.ptrace(libc::PTRACE_INTERRUPT, 0, 0);
        traced.wait();
        traced
    }

    fn ptrace(&self, request: libc::c_uint, address: usize, data: usize) {
        // SAFETY: the requests made here take numbers, or (GET_SYSCALL_INFO) a buffer of the size given.
        let result = unsafe { libc::ptrace(request, self.0, address, data) };
        assert!(result >= 0, "ptrace request {request:#x}: {}", std::io::Error::last_os_error());
    }

    fn wait(&self) {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
        assert_eq!(waited, self.0, "{}", std::io::Error::last_os_error());
        assert!(libc::WIFSTOPPED(status), "the thread ended ({status:#x})");
    }

    /// Runs to the begin or end of its next call; the number of one that begins.
    fn next_call(&self) -> Option<i64> {
        self.ptrace(libc::PTRACE_SYSCALL, 0, 0);
        self.wait();
        // SAFETY: the struct is plain numbers, for which zero is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let place = (&raw mut info).expose_provenance();
        self.ptrace(libc::PTRACE_GET_SYSCALL_INFO, size_of_val(&info), place);
        // SAFETY: the kernel says which of the union's parts it wrote.
        (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| unsafe { info.u.entry.nr }.cast_signed())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // SAFETY: takes numbers. A thread that has ended meanwhile needs no letting go.
        let _ = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

#[test]
fn no_look_at_the_lease_opens_a_file() {
    const HARMLESS: [i64; 12] = [
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_restart_syscall,
        libc::SYS_kill,
        libc::SYS_process_vm_readv,
        libc::SYS_statx,
        libc::SYS_getpid,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_madvise,
        libc::SYS_munmap,
        libc::SYS_sched_yield,
    ];
    let worker = Worker::start(&[]);
    let order = CheckpointOrder::into_directory(worker.path("image"));
    let order = Request::Checkpoint(CheckpointOrder { lease_ms: 3_600_000, ..order });
    fs::create_dir(worker.path("image")).unwrap();
    assert_eq!(call(worker.pid(), &order, PATIENCE).unwrap().0, State::Checkpointed);
    let mut calls = BTreeSet::new();
    {
        let traced = Traced::seize(thread(worker.pid(), "stasis-orders"));
        let mut looks = 0;
        while looks < LOOKS {
            let Some(call) = traced.next_call() else { continue };
            looks += usize::from([libc::SYS_poll, libc::SYS_ppoll].contains(&call));
            calls.insert(call);
        }
    }
    assert!(calls.contains(&libc::SYS_statx), "nothing was looked at: {calls:?}");
    let others: Vec<_> = calls.iter().filter(|call| !HARMLESS.contains(call)).collect();
    assert!(others.is_empty(), "system calls {others:?} in a look at the lease");
    let resume = Request::Resume { directory: None, admission: None };
    assert_eq!(call(worker.pid(), &resume, PATIENCE).unwrap().0, State::Running);
    worker.finish();
}
