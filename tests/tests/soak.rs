// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freezes and thaws a process again and again, with kernels that verify themselves: any leak of a generation would
//! show as growth. STASIS_SOAK=N sets the number of generations.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use stasis::checkpoint::Mode;
use stasis::{Arg, Signal};
use stasis_tests::gpu::{Gpu, Numbers, SOON, on_a_future_kernel, values};
use stasis_tests::sample::setting;
use stasis_tests::survivor::Survivor;
use stasis_tests::worker::{devices, open_files};

/// Generations of a process that checkpoints itself.
const GENERATIONS: u64 = 200;
/// Generations through CRIU.
const THROUGH_CRIU: u64 = 25;
/// After so many generations no number may grow any more.
const WARM: u64 = 10;
/// Resident memory that may come and go, bytes: allocators and page tables.
const SLACK: u64 = 8 << 20;
/// Descriptors of a process of the device that may come and go: connections, and what calls that are under way have.
const OF_DEVICE: usize = 16;
/// Connections to the device whose number varies: one for each concurrent call.
const CALLS_AT_ONCE: usize = 2;
/// Descriptors of a connection: a socket and its claim.
const OF_A_CONNECTION: usize = 2;

fn generations(usual: u64) -> u64 {
    setting("STASIS_SOAK").unwrap_or(usual)
}

/// The resources that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    descriptors: usize,
    /// The number of descriptors that are sockets.
    sockets: usize,
    threads: usize,
    mappings: usize,
    resident: u64,
    /// The descriptors of that process of the software device that has most.
    of_device: usize,
}

impl Usage {
    /// What a process uses, whose software device has these processes.
    fn of(pid: u32, devices: &[i32]) -> Self {
        // A listing taken while a connection is closed has one descriptor of it: only what is listed twice alike counts.
        let mut open = open_files(pid.cast_signed());
        for _ in 0..100 {
            let again = open_files(pid.cast_signed());
            if again == open {
                break;
            }
            open = again;
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = resident.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Self {
            descriptors: open.len(),
            sockets: open.iter().filter(|name| name.starts_with("socket:")).count(),
            threads: fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count),
            mappings: maps.lines().count(),
            resident: kib.unwrap_or(0) << 10,
            of_device: devices.iter().map(|pid| open_files(*pid).len()).max().unwrap_or(0),
        }
    }

    /// Whether `later` is not more than this, apart from the variation by the allocator and by concurrent calls.
    fn bears(&self, later: &Self) -> bool {
        let connections = later.sockets.saturating_sub(self.sockets);
        connections <= CALLS_AT_ONCE
            && later.descriptors <= self.descriptors + connections * OF_A_CONNECTION
            && later.threads <= self.threads
            && later.mappings <= self.mappings + 8
            && later.resident <= self.resident + SLACK
            && later.of_device <= self.of_device + OF_DEVICE
    }
}

/// The least of several samples: threads that are about to end, a controller's open connection, and connections to the
/// device for concurrent calls (they are closed a second later) are temporary.
fn settled(now: impl Fn() -> Usage) -> Usage {
    let mut least = now();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(150));
        let next = now();
        let (descriptors, sockets) = (least.descriptors, least.sockets).min((next.descriptors, next.sockets));
        least = Usage {
            descriptors,
            sockets,
            threads: least.threads.min(next.threads),
            mappings: least.mappings.min(next.mappings),
            resident: least.resident.min(next.resident),
            of_device: least.of_device.min(next.of_device),
        };
    }
    least
}

/// The sample with the descriptors that most of several samples have: one that catches a descriptor between its end and its
/// successor has too few, which the least would take for the rule.
fn usual(now: impl Fn() -> Usage) -> Usage {
    let sample = |_| {
        std::thread::sleep(Duration::from_millis(150));
        now()
    };
    let samples: Vec<Usage> = (0..11).map(sample).collect();
    let alike = |one: &Usage| samples.iter().filter(|other| other.descriptors == one.descriptors).count();
    samples.iter().copied().max_by_key(alike).unwrap()
}

