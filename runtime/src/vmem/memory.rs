// SPDX-License-Identifier: MIT OR Apache-2.0
//! Physical memory: allocated, with contents, and mapped to no agent until a range maps it.
//!
//! INVARIANT: it has an address of its own in the window, its home, at which the CPU alone sees it: its bytes are saved
//! and filled there, however often, or seldom, it is mapped.

use super::VmemError;
use crate::context::error::{AllocError, CopyError, FreeError};
use crate::context::memory::request::Request;
use crate::context::registry::arena::page_align;
use crate::context::registry::state::{BoKey, BoRole};
use crate::pool::{Buffer, Pool};

/// Memory to be mapped into ranges. Clones name the same one. It is freed by [`Memory::free`], or once its last handle is
/// dropped and its last mapping ended, whichever is later.
#[derive(Clone, Debug)]
pub struct Memory(Buffer);

impl Pool {
    /// Allocates `bytes` bytes of memory, rounded up to whole pages, to be mapped into a [`crate::Range`].
    ///
    /// # Errors
    /// As for [`Pool::alloc`].
    pub fn physical(&self, bytes: u64) -> Result<Memory, AllocError> {
        let request = Request { role: BoRole::Physical, mapped: Vec::new(), ..self.request(bytes) };
        // What is rounded beyond u64 no window has: the allocation says so.
        let bytes = page_align(bytes).unwrap_or(bytes);
        self.make(request, bytes).map(Memory)
    }
}

impl Memory {
    pub(crate) fn from_buffer(buffer: Buffer) -> Self {
        Memory(buffer)
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0
    }

    /// Its key in the registry.
    pub fn key(&self) -> BoKey {
        self.0.key()
    }

    /// Its length in bytes, whole pages.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Never: a memory has at least one page.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the CPU sees it.
    pub fn is_visible(&self) -> bool {
        self.0.is_visible()
    }

    /// Its home: where the CPU sees it, mapped or not. Agents do not.
    pub fn home(&self) -> u64 {
        self.0.va()
    }

    /// Whether it has not been freed.
    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Copies `from` into it at `offset` bytes, through the CPU; see [`Buffer::write`].
    ///
    /// # Errors
    /// As for [`Buffer::write`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), CopyError> {
        self.0.write(offset, from)
    }

    /// Copies from it at `offset` bytes into `to`, through the CPU; see [`Buffer::read`].
    ///
    /// # Errors
    /// As for [`Buffer::read`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), CopyError> {
        self.0.read(offset, to)
    }

    /// How often it, or a part of it, is mapped.
    ///
    /// # Errors
    /// [`VmemError::Freed`].
    pub fn mappings(&self) -> Result<usize, VmemError> {
        let registry = self.0.0.context.registry.lock();
        match registry.bos.get(self.key()) {
            Some(_) => Ok(registry.maps.of_memory(self.key()).count()),
            None => Err(VmemError::Freed { what: "memory", key: self.key() }),
        }
    }

    /// Gives it back. It must not be mapped.
    ///
    /// # Errors
    /// [`FreeError::InUse`] naming a mapping, otherwise as for [`Buffer::free`].
    pub fn free(&self) -> Result<(), FreeError> {
        self.0.free()
    }
}
