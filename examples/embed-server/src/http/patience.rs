// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time limits for a process that may be frozen.
//!
//! The clock goes on while a checkpoint waits to be restored, so a deadline would have passed by then: every request
//! that was pending at the checkpoint would time out when it could be answered.
//!
//! INVARIANT: a freeze of any length uses up at most one slice in [`SLICES`].

use std::time::Duration;

/// The number of slices in which a time limit is slept.
const SLICES: u32 = 32;

/// Waits until the process has been running for this time. Each freeze may shorten it by one slice, 1/32 of the time.
pub async fn elapse(time: Duration) {
    for _ in 0..SLICES {
        tokio::time::sleep(time / SLICES).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn elapse_freeze_of_hours_uses_one_slice() {
        let mut limit = pin!(elapse(Duration::from_secs(32)));
        let mut poll = || limit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();

        assert!(!poll());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!poll());
        for second in 1..=31 {
            tokio::time::advance(Duration::from_millis(1001)).await;
            assert_eq!(poll(), second == 31, "after {second} s");
        }
    }
}
