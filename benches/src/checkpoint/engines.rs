// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents that copy engines move, beside those that the process moves itself: a checkpoint and a restore of the same bytes on
//! three software machines, one of whose memory the CPU sees, one that shows 256 MiB of it (small BAR), and one whose BAR is
//! read as slowly as real ones.
//!
//! The engine is a thread of the software device, so a core that it takes is one less for hashing; on hardware it is none of
//! the CPU's. What the slow BAR alone would allow is the peer of the last.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::pieces::Pieces;
use super::{Place, cycle};
use crate::figure::{Figure, Report, median};
use crate::gpu::Gpu;

/// What a process is called that is measured.
pub const ROLE: &str = "checkpoint-engines-measured";
const BYTES: u64 = 256 << 20;
const RUNS: usize = 3;
/// What the slow BAR is read at, MB/s: what uncached reads over PCIe reach, about.
const SLOW_MBYTES: f64 = 50.0;
/// TIMEOUT: for one machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machines: a name, what their topology files say of the BAR, and whether an engine has to move the contents.
const MACHINES: [(&str, &str, bool); 3] = [
    ("the CPU sees all", "", false),
    ("small BAR", "bar = \"small\"", true),
    ("BAR read at 50 MB/s", "bar_read_mbytes = 50", true),
];

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let place = Place::tmpfs()?;
    let mut seen = None;
    for (n, (name, bar, by_engine)) in MACHINES.into_iter().enumerate() {
        let machine = place.path().join(format!("{n}.toml"));
        std::fs::write(&machine, format!("[[gpu]]\nchip = \"gfx1100\"\n{bar}\n"))?;
        let mut command = crate::spawn(ROLE, &[if by_engine { "engine" } else { "process" }])?;
        command.env("STASIS_DEVICE", format!("soft:{}", machine.display()));
        command.env("STASIS_SOFTGPU_INSTANCE", format!("engines-{}-{n}", std::process::id()));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut figures: Vec<Figure> = Vec::new();
        let followed = crate::follow(&mut child, PATIENCE, &mut |figure| {
            figures.push(figure);
            Ok(())
        });
        if followed.is_err() {
            let _ = child.kill();
        }
        let status = child.wait()?;
        followed.with_context(|| name.to_owned())?;
        ensure!(status.success(), "{name}: the measured process failed ({status})");
        let value = |metric: &str| {
            let found = figures.iter().find(|figure| figure.metric == metric);
            found.and_then(|figure| figure.value).with_context(|| format!("{name}: there is no {metric}"))
        };
        let (down, up) = (value("checkpoint_bandwidth")?, value("restore_bandwidth")?);
        let case = format!("{} MiB, random, tmpfs, {name}", BYTES >> 20);
        match seen {
            None => {
                report.plain(&case, "checkpoint_bandwidth", down, "GB/s");
                report.plain(&case, "restore_bandwidth", up, "GB/s");
                seen = Some((down, up));
            }
            Some((there, back)) => {
                report.versus(&case, "checkpoint_bandwidth", down, "GB/s", ("the CPU sees all", there));
                report.versus(&case, "restore_bandwidth", up, "GB/s", ("the CPU sees all", back));
            }
        }
        if bar.contains("bar_read") {
            report.versus(&case, "checkpoint_bandwidth", down, "GB/s", ("the BAR", SLOW_MBYTES * 1e-3));
        }
    }
    Ok(())
}

/// Is measured, on the machine that STASIS_DEVICE names.
pub fn play(arguments: &[String]) -> Result<()> {
    let by_engine = arguments.first().is_some_and(|who| who == "engine");
    let gpu = Gpu::open()?;
    let buffer = gpu.agent.vram().alloc(BYTES)?;
    Pieces::Random.write(0, &buffer)?;
    let place = Place::tmpfs()?;
    ensure!(place.has_room_for(BYTES as usize)?, "{} has no room for an image", place.path().display());
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let cycle = cycle(&gpu.runtime, place.path())?;
        let moved = (cycle.down.engine_bytes >= BYTES, cycle.up.engine_bytes >= BYTES);
        ensure!(moved == (by_engine, by_engine), "moved by an engine, down and up: {moved:?}");
        down.push(cycle.checkpoint);
        up.push(cycle.restore);
        Pieces::Random.verify(0, &buffer).context("the restored bytes are not those saved")?;
    }
    let report = Report::new(ROLE);
    let speed = |times: &[f64]| BYTES as f64 / median(times) * 1e-9;
    report.plain("", "checkpoint_bandwidth", speed(&down), "GB/s");
    report.plain("", "restore_bandwidth", speed(&up), "GB/s");
    Ok(())
}
