// SPDX-License-Identifier: MIT OR Apache-2.0
//! A buffer from process to process: from the call of `send` until the other process says that it has it in its memory.
//!
//! The peer does the same with memfds: made, sent by `SCM_RIGHTS`, mapped there, and the same answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stasis::share::Item;
use stasis::{Buffer, Runtime};

use super::second::{Order, Second};
use super::{Pair, memfd};
use crate::figure::{Report, size_name};

/// Bytes of a buffer, buffers of a message, rounds.
const SWEEP: [(usize, usize, u64); 4] =
    [(4 << 10, 1, 500), (1 << 20, 1, 500), (64 << 20, 1, 100), (64 << 10, memfd::MOST, 40)];
/// Once so much time has gone, few rounds of what is left.
const ENOUGH: Duration = Duration::from_secs(40);
const LEAST: u64 = 10;

/// Measures.
pub fn run(report: &Report, runtime: &Runtime) -> Result<()> {
    let agent = runtime.agent(0).context("There is no agent")?;
    let mut second = Second::start(None)?;
    for (bytes, count, rounds) in SWEEP {
        let rounds = if report.elapsed() < ENOUGH { rounds } else { LEAST };
        second.order(Order::Pings { rounds, bytes: bytes as u64 })?;
        let mut pair = Pair::default();
        for _ in 0..rounds {
            let buffers = (0..count).map(|_| agent.vram().alloc(bytes as u64));
            let buffers = buffers.collect::<std::result::Result<Vec<Buffer>, _>>()?;
            let items: Vec<Item<'_>> = buffers.iter().map(Item::Buffer).collect();
            let started = Instant::now();
            runtime.send(second.socket(), &items)?;
            second.answer()?;
            pair.ours.push(started.elapsed().as_secs_f64() * 1e6);

            let started = Instant::now();
            let files = (0..count).map(|_| memfd::create(bytes)).collect::<Result<Vec<_>>>()?;
            memfd::send(second.socket(), &files)?;
            drop(files);
            second.answer()?;
            pair.peer.push(started.elapsed().as_secs_f64() * 1e6);
        }
        second.answer()?;
        let case = if count == 1 {
            format!("{} to another process", size_name(bytes))
        } else {
            format!("{count} x {} to another process", size_name(bytes))
        };
        pair.report(report, &case, "send+receive", "memfd sent");
    }
    second.end()
}
