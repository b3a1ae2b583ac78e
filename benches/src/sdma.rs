// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between an agent's memory and system memory, by copy engine and by shader, as a fraction of memcpy.
//!
//! Alone: from the call to the end of the wait, one copy after another, so that the way there and back is in it. Deep: many
//! copies in flight, the wait after the last. The peer is one thread's memcpy between touched buffers of the same size,
//! taken in turns with the copies; small ones stay in the CPU's caches. Each engine's first copy is compared byte by byte.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stasis::{Buffer, CopyEngine, CopyError, Runtime};

use crate::figure::{Report, median, size_name};
use crate::gpu::Gpu;
use crate::memcpy::{Memcpy, pattern};

/// What is copied, and how often.
const SWEEP: [(usize, u32); 6] =
    [(4 << 10, 300), (64 << 10, 200), (1 << 20, 60), (4 << 20, 30), (16 << 20, 15), (64 << 20, 9)];
/// Copies in flight.
const DEEP: u32 = 16;
/// Larger copies are many packets each, and the way there and back is nothing to them.
const DEEP_BYTES: usize = 1 << 20;
/// TIMEOUT: for one copy.
const LOST: Option<Duration> = Some(Duration::from_secs(30));
/// At least so much is moved by memcpy for one of its times.
const PEER_BYTES: usize = 1 << 20;
const PEER: &str = "memcpy";
const ENGINES: [(CopyEngine, &str); 2] = [(CopyEngine::Sdma, "sdma"), (CopyEngine::Shader, "shader")];

/// Seconds of one copy of many in flight at once.
fn copies(
    runtime: &Runtime,
    by: CopyEngine,
    to: &Buffer,
    from: &Buffer,
    count: u32,
) -> Result<f64, CopyError> {
    let started = Instant::now();
    let mut flying = Vec::with_capacity(count as usize);
    for _ in 0..count {
        flying.push(runtime.copy_by(by, to.all(), from.all(), &[])?);
    }
    for transfer in &flying {
        transfer.wait(LOST)?;
    }
    Ok(started.elapsed().as_secs_f64() / f64::from(count))
}

/// One direction at one size.
struct Path<'a> {
    gpu: &'a Gpu,
    name: &'static str,
    to: Buffer,
    from: Buffer,
    rounds: u32,
}

/// Seconds of a copy.
#[derive(Default)]
struct Times {
    alone: Vec<f64>,
    deep: Vec<f64>,
}

impl Path<'_> {
    fn bytes(&self) -> usize {
        // CAST: 64 MiB at most.
        self.to.len() as usize
    }

    fn copies(&self, by: CopyEngine, count: u32) -> Result<f64, CopyError> {
        copies(&self.gpu.runtime, by, &self.to, &self.from, count)
    }

    /// The first copy of all, which also touches every page.
    fn check(&self, (by, engine): (CopyEngine, &str)) -> Result<()> {
        // CAST: as above.
        let wanted = pattern(self.bytes(), self.bytes() as u32 ^ u32::from(self.name.as_bytes()[0]));
        self.from.write(0, &wanted)?;
        self.to.write(0, &vec![0; wanted.len()])?;
        self.copies(by, 1)?;
        ensure!(self.to.to_vec()? == wanted, "{} by {engine}: what arrived is not what was sent", self.name);
        Ok(())
    }

    /// By every engine, in turns with memcpy.
    fn measure(&self, report: &Report, engines: &[(CopyEngine, &str)]) -> Result<()> {
        engines.iter().try_for_each(|&engine| self.check(engine))?;
        let mut memcpy = Memcpy::new(self.bytes());
        // CAST: at most 256.
        let repeats = (PEER_BYTES / self.bytes()).max(1) as u32;
        let mut peer = Vec::new();
        let mut times: Vec<Times> = engines.iter().map(|_| Times::default()).collect();
        for _ in 0..self.rounds {
            peer.push(memcpy.seconds(repeats));
            for (times, &(by, _)) in times.iter_mut().zip(engines) {
                times.alone.push(self.copies(by, 1)?);
                if self.bytes() <= DEEP_BYTES {
                    times.deep.push(self.copies(by, DEEP)?);
                }
            }
        }
        let rate = |times: &[f64]| self.bytes() as f64 / median(times) * 1e-9;
        let (size, peer) = (size_name(self.bytes()), rate(&peer));
        for (times, (_, engine)) in times.iter().zip(engines) {
            let case = format!("{size} {}, {engine}", self.name);
            report.versus(&case, "bandwidth_alone", rate(&times.alone), "GB/s", (PEER, peer));
            if !times.deep.is_empty() {
                let metric = format!("bandwidth_{DEEP}_deep");
                report.versus(&case, &metric, rate(&times.deep), "GB/s", (PEER, peer));
            }
        }
        report.note(&format!("{size} {}: memcpy {peer:.2} GB/s, {} rounds", self.name, self.rounds));
        Ok(())
    }
}

/// The engines there are.
fn engines(report: &Report, gpu: &Gpu) -> Result<Vec<(CopyEngine, &'static str)>> {
    let (to, from) = (gpu.agent.vram().alloc(4096)?, gpu.runtime.gtt().alloc(4096)?);
    let mut found = Vec::new();
    for (by, name) in ENGINES {
        match copies(&gpu.runtime, by, &to, &from, 1) {
            Err(CopyError::NoEngine { .. }) => report.note(&format!("the agent has no {name}")),
            done => {
                done?;
                found.push((by, name));
            }
        }
    }
    Ok(found)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let gpu = Gpu::open()?;
    let engines = engines(report, &gpu)?;
    for (bytes, rounds) in SWEEP.into_iter().rev() {
        let place = || {
            Ok::<_, anyhow::Error>((
                gpu.agent.vram().alloc(bytes as u64)?,
                gpu.runtime.gtt().alloc(bytes as u64)?,
            ))
        };
        let (to, from) = place()?;
        Path { gpu: &gpu, name: "gtt to vram", to, from, rounds }.measure(report, &engines)?;
        let (from, to) = place()?;
        Path { gpu: &gpu, name: "vram to gtt", to, from, rounds }.measure(report, &engines)?;
    }
    Ok(())
}
