// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a lock takes that stops waves where they are: from the call to every queue being off the hardware.
//!
//! The goal for each is 1 ms and the time in which one thread's memcpy, measured in the same run, moves the bytes of wave
//! state that were saved. Those bytes are the driver's own count for a lock of the same case (the header that
//! GET_QUEUE_WAVE_STATE writes), taken once the clock has stopped. Every kernel's result is checked at the end: a wave
//! that was lost, doubled or began anew would show.

mod area;
mod work;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stasis::checkpoint::{CheckpointError, Mode};

use self::area::SaveArea;
use self::work::{Busy, Endless};
use crate::figure::{Report, median, quantile};
use crate::gpu::Gpu;
use crate::memcpy::Memcpy;

/// Locks of a case.
const LOCKS: u32 = 300;
/// Of the goal, microseconds.
const FIXED: f64 = 1000.0;
/// TIMEOUT: for one lock.
const LOST: Duration = Duration::from_secs(10);
const PEER_BYTES: usize = 64 << 20;
const GOAL: &str = "goal_1_ms_and_memcpy";

/// Kernels in the queue, and what each is to take.
const QUEUED: u32 = 1000;
const EACH: Duration = Duration::from_millis(10);

/// The times of one case's locks, microseconds.
#[derive(Default)]
struct Locks {
    lock: Vec<f64>,
    unlock: Vec<f64>,
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// The queue runs for some milliseconds between two locks, and not always as many: it is stopped anywhere.
fn pause(round: u32) {
    std::thread::sleep(Duration::from_micros(1000 + u64::from(round * 617 % 2000)));
}

fn lock(gpu: &Gpu, mode: Mode, into: &mut Locks) -> Result<()> {
    let started = Instant::now();
    gpu.runtime.lock(mode, LOST)?;
    into.lock.push(microseconds(started));
    let started = Instant::now();
    gpu.runtime.unlock()?;
    into.unlock.push(microseconds(started));
    Ok(())
}

fn preempt(gpu: &Gpu) -> Result<Locks> {
    let mut locks = Locks::default();
    for round in 0..LOCKS {
        pause(round);
        lock(gpu, Mode::Preempt, &mut locks)?;
    }
    Ok(locks)
}

/// The peers of a run.
struct Run<'a> {
    report: &'a Report,
    /// Of memcpy, bytes a microsecond.
    bandwidth: f64,
}

impl Run<'_> {
    fn tell(&self, case: &str, locks: &Locks, bytes: u64) {
        let goal = FIXED + bytes as f64 / self.bandwidth;
        let Self { report, .. } = self;
        report.plain(case, "wave_state_bytes", bytes as f64, "B");
        for (metric, share) in [("lock_median", 0.5), ("lock_p99", 0.99)] {
            report.versus(case, metric, quantile(&locks.lock, share), "us", (GOAL, goal));
        }
        report.plain(case, "unlock_median", median(&locks.unlock), "us");
    }
}

/// The peer that preemption has: an idle queue has nothing to save and nothing to drain.
fn idle(run: &Run<'_>, gpu: &Gpu, area: &SaveArea) -> Result<f64> {
    let case = "idle queue";
    let (mut preempted, mut drained) = (Locks::default(), Locks::default());
    for round in 0..LOCKS {
        pause(round);
        lock(gpu, Mode::Preempt, &mut preempted)?;
        pause(round);
        lock(gpu, Mode::Drain, &mut drained)?;
    }
    run.tell(case, &preempted, area.saved(gpu)?);
    for (metric, share) in [("drain_lock_median", 0.5), ("drain_lock_p99", 0.99)] {
        run.report.plain("idle queue, Mode::Drain", metric, quantile(&drained.lock, share), "us");
    }
    let (ours, theirs) = (median(&preempted.lock), median(&drained.lock));
    run.report.versus(case, "lock_median", ours, "us", ("drain_of_the_same", theirs));
    Ok(ours)
}

fn queued(run: &Run<'_>, gpu: &Gpu, area: &SaveArea) -> Result<f64> {
    let busy = Busy::calibrate(gpu, area.queue(), EACH)?;
    let case = format!("{QUEUED} kernels of {} ms queued", EACH.as_millis());
    run.report.plain(&case, "kernel_alone", busy.each().as_secs_f64() * 1e3, "ms");
    let queue = busy.submit(QUEUED)?;
    let locks = preempt(gpu)?;
    let bytes = area.saved(gpu)?;
    run.tell(&case, &locks, bytes);
    let ran = queue.finish().with_context(|| case.clone())?;
    run.report.note(&format!("{case}: {ran} of them ran during {LOCKS} locks; {} waves each", Busy::WAVES));
    Ok(median(&locks.lock))
}

fn endless(run: &Run<'_>, gpu: &Gpu, area: &SaveArea, shape: (u32, u16)) -> Result<f64> {
    let kernel = Endless::start(gpu, area.queue(), shape.0, shape.1)?;
    let case = format!("endless kernel, {} waves", kernel.waves());
    let locks = preempt(gpu)?;
    let bytes = area.saved(gpu)?;
    run.tell(&case, &locks, bytes);
    kernel.finish().with_context(|| case.clone())?;
    Ok(median(&locks.lock))
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let mut memcpy = Memcpy::new(PEER_BYTES);
    let seconds: Vec<f64> = (0..9).map(|_| memcpy.seconds(1)).collect();
    drop(memcpy);
    let bandwidth = PEER_BYTES as f64 / median(&seconds) * 1e-6;
    report.plain("64 MiB, warm, one thread", "memcpy_bandwidth", bandwidth * 1e-3, "GB/s");
    let kernel = std::env::var("SOFTGPU_KERNEL").unwrap_or_default();
    if kernel == "fixed" {
        report.note(
            "on SOFTGPU_KERNEL=fixed, a kernel that is not released: Linux up to 7.3 refuses gfx11 and gfx12",
        );
    }
    let gpu = Gpu::open()?;
    match gpu.runtime.lock(Mode::Preempt, LOST) {
        Err(error @ CheckpointError::Preempt(_)) => {
            report.note(&format!("not measured: {:#}", anyhow::Error::from(error)));
            return Ok(());
        }
        locked => locked.and_then(|()| gpu.runtime.unlock())?,
    }
    let area = SaveArea::of_a_new_queue(&gpu)?;
    let run = Run { report, bandwidth };
    let idle = idle(&run, &gpu, &area)?;
    let queued = queued(&run, &gpu, &area)?;
    let few = endless(&run, &gpu, &area, (4, 64))?;
    let same = endless(&run, &gpu, &area, (Busy::GROUPS, 64))?;
    endless(&run, &gpu, &area, (256, 256))?;
    let case = "1000 kernels queued";
    report.versus(case, "lock_median", queued, "us", ("idle_queue", idle));
    report.versus(case, "lock_median", queued, "us", ("endless_kernel_of_the_same_grid", same));
    report.versus("endless kernel, 8 waves", "lock_median", few, "us", ("idle_queue", idle));
    Ok(())
}
