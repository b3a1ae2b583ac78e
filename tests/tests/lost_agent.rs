// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory fault under a kernel that takes all of the process's queues off the GPU for it, as those that are released do:
//! whatever needs the GPU afterwards says so at once. Under one that goes on, it all works.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use stasis::checkpoint::{CheckpointError, Mode, Unavailable};
use stasis::{
    AgentLost, Arg, CopyEngine, CopyError, Executable, Kernel, LoadError, Queue, QueueError, QueueFault,
    QueueOptions, Signal, SubmitError, WaitError, explain,
};
use stasis_tests::gpu::{Gpu, SOON, Spinning, imitate, on_a_future_kernel, open_on, values};

/// TIMEOUT: what takes half a second once and nothing afterwards; a third of what an invalidation of code waits.
const AT_ONCE: Duration = Duration::from_secs(3);
const NOWHERE: u64 = 0x1234_5678_9000;

/// Has a kernel write where nothing is mapped.
fn fault(gpu: &Gpu) -> Arc<QueueFault> {
    let (kernel, done) = (gpu.kernel("write_at"), Signal::new(&gpu.runtime, 1).unwrap());
    let args = [Arg::Address(NOWHERE), Arg::U32(1)];
    gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).completion(&done).submit().unwrap();
    match done.wait_done(SOON) {
        Err(WaitError::Queue(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// A queue that has done something.
fn used_queue(gpu: &Gpu) -> Queue {
    let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    queue.barrier(&[], None).unwrap();
    queue.wait_idle(SOON).unwrap();
    queue
}

/// Which agent, which address, which kernel, and what to do.
#[track_caller]
fn assert_says_it_all(lost: &AgentLost) {
    let text = explain(lost);
    for part in
        ["gfx1100 is lost to this process", "0x123456789000", "write_at+0x", "pc 0x", "start a new process"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// What `act` gives; it must not take long.
#[track_caller]
fn at_once<T>(act: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = act();
    assert!(started.elapsed() < AT_ONCE, "it took {:?}", started.elapsed());
    result
}

fn new_queue_is_refused(gpu: &Gpu) {
    match at_once(|| Queue::create(&gpu.agent, QueueOptions::default())) {
        Err(QueueError::AgentLost(lost)) => assert_says_it_all(&lost),
        other => panic!("{other:?}"),
    }
}

/// Everything that needs the agent, after a fault that was told; `increment` is a kernel that was loaded before.
fn all_is_refused(gpu: &Gpu, other: &Queue, increment: &Kernel) {
    let (code, counter) = (gpu.compute_object().to_vec(), gpu.runtime.gtt().alloc(4).unwrap());
    let (one, two) = (gpu.agent.vram().alloc(4096).unwrap(), gpu.agent.vram().alloc(4096).unwrap());
    new_queue_is_refused(gpu);
    let args = [Arg::Buffer(&counter)];
    match at_once(|| other.dispatch(increment).grid([1, 1, 1]).args(&args).submit()) {
        Err(SubmitError::AgentLost(lost)) => assert_says_it_all(&lost),
        other => panic!("{other:?}"),
    }
    match at_once(|| other.wait_idle(SOON)) {
        Err(WaitError::AgentLost(lost)) => assert_says_it_all(&lost),
        other => panic!("{other:?}"),
    }
    for engine in [CopyEngine::Auto, CopyEngine::Shader, CopyEngine::Sdma] {
        match at_once(|| gpu.runtime.copy_by(engine, one.span(0, 4096), two.span(0, 4096), &[])) {
            Err(CopyError::AgentLost(lost)) => assert_says_it_all(&lost),
            other => panic!("{engine:?}: {other:?}"),
        }
    }
    // Code was unloaded: the addresses may have held other code.
    match at_once(|| Executable::load(&gpu.agent, &code)) {
        Err(LoadError::AgentLost(lost)) => assert_says_it_all(&lost),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_that_needs_a_lost_agent_fails_at_once_and_names_the_fault() {
    let gpu = Gpu::new();
    let other = used_queue(&gpu);
    let increment = gpu.kernel("increment");
    let text = fault(&gpu).to_string();
    assert!(text.contains("took this process's queues off the agent"), "{text}");
    all_is_refused(&gpu, &other, &increment);
    // The CPU goes on.
    let memory = gpu.buffer(&[7u32; 8]);
    assert_eq!(values::<u32>(&memory), [7; 8]);
    other.destroy().unwrap();
}

#[test]
fn the_older_released_kernel_loses_the_agent_as_well() {
    imitate("6.12");
    let gpu = Gpu::new();
    fault(&gpu);
    new_queue_is_refused(&gpu);
}

#[test]
fn those_who_wait_for_other_queues_are_told_of_the_fault() {
    let gpu = Gpu::new();
    let other = Gpu { queue: Queue::create(&gpu.agent, QueueOptions::default()).unwrap(), ..gpu.clone() };
    let spinning = Spinning::start(&other);
    let vram = [(); 2].map(|()| gpu.agent.vram().alloc(64).unwrap());
    let never = Signal::new(&gpu.runtime, 1).unwrap();
    let [to, from] = [&vram[0], &vram[1]].map(|buffer| buffer.span(0, 64));
    // By a queue without waves, of which the driver says nothing.
    let transfer = gpu.runtime.copy_by(CopyEngine::Sdma, to, from, &[&never]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| spinning.done.wait_done(SOON));
        fault(&gpu);
        match waiter.join().unwrap() {
            Err(WaitError::AgentLost(lost)) => assert_says_it_all(&lost),
            other => panic!("{other:?}"),
        }
    });
    match transfer.wait(SOON) {
        Err(CopyError::AgentLost(lost)) => assert_says_it_all(&lost),
        other => panic!("{other:?}"),
    }
}

#[test]
fn kernel_that_goes_on_after_a_fault_loses_nothing() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let other = used_queue(&gpu);
    let (spare, code) = (gpu.load(gpu.compute_object()), gpu.compute_object().to_vec());
    let text = fault(&gpu).to_string();
    assert!(text.contains("destroy the queue and make another"), "{text}");
    drop(spare);
    Executable::load(&gpu.agent, &code).unwrap();
    let counter = gpu.buffer(&[0u32]);
    for queue in [other, Queue::create(&gpu.agent, QueueOptions::default()).unwrap()] {
        let gpu = Gpu { queue, ..gpu.clone() };
        gpu.run(&gpu.kernel("increment"), [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    }
    let copy = gpu.buffer(&[0u32]);
    gpu.runtime.copy(copy.span(0, 4), counter.span(0, 4), &[]).unwrap().wait(SOON).unwrap();
    assert_eq!(values::<u32>(&copy), [20]);
}

#[test]
fn fault_on_one_agent_loses_no_other() {
    if stasis_tests::gpu::skip_on_kernel_driver("it asks for two agents, which the machine may not have") {
        return;
    }
    let runtime = open_on("soft:gfx1100,gfx1100", None);
    let (bad, good) = (Gpu::on(&runtime, 0), Gpu::on(&runtime, 1));
    fault(&bad);
    new_queue_is_refused(&bad);
    let queue = Queue::create(&good.agent, QueueOptions::default()).unwrap();
    let (good, counter) = (Gpu { queue, ..good.clone() }, good.buffer(&[0u32]));
    good.run(&good.kernel("increment"), [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [10]);
}

#[test]
fn drained_checkpoint_saves_the_memory_and_the_agent_stays_lost_to_the_process() {
    let gpu = Gpu::new();
    let (numbers, directory) = (gpu.buffer(&[1u32, 2, 3]), tempfile::tempdir().unwrap());
    let other = used_queue(&gpu);
    let increment = gpu.kernel("increment");
    fault(&gpu);
    // Nothing is waited for: no queue will complete anything.
    at_once(|| gpu.runtime.lock(Mode::Drain, Duration::from_secs(60))).unwrap();
    gpu.runtime.checkpoint(directory.path()).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!(values::<u32>(&numbers), [1, 2, 3]);
    // The driver keeps what it knows of a process for as long as that lives, whatever the process closes.
    all_is_refused(&gpu, &other, &increment);
}

#[test]
fn preempted_checkpoint_is_refused_and_nothing_changes() {
    let gpu = Gpu::new();
    let other = used_queue(&gpu);
    let increment = gpu.kernel("increment");
    fault(&gpu);
    match gpu.runtime.lock(Mode::Preempt, Duration::from_secs(60)) {
        Err(CheckpointError::Preempt(Unavailable::AgentLost(lost))) => assert_says_it_all(&lost),
        other => panic!("{other:?}"),
    }
    all_is_refused(&gpu, &other, &increment);
}
