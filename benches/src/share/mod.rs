// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory: what giving it out and taking it in costs, in one process and from process to process, and what it adds
//! to a checkpoint.
//!
//! INVARIANT: every time stands beside that of a peer taken in turns with it. Of latencies: memfds of the same size,
//! made, mapped, sent. Of checkpoints: as many buffers of the same size that nobody shares.

mod cycle;
mod ipc;
mod latency;
mod memfd;
pub mod restore;
pub mod second;

use anyhow::Result;

use crate::figure::{Report, quantile};

/// Times of ours and of the peer's, microseconds.
#[derive(Debug, Default)]
struct Pair {
    ours: Vec<f64>,
    peer: Vec<f64>,
}

impl Pair {
    /// Median and p99 of both.
    fn report(&self, report: &Report, case: &str, what: &str, peer: &str) {
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let of = |times: &[f64]| quantile(times, share);
            report.versus(case, &format!("{what}_{name}_us"), of(&self.ours), "us", (peer, of(&self.peer)));
        }
    }
}

/// Measures latencies.
pub fn run(report: &Report) -> Result<()> {
    let runtime = stasis::Runtime::open_default()?;
    latency::run(report, &runtime)?;
    ipc::run(report, &runtime)
}
