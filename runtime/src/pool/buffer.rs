// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: memory of a pool, under a generational key.
//!
//! INVARIANT: a buffer is freed once, and never while a queue or executable lives in it, a copy is in flight, or a
//! packet that was given it may not have completed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::mapped::Mapped;
use crate::agent::Agent;
use crate::error::{AllocError, CopyError, FreeError, Lost};
use crate::gate::Pass;
use crate::registry::state::{BoKey, BoRole, QueueKey};
use crate::registry::{BoUse, Registry};
use crate::runtime::Inner;

/// TIMEOUT: how long `free` waits for packets that were given the buffer. Those that have completed need microseconds
/// to prove it.
const FREE_GRACE: Duration = Duration::from_millis(100);
/// TIMEOUT: the same when the last handle is dropped; what takes longer is freed later.
const DROP_GRACE: Duration = Duration::from_millis(5);

/// Memory that the CPU (where visible) and agents address alike. Clones name the same one; it is freed by
/// [`Buffer::free`] or with its last handle.
#[derive(Clone)]
pub struct Buffer(pub(crate) Arc<BufferShared>);

/// What all handles of a buffer share.
pub(crate) struct BufferShared {
    pub inner: Arc<Inner>,
    pub key: BoKey,
    pub va: u64,
    pub bytes: u64,
    mapped: Option<Mapped>,
    alive: AtomicBool,
    /// Queues that were given it since it was last known idle: bit = key index mod 64.
    uses: AtomicU64,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BufferShared { key, va, bytes, .. } = &*self.0;
        write!(f, "Buffer({key}, {va:#x}+{bytes:#x})")
    }
}

impl Drop for BufferShared {
    fn drop(&mut self) {
        if *self.alive.get_mut()
            && let Ok(pass) = self.inner.gate.enter()
        {
            let uses = *self.uses.get_mut();
            match self.inner.release_bo(&pass, self.key, uses, DROP_GRACE) {
                // Memory that was mapped into a dropped range may have been waiting for that.
                Ok(true) => self.inner.free_deferred(&pass),
                Ok(false) | Err(FreeError::Stale { .. } | FreeError::Lost(_)) => {}
                Err(_) => self.inner.deferred.lock().push((self.key, uses)),
            }
        }
    }
}

/// Keeps the process from being locked while it is held, so that pointers into buffers may be used.
#[derive(Debug)]
pub struct HostGuard<'b> {
    _pass: Pass<'b>,
    buffer: &'b Buffer,
    mapped: Mapped,
}

impl HostGuard<'_> {
    /// The buffer's memory. Valid while the guard is held and the buffer is not freed; agents may write it at any
    /// time, so do not make references of it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapped.as_ptr()
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        self.buffer
    }
}

impl Buffer {
    pub(crate) fn new(inner: &Arc<Inner>, registry: &Registry, key: BoKey, bytes: u64) -> Self {
        let mapped = Inner::view(registry, key);
        let va = registry.bos.get(key).map_or(0, |bo| bo.state.va);
        Buffer(Arc::new(BufferShared {
            inner: Arc::clone(inner),
            key,
            va,
            bytes,
            mapped,
            alive: AtomicBool::new(true),
            uses: AtomicU64::new(0),
        }))
    }

    /// Its key in the registry.
    pub fn key(&self) -> BoKey {
        self.0.key
    }

    /// Its length in bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.0.bytes
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Its address, for the CPU and every agent it is mapped to.
    pub fn va(&self) -> u64 {
        self.0.va
    }

    /// Whether the CPU sees its memory.
    pub fn is_visible(&self) -> bool {
        self.0.mapped.is_some()
    }

