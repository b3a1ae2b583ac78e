// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints of queues that stand at packets which wait for signals: what is behind those runs once, after the restore.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use queues::aql::{self, Barrier, BarrierValue, Condition};
use stasis::checkpoint::{CheckpointError, Mode};
use stasis::raw::RawKind;
use stasis::{Arg, Buffer, Kernel, Queue, QueueOptions, Runtime, Signal, SubmitError};
use stasis_tests::gpu::{Gpu, Numbers, SOON, Spinning, on_a_future_kernel, values};
use stasis_tests::packets::raw_queue;

/// TIMEOUT: of a lock that has nothing to wait for. It is far longer than one takes.
const DEADLINE: Duration = Duration::from_secs(60);
/// A ring that is full soon.
const SMALL: QueueOptions =
    QueueOptions { packets: 64, priority: 7, kernarg_slot_bytes: 256, scratch_lane_bytes: 0 };

fn lock(runtime: &Runtime) {
    let begun = Instant::now();
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    assert!(begun.elapsed() < DEADLINE / 2, "{:?}: it waited for what nobody does", begun.elapsed());
}

fn through_a_checkpoint(runtime: &Runtime, directory: &Path) {
    lock(runtime);
    runtime.checkpoint(directory).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
}

/// A sum on the device that dispatches add powers of two to, each by arguments of its own.
struct Sum {
    kernel: Kernel,
    ones: Buffer,
    sum: Buffer,
}

impl Sum {
    fn new(gpu: &Gpu) -> Self {
        Self { kernel: gpu.kernel("axpy"), ones: gpu.buffer(&[1.0f32]), sum: gpu.buffer(&[0.0f32]) }
    }

    fn add(&self, queue: &Queue, number: f32, done: Option<&Signal>) {
        let args = [Arg::Buffer(&self.ones), Arg::Buffer(&self.sum), Arg::F32(number), Arg::U32(1)];
        let dispatch =
            queue.dispatch(&self.kernel).grid([1, 1, 1]).block([1, 1, 1]).args(&args).barrier(true);
        match done {
            Some(done) => dispatch.completion(done).submit().unwrap(),
            None => dispatch.submit().unwrap(),
        };
    }

    fn value(&self) -> f32 {
        values::<f32>(&self.sum)[0]
    }
}

#[test]
fn packets_behind_one_that_waits_run_once_after_the_signal_is_set() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let queue = Queue::create(&gpu.agent, SMALL).unwrap();
    let sum = Sum::new(&gpu);
    let (mut wanted, mut places) = (0.0, Numbers(7));
    for round in 0..12u32 {
        // Elsewhere in the ring each time, and with as much behind the packet as there is room for, or with nothing.
        for _ in 0..places.next().unwrap() % 64 {
            // The processor may be slow to consume what is there.
            while let Err(error) = queue.barrier(&[], None) {
                assert!(matches!(error, SubmitError::WouldBlock { .. }), "{error}");
                std::thread::yield_now();
            }
        }
        queue.wait_idle(SOON).unwrap();
        let (gate, done) = (Signal::new(&gpu.runtime, 1).unwrap(), Signal::new(&gpu.runtime, 1).unwrap());
        queue.barrier(&[&gate], None).unwrap();
        let behind = [61, 20, 1][round as usize % 3];
        for number in 0..behind {
            let number = (number % 16 + 1) as f32;
            wanted += number;
            sum.add(&queue, number, None);
        }
        queue.barrier(&[], Some(&done)).unwrap();
        let index = queue.write_index().unwrap();
        match round % 4 {
            0 => {
                lock(&gpu.runtime);
                gpu.runtime.unlock().unwrap();
            }
            1 => through_a_checkpoint(&gpu.runtime, directory.path()),
            2 => (0..3).for_each(|_| through_a_checkpoint(&gpu.runtime, directory.path())),
            // Not unlocked in between.
            _ => {
                lock(&gpu.runtime);
                for _ in 0..3 {
                    gpu.runtime.checkpoint(directory.path()).unwrap();
                    gpu.runtime.restore(None).unwrap();
                }
                gpu.runtime.unlock().unwrap();
            }
        }
        assert!(queue.write_index().unwrap() >= index);
        assert_eq!(done.load().unwrap(), 1, "round {round}: it did not wait");
        gate.store(0).unwrap();
        done.wait_done(SOON).unwrap();
        assert_eq!(sum.value(), wanted, "round {round}");
        // Arguments that are written now are not those of packets before.
        sum.add(&queue, 3.0, None);
        wanted += 3.0;
    }
    queue.wait_idle(SOON).unwrap();
    assert_eq!(sum.value(), wanted);
}

