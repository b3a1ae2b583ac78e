// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: order, rings that wrap, several at once, barriers between them.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use stasis::{Arg, Queue, QueueError, QueueOptions, Signal, SubmitError, WaitError};
use stasis_tests::gpu::{Gpu, SOON, Spinning, open, skip_on_kernel_driver, values};

const SMALL: QueueOptions =
    QueueOptions { packets: 64, priority: 7, kernarg_slot_bytes: 512, scratch_lane_bytes: 0 };

/// Submits as soon as there is room.
fn push(queue: &Queue, dispatch: stasis::Dispatch<'_>) {
    while let Err(error) = dispatch.clone().submit() {
        assert!(
            matches!(error, SubmitError::WouldBlock { packets, .. } if packets == queue.packets()),
            "{error}"
        );
        std::thread::yield_now();
    }
}

#[test]
fn dispatches_far_beyond_the_ring_run_once_each_and_in_order() {
    const COUNT: u32 = 700;
    let gpu = Gpu::new();
    let queue = Queue::create(&gpu.agent, SMALL).unwrap();
    let kernel = gpu.kernel("append");
    let log = gpu.buffer(&vec![0u32; COUNT as usize + 1]);
    for value in 1..=COUNT {
        let args = [Arg::Buffer(&log), Arg::U32(value * 3)];
        push(&queue, queue.dispatch(&kernel).grid([1, 1, 1]).args(&args));
    }
    queue.wait_idle(SOON).unwrap();
    let expected: Vec<u32> = std::iter::once(COUNT).chain((1..=COUNT).map(|value| value * 3)).collect();
    assert_eq!(values::<u32>(&log), expected);
    assert!(queue.write_index().unwrap() >= u64::from(COUNT));
    assert_eq!(queue.read_index().unwrap(), queue.write_index().unwrap());
}

#[test]
fn full_ring_refuses_and_leaves_the_queue_as_it_was() {
    let gpu = Gpu::new();
    let queue = Queue::create(&gpu.agent, SMALL).unwrap();
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    queue.barrier(&[&hold], None).unwrap();
    let (kernel, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    let args = [Arg::Buffer(&counter)];
    let mut taken = 0;
    let refused = loop {
        match queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).submit() {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken <= 64, "a ring of 64 took {taken} packets behind a barrier");
    };
    assert!(matches!(refused, SubmitError::WouldBlock { wanted: 1, free: 0, packets: 64 }), "{refused}");
    hold.store(0).unwrap();
    queue.wait_idle(SOON).unwrap();
    assert_eq!(values::<u32>(&counter), [taken]);
}

#[test]
fn threads_share_a_queue_without_losing_a_packet() {
    const EACH: u32 = 200;
    let gpu = Gpu::new();
    let queue = Queue::create(&gpu.agent, SMALL).unwrap();
    let (kernel, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    let done = Signal::new(&gpu.runtime, i64::from(4 * EACH)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let args = [Arg::Buffer(&counter)];
                    push(&queue, queue.dispatch(&kernel).grid([2, 1, 1]).args(&args).completion(&done));
                }
            });
        }
    });
    done.wait_done(SOON).unwrap();
    assert_eq!(values::<u32>(&counter), [4 * EACH * 2]);
}

