// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CPU's access to what is mapped into a range, at its addresses.
//!
//! INVARIANT: nothing of a range is touched but under the registry's lock, which whoever unmaps holds too.

use queues::words::size;
use stasis_protocol::gate::Pass;

use super::{Range, VmemError};
use crate::context::memory::host_writes::{WriteGuard, Written};
use crate::context::memory::mapped;
use crate::context::registry::Registry;

/// Bytes copied before others get the registry: device memory is read slowly.
const CHUNK: u64 = 64 << 10;

/// Keeps the process from being locked while it is held, so that pointers into a range may be used.
#[derive(Debug)]
pub struct RangeGuard<'r> {
    _writes: WriteGuard<'r>,
    pass: Pass<'r>,
    range: &'r Range,
    va: u64,
    bytes: u64,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.range.0.0.context.host_writes.flush_shared(&self.pass);
    }
}

impl RangeGuard<'_> {
    /// The first byte of the part that was asked for. Valid while the guard is held and the part stays mapped; agents may
    /// write it at any time, so do not make references of it.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(size(self.va))
    }

    /// Bytes of the part.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Range {
    /// Copies `from` into it at `offset` bytes, through the CPU. Not ordered with packets in flight: wait for those that
    /// touch the part.
    ///
    /// # Errors
    /// [`VmemError::OutsideRange`], [`VmemError::NotMapped`], [`VmemError::NotVisible`], [`VmemError::Freed`],
    /// [`VmemError::Lost`]. Of a part whose end is not mapped the beginning may be written.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), VmemError> {
        let pass = self.0.0.context.gate.enter()?;
        self.bounded(offset, from.len() as u64)?;
        for (part, at) in from.chunks(size(CHUNK)).zip((offset..).step_by(size(CHUNK))) {
            let registry = self.0.0.context.registry.lock();
            self.visible(&registry, at, part.len() as u64)?;
            if let Some(view) = mapped::view(self.va() + at, part.len() as u64) {
                view.write(0, part);
                self.0.0.context.host_writes.wrote(&pass, Written::ANY);
            }
        }
        Ok(())
    }

    /// Copies from it at `offset` bytes into `to`, through the CPU. See [`Range::write`] about order.
    ///
    /// # Errors
    /// As for [`Range::write`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), VmemError> {
        let _pass = self.0.0.context.gate.enter()?;
        self.bounded(offset, to.len() as u64)?;
        for (part, at) in to.chunks_mut(size(CHUNK)).zip((offset..).step_by(size(CHUNK))) {
            let registry = self.0.0.context.registry.lock();
            self.visible(&registry, at, part.len() as u64)?;
            if let Some(view) = mapped::view(self.va() + at, part.len() as u64) {
                view.read(0, part);
            }
        }
        Ok(())
    }

    /// Holds the process unlocked and gives a pointer to `bytes` bytes from `offset` on, all of which are mapped and
    /// visible now.
    ///
    /// # Errors
    /// As for [`Range::write`].
    pub fn host(&self, offset: u64, bytes: u64) -> Result<RangeGuard<'_>, VmemError> {
        let pass = self.0.0.context.gate.enter()?;
        self.bounded(offset, bytes)?;
        self.visible(&self.0.0.context.registry.lock(), offset, bytes)?;
        let writes = self.0.0.context.host_writes.guard(Written::ANY);
        Ok(RangeGuard { _writes: writes, pass, range: self, va: self.va() + offset, bytes })
    }

    fn bounded(&self, offset: u64, bytes: u64) -> Result<(), VmemError> {
        let (range, len) = (self.key(), self.len());
        match offset.checked_add(bytes).is_some_and(|end| end <= len) {
            true => Ok(()),
            false => Err(VmemError::OutsideRange { range, offset, bytes, len }),
        }
    }

    /// Whether the CPU has all of the part.
    fn visible(&self, registry: &Registry, offset: u64, bytes: u64) -> Result<(), VmemError> {
        let range = self.key();
        if registry.bos.get(range).is_none() {
            return Err(VmemError::Freed { what: "range", key: range });
        }
        let (mut at, end) = (self.va() + offset, self.va() + offset + bytes);
        while at < end {
            let offset = at - self.va();
            let (_, entry) = registry.maps.at(at).ok_or(VmemError::NotMapped { range, offset })?;
            if !entry.on_cpu {
                return Err(VmemError::NotVisible { range, offset, memory: entry.state.memory });
            }
            at = entry.end();
        }
        Ok(())
    }
}