    /// Whether it has not been freed.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.0.alive.load(Ordering::Relaxed)
    }

    pub(crate) fn is_of(&self, inner: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.0.inner, inner)
    }

    /// Notes that a packet of this queue is given the buffer. Before the packet is published.
    #[inline]
    pub(crate) fn note_use(&self, queue: QueueKey) {
        let bit = 1u64 << (queue.index() % 64);
        if self.0.uses.load(Ordering::Relaxed) & bit == 0 {
            self.0.uses.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Queues that were given it: bit = key index mod 64.
    pub(crate) fn uses(&self) -> u64 {
        self.0.uses.load(Ordering::Relaxed)
    }

    fn range(&self, offset: u64, bytes: u64) -> Result<(), CopyError> {
        if !self.is_alive() {
            return Err(CopyError::Freed { key: self.0.key });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > self.0.bytes) {
            return Err(CopyError::Range { key: self.0.key, offset, bytes, len: self.0.bytes });
        }
        Ok(())
    }

    pub(crate) fn checked_range(&self, offset: u64, bytes: u64) -> Result<u64, CopyError> {
        self.range(offset, bytes).map(|()| self.0.va + offset)
    }

    fn visible(&self) -> Result<Mapped, CopyError> {
        self.0.mapped.ok_or(CopyError::NotVisible { key: self.0.key })
    }

    /// Copies `from` into it at `offset` bytes, through the CPU. Not ordered with packets in flight: wait for those
    /// that touch the range.
    ///
    /// # Errors
    /// [`CopyError::Range`], [`CopyError::Freed`], [`CopyError::NotVisible`], [`CopyError::Lost`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), CopyError> {
        let _pass = self.0.inner.gate.enter()?;
        self.range(offset, from.len() as u64)?;
        self.visible()?.write(offset, from);
        Ok(())
    }

    /// Copies from it at `offset` bytes into `to`, through the CPU. See [`Buffer::write`] about order.
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), CopyError> {
        let _pass = self.0.inner.gate.enter()?;
        self.range(offset, to.len() as u64)?;
        self.visible()?.read(offset, to);
        Ok(())
    }

    /// Its bytes, through the CPU.
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn to_vec(&self) -> Result<Vec<u8>, CopyError> {
        // CAST: u64 and usize are the same here.
        let mut bytes = vec![0; self.0.bytes as usize];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Holds the process unlocked and gives a pointer to its memory.
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn host(&self) -> Result<HostGuard<'_>, CopyError> {
        let pass = self.0.inner.gate.enter()?;
        self.range(0, 0)?;
        Ok(HostGuard { mapped: self.visible()?, _pass: pass, buffer: self })
    }

    /// Lets one more agent address it. System memory every agent may address, another agent's only one that reaches it
    /// ([`Agent::path_to`]).
    ///
    /// # Errors
    /// [`AllocError::NoPath`] if it does not, before the driver is asked; [`AllocError::Range`], [`AllocError::Device`],
    /// [`AllocError::Lost`].
    pub fn allow(&self, agent: &Agent) -> Result<(), AllocError> {
        let pass = self.0.inner.gate.enter()?;
        let mut registry = self.0.inner.registry.lock();
        let device = self.0.inner.device_or_lost(&pass)?;
        match registry.bos.get_mut(self.0.key) {
            Some(bo) if bo.state.role == BoRole::Range => Err(AllocError::Range { key: self.0.key }),
            Some(bo) if agent.is_of(&self.0.inner) => {
                if bo.state.kind == crate::registry::state::BoKind::Vram {
                    self.0.inner.reach(agent.info.index(), bo.state.agent)?;
                }
                device.map_bo(bo, agent.info.index())?;
                bo.state.for_copies.retain(|&copying| copying != agent.info.index());
                Ok(())
            }
            _ => Err(crate::error::DeviceError::Absent { what: "the buffer or the agent" }.into()),
        }
    }

    /// Takes it away from an agent that was allowed it. Packets there that use it fault from now on.
    ///
    /// # Errors
    /// As for [`Buffer::allow`].
    pub fn deny(&self, agent: &Agent) -> Result<(), AllocError> {
        let pass = self.0.inner.gate.enter()?;
        let mut registry = self.0.inner.registry.lock();
        let device = self.0.inner.device_or_lost(&pass)?;
        match registry.bos.get_mut(self.0.key) {
            Some(bo) if bo.state.role == BoRole::Range => Err(AllocError::Range { key: self.0.key }),
            Some(bo) if agent.is_of(&self.0.inner) => Ok(device.unmap_bo(bo, agent.info.index())?),
            _ => Err(crate::error::DeviceError::Absent { what: "the buffer or the agent" }.into()),
        }
    }

    /// Gives its memory back. Waits up to 100 ms for packets that were given it.
    ///
    /// # Errors
    /// [`FreeError::Stale`] the second time, [`FreeError::InUse`], [`FreeError::Pending`] (it is then as before),
    /// [`FreeError::Device`], [`FreeError::Lost`].
    pub fn free(&self) -> Result<(), FreeError> {
        let shared = &*self.0;
        let pass = shared.inner.gate.enter()?;
        // First, so that no packet is given it from here on.
        if !shared.alive.swap(false, Ordering::AcqRel) {
            return Err(FreeError::Stale { key: shared.key });
        }
        let uses = shared.uses.load(Ordering::Relaxed);
        shared.inner.free_bo(&pass, shared.key, uses, FREE_GRACE).inspect_err(|error| {
            if !matches!(error, FreeError::Stale { .. }) {
                shared.alive.store(true, Ordering::Release);
            }
        })
    }
}

