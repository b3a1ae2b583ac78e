// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long runs took.

use std::time::Duration;

use serde::Serialize;

/// How long the runs took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Runs before that were not counted.
    pub warm_up: u32,
    /// Runs that were.
    pub repeat: u32,
    pub min_ms: f64,
    pub median_ms: f64,
    pub max_ms: f64,
}

impl Times {
    /// Of at least one run.
    pub fn of(warm_up: u32, mut runs: Vec<Duration>) -> Self {
        runs.sort_unstable();
        let ms = |run: Option<&Duration>| run.map_or(0.0, |run| run.as_secs_f64() * 1e3);
        let middle = (runs.len() - 1) / 2;
        // Of an even number of runs, halfway between the two in the middle.
        let median = (ms(runs.get(middle)) + ms(runs.get(runs.len() / 2))) / 2.0;
        let repeat = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        Self { warm_up, repeat, min_ms: ms(runs.first()), median_ms: median, max_ms: ms(runs.last()) }
    }
}
