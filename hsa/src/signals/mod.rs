// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals: made, destroyed, their memory.
//!
//! INVARIANT: a handle is the address of the signal's `amd_signal_t`, which kernels, packets and the program read and write; it
//! is the same after a restore, and so are the contents.
#![allow(unsafe_code)]

mod groups;
mod handlers;
mod live;
mod operations;
mod slot;
pub mod wait;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use parking_lot::RwLock;

use self::groups::Groups;
use self::handlers::Handlers;
use self::live::LiveSignals;
pub use self::slot::Slot;
use crate::abi::declared::*;
use crate::abi::{
    INVALID_ARGUMENT, INVALID_SIGNAL, NOT_SUPPORTED, OUT_OF_RESOURCES, Out, Outcome, export, slice,
};
use crate::instance::{Instance, instance};
use crate::memory::status_of;

/// A live signal. Clones name the same one; its memory is not reused while there is one.
#[derive(Clone, Debug)]
pub struct Signal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    signal: stasis::Signal,
    /// The GPU whose copy engine completes it, or did so last: its position and 1.
    copied_by: AtomicUsize,
}

impl Signal {
    fn new(signal: stasis::Signal) -> Self {
        Signal(Arc::new(Shared { signal, copied_by: AtomicUsize::new(0) }))
    }

    pub fn handle(&self) -> u64 {
        self.0.signal.handle()
    }

    /// Its memory.
    pub fn slot(&self) -> Slot {
        // SAFETY: the runtime's signal lives as long as this.
        unsafe { Slot::new(self.handle()) }
    }

    /// The runtime's signal that it is.
    pub fn of_runtime(&self) -> &stasis::Signal {
        &self.0.signal
    }

    /// Notes that a GPU's copy engine is to complete it, whose clock its times are by.
    pub fn set_copied_by(&self, gpu: usize) {
        self.0.copied_by.store(gpu + 1, Ordering::Relaxed);
    }

    /// The GPU whose copy engine completed it.
    pub fn copied_by(&self) -> Option<usize> {
        self.0.copied_by.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// All signals of the program.
#[derive(Debug)]
pub struct Signals {
    all: RwLock<HashMap<u64, Signal>>,
    live: LiveSignals,
    /// Threads that are, or are about to be, asleep on a signal.
    sleepers: AtomicUsize,
    handlers: Handlers,
    groups: Groups,
}

/// Keeps the count of sleepers right.
struct Sleeping<'s>(&'s AtomicUsize);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Signals {
    pub fn new() -> Self {
        Signals {
            all: RwLock::default(),
            live: LiveSignals::new(),
            sleepers: AtomicUsize::new(0),
            handlers: Handlers::default(),
            groups: Groups::new(),
        }
    }

    /// A signal that the program has.
    pub fn get(&self, handle: u64) -> Option<Signal> {
        self.all.read().get(&handle).cloned()
    }

    /// The memory of a live signal.
    #[inline]
    pub fn slot(&self, handle: u64) -> Option<Slot> {
        // SAFETY: one of a live signal's, as just found.
        self.live.contains(handle).then(|| unsafe { Slot::new(handle) })
    }

    /// Adds a signal of the runtime's; its handle.
    pub fn add(&self, signal: stasis::Signal) -> Outcome<u64> {
        let handle = signal.handle();
        if !self.live.add(handle) {
            return Err(OUT_OF_RESOURCES);
        }
        self.all.write().insert(handle, Signal::new(signal));
        Ok(handle)
    }

    /// Forgets a signal.
    fn destroy(&self, handle: u64) -> Outcome {
        if !self.live.remove(handle) {
            return Err(INVALID_SIGNAL);
        }
        let signal = self.all.write().remove(&handle).ok_or(INVALID_SIGNAL)?;
        // The header lets nobody destroy a signal that a packet will still change.
        signal.of_runtime().settle().map_err(|_| OUT_OF_RESOURCES)
    }

    /// Announces that the thread is about to sleep on a signal: before it looks at the value.
    fn announce(&self) -> Sleeping<'_> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // ORDERING: pairs with the fence in `wake`: a sleeper sees the new value or is seen.
        fence(Ordering::SeqCst);
        Sleeping(&self.sleepers)
    }

