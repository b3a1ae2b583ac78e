// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch memory on demand: queues that were made without scratch run kernels that need it, also after checkpoints.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use stasis::checkpoint::Mode;
use stasis::{
    Arg, Buffer, Executable, Kernel, Queue, QueueOptions, ScratchRefusal, Signal, SubmitError, WaitError,
};
use stasis_tests::gpu::{Gpu, Numbers, SOON, compile, on_a_future_kernel, skip_on_kernel_driver, values};
use stasis_tests::worker::wait_until;

const DEADLINE: Duration = Duration::from_secs(30);
const ITEMS: usize = 256;

fn load(gpu: &Gpu, flags: &[&str]) -> Executable {
    gpu.load(&compile("scratch.c", gpu.agent.name(), &[&["-std=c17"], flags].concat()))
}

/// A dispatch of one of the kernels over `ITEMS` work-items, and its expected result.
struct Sums {
    from: Vec<u32>,
    on_from: Buffer,
    on_to: Buffer,
    done: Signal,
    length: u32,
}

impl Sums {
    fn new(gpu: &Gpu, seed: u64, length: u32) -> Self {
        let from: Vec<u32> = Numbers(seed).take(ITEMS).collect();
        let (on_from, on_to) = (gpu.buffer(&from), gpu.buffer(&vec![0u32; ITEMS]));
        Self { from, on_from, on_to, done: Signal::new(&gpu.runtime, 1).unwrap(), length }
    }

    fn submit(&self, queue: &Queue, kernel: &Kernel, more: &[Arg<'_>]) {
        let args = [&[Arg::Buffer(&self.on_from), Arg::Buffer(&self.on_to)], more].concat();
        let dispatch = queue.dispatch(kernel).grid([ITEMS as u32, 1, 1]).block([64, 1, 1]).args(&args);
        dispatch.completion(&self.done).submit().unwrap();
    }

    fn check(&self) {
        self.done.wait_done(SOON).unwrap();
        let n = self.length;
        let sum = |seed: &u32| {
            let at = |k: u32| {
                let place = seed.wrapping_add(k * 7) % n;
                seed.wrapping_add(place * place)
            };
            (0..n).fold(0u32, |sum, k| sum.wrapping_mul(31).wrapping_add(at(k)))
        };
        assert_eq!(values::<u32>(&self.on_to), self.from.iter().map(sum).collect::<Vec<_>>());
    }
}

fn run(gpu: &Gpu, queue: &Queue, kernel: &Kernel, seed: u64, length: u32) {
    let sums = Sums::new(gpu, seed, length);
    sums.submit(queue, kernel, &[]);
    sums.check();
}

/// Ends the process at once: handles that a failed assertion drops would wait at a closed gate for ever.
fn die_of_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::exit(101);
        }));
    });
}

fn checkpoint(gpu: &Gpu, mode: Mode, directory: &Path) {
    gpu.runtime.lock(mode, DEADLINE).unwrap();
    gpu.runtime.checkpoint(directory).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
}

#[test]
fn queue_without_scratch_gets_it_and_more_when_a_larger_kernel_comes() {
    let gpu = Gpu::new();
    let there = gpu.agent.vram_available().unwrap();
    {
        let executable = load(&gpu, &[]);
        let (shallow, deep) = (executable.kernel("shallow").unwrap(), executable.kernel("deep").unwrap());
        assert!(shallow.metadata().private_bytes >= 200 && deep.metadata().private_bytes >= 4000);
        let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
        for (round, (kernel, length)) in
            [(&shallow, 50), (&deep, 1000), (&shallow, 50), (&deep, 1000)].into_iter().enumerate()
        {
            run(&gpu, &queue, kernel, round as u64, length);
        }
        queue.wait_idle(SOON).unwrap();
    }
    // Scratch that was dropped before the queue reported that it is idle is released by a later allocation.
    wait_until("the end of the scratch with its queue", || {
        drop(gpu.agent.vram().alloc(1).unwrap());
        gpu.agent.vram_available().unwrap() == there
    });
}

#[test]
fn dispatches_already_queued_behind_each_other_each_get_enough() {
    let gpu = Gpu::new();
    let executable = load(&gpu, &[]);
    let kernels = [("shallow", 50), ("deep", 1000)].map(|(name, n)| (executable.kernel(name).unwrap(), n));
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    gpu.queue.barrier(&[&hold], None).unwrap();
    let all: Vec<Sums> = (0..8)
        .map(|round| {
            let (kernel, length) = &kernels[round % 2];
            let sums = Sums::new(&gpu, round as u64, *length);
            let args = [Arg::Buffer(&sums.on_from), Arg::Buffer(&sums.on_to)];
            let dispatch = gpu.queue.dispatch(kernel).grid([ITEMS as u32, 1, 1]).block([64, 1, 1]);
            dispatch.args(&args).barrier(false).completion(&sums.done).submit().unwrap();
            sums
        })
        .collect();
    hold.store(0).unwrap();
    all.iter().for_each(Sums::check);
}

