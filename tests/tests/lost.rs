// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device dies under a process, or the process under its device.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use stasis::checkpoint::Mode;
use stasis::{Arg, Condition, Options, Runtime, Signal, SubmitError, WaitError, WaitMode};
use stasis_tests::gpu::{Gpu, Spinning, skip_on_kernel_driver};
use stasis_tests::worker::{Worker, devices, is_alive, kill, ticks, wait_until};

const SOFT: &str = "it kills softgpud";

/// A generous limit for operations that must not hang.
const AT_MOST: Duration = Duration::from_secs(20);

fn own_devices() -> Vec<i32> {
    let found = devices(&format!("tests-{}", std::process::id()));
    assert!(found.len() >= 2, "a broker and an executor: {found:?}");
    found
}

#[test]
fn killed_softgpud_is_a_typed_error_for_waiters_and_callers_and_no_hang() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::new();
    let spinning = Spinning::start(&gpu);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let asleep = scope.spawn(|| spinning.done.wait(Condition::Equal(0), None, WaitMode::Blocked));
        let awake = scope.spawn(|| spinning.done.wait(Condition::Equal(0), None, WaitMode::Busy));
        std::thread::sleep(Duration::from_millis(100));
        own_devices().into_iter().for_each(kill);
        for waiter in [asleep, awake] {
            let error = waiter.join().unwrap().unwrap_err();
            assert!(matches!(error, WaitError::Lost(_)), "{error}");
            assert!(error.to_string().contains("softgpud"), "{error}");
        }
    });
    assert!(started.elapsed() < AT_MOST);
    let error = gpu.queue.barrier(&[], None).unwrap_err();
    assert!(matches!(error, SubmitError::Lost(_)), "{error}");
    assert!(gpu.agent.vram().alloc(4096).is_err());
    assert!(Signal::new(&gpu.runtime, 0).is_err());
    assert!(gpu.runtime.lock(Mode::Drain, Duration::from_secs(1)).is_err());
    let again = Runtime::open(Options { device: Some("soft:gfx1100".parse().unwrap()), agents: None });
    assert!(matches!(again, Err(stasis::OpenError::Lost(_))), "{again:?}");
    drop((gpu, spinning));
    assert!(started.elapsed() < AT_MOST, "dropping hangs");
}

#[test]
fn killed_client_leaves_no_device_behind() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let mut worker = Worker::start(&["--threads", "2"]);
    let served = worker.devices();
    assert!(served.len() >= 2, "{served:?}");
    worker.kill();
    wait_until("the device's end", || !served.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn device_is_gone_after_an_orderly_end() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let worker = Worker::start(&[]);
    let served = worker.devices();
    worker.finish();
    wait_until("the device's end", || !served.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn idle_device_uses_no_processor() {
    if skip_on_kernel_driver("it reads softgpud's times") {
        return;
    }
    let gpu = Gpu::new();
    let counter = gpu.buffer(&[0u32]);
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    let served = own_devices();
    // A device that has just worked may look for more for a moment.
    std::thread::sleep(Duration::from_millis(300));
    let used = || served.iter().map(|&pid| ticks(pid)).sum::<u64>();
    let before = used();
    std::thread::sleep(Duration::from_millis(1500));
    let spent = used() - before;
    assert!(spent <= 2, "{spent} ticks (of 150) while nothing was asked of it");
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
}

#[test]
fn clients_of_one_device_share_its_memory_and_a_dead_ones_comes_back() {
    if skip_on_kernel_driver("it needs to be the device's only user") {
        return;
    }
    let gpu = Gpu::new();
    let before = gpu.agent.vram_available().unwrap();
    let instance = format!("tests-{}", std::process::id());
    let directory = tempfile::tempdir().unwrap();
    let mut other = std::process::Command::new(stasis_tests::program("counter-worker"))
        .arg("--until")
        .arg(directory.path().join("never"))
        .env("STASIS_DEVICE", "soft:gfx1100")
        .env("STASIS_SOFTGPU_INSTANCE", instance)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the other's allocations", || gpu.agent.vram_available().unwrap() < before - (3 << 20));
    other.kill().unwrap();
    other.wait().unwrap();
    wait_until("the return of its memory", || gpu.agent.vram_available().unwrap() == before);
}
