// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime on the real software device, in this process's own `softgpud`.
//!
//! One process has one runtime, so each test is run in a process of its own (`cargo nextest`) or shares it (`cargo test`).

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use stasis::checkpoint::Mode;
use stasis::{
    Arg, Buffer, Condition, Executable, FreeError, Options, Queue, QueueOptions, Runtime, Signal,
    SubmitError, WaitError, WaitMode,
};

const SOON: Option<Duration> = Some(Duration::from_secs(30));

fn runtime() -> Runtime {
    let device = Some("soft:gfx1100".parse().unwrap());
    Runtime::open(Options { device, agents: None }).unwrap()
}

fn filled(buffer: &Buffer, byte: u8) -> bool {
    buffer.to_vec().unwrap().iter().all(|&found| found == byte)
}

#[test]
fn fill_and_copy_move_the_bytes() {
    let runtime = runtime();
    let agent = runtime.agent(0).unwrap();
    let (from, to) = (agent.vram().alloc(100_003).unwrap(), runtime.gtt().alloc(100_003).unwrap());
    runtime.fill(from.all(), &[0xab], &[]).unwrap().wait(SOON).unwrap();
    assert!(filled(&from, 0xab));
    let pattern: Vec<u8> = (0..100_003u32).map(|i| (i * 7 % 251) as u8).collect();
    from.upload(0, &pattern).unwrap();
    let copied = runtime.copy(to.span(1, 99_000), from.span(3, 99_000), &[]).unwrap();
    copied.wait(SOON).unwrap();
    assert_eq!(to.to_vec().unwrap()[1..99_001], pattern[3..99_003]);
}

#[test]
fn barriers_wake_blocked_waiters() {
    let runtime = runtime();
    let queue = Queue::create(&runtime.agent(0).unwrap(), QueueOptions::default()).unwrap();
    for mode in [WaitMode::Busy, WaitMode::Auto, WaitMode::Blocked] {
        for _ in 0..200 {
            let done = Signal::new(&runtime, 1).unwrap();
            queue.barrier(&[], Some(&done)).unwrap();
            done.wait(Condition::LessThan(1), SOON, mode).unwrap();
        }
    }
    queue.wait_idle(SOON).unwrap();
}