#[test]
fn two_queues_ask_at_once() {
    let gpu = Gpu::new();
    let executable = load(&gpu, &[]);
    let (shallow, deep) = (executable.kernel("shallow").unwrap(), executable.kernel("deep").unwrap());
    let queues = [(); 2].map(|()| Queue::create(&gpu.agent, QueueOptions::default()).unwrap());
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    let sums = [Sums::new(&gpu, 1, 50), Sums::new(&gpu, 2, 1000)];
    for ((queue, sums), kernel) in queues.iter().zip(&sums).zip([&shallow, &deep]) {
        queue.barrier(&[&hold], None).unwrap();
        sums.submit(queue, kernel, &[]);
    }
    hold.store(0).unwrap();
    sums.iter().for_each(Sums::check);
}

#[test]
fn waves_of_64_get_twice_as_much() {
    let gpu = Gpu::new();
    let executable = load(&gpu, &["-mwavefrontsize64", "-DWAVE64"]);
    let kernel = executable.kernel("deep").unwrap();
    assert_eq!(kernel.metadata().wavefront_size, 64);
    run(&gpu, &gpu.queue, &load(&gpu, &[]).kernel("deep").unwrap(), 1, 1000);
    run(&gpu, &gpu.queue, &kernel, 2, 1000);
}

#[test]
fn queue_with_too_little_gets_more() {
    let gpu = Gpu::new();
    let deep = load(&gpu, &[]).kernel("deep").unwrap();
    let options = QueueOptions { scratch_lane_bytes: 64, ..QueueOptions::default() };
    let queue = Queue::create(&gpu.agent, options).unwrap();
    run(&gpu, &queue, &deep, 3, 1000);
}

#[test]
fn more_than_any_wave_can_have_is_refused_at_submission() {
    let gpu = Gpu::new();
    let mut object = compile("scratch.c", gpu.agent.name(), &["-std=c17"]);
    let most = gpu.load(&object).kernel("bottomless").unwrap().metadata().private_bytes;
    // No compiler makes such a kernel: the number is changed in the metadata (big endian) and in the descriptor.
    let wanted = most + 40_000;
    for (old, new) in [(most.to_be_bytes(), wanted.to_be_bytes()), (most.to_le_bytes(), wanted.to_le_bytes())]
    {
        let at = object.windows(4).position(|bytes| bytes == old).unwrap();
        object[at..at + 4].copy_from_slice(&new);
    }
    let kernel = gpu.load(&object).kernel("bottomless").unwrap();
    let sums = Sums::new(&gpu, 1, 60_000);
    let args = [Arg::Buffer(&sums.on_from), Arg::Buffer(&sums.on_to)];
    let refused = gpu.queue.dispatch(&kernel).grid([64, 1, 1]).block([64, 1, 1]).args(&args).submit();
    let Err(SubmitError::Scratch { wanted: found, max, .. }) = refused else { panic!("{refused:?}") };
    assert!(found == wanted && max < wanted && max >= most, "{found} {max}");
    assert_eq!(gpu.queue.write_index().unwrap(), 0);
}

