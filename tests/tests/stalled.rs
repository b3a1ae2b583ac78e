// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that stops for a while: every wait for it ends at its own deadline, and nothing is lost, for the device
//! goes on later.
//!
//! Operations that must not hang are done while the device is stopped, and checked before it goes on: no clock is read.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use stasis::checkpoint::{CheckpointError, Mode, State};
use stasis::{Arg, Condition, WaitError, WaitMode};
use stasis_tests::gpu::{
    Gpu, SOON, Spinning, faults_object, on_a_future_kernel, skip_on_kernel_driver, values,
};
use stasis_tests::program;
use stasis_tests::worker::{Stopped, Worker, devices, is_alive, refused, succeeded, wait_until};

const SOFT: &str = "it stops softgpud";

/// This process's device.
fn stop_own() -> Stopped {
    Stopped::stop(devices(&format!("tests-{}", std::process::id())))
}

#[test]
fn wait_for_a_signal_of_a_stopped_device_ends_at_its_deadline_and_nothing_is_lost() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::new();
    let spinning = Spinning::start(&gpu);
    let stopped = stop_own();
    let short = Some(Duration::from_millis(200));
    for mode in [WaitMode::Blocked, WaitMode::Auto, WaitMode::Busy] {
        let error = spinning.done.wait(Condition::Equal(0), short, mode).unwrap_err();
        assert!(matches!(error, WaitError::Timeout { value: 1, .. }), "{error}");
    }
    spinning.end();
    drop(stopped);
    spinning.done.wait(Condition::Equal(0), SOON, WaitMode::Blocked).unwrap();
}

#[test]
fn locks_of_a_stopped_device_end_at_their_deadline_and_the_process_runs_on() {
    on_a_future_kernel();
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::new();
    let (counter, increment) = (gpu.buffer(&[0u32]), gpu.kernel("increment"));
    // A drain waits for this.
    let spinning = Spinning::start(&gpu);
    let stopped = stop_own();
    let error = gpu.runtime.lock(Mode::Preempt, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CheckpointError::Stalled { verb: "lock", .. }), "{error:?}");
    let error = gpu.runtime.lock(Mode::Drain, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CheckpointError::LockTimeout { .. }), "{error:?}");
    // After a cancel it reports that and ends long before its deadline.
    let error = std::thread::scope(|scope| {
        let lock = scope.spawn(|| gpu.runtime.lock(Mode::Preempt, Duration::from_secs(3600)));
        wait_until("the lock's end", || {
            gpu.runtime.cancel();
            lock.is_finished()
        });
        lock.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, CheckpointError::Stopped { verb: "lock", .. }), "{error:?}");
    drop(stopped);
    spinning.end();
    spinning.done.wait_done(SOON).unwrap();
    for mode in [Mode::Preempt, Mode::Drain] {
        gpu.runtime.lock(mode, Duration::from_secs(60)).unwrap();
        gpu.runtime.unlock().unwrap();
    }
    gpu.run(&increment, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [10]);
}

#[test]
fn unlock_of_a_stopped_device_ends_at_its_deadline_and_can_be_tried_again() {
    on_a_future_kernel();
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::new();
    let spinning = Spinning::start(&gpu);
    gpu.runtime.lock(Mode::Preempt, Duration::from_secs(60)).unwrap();
    let stopped = stop_own();
    let error = gpu.runtime.unlock_with(Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CheckpointError::Stalled { verb: "unlock", .. }), "{error:?}");
    assert_eq!(gpu.runtime.state(), State::Locked);
    drop(stopped);
    gpu.runtime.unlock().unwrap();
    spinning.end();
    spinning.done.wait_done(SOON).unwrap();
}

#[test]
fn preempted_checkpoint_of_a_stopped_device_fails_in_time_and_the_process_runs_on() {
    on_a_future_kernel();
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let worker = Worker::start(&["--threads", "2"]);
    let stopped = Stopped::stop(worker.devices());
    let error = refused(&worker.checkpoint("never", &["--preempt", "--deadline-ms", "1500"]));
    // The stop may have caught a thread of the worker inside a call to the device: then the gate cannot close in time.
    let is_told = ["did not answer", "still in flight"].iter().any(|told| error.contains(told));
    assert!(is_told, "{error}");
    let pid = worker.pid().to_string();
    let status = worker.stasis(&["status", &pid]);
    assert!(String::from_utf8_lossy(&status.stdout).starts_with("running"), "{status:?}");
    drop(stopped);
    worker.wait_rounds(2);
    succeeded(&worker.checkpoint("good", &["--preempt", "--leave-running"]));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn device_stopped_for_twelve_seconds_in_a_preempted_checkpoint_costs_nothing() {
    on_a_future_kernel();
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let worker = Worker::start(&["--threads", "4"]);
    let more = ["--preempt", "--deadline-ms", "60000", "--leave-running"];
    std::thread::scope(|scope| {
        let stopped = Stopped::stop(worker.devices());
        let checkpoint = scope.spawn(|| worker.checkpoint("images", &more));
        // Longer than any time-out that calls to a device ever had.
        std::thread::sleep(Duration::from_secs(12));
        drop(stopped);
        succeeded(&checkpoint.join().unwrap());
    });
    worker.wait_rounds(3);
    worker.finish();
}

#[test]
fn dispatch_on_a_stopped_device_ends_by_its_timeout() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let target = Gpu::new().agent.name().to_owned();
    fs::write(directory.path().join("faults.co"), faults_object(&target)).unwrap();
    let instance = format!("stalled-{}", std::process::id());
    let line =
        "dispatch faults.co --kernel spin --grid 1,1,1 --block 1,1,1 --arg out:u32[1] --timeout-ms 1500";
    let command = Command::new(program("stasis"))
        .args(line.split(' '))
        .current_dir(directory.path())
        .env("STASIS_DEVICE", format!("soft:{target}"))
        .env("STASIS_SOFTGPU_INSTANCE", &instance)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the device", || devices(&instance).len() >= 2);
    let stopped = Stopped::stop(devices(&instance));
    wait_until("the command's end", || !is_alive(command.id().cast_signed()));
    let output = command.wait_with_output().unwrap();
    drop(stopped);
    let error = refused(&output);
    assert!(error.contains("has not answered for 1500 ms"), "{error}");
}
