// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a driver's event that those who wait share.
//!
//! INVARIANT: `id` is the driver's id of the event that exists now: a restore that makes the event again stores the new
//! one.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// An event's live part, shared with those who wait.
#[derive(Debug)]
pub struct EventLive {
    /// The driver's id now.
    pub id: AtomicU32,
    /// Newest event age seen (`kfd_event_data.last_event_age`).
    pub age: AtomicU64,
    /// Threads that are, or are about to be, asleep on it.
    pub waiters: AtomicU32,
}

impl EventLive {
    /// One that the driver calls `id`.
    pub fn new(id: u32) -> Self {
        EventLive { id: AtomicU32::new(id), age: AtomicU64::new(1), waiters: AtomicU32::new(0) }
    }
}
