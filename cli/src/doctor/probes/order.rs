// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which packets begin, and queues that share the hardware.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stasis::Arg;

use super::super::bench::Bench;
use super::super::counting::Counting;
use super::super::probe::{Grade, Probe};

/// How long a packet that must not begin is watched.
const WATCH: Duration = Duration::from_millis(250);
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
        ensure!(counting.is_whole()?, "the registers of queue {at}'s waves changed");
    }
    Ok(format!("{} queues in {places} places", running.len()))
}