#[test]
fn queues_that_wait_for_each_other_and_one_for_the_program_are_kept_as_they_are() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let queues: Vec<Queue> = (0..3).map(|_| Queue::create(&gpu.agent, SMALL).unwrap()).collect();
    let sum = Sum::new(&gpu);
    let signals: Vec<Signal> = (0..4).map(|_| Signal::new(&gpu.runtime, 1).unwrap()).collect();
    for (nth, queue) in queues.iter().enumerate() {
        queue.barrier(&[&signals[nth]], None).unwrap();
        sum.add(queue, (1 << nth) as f32, Some(&signals[nth + 1]));
    }
    through_a_checkpoint(&gpu.runtime, directory.path());
    assert_eq!(sum.value(), 0.0);
    signals[0].store(0).unwrap();
    signals[3].wait_done(SOON).unwrap();
    assert_eq!(sum.value(), 7.0);
}

#[test]
fn kernel_before_a_packet_that_waits_is_waited_for() {
    let gpu = Gpu::new();
    let spinning = Spinning::start(&gpu);
    let (gate, done) = (Signal::new(&gpu.runtime, 1).unwrap(), Signal::new(&gpu.runtime, 1).unwrap());
    // Without the barrier bit: the processor comes to it while the kernel runs.
    let other = raw_queue(&gpu, RawKind::Aql);
    let waits = Barrier { dep_signals: [gate.handle(), 0, 0, 0, 0], ..Barrier::noop() };
    other.submit(&aql::Packet::BarrierAnd(waits).encode()).unwrap();
    gpu.queue.barrier(&[&gate], Some(&done)).unwrap();
    let error = gpu.runtime.lock(Mode::Drain, Duration::from_millis(700)).unwrap_err();
    let CheckpointError::LockTimeout { running, queue, .. } = &error else { panic!("{error}") };
    assert_eq!((running.as_deref(), *queue), (Some("spin"), gpu.queue.key()));
    spinning.end();
    spinning.done.wait_done(SOON).unwrap();
    lock(&gpu.runtime);
    gpu.runtime.unlock().unwrap();
    gate.store(0).unwrap();
    done.wait_done(SOON).unwrap();
    other.wait_idle(SOON).unwrap();
}

#[test]
fn packets_of_ones_own_that_wait_for_a_value_are_kept() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let queue = raw_queue(&gpu, RawKind::Aql);
    let (gate, done) = (Signal::new(&gpu.runtime, 5).unwrap(), Signal::new(&gpu.runtime, 1).unwrap());
    let waits = BarrierValue {
        completion_signal: done.handle(),
        ..BarrierValue::new(gate.handle(), Condition::Eq, 9)
    };
    queue.completes(&done);
    queue.submit(&aql::Packet::BarrierValue(waits).encode()).unwrap();
    // Positions are the caller's, and so are the places of packets in the ring.
    let position = queue.write_position().unwrap();
    through_a_checkpoint(&gpu.runtime, directory.path());
    assert!(queue.write_position().unwrap() >= position);
    assert_eq!(queue.read_position().unwrap(), 0, "it waits still");
    assert_eq!(done.load().unwrap(), 1);
    gate.store(9).unwrap();
    done.wait_done(SOON).unwrap();
    queue.wait_idle(SOON).unwrap();
}

#[test]
fn preempted_checkpoint_is_as_it_was() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let (gate, done) = (Signal::new(&gpu.runtime, 1).unwrap(), Signal::new(&gpu.runtime, 1).unwrap());
    gpu.queue.barrier(&[&gate], Some(&done)).unwrap();
    for mode in [Mode::Preempt, Mode::Drain, Mode::Preempt] {
        gpu.runtime.lock(mode, DEADLINE).unwrap();
        gpu.runtime.checkpoint(directory.path()).unwrap();
        gpu.runtime.restore(None).unwrap();
        gpu.runtime.unlock().unwrap();
    }
    assert_eq!(done.load().unwrap(), 1);
    gate.store(0).unwrap();
    done.wait_done(SOON).unwrap();
}
