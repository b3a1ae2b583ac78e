// SPDX-License-Identifier: MIT OR Apache-2.0
//! An agent's copy engine as images use it.
#![allow(unsafe_code)]

use stasis_protocol::Limit;

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{DeviceError, QueueError, TransferError};
use crate::context::queue::transfer::{Transfer, TransferEngine};
use crate::context::registry::Registry;
use crate::image::{CHUNK_BYTES, ContentEngine, EngineBuffer, EngineError, HostRange, Piece};

/// An agent's engine.
#[derive(Debug)]
pub(super) struct AgentEngine(TransferEngine);

impl AgentEngine {
    /// Makes one with so many buffers; all its work ends with `limit`.
    ///
    /// # Errors
    /// [`QueueError`]; nothing is left of it then.
    pub(super) fn new(
        context: &Context,
        registry: &mut Registry,
        on: &Device,
        info: &AgentInfo,
        buffers: usize,
        limit: &Limit,
    ) -> Result<Self, QueueError> {
        let buffers = (buffers, CHUNK_BYTES);
        TransferEngine::new(context, registry, on, info, buffers, limit).map(AgentEngine)
    }

    /// Takes it out of the driver.
    ///
    /// # Errors
    /// [`DeviceError`]; its memory stays where the engine may still touch it.
    pub(super) fn end(self, registry: &mut Registry, on: &Device) -> Result<(), DeviceError> {
        self.0.end(registry, on)
    }
}

impl ContentEngine for AgentEngine {
    fn take(&self) -> Result<EngineBuffer<'_>, EngineError> {
        let number = self.0.take()?;
        let view = self.0.buffer(number);
        // SAFETY: a part of the engine's own memory, which is mapped until `end` has taken the engine; one worker at a time
        // has the number.
        let range = unsafe { HostRange::at_address(view.va(), view.bytes()) };
        Ok(EngineBuffer::new(self, number, range.expect("INVARIANT: memory that is mapped has an address")))
    }

    fn put(&self, number: usize) {
        self.0.put(number);
    }

    fn fetch(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        self.0.fetch(buffer.number(), pieces.iter().map(transfer)).map_err(failed)
    }

    fn store(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        self.0.store(buffer.number(), pieces.iter().map(transfer)).map_err(failed)
    }
}

fn transfer(piece: &Piece) -> Transfer {
    let &Piece { va, bytes, at } = piece;
    Transfer { va, bytes, at }
}

fn failed(error: TransferError) -> EngineError {
    match error {
        TransferError::Stopped(stopped) => EngineError::Stopped(stopped),
        other => EngineError::Failed(Box::new(other)),
    }
}
