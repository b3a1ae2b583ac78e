// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many agents serve, and how a lost one is opened again.

use std::time::Duration;

/// What the agents are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// Agents that take batches.
    pub serving: usize,
    /// Lost agents that may come back.
    pub reopening: usize,
    /// Lost agents that stay lost.
    pub ended: usize,
}

impl Agents {
    /// Whether nothing can be embedded, now or later.
    #[must_use]
    pub fn are_lost(&self) -> bool {
        self.serving == 0 && self.reopening == 0
    }
}

/// How often and after which times a lost agent is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Attempts in a row.
    pub attempts: u32,
    /// Time before the first.
    pub first: Duration,
    /// Time before any other at most: it doubles from one attempt to the next.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { attempts: 8, first: Duration::from_millis(100), longest: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The time before the attempt with this number, counted from 0; `None` after the last attempt.
    #[must_use]
    pub fn before(&self, attempt: u32) -> Option<Duration> {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(attempt));
        (attempt < self.attempts).then(|| doubled.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_double_up_to_the_longest_and_end() {
        let ms = Duration::from_millis;
        let backoff = Backoff { attempts: 5, first: ms(100), longest: ms(500) };

        let times: Vec<_> = (0..7).map(|attempt| backoff.before(attempt)).collect();

        let some = [100, 200, 400, 500, 500].map(|time| Some(ms(time)));
        assert_eq!(times, [&some[..], &[None, None]].concat());
        assert_eq!(Backoff { attempts: u32::MAX, ..backoff }.before(4_000_000_000), Some(ms(500)));
    }
}
