// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an image is made of or fills: one buffer's bytes, which the process reaches itself or an agent's engine moves.
//!
//! INVARIANT: an extent is either memory of the process or memory of an agent, and an agent's address is never taken for one
//! of the process.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::CHUNK_BYTES;
use super::engine::ContentEngine;
use super::host::HostRange;

/// One buffer's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Extent<'e> {
    /// Memory that the process reads and writes.
    Host(HostRange),
    /// Memory that the process writes fast and reads slowly, such as an agent's through the PCI aperture: it is filled
    /// without being looked at.
    Aperture(HostRange),
    /// Memory that an agent's engine moves.
    Agent(AgentRange<'e>),
}

/// A range of an agent's memory.
#[derive(Clone, Copy, Debug)]
pub struct AgentRange<'e> {
    /// Who moves it.
    pub engine: &'e dyn ContentEngine,
    /// The agent's address of its first byte.
    pub va: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Extent<'_> {
    /// Names `bytes` bytes at `address` that the process reads and writes.
    ///
    /// # Safety
    /// As for [`HostRange::new`].
    #[must_use]
    pub unsafe fn new(address: NonNull<u8>, bytes: u64) -> Self {
        // SAFETY: the caller promises it.
        Self::Host(unsafe { HostRange::new(address, bytes) })
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Host(range) | Self::Aperture(range) => range.bytes(),
            Self::Agent(range) => range.bytes,
        }
    }

    /// The chunk ranges `(offset, length)` that cover the extent.
    pub(super) fn chunk_ranges(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bytes = self.bytes();
        (0..bytes.div_ceil(CHUNK_BYTES))
            .map(move |n| (n * CHUNK_BYTES, CHUNK_BYTES.min(bytes - n * CHUNK_BYTES)))
    }
}

impl<'e> Extent<'e> {
    /// Who moves it, if not the process.
    pub(super) fn engine(&self) -> Option<&'e dyn ContentEngine> {
        match self {
            Self::Agent(range) => Some(range.engine),
            Self::Host(_) | Self::Aperture(_) => None,
        }
    }
}

/// Whether one and the same engine, or none, moves both.
pub(super) fn is_same_engine(one: Option<&dyn ContentEngine>, other: Option<&dyn ContentEngine>) -> bool {
    match (one, other) {
        (None, None) => true,
        // By address alone: a pointer's table of methods may exist twice.
        (Some(one), Some(other)) => std::ptr::addr_eq(one, other),
        _ => false,
    }
}