#[test]
fn queues_run_beside_each_other() {
    let gpu = Gpu::new();
    let spinning = Spinning::start(&gpu);
    // The first queue is busy until its kernel is told to end; the other queues run nevertheless.
    let (increment, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    for _ in 0..3 {
        let queue = Queue::create(&gpu.agent, SMALL).unwrap();
        queue.dispatch(&increment).grid([32, 1, 1]).args(&[Arg::Buffer(&counter)]).submit().unwrap();
        queue.wait_idle(SOON).unwrap();
    }
    assert_eq!(values::<u32>(&counter), [96]);
    let busy = gpu.queue.wait_idle(Some(Duration::from_millis(20)));
    assert!(matches!(busy, Err(WaitError::Timeout { .. })), "{busy:?}");
    spinning.end();
    gpu.queue.wait_idle(SOON).unwrap();
}

#[test]
fn barrier_waits_for_all_its_signals() {
    let gpu = Gpu::new();
    let signals: Vec<Signal> = (0..5).map(|_| Signal::new(&gpu.runtime, 1).unwrap()).collect();
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    gpu.queue.barrier(&signals.iter().collect::<Vec<_>>(), Some(&done)).unwrap();
    for signal in &signals {
        assert!(done.wait_done(Some(Duration::from_millis(10))).is_err(), "it did not wait");
        signal.store(0).unwrap();
    }
    done.wait_done(SOON).unwrap();
    let six: Vec<&Signal> = signals.iter().chain([&done]).collect();
    assert!(matches!(gpu.queue.barrier(&six, None), Err(SubmitError::Dependencies { found: 6 })));
}

#[test]
fn one_queue_waits_for_another() {
    let gpu = Gpu::new();
    let second = Queue::create(&gpu.agent, SMALL).unwrap();
    let (append, log) = (gpu.kernel("append"), gpu.buffer(&[0u32; 3]));
    let first_done = Signal::new(&gpu.runtime, 1).unwrap();
    second.barrier(&[&first_done], None).unwrap();
    second.dispatch(&append).grid([1, 1, 1]).args(&[Arg::Buffer(&log), Arg::U32(2)]).submit().unwrap();
    std::thread::sleep(Duration::from_millis(10));
    let args = [Arg::Buffer(&log), Arg::U32(1)];
    gpu.queue.dispatch(&append).grid([1, 1, 1]).args(&args).completion(&first_done).submit().unwrap();
    second.wait_idle(SOON).unwrap();
    assert_eq!(values::<u32>(&log), [2, 1, 2]);
}

#[test]
fn impossible_options_are_refused_with_their_limits() {
    let agent = open().agent(0).unwrap();
    let refused = |options| Queue::create(&agent, options).unwrap_err();
    assert!(matches!(
        refused(QueueOptions { packets: 100, ..SMALL }),
        QueueError::Packets { packets: 100, min: 64, max: 131_072 }
    ));
    assert!(matches!(
        refused(QueueOptions { kernarg_slot_bytes: 96, ..SMALL }),
        QueueError::KernargSlot { bytes: 96 }
    ));
    assert!(matches!(refused(QueueOptions { priority: 16, ..SMALL }), QueueError::Priority { priority: 16 }));
    assert!(matches!(
        refused(QueueOptions { scratch_lane_bytes: u32::MAX, ..SMALL }),
        QueueError::Scratch { bytes: u32::MAX, .. }
    ));
}

#[test]
fn queue_is_destroyed_once_and_not_while_it_works() {
    let gpu = Gpu::new();
    let queue = Queue::create(&gpu.agent, SMALL).unwrap();
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    queue.barrier(&[&hold], None).unwrap();
    assert!(matches!(queue.destroy(), Err(QueueError::Busy { pending: 1, .. })));
    hold.store(0).unwrap();
    queue.wait_idle(SOON).unwrap();
    queue.destroy().unwrap();
    assert!(matches!(queue.destroy(), Err(QueueError::Stale { .. })));
    assert!(matches!(queue.barrier(&[], None), Err(SubmitError::Stale { .. })));
}

#[test]
fn two_agents_compute_and_exchange_through_the_host() {
    if skip_on_kernel_driver("it asks for two agents, which the machine may not have") {
        return;
    }
    let runtime = stasis_tests::gpu::open_on("soft:gfx1100,gfx1100", None);
    let gpus = [Gpu::on(&runtime, 0), Gpu::on(&runtime, 1)];
    assert_ne!(gpus[0].agent.uuid(), gpus[1].agent.uuid());
    let buffers = [gpus[0].buffer(&[1u32; 256]), gpus[1].buffer(&[2u32; 256])];
    for (gpu, buffer) in gpus.iter().zip(&buffers) {
        gpu.run(&gpu.kernel("store"), [200, 1, 1], [200, 1, 1], &[Arg::Buffer(buffer), Arg::U32(7)]);
    }
    // From one agent to the host, then to the other agent.
    let host = runtime.gtt().alloc(1024).unwrap();
    runtime.copy(host.all(), buffers[0].all(), &[]).unwrap().wait(SOON).unwrap();
    let both = runtime.copy(buffers[1].span(0, 512), host.span(512, 512), &[]).unwrap();
    both.wait(SOON).unwrap();
    let found = values::<u32>(&buffers[1]);
    assert!(
        found[..72].iter().all(|&word| word == 7) && found[72..128].iter().all(|&word| word == 1),
        "{found:?}"
    );
    assert!(found[128..200].iter().all(|&word| word == 7) && found[200..].iter().all(|&word| word == 2));
    let kernel = gpus[0].kernel("increment");
    let foreign = gpus[1].queue.dispatch(&kernel).grid([1, 1, 1]).args(&[Arg::Buffer(&buffers[0])]).submit();
    assert!(matches!(foreign, Err(SubmitError::OtherAgent { .. })), "{foreign:?}");
}
