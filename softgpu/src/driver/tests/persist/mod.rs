// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pause, save and restore of a process.

mod pause;

use std::time::{Duration, Instant};

use super::harness::*;

/// Long enough for every pause that ends.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}
