// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host memory that a GPU address space sees at the same addresses.
//!
//! INVARIANT: an [`Allocation`] is mapped in its `Vm` exactly as long as it lives, so a kernel cannot reach freed memory;
//! it is read and written only while no grid runs on it, which is the caller's to see to.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use softgpu_waves::{Access, Vm};

/// Allocations begin at a page, as a driver's do.
const PAGE: usize = 4096;

/// Memory that could not be had or mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("No memory of {bytes} B for the GPU: ask for less")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// Memory of a GPU address space, zero at first.
#[derive(Debug)]
pub struct Allocation {
    address: u64,
    layout: Layout,
    len: usize,
    vm: Arc<Vm>,
}

impl Allocation {
    /// `len` bytes, mapped in `vm` with `access`.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the host has none.
    pub fn new(vm: &Arc<Vm>, len: usize, access: Access) -> Result<Allocation, OutOfMemory> {
        let none = OutOfMemory { bytes: len };
        let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| none.clone())?;
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(none);
        }
        let address = memory.expose_provenance() as u64;
        let made = Allocation { address, layout, len, vm: vm.clone() };
        let range = address..address + layout.size() as u64;
        // SAFETY: just allocated, and freed only after it was unmapped; it is reached by its address alone.
        unsafe { vm.map(range, access) }.map_err(|_| none)?;
        Ok(made)
    }

    /// The GPU (and host) address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// What it holds.
    pub fn read(&self) -> Vec<u8> {
        let from: *const u8 = std::ptr::with_exposed_provenance(self.address as usize);
        // SAFETY: `len` bytes were allocated there and no grid writes them now.
        unsafe { std::slice::from_raw_parts(from, self.len) }.to_vec()
    }

    /// Writes `bytes` at offset `at`; what would lie past the end is left out.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let room = self.len.saturating_sub(at).min(bytes.len());
        if room == 0 {
            return;
        }
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize + at);
        // SAFETY: `at + room` is at most `len`, and nobody else uses the memory while no grid runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, room) };
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.vm.unmap(self.address..self.address + self.layout.size() as u64);
        let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: allocated with this layout, and unmapped: no worker is in it any more.
        unsafe { dealloc(memory, self.layout) };
    }
}
