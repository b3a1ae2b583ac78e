// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a dispatch ended, and what is left of one that was paused.
//!
//! INVARIANT: plain data; a dispatch that is resumed from it has the same results, in this process or another.

use queues::save_area::WaveRecord;

use crate::exception::WaveException;

/// A paused dispatch: plain data, enough to resume it with identical results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridState {
    /// Index (x fastest) of the first workgroup that has not started.
    pub next_workgroup: u64,
    /// Waves of resident workgroups; `first_in_group` and `last_in_group` delimit them, the first holds the LDS. Waves
    /// that have ended are not here; a wave that waited at a barrier is in front of it.
    pub waves: Vec<WaveRecord>,
}

/// How a dispatch ended.
#[derive(Debug)]
pub enum Outcome {
    /// All workgroups finished.
    Completed,
    /// Paused as asked.
    Paused(Box<GridState>),
    /// Aborted as asked.
    Aborted,
    /// A wave stopped.
    Exception(Box<WaveException>),
}
