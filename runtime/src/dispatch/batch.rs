// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several dispatches submitted together: one pass of the gate, one reservation of slots, one doorbell.
//!
//! INVARIANT: all or none. Every dispatch is checked before a slot is reserved, and the gate is passed once for all of them,
//! so a lock comes before the first or after the last.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use stasis_protocol::gate::Pass;

use super::{Dispatch, SMALL_BLOCK, retry};
use crate::context::error::SubmitError;
use crate::context::signal::make::submitted;
use crate::queue::{Handle, Queue};
use crate::signal::Signal;

impl Queue {
    /// Submits dispatches of this queue, each behind the one before, with one doorbell for all. Returns the packets' indices.
    ///
    /// All or none are submitted: a checkpoint of the process comes before the first or after the last of them, and packets
    /// that other threads submit do not come between them. Each is ordered as [`Dispatch::submit`] would order it, by its own
    /// [`Dispatch::barrier`]. No dispatches are no error. More than the ring has room for are split by the caller, who decides
    /// where a checkpoint may come between.
    ///
    /// # Errors
    /// [`SubmitError::WouldBlock`] if there is no room for all, [`SubmitError::TooLong`] if there never will be,
    /// [`SubmitError::Queue`] if the queue stopped, [`SubmitError::Packet`] with the index of a dispatch and what is wrong
    /// with it, [`SubmitError::OtherQueue`] among that. Nothing was submitted then.
    pub fn submit_batch(&self, dispatches: &[Dispatch<'_>]) -> Result<Range<u64>, SubmitError> {
        let handle = &*self.0;
        let pass = handle.context.gate.enter()?;
        if handle.context.arriving.is_active() {
            dispatches.iter().try_for_each(|dispatch| dispatch.await_contents(&pass))?;
        }
        handle.check_alive()?;
        for (index, dispatch) in dispatches.iter().enumerate() {
            dispatch.check_for(self, &pass).map_err(|error| error.of_packet(index))?;
        }
        let count = handle.check_room(dispatches.len())?;
        let mut slots = handle.live.reserve(&pass, count)?;
        let first = slots.first();
        dispatches.iter().for_each(Dispatch::note_uses);
        // Promised before the first is published, as a run of packets that share a signal.
        for run in dispatches.chunk_by(|one, next| completes_same(one.completion, next.completion)) {
            if let Some(signal) = run.first().and_then(|dispatch| dispatch.completion) {
                signal.live().promise_many(run.len().cast_signed() as i64);
            }
        }
        for dispatch in dispatches {
            let mut block = [0; SMALL_BLOCK];
            let is_filled = dispatch.try_fill(&mut block);
            dispatch.publish(&mut slots, is_filled.then_some(&block));
        }
        drop(slots);
        let completions = dispatches.iter().filter_map(|dispatch| dispatch.completion);
        submitted(&handle.context, &pass, &handle.live, completions.map(Signal::live));
        Ok(first..first.wrapping_add(count))
    }

    /// As [`Queue::submit_batch`], but waits up to `timeout` until there is room for all. A process may be checkpointed and
    /// restored meanwhile, and that time counts.
    ///
    /// # Errors
    /// [`SubmitError::Timeout`] with the time waited instead of [`SubmitError::WouldBlock`]; otherwise as for
    /// [`Queue::submit_batch`], at once. Nothing was submitted then.
    pub fn submit_batch_timeout(
        &self,
        dispatches: &[Dispatch<'_>],
        timeout: Duration,
    ) -> Result<Range<u64>, SubmitError> {
        retry(timeout, || self.submit_batch(dispatches))
    }
}

/// Whether two packets complete the same signal.
fn completes_same(one: Option<&Signal>, other: Option<&Signal>) -> bool {
    one.map(Signal::handle) == other.map(Signal::handle)
}

impl Dispatch<'_> {
    /// Checks it for a submission by `queue`.
    #[inline]
    pub(super) fn check_for(&self, queue: &Queue, pass: &Pass<'_>) -> Result<(), SubmitError> {
        if !std::ptr::eq(&*self.queue.0, &*queue.0) {
            return Err(SubmitError::OtherQueue { found: self.queue.key(), queue: queue.key() });
        }
        self.check(pass)
    }
}

impl Handle {
    /// The number of packets, if the ring can ever have room for them.
    pub(super) fn check_room(&self, packets: usize) -> Result<u64, SubmitError> {
        let (wanted, packets) = (packets as u64, self.live.ring().packets());
        if wanted > packets { Err(SubmitError::TooLong { wanted, packets }) } else { Ok(wanted) }
    }
}

impl SubmitError {
    /// The error of one packet of several.
    #[cold]
    pub(super) fn of_packet(self, index: usize) -> Self {
        SubmitError::Packet { index, source: Box::new(self) }
    }
}