/// Compares with the resources after the first generations.
fn assert_flat(first: &Usage, generation: u64, pid: u32, now: impl Fn() -> Usage) {
    let mut last = settled(&now);
    for _ in 0..15 {
        if first.bears(&last) {
            return;
        }
        last = settled(&now);
    }
    panic!(
        "generation {generation} uses {last:?}, generation {WARM} used {first:?}; open: {:?}",
        open_files(pid.cast_signed())
    );
}

#[test]
fn generations_in_one_process_leave_nothing_behind() {
    // For the generations that are preempted.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let count = generations(GENERATIONS);
    let (step, numbers) = (gpu.kernel("increment"), Numbers(7).take(1 << 16).collect::<Vec<u32>>());
    let (ballast, counter) = (gpu.buffer(&numbers), gpu.buffer(&[0u32]));
    let (spin, flag) = (gpu.kernel("spin"), gpu.runtime.gtt().alloc(4).unwrap());
    let can_preempt = std::env::var_os("STASIS_SOAK_DRAIN").is_none();
    let directory = tempfile::tempdir().unwrap();
    let usage = || {
        // A call, after which unneeded connections are closed.
        drop(Signal::new(&gpu.runtime, 1).unwrap());
        Usage::of(std::process::id(), &devices(&format!("tests-{}", std::process::id())))
    };
    let mut first = None;
    for generation in 1..=count {
        let preempts = can_preempt && generation % 2 == 0;
        let (mode, done) = if preempts { (Mode::Preempt, 2) } else { (Mode::Drain, 1) };
        let done = Signal::new(&gpu.runtime, done).unwrap();
        if preempts {
            // A kernel that does not end by itself: it goes on in the next generation.
            flag.write(0, &[0; 4]).unwrap();
            let spinning = [Arg::Buffer(&flag)];
            gpu.queue.dispatch(&spin).grid([1, 1, 1]).args(&spinning).completion(&done).submit().unwrap();
        }
        let counted = [Arg::Buffer(&counter)];
        let dispatch = gpu.queue.dispatch(&step).grid([64, 1, 1]).block([64, 1, 1]).args(&counted);
        dispatch.completion(&done).submit().unwrap();
        gpu.runtime.lock(mode, Duration::from_secs(60)).unwrap();
        gpu.runtime.checkpoint(directory.path()).unwrap();
        gpu.runtime.restore(None).unwrap();
        gpu.runtime.unlock().unwrap();
        if preempts {
            flag.write(0, &[1; 4]).unwrap();
        }
        done.wait_done(SOON).unwrap();
        // CAST: 64 a generation; wraps like the GPU's.
        assert_eq!(values::<u32>(&counter), [(generation * 64) as u32], "generation {generation}");
        if generation == WARM {
            first = Some(usual(usage));
        }
        if generation % 50 == 0 {
            assert_eq!(values::<u32>(&ballast), numbers, "generation {generation}");
            println!("generation {generation}: {:?}", usage());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "images pile up");
    }
    assert_eq!(values::<u32>(&ballast), numbers);
    if let Some(first) = first {
        assert_flat(&first, count, std::process::id(), usage);
    }
}

#[test]
fn generations_through_criu_leave_nothing_behind() {
    let mut survivor = Survivor::start(&["--threads", "2"]);
    let count = generations(THROUGH_CRIU);
    let mut first = None;
    for generation in 1..=count {
        survivor.freeze();
        survivor.restore();
        let pid = survivor.worker().pid().cast_unsigned();
        let usage = || Usage::of(pid, &survivor.worker().devices());
        if generation == WARM {
            first = Some(usual(usage));
        }
        if generation % 5 == 0 {
            println!("generation {generation}: {:?}", usage());
        }
        let images = fs::read_dir(survivor.worker().path("")).unwrap().flatten();
        let kept =
            images.filter(|entry| entry.file_name().to_string_lossy().starts_with("checkpoint-")).count();
        assert!(kept <= 2, "generation {generation}: images pile up");
        if let Some(first) = first.filter(|_| generation == count) {
            assert_flat(&first, generation, pid, usage);
        }
    }
    survivor.finish();
}
