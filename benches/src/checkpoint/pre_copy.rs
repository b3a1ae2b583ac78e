// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a process stands still whose buffers were copied while it ran, and what it can do meanwhile.
//!
//! A thread fills one buffer again and again by the device, so that all of that buffer has changed when the process is stopped; nothing
//! else changes. The peers: a checkpoint that writes everything while the process stands still, and as many fills in a
//! second with nothing beside them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use stasis::Buffer;
use stasis::checkpoint::{CheckpointReport, PreCopyOptions};

use super::parent::checkpoint;
use super::{DRAIN, Pieces, Place, plot};
use crate::figure::{Report, median};
use crate::gpu::Gpu;

/// The variable that has the software device tell what its GPUs write.
pub const TELLS: &str = "SOFTGPU_WRITES";
/// Bytes that change all the time.
const CHANGING: u64 = 16 << 20;
const RUNS: usize = 3;
/// The title of the figure.
const STOPS: &str = "How long a process stands still, by its buffers";
/// How long fills are counted with nothing beside them.
const ALONE: Duration = Duration::from_millis(500);

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Fills a buffer until it is told to stop; counts how often.
fn fill(gpu: &Gpu, buffer: &Buffer, fills: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut value = 0u8;
    while !stop.load(Ordering::Relaxed) {
        value = value.wrapping_add(1);
        gpu.runtime.fill(buffer.all(), &[value | 1], &[])?.wait(Some(DRAIN))?;
        fills.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// What was found with so much memory.
struct Found {
    whole_ms: f64,
    stop_ms: f64,
    /// Phases of the last stop.
    report: CheckpointReport,
    /// Fills in a second while it was copied, over those without.
    rate: f64,
    copy_ms: f64,
}

fn measure(gpu: &Gpu, place: &Place, changing: &Buffer) -> Result<Found> {
    let (fills, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let (before, into) = (place.path().join("before"), place.path().join("into"));
    let rate =
        |seconds: Duration, from: u64| (fills.load(Ordering::Relaxed) - from) as f64 / seconds.as_secs_f64();
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| fill(gpu, changing, &fills, &end));
        let runs = || -> Result<Found> {
            let (mut wholes, mut stops, mut rates, mut copies, mut last) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new(), CheckpointReport::default());
            for _ in 0..RUNS {
                wholes.push(checkpoint(gpu, &into, None)?.0);
                std::fs::remove_dir_all(&into)?;
                let from = fills.load(Ordering::Relaxed);
                std::thread::sleep(ALONE);
                let alone = rate(ALONE, from);
                let (started, from) = (Instant::now(), fills.load(Ordering::Relaxed));
                std::fs::create_dir(&before)?;
                let copied = gpu.runtime.pre_copy(&before, &PreCopyOptions::default())?;
                rates.push(rate(started.elapsed(), from) / alone);
                copies.push(copied.pre_copy_ms);
                let (stop_ms, report) = checkpoint(gpu, &into, Some(&before))?;
                stops.push(stop_ms);
                last = report;
                std::fs::remove_dir_all(&before)?;
                std::fs::remove_dir_all(&into)?;
            }
            let (whole_ms, stop_ms) = (median(&wholes), median(&stops));
            Ok(Found { whole_ms, stop_ms, report: last, rate: median(&rates), copy_ms: median(&copies) })
        };
        let found = runs();
        end.store(true, Ordering::Relaxed);
        let filled = filling.join().map_err(|_| anyhow!("the thread that fills a buffer has panicked"))?;
        found.and_then(|found| filled.map(|()| found))
    })
}

/// Measures on a device that tells nobody what its GPUs write, as hardware does.
pub fn run(report: &Report) -> Result<()> {
    measure_all(report, "checkpoint-stops")
}

/// Measures on a device that tells ([`TELLS`]).
pub fn run_told(report: &Report) -> Result<()> {
    measure_all(report, "checkpoint-stops-told")
}

fn measure_all(report: &Report, figure: &str) -> Result<()> {
    let gpu = Gpu::open()?;
    let changing = gpu.agent.vram().alloc(CHANGING)?;
    let mut lines = Vec::new();
    for place in [Place::tmpfs()?, Place::disk()?] {
        let (mut stops, mut wholes) = (Vec::new(), Vec::new());
        for bytes in place.sizes(report)? {
            let still = gpu.agent.vram().alloc(bytes - CHANGING)?;
            Pieces::Random.write_by_device(0, &gpu.runtime, &still)?;
            let found = measure(&gpu, &place, &changing)?;
            let case = format!("{} MiB, 16 of them change all the time, {}", bytes >> 20, place.name);
            let whole = ("whole_checkpoint", found.whole_ms);
            report.versus(&case, "stop_after_pre_copy", found.stop_ms, "ms", whole);
            report.plain(&case, "stop_after_pre_copy_hash_and_write", found.report.write_ms, "ms");
            report.plain(&case, "stop_after_pre_copy_close", found.report.close_ms, "ms");
            report.plain(
                &case,
                "stop_after_pre_copy_read",
                mebibytes(found.report.content_bytes - found.report.unread_bytes),
                "MiB",
            );
            report.plain(&case, "pre_copy", found.copy_ms, "ms");
            report.versus(&case, "fills_while_copied", found.rate, "1", ("fills_alone", 1.0));
            stops.push((bytes, found.stop_ms));
            wholes.push((bytes, found.whole_ms));
        }
        let (name, by_whole) = (format!("stop by memory, {}", place.name), plot::slope(&wholes));
        report.versus(
            &name,
            "stop_after_pre_copy",
            plot::slope(&stops),
            "ms/GiB",
            ("whole_checkpoint", by_whole),
        );
        lines.push((format!("after a pre-copy, {}", place.name), stops));
        lines.push((format!("whole, {}", place.name), wholes));
    }
    for path in plot::save_by_memory(figure, STOPS, &lines)? {
        report.note(&format!("figure: {}", path.display()));
    }
    Ok(())
}
