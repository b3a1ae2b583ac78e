// SPDX-License-Identifier: MIT OR Apache-2.0
//! A DMABuf there and back in one process: export, import, and the end of the imported buffer.
//!
//! INVARIANT: every round has a fresh buffer and a fresh memfd, so nothing is measured that an earlier round has made.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stasis::Runtime;

use super::Pair;
use super::memfd::{self, Mapping, touch_buffer};
use crate::figure::{Report, size_name};

/// What is shared, and how often.
const SWEEP: [(usize, u32); 3] = [(4 << 10, 1000), (1 << 20, 500), (64 << 20, 120)];
/// No further round of a case once so much time has gone, if it had some.
const ENOUGH: Duration = Duration::from_secs(25);
const LEAST: u32 = 20;

/// Microseconds since the last mark.
struct Clock(Instant);

impl Clock {
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now.duration_since(self.0).as_secs_f64() * 1e6;
        self.0 = now;
        lap
    }
}

#[derive(Default)]
struct Times {
    export: Pair,
    import: Pair,
    whole: Pair,
}

fn ours(runtime: &Runtime, bytes: usize, touched: bool, times: &mut Times) -> Result<()> {
    let agent = runtime.agent(0).context("There is no agent")?;
    let buffer = agent.vram().alloc(bytes as u64)?;
    let mut clock = Clock(Instant::now());
    let file = buffer.export()?;
    let export = clock.lap();
    let imported = runtime.import(&file, &agent)?;
    if touched {
        touch_buffer(&imported)?;
    }
    let import = clock.lap();
    imported.free()?;
    drop(file);
    times.export.ours.push(export);
    times.import.ours.push(import);
    times.whole.ours.push(export + import + clock.lap());
    buffer.free()?;
    Ok(())
}

fn peer(bytes: usize, touched: bool, times: &mut Times) -> Result<()> {
    let mut clock = Clock(Instant::now());
    let file = memfd::create(bytes)?;
    let create = clock.lap();
    let mut mapping = Mapping::new(&file, bytes)?;
    if touched {
        mapping.touch();
    }
    let map = clock.lap();
    drop(mapping);
    drop(file);
    times.export.peer.push(create);
    times.import.peer.push(map);
    times.whole.peer.push(create + map + clock.lap());
    Ok(())
}

/// Measures.
pub fn run(report: &Report, runtime: &Runtime) -> Result<()> {
    for (bytes, rounds) in SWEEP {
        for touched in [false, true] {
            // The first of all pays for what is made once.
            ours(runtime, bytes, touched, &mut Times::default())?;
            let mut times = Times::default();
            let mut round = 0;
            while round < rounds && (round < LEAST || report.elapsed() < ENOUGH) {
                ours(runtime, bytes, touched, &mut times)?;
                peer(bytes, touched, &mut times)?;
                round += 1;
            }
            let size = size_name(bytes);
            let (case, import, map) = if touched {
                (format!("{size}, touched"), "import+touch", "mmap+touch")
            } else {
                times.export.report(report, &size, "export", "memfd_create");
                (size, "import", "mmap")
            };
            times.import.report(report, &case, import, map);
            times.whole.report(report, &case, "whole", "memfd, mmap, munmap");
            report.note(&format!("{case}: {round} rounds"));
        }
    }
    Ok(())
}
