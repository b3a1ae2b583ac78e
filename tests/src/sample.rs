// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of what could be tried a test tries, and which part of it: numbers in the environment say so.

use std::str::FromStr;

use crate::gpu::Numbers;

/// The number in a variable of the environment, if there is one.
#[must_use]
pub fn setting<N: FromStr>(variable: &str) -> Option<N> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The seed of this run: `STASIS_SEED`, or 1.
#[must_use]
pub fn seed() -> u64 {
    setting("STASIS_SEED").unwrap_or(1)
}

/// What one test of a file draws, by the test's number there.
#[must_use]
pub fn numbers_of(test: u64) -> Numbers {
    Numbers(seed() ^ test << 32)
}
