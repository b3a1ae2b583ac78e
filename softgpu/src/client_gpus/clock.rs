// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPU clock counter: 100 MHz ticks of `CLOCK_MONOTONIC_RAW`, so that every executor reads the same clock. That of a
//! restored client goes on from where it was, on whatever machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::hardware::CLOCK_HZ;

const NANOSECONDS_PER_TICK: u64 = 1_000_000_000 / CLOCK_HZ;

/// What the counter is ahead of the system's clock, modulo 2^64.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// Has the counter go on from `ticks`.
pub(super) fn go_on_from(ticks: u64) {
    // ORDERING: Relaxed here and in `ticks`, since no queue runs before its GPU is restored.
    AHEAD.store(ticks.wrapping_sub(system_ticks()), Ordering::Relaxed);
}

/// The counter now, in ticks of [`CLOCK_HZ`].
pub(super) fn ticks() -> u64 {
    system_ticks().wrapping_add(AHEAD.load(Ordering::Relaxed))
}

fn system_ticks() -> u64 {
    // The kernel has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map_or(Duration::ZERO, Duration::from);
    now.as_secs().wrapping_mul(CLOCK_HZ).wrapping_add(u64::from(now.subsec_nanos()) / NANOSECONDS_PER_TICK)
}

/// The time since the counter was `ticks`.
pub(super) fn since(earlier: u64) -> Duration {
    Duration::from_nanos(ticks().saturating_sub(earlier).saturating_mul(NANOSECONDS_PER_TICK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_twenty_milliseconds_is_two_million() {
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let passed = ticks() - before;
        assert!((2_000_000..20_000_000).contains(&passed), "{passed} ticks");
    }
}
