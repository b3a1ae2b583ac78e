// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the process reads an agent's memory.
//!
//! INVARIANT: the answer changes who moves contents, never what is moved.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::Contents;
use crate::context::agent::info::AgentInfo;
use crate::context::device::{Device, hdp};
use crate::context::registry::Registry;
use crate::image::HostRange;

/// Bytes that are read to measure.
const SAMPLE: usize = 4096;
/// How often; the fastest counts, so that what else the machine does is no reason.
const TRIES: u32 = 8;
/// What reading a sample takes at 1 GB/s. Memory is faster, on the busiest machine at least once in a while; reads that are
/// not cached are far slower, since each waits for the bus.
const SLOW: Duration = Duration::from_micros(4);
/// What making an engine's queue and its buffers takes, about.
const ENGINE: Duration = Duration::from_millis(5);

/// What reading an agent's memory takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    /// A sample.
    sample: Duration,
    /// All that is to be read.
    all: Duration,
    /// Picoseconds a byte that a software device asks for.
    pub read_cost: u64,
}

impl Speed {
    /// Whether it is read as fast as memory.
    pub(super) fn is_fast(&self) -> bool {
        self.sample < SLOW
    }

    /// Whether reading takes longer than an engine needs to be made.
    pub(super) fn is_worth_an_engine(&self) -> bool {
        self.all > ENGINE
    }
}

/// How fast the process reads these objects of an agent, all of which it sees.
pub(super) fn speed(registry: &Registry, on: &Device, info: &AgentInfo, contents: &Contents) -> Speed {
    let seen = contents.iter().find_map(|(key, _)| registry.bos.get(*key));
    // SAFETY: the object is CPU-mapped at `va` and a page at least; the gate is closed, so that nobody frees it.
    let range = seen.and_then(|bo| unsafe { HostRange::at_address(bo.cpu_va(), SAMPLE as u64) });
    let (Some(range), false) = (range, hdp::is_coherent(info)) else { return Speed::default() };
    let read_cost = on.aperture_read_cost(info.index());
    let range = range.with_read_cost(read_cost);
    let mut sample = [0; SAMPLE];
    let read = |_| {
        let started = Instant::now();
        range.copy_out(0, &mut sample);
        std::hint::black_box(&sample);
        started.elapsed()
    };
    let sample = (0..TRIES).map(read).min().unwrap_or_default();
    let samples: u64 = contents.iter().map(|(_, bytes)| bytes.div_ceil(SAMPLE as u64)).sum();
    let all = sample.saturating_mul(u32::try_from(samples).unwrap_or(u32::MAX));
    Speed { sample, all, read_cost }
}
