// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a submission to the end of the wait for it: an empty kernel through the whole house and back.
//!
//! *Idle*: everybody was asleep for two milliseconds, the processor parked. *Busy*: one after the other. The peer is a word
//! passed to another process and back under the same rhythm, in the same run.

use std::time::{Duration, Instant};

use anyhow::Result;
use stasis::{Condition, Kernel, Queue, QueueOptions, Signal, WaitMode};

use crate::figure::{Report, quantile};
use crate::gpu::Gpu;
use crate::ping_pong::{PingPong, Wait};

/// Long after the soft device has parked (it looks for 40 microseconds).
const PAUSE: Duration = Duration::from_millis(2);
const IDLE_TRIPS: usize = 1000;
const BUSY_TRIPS: usize = 20_000;
/// Not counted.
const WARM_UP: usize = 50;
/// TIMEOUT: for one trip.
const LOST: Duration = Duration::from_secs(10);

/// Times of many trips, each after a pause.
fn trips(count: usize, pause: Option<Duration>, mut trip: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count + WARM_UP {
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        times.push(trip()?);
    }
    Ok(times.split_off(WARM_UP))
}

fn trip(queue: &Queue, kernel: &Kernel, done: &Signal, mode: WaitMode) -> Result<f64> {
    done.store(1)?;
    let started = Instant::now();
    queue.dispatch(kernel).grid([32, 1, 1]).block([32, 1, 1]).completion(done).submit()?;
    done.wait(Condition::LessThan(1), Some(LOST), mode)?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    // The peers first: they fork, which is for a process of one thread.
    let peer = |wait, count, pause| -> Result<Vec<f64>> {
        let mut ball = PingPong::start(wait)?;
        trips(count, pause, || Ok(ball.trip()))
    };
    let idle_futex = peer(Wait::Futex, IDLE_TRIPS, Some(PAUSE))?;
    let busy_futex = peer(Wait::Futex, BUSY_TRIPS, None)?;
    let busy_spin = peer(Wait::Spin, BUSY_TRIPS, None)?;
    let gpu = Gpu::open()?;
    let queue = Queue::create(&gpu.agent, QueueOptions::default())?;
    let (kernel, done) = (gpu.kernel("empty")?, Signal::new(&gpu.runtime, 0)?);
    let futex = "futex_ping_pong";
    let cases = [
        ("idle, spin then sleep", IDLE_TRIPS, Some(PAUSE), WaitMode::Auto, (futex, &idle_futex)),
        ("idle, asleep in the driver", IDLE_TRIPS, Some(PAUSE), WaitMode::Blocked, (futex, &idle_futex)),
        ("busy, spin then sleep", BUSY_TRIPS, None, WaitMode::Auto, (futex, &busy_futex)),
        ("busy, asleep in the driver", BUSY_TRIPS, None, WaitMode::Blocked, (futex, &busy_futex)),
        ("busy, spinning", BUSY_TRIPS, None, WaitMode::Busy, ("spin_ping_pong", &busy_spin)),
    ];
    for (case, count, pause, mode, (name, peer)) in cases {
        let times = trips(count, pause, || trip(&queue, &kernel, &done, mode))?;
        for (metric, share) in [("round_trip_median", 0.5), ("round_trip_p99", 0.99)] {
            report.versus(case, metric, quantile(&times, share), "us", (name, quantile(peer, share)));
        }
    }
    pipelined(report, &queue, &kernel, &done)
}

/// Empty kernels without waiting in between: what the command processor takes for each.
fn pipelined(report: &Report, queue: &Queue, kernel: &Kernel, done: &Signal) -> Result<()> {
    const BATCH: u32 = 1000;
    let mut times = Vec::new();
    for _ in 0..20 {
        done.store(1)?;
        let started = Instant::now();
        for n in 0..BATCH {
            let dispatch = queue.dispatch(kernel).grid([32, 1, 1]).block([32, 1, 1]);
            if n + 1 == BATCH {
                dispatch.completion(done).submit()?
            } else {
                dispatch.submit()?
            };
        }
        done.wait(Condition::LessThan(1), Some(LOST), WaitMode::Auto)?;
        times.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH));
    }
    report.plain("1000 at a time", "us_per_dispatch", quantile(&times, 0.5), "us");
    Ok(())
}
