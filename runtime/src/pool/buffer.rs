// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: memory of a pool, under a generational key.
//!
//! INVARIANT: a buffer is freed once, and never while a queue or executable lives in it, a copy is in flight, or a
//! packet that was given it may not have completed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use queues::words::size;
use stasis_protocol::gate::Pass;

use crate::agent::Agent;
use crate::context::Context;
use crate::context::agent::agents;
use crate::context::error::{AllocError, CopyError, DeviceError, FreeError};
use crate::context::memory::free::{free_bo, free_deferred, release_bo};
use crate::context::memory::host_writes::{WriteGuard, Written};
use crate::context::memory::make::bo_view;
use crate::context::memory::mapped::Mapped;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoRole, QueueKey};

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
    pub context: Arc<Context>,
    pub key: BoKey,
    pub va: u64,
    pub bytes: u64,
    mapped: Option<Mapped>,
    /// Whose memory the host writes when it writes here.
    written: Written,
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
            && let Ok(pass) = self.context.gate.enter()
        {
            let uses = *self.uses.get_mut();
            match release_bo(&self.context, &pass, self.key, uses, DROP_GRACE) {
                // Memory that was mapped into a dropped range may have been waiting for that.
                Ok(true) => free_deferred(&self.context, &pass),
                Ok(false) | Err(FreeError::Stale { .. } | FreeError::Lost(_)) => {}
                Err(_) => self.context.deferred.lock().push((self.key, uses)),
            }
        }
    }
}

/// Keeps the process from being locked while it is held, so that pointers into buffers may be used.
#[derive(Debug)]
pub struct HostGuard<'b> {
    _writes: WriteGuard<'b>,
    pass: Pass<'b>,
    buffer: &'b Buffer,
    mapped: Mapped,
}

impl Drop for HostGuard<'_> {
    fn drop(&mut self) {
        self.buffer.0.context.host_writes.flush_shared(&self.pass);
    }
}

impl HostGuard<'_> {
    /// The buffer's memory. Valid while the guard is held and the buffer is not freed; agents may write it at any
    /// time, so do not make references of it. What is written through it before a packet is submitted, or a signal
    /// stored to, is seen by what these start; by agents of other processes, when the guard is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapped.as_ptr()
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        self.buffer
    }
}

impl Buffer {
    pub(crate) fn new(context: &Arc<Context>, registry: &Registry, key: BoKey, bytes: u64) -> Self {
        let mapped = bo_view(registry, key);
        let bo = registry.bos.get(key);
        let va = bo.map_or(0, |bo| bo.state.va);
        let written = bo.map_or(Written::NONE, |bo| Written::in_object(&bo.state));
        Buffer(Arc::new(BufferShared {
            context: Arc::clone(context),
            key,
            va,
            bytes,
            mapped,
            written,
            alive: AtomicBool::new(true),
            uses: AtomicU64::new(0),
        }))
    }

    /// Its key in the registry.
    pub fn key(&self) -> BoKey {
        self.0.key
    }

