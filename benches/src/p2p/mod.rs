// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between two agents' memory on every path there is, as a fraction of memcpy.
//!
//! From the call to the end of the wait, one copy after another, so that the way there and back is in it. The peer is one
//! thread's memcpy between touched buffers of the same size, taken in turns with the copies. Each path's first copy is
//! compared byte by byte. Beside them the same bytes from an agent to system memory, which a staged copy does twice.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use stasis::{Buffer, CopyError, CopyPath, Direction, Options, Runtime};

use crate::figure::{Report, median, size_name};
use crate::memcpy::{Memcpy, pattern};

/// What is copied, and how often.
const SWEEP: [(usize, u32); 4] = [(64 << 10, 60), (1 << 20, 30), (16 << 20, 9), (64 << 20, 5)];
/// TIMEOUT: for one copy.
const LOST: Option<Duration> = Some(Duration::from_secs(30));
/// Once so long has gone by, what is left is measured three times each.
const ENOUGH: Duration = Duration::from_secs(35);
/// At least so much is moved by memcpy for one of its times.
const PEER_BYTES: usize = 1 << 20;
const PEER: &str = "memcpy";
const PATHS: [CopyPath; 6] = [
    CopyPath::PeerSdma(Direction::Pull),
    CopyPath::PeerSdma(Direction::Push),
    CopyPath::PeerShader(Direction::Pull),
    CopyPath::PeerShader(Direction::Push),
    CopyPath::Staged,
    CopyPath::Host,
];

/// The first two agents of a device; two software ones where nothing was asked for.
fn open(report: &Report) -> Result<Option<Runtime>> {
    let device = match std::env::var_os("STASIS_DEVICE") {
        Some(_) => None,
        None => Some("soft:gfx1100,gfx1100".parse().context("a device")?),
    };
    let runtime = Runtime::open(Options { device, agents: None })?;
    if runtime.agents().len() < 2 {
        report.note(&format!(
            "{} has one agent, and copies between agents need two: unset STASIS_DEVICE, or name two",
            runtime.transport_name()
        ));
        return Ok(None);
    }
    Ok(Some(runtime))
}

/// The buffers of one size.
struct Ends<'a> {
    runtime: &'a Runtime,
    from: Buffer,
    to: Buffer,
    host: Buffer,
}

impl<'a> Ends<'a> {
    fn new(runtime: &'a Runtime, bytes: usize) -> Result<Self> {
        let vram =
            |n| Ok::<_, anyhow::Error>(runtime.agent(n).context("an agent")?.vram().alloc(bytes as u64)?);
        Ok(Self { runtime, from: vram(0)?, to: vram(1)?, host: runtime.gtt().alloc(bytes as u64)? })
    }

    fn to(&self, path: CopyPath) -> &Buffer {
        if path == CopyPath::Host { &self.host } else { &self.to }
    }

    /// Seconds of one copy.
    fn seconds(&self, path: CopyPath) -> Result<f64, CopyError> {
        let started = Instant::now();
        self.runtime.copy_via(path, self.to(path).all(), self.from.all(), &[])?.wait(LOST)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// The first copy of all, which also touches every page; whether there is such a path.
    fn check(&self, path: CopyPath, salt: u32, report: &Report) -> Result<bool> {
        let wanted = pattern(self.from.len() as usize, salt);
        self.from.upload(0, &wanted)?;
        self.to(path).upload(0, &vec![0; wanted.len()])?;
        match self.seconds(path) {
            Err(error @ (CopyError::NoPath(_) | CopyError::NoEngine { .. })) => {
                report.note(&format!("{path}: {}", stasis::explain(&error)));
                return Ok(false);
            }
            done => done?,
        };
        let mut found = vec![0; wanted.len()];
        self.to(path).download(0, &mut found)?;
        ensure!(found == wanted, "{path}: what arrived is not what was sent");
        Ok(true)
    }
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let Some(runtime) = open(report)? else { return Ok(()) };
    for (bytes, rounds) in SWEEP {
        let ends = Ends::new(&runtime, bytes)?;
        let mut paths = Vec::new();
        for (path, salt) in PATHS.into_iter().zip(1..) {
            if ends.check(path, salt, report)? {
                paths.push((path, Vec::new()));
            }
        }
        let mut memcpy = Memcpy::new(bytes);
        // CAST: at most 16.
        let repeats = (PEER_BYTES / bytes).max(1) as u32;
        let mut peer = Vec::new();
        let mut measured = 0;
        while measured < rounds && (measured < 3 || report.elapsed() < ENOUGH) {
            peer.push(memcpy.seconds(repeats));
            for (path, times) in &mut paths {
                times.push(ends.seconds(*path)?);
            }
            measured += 1;
        }
        let rate = |times: &[f64]| bytes as f64 / median(times) * 1e-9;
        let (size, peer) = (size_name(bytes), rate(&peer));
        for (path, times) in &paths {
            report.versus(&format!("{size} {path}"), "bandwidth", rate(times), "GB/s", (PEER, peer));
        }
        report.note(&format!("{size}: memcpy {peer:.2} GB/s, {measured} rounds"));
    }
    Ok(())
}
