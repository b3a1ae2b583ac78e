// SPDX-License-Identifier: MIT OR Apache-2.0
//! What checkpoints cost a thousand nodes (`bench fleet`): a simulation, whose inputs are what this machine does to a gibibyte and what a
//! site is assumed to have. `docs/fleet.md` says what follows.
//!
//! | part | question |
//! | --- | --- |
//! | [`goodput`] | which share of its time one job on all nodes computes, by how often it is checkpointed and to where |
//! | [`storm`] | when nodes are at work again that are all restored at once |
//!
//! Nothing here has run on a thousand nodes.

mod draw;
mod goodput;
mod site;
mod storm;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use stasis::image::{Image, ImageWriter, Limit};

use self::goodput::Plan;
use self::site::{SITE, Software};
use self::storm::Policy;
use crate::checkpoint::memory::Memory;
use crate::figure::{Report, median};

/// Bytes of the images that are measured.
const BYTES: usize = 512 << 20;
const RUNS: usize = 3;
const GIB: f64 = (1 << 30) as f64;
/// Minutes between checkpoints.
const INTERVALS: [f64; 16] =
    [1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 360.0];
/// Hours that are simulated, in which a thousand nodes fail some hundred times.
const HOURS: f64 = 2000.0;
const SEED: u64 = 1;

/// How fast this machine's cores write an image and fill memory from one, hashes included.
fn measure() -> Result<Software> {
    let mut source = Memory::fresh(BYTES)?;
    let mut number = 1u64;
    for word in source.bytes().as_chunks_mut::<8>().0 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *word = number.to_le_bytes();
    }
    let none = Limit::none();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut write, mut fill) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let started = Instant::now();
        let mut writer = ImageWriter::in_memory()?;
        writer.write_contents(&source.extents(8), &none)?;
        let finished = writer.finish(&())?;
        write.push(started.elapsed().as_secs_f64());
        let mut memory = Memory::fresh(BYTES)?;
        let started = Instant::now();
        let image = Image::of_file(finished.file, Path::new("memory"))?;
        image.fill(&memory.extents(8), true, &none)?;
        fill.push(started.elapsed().as_secs_f64());
        ensure!(memory.bytes() == source.bytes(), "what was filled is not what was written");
    }
    let rate = |times: &[f64]| BYTES as f64 / GIB / median(times) / cores as f64;
    Ok(Software { write: rate(&write), fill: rate(&fill) })
}

/// Measures, simulates and draws.
pub fn run(report: &Report) -> Result<()> {
    let software = measure()?;
    report.plain("a core of this machine", "image written", software.write, "GiB/s");
    report.plain("a core of this machine", "memory filled", software.fill, "GiB/s");
    let mut lines = Vec::new();
    for plan in Plan::all(&SITE, software) {
        let share = |minutes: f64| goodput::simulate(&SITE, &plan, minutes * 60.0, HOURS * 3600.0, SEED);
        let points: Vec<(f64, f64)> = INTERVALS.iter().map(|&minutes| (minutes, share(minutes))).collect();
        let best = points
            .iter()
            .copied()
            .fold((f64::NAN, 0.0), |best, point| if point.1 > best.1 { point } else { best });
        report.plain(plan.name, "standstill a checkpoint", plan.stop, "s");
        report.plain(plan.name, "time until it counts", plan.counts_after, "s");
        report.plain(plan.name, "best interval", best.0, "min");
        report.versus(
            plan.name,
            "time that computes, at best",
            100.0 * best.1,
            "%",
            ("all of the time", 100.0),
        );
        lines.push((plan.name.to_owned(), points));
    }
    let storms = Policy::all(&SITE).map(|policy| {
        let ready = storm::simulate(&SITE, software, policy);
        (policy.name().to_owned(), ready)
    });
    let at_once = storms[0].1.clone();
    for (name, ready) in &storms {
        let (half, all) = (ready[ready.len() / 2], ready[ready.len() - 1]);
        let (half_at_once, all_at_once) = (at_once[at_once.len() / 2], at_once[at_once.len() - 1]);
        report.versus(name, "half of the nodes at work", half, "s", ("all at once", half_at_once));
        report.versus(name, "all nodes at work", all, "s", ("all at once", all_at_once));
    }
    for path in draw::goodput(&lines)?.into_iter().chain(draw::storms(&storms)?) {
        eprintln!("drawn: {}", path.display());
    }
    Ok(())
}
