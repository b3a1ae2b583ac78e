// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a model is run.
//!
//! INVARIANT: without a bound every interleaving is looked at; with one, every interleaving with at most so many
//! pre-emptions (switches away from a thread that could have gone on).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::model::Builder;
use stasis_protocol::sync::World;

/// Longer runs than any here are a thread that goes round in circles.
const LONGEST_RUN: usize = 20_000;

/// Checks `model` in `world`; returns how many interleavings there were.
pub fn check(world: World, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> u64 {
    world.rule();
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = LONGEST_RUN;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    World::default().rule();
    runs.load(Ordering::Relaxed)
}

/// Says on the test's own output how much was looked at.
pub fn tell(model: &str, runs: u64) {
    eprintln!("model {model}: {runs} interleavings");
}