impl Inner {
    /// Frees a buffer object of the caller's. `uses` are the queues (key index mod 64) that may still run packets
    /// with it.
    pub(crate) fn free_bo(
        &self,
        pass: &Pass<'_>,
        key: BoKey,
        uses: u64,
        grace: Duration,
    ) -> Result<(), FreeError> {
        if let Some(queue) = self.busy_queue(pass, uses, Instant::now() + grace)? {
            return Err(FreeError::Pending { key, queue });
        }
        let mut registry = self.registry.lock();
        if registry.bos.get(key).is_none() {
            return Err(FreeError::Stale { key });
        }
        if let Some(user) = registry.bo_use(key) {
            return Err(FreeError::InUse { key, user });
        }
        let device = self.device_or_lost(pass)?;
        let Some(bo) = registry.bos.get_mut(key) else { return Err(FreeError::Stale { key }) };
        device.destroy_bo(bo)?;
        registry.remove_bo(key);
        Ok(())
    }

    /// A queue of `uses` that has not completed everything by the deadline, if there is one.
    pub(crate) fn busy_queue(
        &self,
        pass: &Pass<'_>,
        uses: u64,
        deadline: Instant,
    ) -> Result<Option<QueueKey>, Lost> {
        if uses == 0 {
            return Ok(None);
        }
        for (queue, live) in self.queues_of(uses) {
            if !self.is_idle(pass, &live, deadline)? {
                return Ok(Some(queue));
            }
        }
        Ok(None)
    }

    /// Frees what was still in use, or mapped, when its last handle was dropped.
    pub(crate) fn free_deferred(&self, pass: &Pass<'_>) {
        loop {
            let waiting = std::mem::take(&mut *self.deferred.lock());
            let mut range_freed = false;
            for (key, uses) in waiting {
                match self.release_bo(pass, key, uses, Duration::ZERO) {
                    Err(FreeError::Pending { .. } | FreeError::InUse { user: BoUse::Mapping(_), .. }) => {
                        self.deferred.lock().push((key, uses))
                    }
                    Ok(is_range) => range_freed |= is_range,
                    Err(FreeError::Stale { .. } | FreeError::Lost(Lost { .. })) => {}
                    Err(error) => {
                        tracing::warn!(target: "pools", %error, %key, "a dropped buffer could not be freed")
                    }
                }
            }
            // A range that went may have been all that held a memory.
            if !range_freed {
                return;
            }
        }
    }
}
