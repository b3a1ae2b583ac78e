// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that call the host: what they print is there once each, also when their process is checkpointed meanwhile.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stasis::checkpoint::Mode;
use stasis::{Arg, Buffer, Executable, MemoryPlace, Queue, QueueOptions, Signal, Stream, WaitError};
use stasis_tests::gpu::{Gpu, SOON, compile, on_a_future_kernel, values};

const DEADLINE: Duration = Duration::from_secs(60);

fn object(gpu: &Gpu, flags: &[&str]) -> Executable {
    gpu.load(&compile("print.c", gpu.agent.name(), flags))
}

/// What has been printed since the last call.
fn printed(gpu: &Gpu) -> String {
    let pieces = gpu.runtime.take_prints();
    assert!(pieces.iter().all(|piece| piece.stream == Stream::Out), "{pieces:?}");
    pieces.into_iter().map(|piece| String::from_utf8(piece.text).unwrap()).collect()
}

/// Every line that `groups` work-groups of `lanes` work-items print in `rounds` rounds, once.
fn assert_all(text: &str, groups: u32, lanes: u32, rounds: u32) {
    let found: BTreeSet<&str> = text.lines().collect();
    assert_eq!(text.lines().count(), found.len(), "a line was printed twice");
    let each =
        |group, lane| (0..rounds).map(move |round| format!("group {group}, lane {lane}, round {round}."));
    let wanted: BTreeSet<String> =
        (0..groups).flat_map(|group| (0..lanes).flat_map(move |lane| each(group, lane))).collect();
    assert_eq!(found, wanted.iter().map(String::as_str).collect());
}

/// A kernel on its way that prints.
struct Printing {
    _object: Executable,
    done: Signal,
}

impl Printing {
    fn start(gpu: &Gpu, groups: u32, rounds: u32) -> Self {
        let object = object(gpu, &[]);
        let done = Signal::new(&gpu.runtime, 1).unwrap();
        let (kernel, args) = (object.kernel("print").unwrap(), [Arg::U32(rounds)]);
        let dispatch = gpu.queue.dispatch(&kernel).grid([groups * 32, 1, 1]).block([32, 1, 1]).args(&args);
        dispatch.completion(&done).submit().unwrap();
        Self { _object: object, done }
    }

    fn runs(&self) -> bool {
        self.done.load().unwrap() != 0
    }
}

#[test]
fn every_lane_of_waves_of_either_size_prints_once() {
    let gpu = Gpu::new();
    gpu.runtime.keep_prints(true);
    for flags in [&[] as &[&str], &["-mwavefrontsize64"]] {
        let kernel = object(&gpu, flags).kernel("print").unwrap();
        // Groups of one wave or several, the last of which may be partial.
        for lanes in [1u32, 50, 64, 130] {
            gpu.run(&kernel, [6 * lanes, 1, 1], [lanes as u16, 1, 1], &[Arg::U32(2)]);
            assert_all(&printed(&gpu), 6, lanes, 2);
        }
    }
}

#[test]
fn all_waves_that_a_device_holds_call_at_once() {
    let gpu = Gpu::new();
    gpu.runtime.keep_prints(true);
    let kernel = object(&gpu, &[]).kernel("print_once_a_wave").unwrap();
    let groups = 300;
    gpu.run(&kernel, [groups * 1024, 1, 1], [1024, 1, 1], &[]);
    let text = printed(&gpu);
    let found: BTreeSet<&str> = text.lines().collect();
    assert_eq!((text.lines().count(), found.len()), (groups as usize * 32, groups as usize * 32));
}

#[test]
fn queues_print_at_once_each_through_its_own_memory_and_leave_none() {
    let gpu = Gpu::new();
    gpu.runtime.keep_prints(true);
    let held = || gpu.runtime.memory_stats().at(MemoryPlace::Host).map_or(0, |place| place.bytes);
    let kernel = object(&gpu, &[]).kernel("print").unwrap();
    let before = held();
    let queues: Vec<Queue> =
        (0..3).map(|_| Queue::create(&gpu.agent, QueueOptions::default()).unwrap()).collect();
    for queue in &queues {
        let args = [Arg::U32(4)];
        queue.dispatch(&kernel).grid([64, 1, 1]).block([32, 1, 1]).args(&args).submit().unwrap();
    }
    for queue in &queues {
        queue.wait_idle(SOON).unwrap();
    }
    let text = printed(&gpu);
    assert_eq!(text.lines().count(), 3 * 2 * 32 * 4);
    assert!(text.lines().all(|line| text.lines().filter(|other| *other == line).count() == 3));
    assert!(held() > before);
    queues.iter().for_each(|queue| queue.destroy().unwrap());
    assert_eq!(held(), before);
}

#[test]
fn lock_that_drains_waits_for_kernels_that_are_answered_meanwhile() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    gpu.runtime.keep_prints(true);
    let printing = Printing::start(&gpu, 4, 30);
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    gpu.runtime.checkpoint(directory.path()).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    assert!(!printing.runs());
    assert_all(&printed(&gpu), 4, 32, 30);
    // The queue's memory for calls is there as before.
    let again = Printing::start(&gpu, 2, 3);
    again.done.wait_done(SOON).unwrap();
    assert_all(&printed(&gpu), 2, 32, 3);
}

#[test]
fn kernel_preempted_between_and_within_calls_prints_each_line_once() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    gpu.runtime.keep_prints(true);
    let rounds = 400;
    let printing = Printing::start(&gpu, 4, rounds);
    let (mut stops, started) = (0, Instant::now());
    while printing.runs() && stops < 12 {
        gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
        if stops % 2 == 0 {
            gpu.runtime.checkpoint(directory.path()).unwrap();
            gpu.runtime.restore(None).unwrap();
        }
        gpu.runtime.unlock().unwrap();
        stops += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    printing.done.wait_done(Some(DEADLINE)).unwrap();
    assert!(stops > 1, "it was over after {:?}", started.elapsed());
    assert_all(&printed(&gpu), 4, 32, rounds);
}

#[test]
fn service_that_is_not_offered_stops_the_queue_and_is_named() {
    let gpu = Gpu::new();
    let out: Buffer = gpu.buffer(&[7u64]);
    let kernel = object(&gpu, &[]).kernel("ask").unwrap();
    for (service, name) in [(1, "a function of its"), (3, "memory"), (99, "something unknown")] {
        let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
        let done = Signal::new(&gpu.runtime, 1).unwrap();
        let args = [Arg::Buffer(&out), Arg::U32(service)];
        queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).completion(&done).submit().unwrap();
        let Err(WaitError::Queue(fault)) = done.wait_done(SOON) else { panic!("it was answered") };
        assert_eq!(fault.service, Some(service));
        let text = fault.to_string();
        assert!(text.contains(&format!("called the host for {name} (service {service})")), "{text}");
    }
    assert_eq!(values::<u64>(&out), [7], "a kernel went on without its answer");
    // A message that is none is answered: nothing is printed, and the kernel goes on with -1.
    gpu.runtime.keep_prints(true);
    gpu.run(&kernel, [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&out), Arg::U32(2)]);
    assert_eq!((values::<u64>(&out), printed(&gpu)), (vec![u64::MAX], String::new()));
}