#[test]
fn kernel_that_faults_is_named_and_other_queues_go_on() {
    // Released kernels stop all queues of the process at a memory fault.
    stasis_tests::gpu::on_a_future_kernel();
    let runtime = runtime();
    let agent = runtime.agent(0).unwrap();
    let (bad, good) = (
        Queue::create(&agent, QueueOptions::default()).unwrap(),
        Queue::create(&agent, QueueOptions::default()).unwrap(),
    );
    let executable = Executable::load(&agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
    let fill = executable.kernel(device_lib::FILL).unwrap();
    let target = agent.vram().alloc(4096).unwrap();
    // The buffer's guard page follows the buffer.
    let launch = device_lib::fill(target.va() + 4096, 64, &[1]).unwrap();
    let block = launch.arguments.to_bytes();
    let done = Signal::new(&runtime, 1).unwrap();
    let dispatch = bad.dispatch(&fill).grid(launch.grid).block(launch.workgroup).raw_kernarg(&block);
    dispatch.completion(&done).submit().unwrap();
    let error = done.wait(Condition::LessThan(1), SOON, WaitMode::Blocked).unwrap_err();
    let WaitError::Queue(fault) = &error else { panic!("{error}") };
    println!("{error}");
    assert_eq!(fault.memory.unwrap().address & !0xfff, target.va() + 4096);
    let wave = fault.wave.as_ref().unwrap();
    assert_eq!(wave.kernel.as_ref().unwrap().0, device_lib::FILL);
    assert!(!wave.bytes.is_empty());
    assert!(matches!(bad.barrier(&[], None), Err(SubmitError::Queue(_))));
    let launch = device_lib::fill(target.va(), 4096, &[7]).unwrap();
    let block = launch.arguments.to_bytes();
    good.dispatch(&fill).grid(launch.grid).block(launch.workgroup).raw_kernarg(&block).submit().unwrap();
    good.wait_idle(SOON).unwrap();
    assert!(filled(&target, 7));
    bad.destroy().unwrap();
    target.free().unwrap();
    assert!(matches!(target.free(), Err(FreeError::Stale { .. })));
}

#[test]
fn a_thousand_dispatches_on_a_small_ring() {
    let runtime = runtime();
    let agent = runtime.agent(0).unwrap();
    let options = QueueOptions { packets: 64, kernarg_slot_bytes: 64, ..QueueOptions::default() };
    let queue = Queue::create(&agent, options).unwrap();
    let executable = Executable::load(&agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
    let fill = executable.kernel(device_lib::FILL).unwrap();
    let buffer = agent.vram().alloc(64 * 1000).unwrap();
    let done = Signal::new(&runtime, 1000).unwrap();
    for i in 0..1000u64 {
        let launch = device_lib::fill(buffer.va() + 64 * i, 64, &(i as u32).to_le_bytes()).unwrap();
        let block = launch.arguments.to_bytes();
        let dispatch = queue.dispatch(&fill).grid(launch.grid).block(launch.workgroup).raw_kernarg(&block);
        let dispatch = dispatch.barrier(false).completion(&done);
        while let Err(error) = dispatch.clone().submit() {
            assert!(matches!(error, SubmitError::WouldBlock { .. }), "{error}");
            std::thread::yield_now();
        }
    }
    done.wait(Condition::Equal(0), SOON, WaitMode::Auto).unwrap();
    let bytes = buffer.to_vec().unwrap();
    for (i, word) in bytes.chunks_exact(4).enumerate() {
        assert_eq!(u32::from_le_bytes(word.try_into().unwrap()), (i / 16) as u32);
    }
    let count = queue.dispatch(&fill).grid([1, 1, 1]).args(&[Arg::U32(1)]).submit();
    assert!(matches!(count, Err(SubmitError::Arguments(_))));
}

#[test]
fn checkpoint_and_restore_in_place_under_sleeping_waiters() {
    let runtime = runtime();
    let agent = runtime.agent(0).unwrap();
    let options = QueueOptions { packets: 64, ..QueueOptions::default() };
    let queue = Queue::create(&agent, options).unwrap();
    let buffer = agent.vram().alloc(1 << 20).unwrap();
    runtime.fill(buffer.all(), &[0x5a], &[]).unwrap().wait(SOON).unwrap();
    for _ in 0..100 {
        while queue.barrier(&[], None).is_err() {
            std::thread::yield_now();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    for round in 0..3u64 {
        let (signal, hold) = (Signal::new(&runtime, 1).unwrap(), Signal::new(&runtime, 1).unwrap());
        let sleeper = {
            let signal = signal.clone();
            std::thread::spawn(move || signal.wait(Condition::Equal(0), SOON, WaitMode::Blocked))
        };
        std::thread::sleep(Duration::from_millis(20));
        runtime.lock(Mode::Drain, Duration::from_secs(10)).unwrap();
        runtime.checkpoint(directory.path()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        runtime.restore(None).unwrap();
        runtime.unlock().unwrap();
        assert!(!sleeper.is_finished());
        // A drain adds one marker to every queue that had packets.
        let index = queue.write_index().unwrap();
        assert!(index > 100 + round && index < 120 + 2 * round, "{index}");
        assert_eq!(queue.barrier(&[&hold], Some(&signal)).unwrap(), index);
        hold.store(0).unwrap();
        assert_eq!(sleeper.join().unwrap().unwrap(), 0);
        assert!(filled(&buffer, 0x5a));
        runtime.fill(buffer.span(0, 1), &[0x5a], &[]).unwrap().wait(SOON).unwrap();
    }
}
