// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPU clock counter: 100 MHz ticks of `CLOCK_MONOTONIC_RAW`, and for each GPU so much ahead, so that every executor reads
//! the same clock. That of a restored client goes on from where it was, on whatever machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::hardware::CLOCK_HZ;

const NANOSECONDS_PER_TICK: u64 = 1_000_000_000 / CLOCK_HZ;
/// The most that a GPU's counter is ahead of the host's clock to begin with, as a power of two: two days.
const MOST_AHEAD: u32 = 44;

/// What the counter of a GPU is ahead of the host's clock: no two GPUs were switched on together.
pub fn ahead_of(unique_id: u64) -> u64 {
    unique_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - MOST_AHEAD)
}

/// A GPU's counter.
#[derive(Debug)]
pub(super) struct Counter {
    /// What it is ahead of the system's clock, modulo 2^64.
    ahead: AtomicU64,
}

impl Counter {
    pub(super) fn new(ahead: u64) -> Self {
        Self { ahead: AtomicU64::new(ahead) }
    }

    /// Has it go on from `ticks`.
    pub(super) fn go_on_from(&self, ticks: u64) {
        // ORDERING: Relaxed here and in `ticks`, since no queue runs before its GPU is restored.
        self.ahead.store(ticks.wrapping_sub(system_ticks()), Ordering::Relaxed);
    }

    /// The counter now, in ticks of [`CLOCK_HZ`].
    pub(super) fn ticks(&self) -> u64 {
        system_ticks().wrapping_add(self.ahead.load(Ordering::Relaxed))
    }

    /// The time since the counter was `ticks`.
    pub(super) fn since(&self, earlier: u64) -> Duration {
        Duration::from_nanos(self.ticks().saturating_sub(earlier).saturating_mul(NANOSECONDS_PER_TICK))
    }
}

fn system_ticks() -> u64 {
    // The kernel has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map_or(Duration::ZERO, Duration::from);
    now.as_secs().wrapping_mul(CLOCK_HZ).wrapping_add(u64::from(now.subsec_nanos()) / NANOSECONDS_PER_TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_twenty_milliseconds_is_two_million() {
        let counter = Counter::new(u64::MAX);
        let before = counter.ticks();
        std::thread::sleep(Duration::from_millis(20));
        let passed = counter.ticks().wrapping_sub(before);
        assert!((2_000_000..20_000_000).contains(&passed), "{passed} ticks");
    }

    #[test]
    fn no_two_counters_are_the_same_and_none_is_years_ahead() {
        let all: Vec<u64> = [1, 2, 0x00c0_ffee_00c0_ffee, u64::MAX].map(ahead_of).into();
        assert!(all.iter().all(|ahead| ahead >> MOST_AHEAD == 0));
        assert!(all.windows(2).all(|two| two[0].abs_diff(two[1]) > CLOCK_HZ), "{all:?}");
    }
}
