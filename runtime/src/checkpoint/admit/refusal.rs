// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why agents were not admitted.

use stasis_protocol::Stopped;

use super::difference::Difference;
use super::place::PlaceError;

/// Why agents were not admitted.
#[derive(Debug)]
pub(super) enum Refusal {
    /// No assignment keeps to the rules.
    Differences(Vec<Difference>),
    /// The map is no good.
    Place(PlaceError),
    /// The search was stopped.
    Stopped(Stopped),
}

impl From<PlaceError> for Refusal {
    fn from(error: PlaceError) -> Self {
        Self::Place(error)
    }
}

impl From<Stopped> for Refusal {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}
