// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals: 64-bit values in memory that packets decrement and threads wait for.
//!
//! INVARIANT: a signal's slot is not reused before all completions promised to it have happened, even if every
//! handle is gone: a packet in flight would decrement the next owner's value.

pub mod live;
mod pool;
mod slots;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::live::SignalLive;
pub use self::slots::SignalSlots;
pub use self::wait::{Condition, WaitMode};
use crate::error::{AllocError, Lost, WaitError};
use crate::registry::state::SignalKey;
use crate::runtime::{Inner, Runtime};

/// A handle on a signal; clones name the same one.
#[derive(Clone)]
pub struct Signal(Arc<Handle>);

struct Handle {
    inner: Arc<Inner>,
    key: SignalKey,
    live: Arc<SignalLive>,
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("key", &self.0.key).field("handle", &self.0.live.handle()).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A lost device has nothing left that could be reused; the slot goes with the process.
        if let Ok(pass) = self.inner.gate.enter() {
            self.inner.retire_signal(&pass, self.key);
        }
    }
}

impl Signal {
    /// A signal of this value.
    ///
    /// # Errors
    /// [`AllocError::Signals`] when there are too many, [`AllocError::OutOfMemory`], [`AllocError::Lost`].
    pub fn new(runtime: &Runtime, initial: i64) -> Result<Self, AllocError> {
        let inner = runtime.inner();
        let pass = inner.gate.enter()?;
        let (key, live) = inner.new_signal(&pass, initial)?;
        Ok(Signal::from_parts(inner, key, live))
    }

    /// A signal that other processes can have too ([`Signal::export`], [`Runtime::import_signal`]). Who waits for it
    /// looks at its value again and again: events, which let threads sleep, are each process's own.
    ///
    /// # Errors
    /// As for [`Signal::new`].
    pub fn shared(runtime: &Runtime, initial: i64) -> Result<Self, AllocError> {
        let inner = runtime.inner();
        let pass = inner.gate.enter()?;
        inner.free_deferred(&pass);
        let (key, live) = inner.new_shared_signal(&pass, initial)?;
        Ok(Signal::from_parts(inner, key, live))
    }

    pub(crate) fn from_parts(inner: &Arc<Inner>, key: SignalKey, live: Arc<SignalLive>) -> Self {
        Signal(Arc::new(Handle { inner: Arc::clone(inner), key, live }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// Its key in the registry.
    pub fn key(&self) -> SignalKey {
        self.0.key
    }

    /// Its handle in packets (`hsa_signal_t`): the address of its `amd_signal_t`.
    pub fn handle(&self) -> u64 {
        self.0.live.handle()
    }

    /// GPU address of its 64-bit value, for packets that write it without knowing signals.
    pub fn value_va(&self) -> u64 {
        self.0.live.value_va()
    }

    /// Where such a packet's sender writes the event's id (32 bits) before it interrupts with it, to wake those who sleep
    /// on the signal: the mailbox's GPU address and the id. Both stay right across checkpoints.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn mailbox(&self) -> Result<Option<(u64, u32)>, Lost> {
        let _pass = self.0.inner.gate.enter()?;
        Ok(self.0.live.mailbox())
    }

    pub(crate) fn live(&self) -> &Arc<SignalLive> {
        &self.0.live
    }

    /// Its value; what the packets that completed it wrote is visible afterwards.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn load(&self) -> Result<i64, Lost> {
        let _pass = self.0.inner.gate.enter()?;
        Ok(self.0.live.load())
    }

    /// Sets its value and wakes who waits for it. Only when no packet that decrements it is in flight.
    ///
    /// # Errors
    /// [`WaitError::Lost`]; [`WaitError::Device`] if the sleepers could not be woken.
    pub fn store(&self, value: i64) -> Result<(), WaitError> {
        let pass = self.0.inner.gate.enter()?;
        self.0.live.store(value);
        self.0.inner.wake_sleepers(&pass, &self.0.live)
    }

    /// Adds to its value, wakes who waits for it and returns what it was.
    ///
    /// # Errors
    /// As for [`Signal::store`].
    pub fn add(&self, value: i64) -> Result<i64, WaitError> {
        let pass = self.0.inner.gate.enter()?;
        let old = self.0.live.add(value);
        self.0.inner.wake_sleepers(&pass, &self.0.live)?;
        Ok(old)
    }

    /// Start and end of the last packet that completed it, in GPU clock ticks; zeros if none did.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn timestamps(&self) -> Result<(u64, u64), Lost> {
        let _pass = self.0.inner.gate.enter()?;
        Ok(self.0.live.timestamps())
    }

    /// Waits until its value meets `condition` and returns the value; `None` waits for ever.
    ///
    /// A process may be checkpointed and restored while this sleeps.
    ///
    /// # Errors
    /// [`WaitError::Timeout`] with the value, [`WaitError::Queue`] when a packet that was to complete it never will,
    /// [`WaitError::Device`] or [`WaitError::Lost`] when the device is gone.
    pub fn wait(
        &self,
        condition: Condition,
        timeout: Option<Duration>,
        mode: WaitMode,
    ) -> Result<i64, WaitError> {
        self.0.inner.wait_signal(&self.0.live, condition, timeout, mode)
    }

    /// Waits for the value 0 or less, as completion leaves it on a signal of 1.
    ///
    /// # Errors
    /// As for [`Signal::wait`].
    pub fn wait_done(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.wait(Condition::LessThan(1), timeout, WaitMode::Auto).map(drop)
    }
}