    /// Its length in bytes, as asked for.
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.bytes
    }

    /// The buffer as its first `bytes` bytes, where this is its only handle: an import has whole pages, of which its owner may have asked
    /// for less. As it was for no bytes, or more than there are.
    #[must_use]
    pub fn first(mut self, bytes: u64) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0)
            && (1..=shared.bytes).contains(&bytes)
        {
            shared.bytes = bytes;
        }
        self
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

    #[inline]
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.0.context, context)
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
        let pass = self.0.context.gate.enter()?;
        self.range(offset, from.len() as u64)?;
        let memory = self.visible()?;
        let is_partial = match self.0.context.arriving.is_active() {
            true => self.await_to_write(&pass, offset, from)?,
            false => false,
        };
        memory.write(offset, from);
        if is_partial {
            self.tell_partial_words(&pass, memory, offset, from.len() as u64)?;
        }
        self.0.context.host_writes.wrote(&pass, self.0.written);
        Ok(())
    }

    /// Copies from it at `offset` bytes into `to`, through the CPU. See [`Buffer::write`] about order.
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), CopyError> {
        let pass = self.0.context.gate.enter()?;
        self.range(offset, to.len() as u64)?;
        let memory = self.visible()?;
        if self.0.context.arriving.is_active() {
            self.await_range(&pass, offset, to.len() as u64)?;
        }
        memory.read(offset, to);
        Ok(())
    }

    /// Its bytes, through the CPU.
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn to_vec(&self) -> Result<Vec<u8>, CopyError> {
        let mut bytes = vec![0; size(self.0.bytes)];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Holds the process unlocked and gives a pointer to its memory.
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn host(&self) -> Result<HostGuard<'_>, CopyError> {
        let pass = self.0.context.gate.enter()?;
        self.range(0, 0)?;
        let mapped = self.visible()?;
        self.give_out(&pass).map_err(CopyError::Contents)?;
        self.range(0, 0)?;
        let writes = self.0.context.host_writes.guard(self.0.written);
        Ok(HostGuard { mapped, _writes: writes, pass, buffer: self })
    }

    /// Has a range of it be here, which may have been freed meanwhile.
    #[cold]
    fn await_range(&self, pass: &Pass<'_>, offset: u64, bytes: u64) -> Result<(), CopyError> {
        let (context, range) = (&self.0.context, offset..offset + bytes);
        context.arriving.here(context, pass, self.0.va, range).map_err(CopyError::Contents)?;
        self.range(offset, bytes)
    }

    /// Has a range of it be here to which `from` is written, and all that the addresses in that name. Whether words of it are written
    /// in part only.
    #[cold]
    fn await_to_write(&self, pass: &Pass<'_>, offset: u64, from: &[u8]) -> Result<bool, CopyError> {
        let (context, bytes) = (&self.0.context, from.len() as u64);
        self.await_range(pass, offset, bytes)?;
        let stored = context.arriving.store(context, pass, (self.0.va, self.0.bytes), offset, from);
        stored.map_err(CopyError::Contents)?;
        self.range(offset, bytes)?;
        Ok(!offset.is_multiple_of(8) || !bytes.is_multiple_of(8))
    }

    /// Says what the first and the last word of a range are now that was written in part of them.
    #[cold]
    fn tell_partial_words(
        &self,
        pass: &Pass<'_>,
        memory: Mapped,
        offset: u64,
        bytes: u64,
    ) -> Result<(), CopyError> {
        let mut words = Vec::new();
        for place in [offset & !7, (offset + bytes) & !7] {
            if memory.holds(place, 8) {
                let mut word = [0; 8];
                memory.read(place, &mut word);
                words.extend(word);
            }
        }
        let context = &self.0.context;
        let told = context.arriving.store(context, pass, (self.0.va, self.0.bytes), 0, &words);
        told.map_err(CopyError::Contents)
    }

    /// Has its contents be here, if they are still to come, before a pointer to it or its memory is given out.
    pub(crate) fn give_out(&self, pass: &Pass<'_>) -> Result<(), DeviceError> {
        self.0.context.arriving.give_out(&self.0.context, pass, self.0.va, self.0.bytes)
    }

    /// Has its contents be here, if they are still to come, and it mapped to its agents.
    pub(crate) fn be_whole(&self, pass: &Pass<'_>) -> Result<(), DeviceError> {
        self.0.context.arriving.whole(&self.0.context, pass, &[self.0.va])
    }

    /// Lets one more agent address it. System memory every agent may address, another agent's only one that reaches it
    /// ([`Agent::path_to`]).
    ///
    /// # Errors
    /// [`AllocError::NoPath`] if it does not, before the driver is asked; [`AllocError::Range`], [`AllocError::Device`],
    /// [`AllocError::Lost`].
    pub fn allow(&self, agent: &Agent) -> Result<(), AllocError> {
        let pass = self.0.context.gate.enter()?;
        self.be_whole(&pass)?;
        let mut registry = self.0.context.registry.lock();
        let device = self.0.context.device_or_lost(&pass)?;
        match registry.bos.get_mut(self.0.key) {
            Some(bo) if bo.state.role == BoRole::Range => Err(AllocError::Range { key: self.0.key }),
            Some(bo) if agent.is_of(&self.0.context) => {
                if bo.state.kind == crate::context::registry::state::BoKind::Vram {
                    agents::reach(&self.0.context, agent.info.index(), bo.state.agent)?;
                }
                device.map_bo(bo, agent.info.index())?;
                bo.state.for_copies.retain(|&copying| copying != agent.info.index());
                Ok(())
            }
            _ => Err(crate::context::error::DeviceError::Absent { what: "the buffer or the agent" }.into()),
        }
    }

    /// Takes it away from an agent that was allowed it. Packets there that use it fault from now on.
    ///
    /// # Errors
    /// As for [`Buffer::allow`].
    pub fn deny(&self, agent: &Agent) -> Result<(), AllocError> {
        let pass = self.0.context.gate.enter()?;
        self.be_whole(&pass)?;
        let mut registry = self.0.context.registry.lock();
        let device = self.0.context.device_or_lost(&pass)?;
        match registry.bos.get_mut(self.0.key) {
            Some(bo) if bo.state.role == BoRole::Range => Err(AllocError::Range { key: self.0.key }),
            Some(bo) if agent.is_of(&self.0.context) => Ok(device.unmap_bo(bo, agent.info.index())?),
            _ => Err(crate::context::error::DeviceError::Absent { what: "the buffer or the agent" }.into()),
        }
    }

    /// Gives its memory back. Waits up to 100 ms for packets that were given it.
    ///
    /// # Errors
    /// [`FreeError::Stale`] the second time, [`FreeError::InUse`], [`FreeError::Pending`] (it is then as before),
    /// [`FreeError::Device`], [`FreeError::Lost`].
    pub fn free(&self) -> Result<(), FreeError> {
        let shared = &*self.0;
        let pass = shared.context.gate.enter()?;
        // First, so that no packet is given it from here on.
        if !shared.alive.swap(false, Ordering::AcqRel) {
            return Err(FreeError::Stale { key: shared.key });
        }
        let uses = shared.uses.load(Ordering::Relaxed);
        free_bo(&shared.context, &pass, shared.key, uses, FREE_GRACE).inspect_err(|error| {
            if !matches!(error, FreeError::Stale { .. }) {
                shared.alive.store(true, Ordering::Release);
            }
        })
    }
}
