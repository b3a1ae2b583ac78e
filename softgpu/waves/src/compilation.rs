// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much code this process has generated, and in what time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

static PROGRAMS: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Generated code, without what was found in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compilation {
    /// Programs that code was generated for; one that has code for several kinds of waves counts as often.
    pub programs: u64,
    /// CPU time that it took.
    pub time: Duration,
}

impl Compilation {
    /// All of this process so far.
    #[must_use]
    pub fn so_far() -> Compilation {
        let time = Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed));
        Compilation { programs: PROGRAMS.load(Ordering::Relaxed), time }
    }
}

/// Notes that `work` generates code for a program of so many steps.
pub(crate) fn timed<T>(steps: usize, work: impl FnOnce() -> T) -> T {
    // A thread has this clock.
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    let started = now();
    let result = work();
    let nanoseconds = u64::try_from(now().saturating_sub(started).as_nanos()).unwrap_or(u64::MAX);
    tracing::debug!(steps, nanoseconds, "code was generated");
    PROGRAMS.fetch_add(1, Ordering::Relaxed);
    NANOSECONDS.fetch_add(nanoseconds, Ordering::Relaxed);
    result
}
