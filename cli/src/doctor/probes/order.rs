// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which packets begin, and queues that share the hardware.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stasis::{Arg, Kernel, Queue, Signal, TypedBuffer};

use super::super::bench::{Bench, Gpu};
use super::super::probe::{Grade, Probe};

/// How long a packet that must not begin is watched.
const WATCH: Duration = Duration::from_millis(50);
/// Queues beyond those that the hardware holds.
const BEYOND: u32 = 2;

pub(super) const PROBES: [Probe; 3] = [
    Probe {
        name: "barrier-bit",
        grade: Grade::Required,
        expects: "a packet with the barrier bit waits for all before it",
        advice: "report it: drained checkpoints rely on that",
        run: barrier_bit,
    },
    Probe {
        name: "overlap",
        grade: Grade::Optional,
        expects: "a packet without the barrier bit begins beside those before it",
        advice: "dispatches of a queue run one after another here; use more queues",
        run: overlap,
    },
    Probe {
        name: "over-subscribed",
        grade: Grade::Optional,
        expects: "more queues than the hardware holds take turns in the middle of their kernels",
        advice: "report the kernel's log: preempting waves does not work here, so use fewer queues and drained checkpoints",
        run: over_subscribed,
    },
];

/// A kernel that counts until it is told to end.
struct Counting {
    words: TypedBuffer<u32>,
    done: Signal,
    /// A kernel that is dropped while it runs has the runtime ask its queue, by a packet with the barrier bit.
    _kernel: Kernel,
}

impl Counting {
    fn start(gpu: &Gpu, queue: &Queue) -> Result<Self> {
        // The host must see the count while the kernel runs.
        let words = gpu.runtime.gtt().upload(&[0_u32; 64])?;
        words.buffer().allow(&gpu.agent)?;
        let kernel = gpu.kernel("until")?;
        let done = gpu.start(queue, &kernel, 1, &[Arg::Buffer(words.buffer())], false)?;
        Ok(Self { words, done, _kernel: kernel })
    }

    fn count(&self) -> Result<u32> {
        Ok(self.words.download()?[1])
    }

    fn counts(&self, gpu: &Gpu, what: &str) -> Result<()> {
        let before = self.count()?;
        gpu.until(what, || Ok(self.count()? != before))
    }

    fn end(&self, gpu: &Gpu) -> Result<()> {
        self.words.write(0, &[1])?;
        self.done.wait_done(Some(gpu.patience)).context("A kernel that was told to end did not")
    }
}

fn barrier_bit(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, set, flag) = (gpu.queue()?, gpu.kernel("set")?, gpu.zeros(1)?);
    let counting = Counting::start(&gpu, &queue)?;
    counting.counts(&gpu, "the first kernel's begin")?;
    let second = gpu.start(&queue, &set, 1, &[Arg::Buffer(flag.buffer())], true)?;
    std::thread::sleep(WATCH);
    let early = flag.download()?[0] != 0 || second.load()? != 1;
    counting.end(&gpu)?;
    ensure!(!early, "it began beside the one before it");
    second.wait_done(Some(gpu.patience))?;
    Ok("waited".to_owned())
}

fn overlap(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, set, flag) = (gpu.queue()?, gpu.kernel("set")?, gpu.zeros(1)?);
    let counting = Counting::start(&gpu, &queue)?;
    counting.counts(&gpu, "the first kernel's begin")?;
    let second = gpu.start(&queue, &set, 1, &[Arg::Buffer(flag.buffer())], false)?;
    let beside = second.wait_done(Some(gpu.patience / 2));
    counting.end(&gpu)?;
    beside.context("it waited for the one before it")?;
    Ok("overlapped".to_owned())
}

fn over_subscribed(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let places = gpu.agent.node().properties.num_cp_queues;
    let mut running = Vec::new();
    for _ in 0..places + BEYOND {
        let queue = gpu.queue()?;
        running.push((Counting::start(&gpu, &queue)?, queue));
    }
    for _ in 0..2 {
        for (at, (counting, _)) in running.iter().enumerate() {
            counting.counts(&gpu, &format!("the turn of queue {at}"))?;
        }
    }
    for (at, (counting, _)) in running.iter().enumerate() {
        counting.end(&gpu)?;
        ensure!(counting.words.download()?[2] == 2, "the registers of queue {at}'s waves changed");
    }
    Ok(format!("{} queues in {places} places", running.len()))
}
