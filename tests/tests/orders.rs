// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent at work: it reports its state and carries out one order at a time; the controller of an order can cancel
//! it, or end.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stasis::checkpoint::{
    Activity, CallError, CheckpointError, CheckpointOptions, CheckpointOrder, Done, IMAGE_FILE, Mode,
    Request, RestoreOptions, State, call,
};
use stasis_tests::gpu::{Gpu, SOON};
use stasis_tests::program;
use stasis_tests::tally::Tally;
use stasis_tests::worker::wait_until;

const PATIENCE: Duration = Duration::from_secs(60);

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

/// An order that cannot be carried out because a kernel does not end.
fn long_order(directory: &std::path::Path) -> Request {
    Request::Checkpoint(CheckpointOrder {
        deadline_ms: 3_600_000,
        ..CheckpointOrder::into_directory(directory.into())
    })
}

fn status() -> (State, Done) {
    call(own_pid(), &Request::Status, PATIENCE).unwrap()
}

fn is_locking() -> bool {
    matches!(status().1, Done::Status { activity: Activity::Locking, order: Some(order), .. } if order == "checkpoint")
}

#[test]
fn state_is_told_and_the_order_taken_back_while_it_is_at_work() {
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    let directory = tempfile::tempdir().unwrap();
    let order = long_order(directory.path());
    std::thread::scope(|scope| {
        let ordered = scope.spawn(|| call(own_pid(), &order, PATIENCE));
        wait_until("the order to be at work", is_locking);
        assert_eq!(
            (status().0, gpu.runtime.state(), gpu.runtime.activity()),
            (State::Running, State::Running, Activity::Locking)
        );
        let second = call(own_pid(), &order, PATIENCE).unwrap_err();
        assert!(second.to_string().contains("at work on another order, a checkpoint"), "{second}");
        let cancelled = call(own_pid(), &Request::Cancel, PATIENCE).unwrap();
        assert_eq!(cancelled.1, Done::Cancelled { was_at_work: true });
        let refused = ordered.join().unwrap().unwrap_err();
        assert!(
            matches!(&refused, CallError::Refused { state: State::Running, message, .. }
            if message.contains("cancelled")),
            "{refused}"
        );
    });
    assert_eq!(
        call(own_pid(), &Request::Cancel, PATIENCE).unwrap().1,
        Done::Cancelled { was_at_work: false }
    );
    tally.wait_for_more();
    tally.finish();
}

/// Controllers that ask when an order ends are answered in the same turn of the agent, or are connected and not
/// answered yet.
#[test]
fn state_is_told_to_many_while_orders_end_one_after_the_other() {
    const ROUNDS: usize = 8;
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let order = Request::Checkpoint(CheckpointOrder {
        outlives_controller: true,
        lease_ms: 3_600_000,
        ..CheckpointOrder::into_directory(directory.path().into())
    });
    let resume = Request::Resume { directory: None, admission: None };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    status();
                }
            });
        }
        let outcome = (0..ROUNDS).try_for_each(|_| {
            call(own_pid(), &order, PATIENCE)?;
            call(own_pid(), &resume, PATIENCE).map(drop)
        });
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert_eq!(gpu.runtime.state(), State::Running);
}

#[test]
fn order_ends_with_the_controller_that_gave_it() {
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    let directory = tempfile::tempdir().unwrap();
    let mut controller = Command::new(program("stasis"))
        .args(["checkpoint", "--no-preflight", "--deadline-ms", "3600000", &own_pid().to_string()])
        .arg(directory.path().join("images"))
        .env("STASIS_CRIU", stasis_tests::criu())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the order to be at work", is_locking);
    controller.kill().unwrap();
    controller.wait().unwrap();
    wait_until("the end of the order", || matches!(status().1, Done::Status { order: None, .. }));
    assert_eq!(status().0, State::Running);
    tally.wait_for_more();
    tally.finish();
}

#[test]
fn verb_that_has_to_wait_for_another_keeps_its_deadline() {
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| gpu.runtime.lock(Mode::Drain, Duration::from_secs(3600)));
        wait_until("the lock to be at work", || gpu.runtime.activity() == Activity::Locking);
        let started = Instant::now();
        let second = gpu.runtime.lock(Mode::Drain, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(second, CheckpointError::AtWork { verb: "lock", .. }), "{second}");
        assert!(started.elapsed() >= Duration::from_millis(50));
        assert!(gpu.runtime.cancel());
        let first = first.join().unwrap().unwrap_err();
        assert!(matches!(first, CheckpointError::Stopped { verb: "lock", .. }), "{first}");
    });
    assert!(!gpu.runtime.cancel());
    tally.finish();
}

#[test]
fn checkpoint_and_restore_past_their_deadline_leave_the_state_before() {
    let gpu = Gpu::new();
    let buffer = gpu.buffer(&[0x5EED_u32; 4096]);
    let directory = tempfile::tempdir().unwrap();
    let now = Duration::ZERO;
    gpu.runtime.lock(Mode::Drain, PATIENCE).unwrap();
    let options = CheckpointOptions { deadline: now, ..CheckpointOptions::default() };
    let error = gpu.runtime.checkpoint_with(directory.path(), &options).unwrap_err();
    assert!(matches!(error, CheckpointError::Stopped { verb: "checkpoint", .. }), "{error}");
    assert_eq!(gpu.runtime.state(), State::Locked);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "an unfinished image was left");
    gpu.runtime.checkpoint(directory.path()).unwrap();
    assert!(directory.path().join(IMAGE_FILE).exists());
    let error =
        gpu.runtime.restore_with(&RestoreOptions { deadline: now, ..RestoreOptions::default() }).unwrap_err();
    assert!(matches!(error, CheckpointError::Stopped { verb: "restore", .. }), "{error}");
    assert_eq!(gpu.runtime.state(), State::Checkpointed);
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!(stasis_tests::gpu::values::<u32>(&buffer), vec![0x5EED_u32; 4096]);
    gpu.queue.wait_idle(SOON).unwrap();
}

#[test]
fn contents_in_memory_need_no_file() {
    let gpu = Gpu::new();
    let buffer = gpu.buffer(&(0..100_000u32).collect::<Vec<_>>());
    gpu.runtime.lock(Mode::Drain, PATIENCE).unwrap();
    let options = CheckpointOptions { self_contained: true, ..CheckpointOptions::default() };
    gpu.runtime.checkpoint_with(std::path::Path::new("/nowhere"), &options).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!(stasis_tests::gpu::values::<u32>(&buffer), (0..100_000).collect::<Vec<_>>());
}

#[test]
fn image_that_is_removed_or_moved_still_belongs_to_the_living_process() {
    let gpu = Gpu::new();
    let buffer = gpu.buffer(&(0..100_000u32).collect::<Vec<_>>());
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("images");
    for removed in [false, true] {
        std::fs::create_dir_all(&directory).unwrap();
        gpu.runtime.lock(Mode::Drain, PATIENCE).unwrap();
        gpu.runtime.checkpoint(&directory).unwrap();
        if removed {
            std::fs::remove_dir_all(&directory).unwrap();
        } else {
            std::fs::rename(&directory, parent.path().join("moved")).unwrap();
        }
        // The directory in the order is used; a failure there changes nothing.
        let error = gpu.runtime.restore(Some(&directory)).unwrap_err();
        assert!(matches!(error, CheckpointError::Image(_)), "{error}");
        gpu.runtime.restore(None).unwrap();
        gpu.runtime.unlock().unwrap();
        assert_eq!(stasis_tests::gpu::values::<u32>(&buffer), (0..100_000).collect::<Vec<_>>());
    }
}
