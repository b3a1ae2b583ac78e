// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a checkpointed process does while it waits to be frozen: CRIU may stop it in the middle of anything, and dumps
//! every file that is open then.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::libc;
use stasis::checkpoint::{CheckpointOrder, Request, State, call};
use stasis_tests::stepper::{Act, Stop, walk_agent};
use stasis_tests::worker::{Worker, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
/// How many looks at the lease are observed.
const LOOKS: usize = 10;

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
    let (mut calls, looks) = (BTreeSet::new(), AtomicUsize::new(0));
    let mut note = |stop: &Stop| {
        if stop.is_entry {
            let call = stop.call.cast_signed();
            calls.insert(call);
            // Each look asks once whether the process is a copy.
            looks.fetch_add(usize::from(call == libc::SYS_statx), Ordering::Relaxed);
        }
        Act::Step
    };
    walk_agent(worker.pid(), &mut note, || {
        wait_until("looks at the lease", || looks.load(Ordering::Relaxed) >= LOOKS);
    });
    assert!(calls.contains(&libc::SYS_statx), "nothing was looked at: {calls:?}");
    let others: Vec<_> = calls.iter().filter(|call| !HARMLESS.contains(call)).collect();
    assert!(others.is_empty(), "system calls {others:?} in a look at the lease");
    let resume = Request::Resume { directory: None, admission: None };
    assert_eq!(call(worker.pid(), &resume, PATIENCE).unwrap().0, State::Running);
    worker.finish();
}
