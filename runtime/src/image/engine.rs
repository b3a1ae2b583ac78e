// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who moves contents that the process does not reach, or reaches slowly: an agent's copy engine, through buffers in system
//! memory.
//!
//! INVARIANT: nobody touches a buffer's bytes while a transfer of it is under way, and whoever waits for a buffer holds
//! none: there are as many as workers.

use std::fmt::Debug;

use stasis_protocol::Stopped;

use super::host::HostRange;

/// Bytes at `va` of the agent's memory that lie at `at` in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The agent's address.
    pub va: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Where in the buffer.
    pub at: u64,
}

/// Moves an agent's memory to and from buffers in system memory.
pub trait ContentEngine: Debug + Sync {
    /// Takes a buffer of [`super::CHUNK_BYTES`], zeroed or not; waits until one is free.
    ///
    /// # Errors
    /// [`EngineError::Stopped`].
    fn take(&self) -> Result<EngineBuffer<'_>, EngineError>;

    /// Takes a buffer back.
    fn put(&self, number: usize);

    /// Copies pieces of the agent's memory to the buffer; returns when they are there.
    ///
    /// # Errors
    /// [`EngineError`]; the buffer's bytes mean nothing then.
    fn fetch(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError>;

    /// Copies pieces of the buffer to the agent's memory; returns when they are there.
    ///
    /// # Errors
    /// [`EngineError`]; some pieces are there then.
    fn store(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError>;
}

/// A buffer in system memory, the holder's until it is dropped.
#[derive(Debug)]
pub struct EngineBuffer<'e> {
    engine: &'e dyn ContentEngine,
    number: usize,
    range: HostRange,
}

impl<'e> EngineBuffer<'e> {
    /// Buffer `number` of `engine`, whose bytes are `range`.
    pub fn new(engine: &'e dyn ContentEngine, number: usize, range: HostRange) -> Self {
        Self { engine, number, range }
    }

    /// Which it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its bytes.
    pub fn range(&self) -> &HostRange {
        &self.range
    }
}

impl Drop for EngineBuffer<'_> {
    fn drop(&mut self) {
        self.engine.put(self.number);
    }
}

/// An engine did not move bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// It did not move bytes.
    #[error("It did not move bytes of an agent's memory")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The time was over, or somebody cancelled.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