    /// Wakes who sleeps on a signal: after its value was changed.
    #[inline]
    fn wake(&self, handle: u64) {
        // ORDERING: see `announce`.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake_sleepers(handle);
        }
    }

    #[cold]
    fn wake_sleepers(&self, handle: u64) {
        if let Some(signal) = self.get(handle)
            && let Err(error) = signal.of_runtime().notify()
        {
            tracing::warn!(target: "hsa", error = %stasis::explain(&error), "a sleeper was not woken");
        }
    }

    /// Subtracts from a signal's value, as a packet's completion does.
    pub fn complete(&self, signal: &Signal) {
        signal.slot().value().fetch_sub(1, Ordering::AcqRel);
        self.wake(signal.handle());
    }

    /// Says by a signal's value that what it stands for has failed (`hsa_amd_memory_async_copy`: a negative number).
    pub fn fail(&self, signal: &Signal) {
        signal.slot().value().store(-1, Ordering::Release);
        self.wake(signal.handle());
    }

    /// The thread of handlers, for whoever has something to be called there.
    pub fn handlers(&self) -> &Handlers {
        &self.handlers
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.handlers.clear();
        self.groups.clear();
        let all = std::mem::take(&mut *self.all.write());
        for (handle, signal) in all {
            self.live.remove(handle);
            let _ = signal.of_runtime().settle();
        }
    }
}

/// Checks the consumers of a signal.
///
/// # Safety
/// The list is null or has that many handles.
unsafe fn check_consumers(instance: &Instance, count: u32, consumers: *const hsa_agent_t) -> Outcome {
    if count == 0 {
        return Ok(());
    }
    // SAFETY: by contract.
    let consumers = unsafe { slice(consumers, count as usize) }?;
    for (nth, consumer) in consumers.iter().enumerate() {
        instance.agents.get(*consumer)?;
        if consumers[..nth].iter().any(|other| other.handle == consumer.handle) {
            return Err(INVALID_ARGUMENT);
        }
    }
    Ok(())
}

export! {
    /// Makes a signal.
    fn hsa_signal_create(
        initial_value: hsa_signal_value_t,
        num_consumers: u32,
        consumers: *const hsa_agent_t,
        signal: *mut hsa_signal_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(signal) }?;
        // SAFETY: as above.
        unsafe { check_consumers(instance, num_consumers, consumers) }?;
        let made = stasis::Signal::new(&instance.runtime, initial_value).map_err(status_of)?;
        out.put(hsa_signal_t { handle: instance.signals.add(made)? });
        Ok(())
    }

    /// Makes a signal, for other processes too if an attribute says so.
    fn hsa_amd_signal_create(
        initial_value: hsa_signal_value_t,
        num_consumers: u32,
        consumers: *const hsa_agent_t,
        attributes: u64,
        signal: *mut hsa_signal_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(signal) }?;
        // SAFETY: as above.
        unsafe { check_consumers(instance, num_consumers, consumers) }?;
        let known = u64::from(HSA_AMD_SIGNAL_AMD_GPU_ONLY | HSA_AMD_SIGNAL_IPC);
        if attributes & !known != 0 {
            return Err(INVALID_ARGUMENT);
        }
        let make = match attributes & u64::from(HSA_AMD_SIGNAL_IPC) {
            0 => stasis::Signal::new,
            _ => stasis::Signal::shared,
        };
        let made = make(&instance.runtime, initial_value).map_err(status_of)?;
        out.put(hsa_signal_t { handle: instance.signals.add(made)? });
        Ok(())
    }

    /// Destroys a signal.
    fn hsa_signal_destroy(signal: hsa_signal_t) {
        let instance = instance()?;
        if signal.handle == 0 {
            return Err(INVALID_ARGUMENT);
        }
        instance.signals.destroy(signal.handle)
    }

    /// Where a signal's value is.
    fn hsa_amd_signal_value_pointer(signal: hsa_signal_t, value_ptr: *mut *mut hsa_signal_value_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(value_ptr) }?;
        let slot = instance.signals.slot(signal.handle).ok_or(INVALID_SIGNAL)?;
        out.put(slot.value().as_ptr());
        Ok(())
    }

    /// What no published header declares: refused.
    fn hsa_amd_signal_batch_create() {
        instance()?;
        Err(NOT_SUPPORTED)
    }

    /// As `hsa_amd_signal_batch_create`.
    fn hsa_amd_signal_batch_destroy() {
        instance()?;
        Err(NOT_SUPPORTED)
    }
}
