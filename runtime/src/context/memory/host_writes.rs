// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host writes to agents' memory that packets may not see yet.
//!
//! Stores through the PCI aperture wait in the host data path of the agent they go to ([`HdpPage`]). Every path by which the
//! runtime writes such memory, or lets the caller write it, notes it here; whatever lets an agent look at memory (a packet, the
//! host's store to a signal) flushes first. With nothing noted that costs one load. Once memory is shared with other processes,
//! every write of the runtime is flushed at once, since nobody tells when their packets look.
//!
//! INVARIANT: the state is 0 only when all that was noted is flushed. A flush that is under way keeps it from being 0, and who
//! finds it so waits for that flush.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kfd::sys::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
use parking_lot::Mutex;
use stasis_protocol::gate::{Closed, Gate, GatedCell, Pass};

use crate::context::device::hdp::HdpPage;
use crate::context::registry::state::{AgentIndex, BoKind, BoState};

/// Something was noted that no flush has begun after.
const NOTED: u64 = 1;
/// A flush is under way.
const FLUSHING: u64 = 2;
/// One of the guards under which the caller writes without saying when.
const GUARD: u64 = 4;
const ALL: u64 = u64::MAX;

/// The agents to whose memory something was written, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written(u64);

impl Written {
    /// To none that needs a flush.
    pub const NONE: Written = Written(0);
    /// To any.
    pub const ANY: Written = Written(ALL);

    /// To this one.
    pub fn to(agent: AgentIndex) -> Self {
        Written(1u64.checked_shl(agent.0).unwrap_or(ALL))
    }

    /// Into a buffer object of this state.
    pub fn in_object(state: &BoState) -> Self {
        match state.kind {
            BoKind::Vram => Written::to(state.agent),
            // Whose it is may not be known here; of a range nobody knows.
            BoKind::Imported if state.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0 => Written::ANY,
            BoKind::Reserved => Written::ANY,
            BoKind::Imported | BoKind::Gtt | BoKind::Userptr { .. } | BoKind::Doorbell => Written::NONE,
        }
    }

    fn holds(self, agent: usize) -> bool {
        agent >= 64 || self.0 >> agent & 1 != 0
    }
}

/// Has the stores of this thread leave the processor, in particular those to write-combining memory.
pub fn drain_stores() {
    // A locked instruction drains write-combining buffers as `sfence` does; a fence of the language is one.
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// What is known of all agents' host writes.
#[derive(Debug)]
pub struct HostWrites {
    state: AtomicU64,
    written: AtomicU64,
    flushing: Mutex<()>,
    /// Whether other processes may have memory that this one writes: their packets are none that it sees.
    is_shared: AtomicBool,
    pages: GatedCell<Vec<Option<HdpPage>>>,
}

/// The right to write agents' memory without saying when: while it lives, every packet's submission flushes.
#[derive(Debug)]
pub struct WriteGuard<'w>(Option<&'w HostWrites>);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if let Some(writes) = self.0 {
            // Noted first: the state must not be 0 in between.
            writes.note(Written::ANY);
            writes.state.fetch_sub(GUARD, Ordering::Release);
        }
    }
}

impl HostWrites {
    /// Nothing was written; `pages` are the agents' registers.
    pub fn new(gate: &Arc<Gate>, pages: Vec<Option<HdpPage>>) -> Arc<Self> {
        Arc::new(HostWrites {
            state: AtomicU64::new(0),
            written: AtomicU64::new(0),
            flushing: Mutex::new(()),
            is_shared: AtomicBool::new(false),
            pages: GatedCell::new(gate, pages),
        })
    }

    /// Takes other registers; none lets go of those there were.
    pub fn set_pages(&self, closed: &mut Closed, pages: Vec<Option<HdpPage>>) {
        self.pages.set(closed, pages);
    }

    /// Notes what this thread has written.
    pub fn note(&self, written: Written) {
        if written == Written::NONE {
            return;
        }
        // Another thread may flush; it cannot drain this one's stores.
        drain_stores();
        self.written.fetch_or(written.0, Ordering::Relaxed);
        // ORDERING: Release: who finds the note finds the agents.
        self.state.fetch_or(NOTED, Ordering::Release);
    }

    /// Other processes may have memory of this one from now on, or it theirs: what is written is flushed at once.
    pub fn share(&self, pass: &Pass<'_>) {
        self.is_shared.store(true, Ordering::Relaxed);
        self.flush(pass);
    }

    /// As [`HostWrites::note`]; and flushes, if others may be about to look.
    pub fn wrote(&self, pass: &Pass<'_>, written: Written) {
        self.note(written);
        self.flush_shared(pass);
    }

    /// Flushes, if others may be about to look at what was written.
    pub fn flush_shared(&self, pass: &Pass<'_>) {
        if self.is_shared.load(Ordering::Relaxed) {
            self.flush(pass);
        }
    }

    /// Lets the caller write to these agents' memory until the guard is dropped.
    pub fn guard(&self, written: Written) -> WriteGuard<'_> {
        if written == Written::NONE {
            return WriteGuard(None);
        }
        self.state.fetch_add(GUARD, Ordering::Relaxed);
        WriteGuard(Some(self))
    }

    /// Flushes what was noted, if anything was. To be called before anything that lets an agent look.
    #[inline]
    pub fn flush(&self, pass: &Pass<'_>) {
        // ORDERING: Acquire pairs with the end of another thread's flush.
        if self.state.load(Ordering::Acquire) != 0 {
            self.flush_noted(pass);
        }
    }

    #[cold]
    fn flush_noted(&self, pass: &Pass<'_>) {
        let _one = self.flushing.lock();
        let before = self.state.fetch_or(FLUSHING, Ordering::Acquire);
        // From here on what is written is noted anew.
        self.state.fetch_and(!NOTED, Ordering::Acquire);
        let noted = Written(self.written.swap(0, Ordering::Acquire));
        let flushed = if before >= GUARD { Written::ANY } else { noted };
        for (agent, page) in self.pages.get(pass).iter().enumerate() {
            if let Some(page) = page.as_ref().filter(|_| flushed.holds(agent)) {
                page.flush();
            }
        }
        // ORDERING: Release: who finds nothing noted may submit at once.
        self.state.fetch_and(!FLUSHING, Ordering::Release);
    }

    /// Whether an agent was flushed since this was last asked.
    #[cfg(test)]
    pub fn was_flushed(&self, pass: &Pass<'_>, agent: usize) -> bool {
        self.pages.get(pass)[agent].as_ref().is_some_and(|page| page.take() != 0)
    }
}

#[cfg(test)]
mod tests;
