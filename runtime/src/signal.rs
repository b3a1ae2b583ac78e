// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals: 64-bit values in memory that packets decrement and threads wait for.
//!
//! INVARIANT: a signal's slot is not reused before all completions promised to it have happened, even if every
//! handle is gone: a packet in flight would decrement the next owner's value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::Agent;
use crate::context::Context;
use crate::context::clocks::Clock;
use crate::context::error::{AllocError, Lost, WaitError};
use crate::context::memory::free::free_deferred;
use crate::context::registry::state::SignalKey;
use crate::context::signal::live::SignalLive;
use crate::context::signal::make::{drop_signal, new_shared_signal, new_signal};
use crate::context::signal::wait::{Awaited, Condition, WaitMode, wait_signal, wait_signals, wake_sleepers};
use crate::runtime::Runtime;

/// A handle on a signal; clones name the same one.
#[derive(Clone)]
pub struct Signal(Arc<Handle>);

struct Handle {
    context: Arc<Context>,
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
        if let Ok(pass) = self.context.gate.enter() {
            let was_shared = drop_signal(&self.context, &mut self.context.registry.lock(), self.key);
            // Unless packets may still touch it: as long as it is there, other processes that are checkpointed find this
            // one holding it.
            if was_shared {
                free_deferred(&self.context, &pass);
            }
        }
    }
}

impl Signal {
    /// A signal of this value.
    ///
    /// # Errors
    /// [`AllocError::Signals`] when there are too many, [`AllocError::OutOfMemory`], [`AllocError::Lost`].
    pub fn new(runtime: &Runtime, initial: i64) -> Result<Self, AllocError> {
        let context = runtime.context();
        let pass = context.gate.enter()?;
        let (key, live) = new_signal(context, &pass, initial)?;
        Ok(Signal::from_parts(context, key, live))
    }

    /// A signal that other processes can have too ([`Signal::export`], [`Runtime::import_signal`]). Who waits for it
    /// looks at its value again and again: events, which let threads sleep, are each process's own.
    ///
    /// # Errors
    /// As for [`Signal::new`].
    pub fn shared(runtime: &Runtime, initial: i64) -> Result<Self, AllocError> {
        let context = runtime.context();
        let pass = context.gate.enter()?;
        free_deferred(context, &pass);
        let (key, live) = new_shared_signal(context, &pass, initial)?;
        Ok(Signal::from_parts(context, key, live))
    }

    pub(crate) fn from_parts(context: &Arc<Context>, key: SignalKey, live: Arc<SignalLive>) -> Self {
        Signal(Arc::new(Handle { context: Arc::clone(context), key, live }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Its key in the registry.
    pub fn key(&self) -> SignalKey {
        self.0.key
    }

    /// Its handle in packets (`hsa_signal_t`): the address of its `amd_signal_t`.
    #[inline]
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
        let _pass = self.0.context.gate.enter()?;
        Ok(self.0.live.mailbox())
    }

    #[inline]
    pub(crate) fn live(&self) -> &Arc<SignalLive> {
        &self.0.live
    }

    /// Its value; what the packets that completed it wrote is visible afterwards.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn load(&self) -> Result<i64, Lost> {
        let _pass = self.0.context.gate.enter()?;
        Ok(self.0.live.load())
    }

    /// Sets its value and wakes who waits for it. Only when no packet that decrements it is in flight.
    ///
    /// # Errors
    /// [`WaitError::Lost`]; [`WaitError::Device`] if the sleepers could not be woken.
    pub fn store(&self, value: i64) -> Result<(), WaitError> {
        let pass = self.0.context.gate.enter()?;
        // Packets that wait for it begin without another doorbell.
        self.0.context.host_writes.flush(&pass);
        self.0.live.store(value);
        wake_sleepers(&self.0.context, &pass, &self.0.live)
    }

    /// Adds to its value, wakes who waits for it and returns what it was.
    ///
    /// # Errors
    /// As for [`Signal::store`].
    pub fn add(&self, value: i64) -> Result<i64, WaitError> {
        let pass = self.0.context.gate.enter()?;
        self.0.context.host_writes.flush(&pass);
        let old = self.0.live.add(value);
        wake_sleepers(&self.0.context, &pass, &self.0.live)?;
        Ok(old)
    }

    /// Start and end of the last packet that completed it, which ran on `agent`, in ticks of that agent's clock
    /// ([`Agent::clocks`]); zeros if none did. What is in the signal's memory is what the agent's counter said, which after a
    /// restore says something else.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn timestamps(&self, agent: &Agent) -> Result<(u64, u64), AllocError> {
        agent.with_clock(|clocks, on, agent| clocks.timestamps(on, agent, &self.0.live, |_, ticks| ticks))
    }

    /// The same as times of the system's clock, nanoseconds of CLOCK_BOOTTIME.
    ///
    /// # Errors
    /// As for [`Signal::timestamps`].
    pub fn system_times(&self, agent: &Agent) -> Result<(u64, u64), AllocError> {
        agent.with_clock(|clocks, on, agent| clocks.timestamps(on, agent, &self.0.live, Clock::time))
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
        wait_signal(&self.0.context, &self.0.live, condition, timeout, mode)
    }

    /// Waits until one of `signals` meets its condition: which of them, and its value; `None` waits for ever. Of several that
    /// do, it is the first. Of none it waits until time is up.
    ///
    /// # Errors
    /// As for [`Signal::wait`], of any of them; the value of a timeout is the first one's.
    pub fn wait_any(
        runtime: &Runtime,
        signals: &[(&Signal, Condition)],
        timeout: Option<Duration>,
        mode: WaitMode,
    ) -> Result<(usize, i64), WaitError> {
        let all: Vec<Awaited<'_>> = signals
            .iter()
            .map(|(signal, condition)| Awaited { signal: &signal.0.live, condition: *condition })
            .collect();
        wait_signals(runtime.context(), &all, timeout, mode)
    }

    /// Wakes who waits for it, after its value was changed through its memory ([`Signal::value_va`]).
    ///
    /// # Errors
    /// As for [`Signal::store`].
    pub fn notify(&self) -> Result<(), WaitError> {
        let pass = self.0.context.gate.enter()?;
        self.0.context.host_writes.flush(&pass);
        wake_sleepers(&self.0.context, &pass, &self.0.live)
    }

    /// Says that no packet in flight will change it any more: its place may be another's as soon as its handles are gone. For
    /// signals of packets that the caller wrote without [`RawQueue::completes`](crate::RawQueue::completes).
    ///
    /// # Errors
    /// [`Lost`].
    pub fn settle(&self) -> Result<(), Lost> {
        let _pass = self.0.context.gate.enter()?;
        self.0.live.settle();
        Ok(())
    }

    /// Waits for the value 0 or less, as completion leaves it on a signal of 1.
    ///
    /// # Errors
    /// As for [`Signal::wait`].
    pub fn wait_done(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.wait(Condition::LessThan(1), timeout, WaitMode::Auto).map(drop)
    }
}