#[test]
fn no_memory_for_scratch_fails_the_queue_and_nobody_else() {
    let gpu = Gpu::new();
    let executable = load(&gpu, &[]);
    let (shallow, bottomless) = ("shallow", "bottomless");
    let (shallow, bottomless) = (executable.kernel(shallow).unwrap(), executable.kernel(bottomless).unwrap());
    let mut held = Vec::new();
    while gpu.agent.vram_available().unwrap() > 8 << 30 {
        held.push(gpu.agent.vram().alloc(4 << 30).unwrap());
    }
    let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    // The queue has scratch already, but too little.
    run(&gpu, &queue, &shallow, 1, 50);
    let there = gpu.agent.vram_available().unwrap();
    let (sums, behind) = (Sums::new(&gpu, 2, 60_000), Sums::new(&gpu, 3, 50));
    sums.submit(&queue, &bottomless, &[]);
    let args = [Arg::Buffer(&behind.on_from), Arg::Buffer(&behind.on_to)];
    let after = queue.dispatch(&shallow).grid([64, 1, 1]).block([64, 1, 1]).args(&args);
    let after = after.completion(&behind.done).submit();
    let fault = match sums.done.wait_done(SOON) {
        Err(WaitError::Queue(fault)) => fault,
        other => panic!("{other:?}"),
    };
    if after.is_ok() {
        assert!(matches!(behind.done.wait_done(SOON), Err(WaitError::Queue(_))));
    }
    let scratch = fault.scratch.as_ref().unwrap();
    assert_eq!(scratch.kernel.as_deref(), Some("bottomless"));
    assert_eq!(scratch.lane_bytes, bottomless.metadata().private_bytes);
    assert!(scratch.wanted > there, "{scratch:?}");
    assert!(matches!(scratch.refusal, ScratchRefusal::OutOfMemory { .. }), "{scratch:?}");
    let text = fault.to_string();
    for part in ["bottomless", &scratch.lane_bytes.to_string(), &scratch.wanted.to_string(), "available"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(queue.fault().is_some());
    queue.destroy().unwrap();
    run(&gpu, &gpu.queue, &shallow, 4, 50);
}

#[test]
fn scratch_is_there_after_a_drained_checkpoint() {
    die_of_panics();
    let gpu = Gpu::new();
    let executable = load(&gpu, &[]);
    let (shallow, deep) = (executable.kernel("shallow").unwrap(), executable.kernel("deep").unwrap());
    let directory = tempfile::tempdir().unwrap();
    let fresh = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    run(&gpu, &gpu.queue, &shallow, 1, 50);
    for round in 0..2 {
        checkpoint(&gpu, Mode::Drain, directory.path());
        // As much scratch as it had, more than it had, and a queue that had none.
        run(&gpu, &gpu.queue, &shallow, 10 + round, 50);
        run(&gpu, &gpu.queue, &deep, 20 + round, 1000);
        run(&gpu, &fresh, &shallow, 30 + round, 50);
    }
}

#[test]
fn drain_gives_scratch_to_the_packets_it_waits_for() {
    die_of_panics();
    let gpu = Gpu::new();
    let executable = load(&gpu, &[]);
    let (shallow, deep) = (executable.kernel("shallow").unwrap(), executable.kernel("deep").unwrap());
    let flag = gpu.runtime.gtt().alloc(8).unwrap();
    flag.write(0, &[0; 8]).unwrap();
    let held = executable.kernel("held").unwrap();
    let all = [Sums::new(&gpu, 1, 50), Sums::new(&gpu, 2, 1000), Sums::new(&gpu, 3, 50)];
    all[0].submit(&gpu.queue, &held, &[Arg::Buffer(&flag)]);
    all[1].submit(&gpu.queue, &deep, &[]);
    all[2].submit(&gpu.queue, &shallow, &[]);
    wait_until("the held kernel runs", || flag.to_vec().unwrap()[4..] != [0; 4]);
    let runtime = gpu.runtime.clone();
    std::thread::scope(|scope| {
        let locker = scope.spawn(move || runtime.lock(Mode::Drain, DEADLINE).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        // The gate may be closed already: the device sees the store through its own mapping.
        set(flag.va());
        locker.join().unwrap();
    });
    gpu.runtime.unlock().unwrap();
    all.iter().for_each(Sums::check);
}

/// Stores a 1 while the gate is closed, through the mapping, which a locked process keeps.
#[allow(unsafe_code)]
fn set(address: u64) {
    let word: *mut u32 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the buffer is alive and mapped for the CPU while the process is RUNNING or LOCKED; the store is volatile.
    unsafe { word.write_volatile(1) };
}

#[test]
fn waves_keep_their_scratch_through_a_preempted_checkpoint() {
    if skip_on_kernel_driver("the test's kernel is to be stopped on the software device") {
        return;
    }
    die_of_panics();
    on_a_future_kernel();
    let gpu = Gpu::new();
    let executable = load(&gpu, &[]);
    let (held, deep) = (executable.kernel("held").unwrap(), executable.kernel("deep").unwrap());
    let directory = tempfile::tempdir().unwrap();
    let state = gpu.buffer(&[0u32; 2]);
    let (sums, larger) = (Sums::new(&gpu, 5, 50), Sums::new(&gpu, 6, 1000));
    sums.submit(&gpu.queue, &held, &[Arg::Buffer(&state)]);
    larger.submit(&gpu.queue, &deep, &[]);
    wait_until("the arrays are filled", || values::<u32>(&state)[1] == ITEMS as u32);
    gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
    gpu.runtime.unlock().unwrap();
    checkpoint(&gpu, Mode::Preempt, directory.path());
    state.write(0, &1u32.to_le_bytes()).unwrap();
    sums.check();
    larger.check();
}

#[test]
fn question_interrupted_by_a_preempted_lock_is_answered_afterwards() {
    on_a_future_kernel();
    if skip_on_kernel_driver("queues are preempted on the software device") {
        return;
    }
    die_of_panics();
    let gpu = Gpu::new();
    let shallow = load(&gpu, &[]).kernel("shallow").unwrap();
    let directory = tempfile::tempdir().unwrap();
    for round in 0..24u64 {
        let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
        let sums = Sums::new(&gpu, round, 50);
        sums.submit(&queue, &shallow, &[]);
        // Sometimes before the request for scratch, sometimes during it, sometimes after.
        std::thread::sleep(Duration::from_micros(round % 8 * 30));
        match round % 3 {
            0 => checkpoint(&gpu, Mode::Preempt, directory.path()),
            _ => {
                gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
                gpu.runtime.unlock().unwrap();
            }
        }
        sums.check();
    }
}
