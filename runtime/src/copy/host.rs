// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between a buffer and the process's own memory, wherever the buffer is.
//!
//! INVARIANT: what the CPU does not see goes through a buffer in system memory that lives until the agent is done with
//! it.

use super::STAGE_BYTES;
use crate::context::error::CopyError;
use crate::pool::Buffer;
use crate::runtime::Runtime;
use queues::words::size;

impl Buffer {
    /// Copies `from` into it at `offset`, through the CPU's mapping or, where there is none, through system memory
    /// and the agent. Returns when it is done.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn upload(&self, offset: u64, from: &[u8]) -> Result<(), CopyError> {
        if self.is_visible() {
            return self.write(offset, from);
        }
        self.checked_range(offset, from.len() as u64)?;
        let runtime = Runtime::from_context(&self.0.context);
        let stage = self.stage(&runtime, from.len() as u64)?;
        for (part, at) in from.chunks(size(STAGE_BYTES)).zip((offset..).step_by(size(STAGE_BYTES))) {
            let bytes = part.len() as u64;
            stage.write(0, part)?;
            runtime.copy(self.span(at, bytes), stage.span(0, bytes), &[])?.wait(None)?;
        }
        Ok(())
    }

    /// Copies from it at `offset` into `to`; see [`Buffer::upload`].
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn download(&self, offset: u64, to: &mut [u8]) -> Result<(), CopyError> {
        if self.is_visible() {
            return self.read(offset, to);
        }
        self.checked_range(offset, to.len() as u64)?;
        let runtime = Runtime::from_context(&self.0.context);
        let stage = self.stage(&runtime, to.len() as u64)?;
        for (part, at) in to.chunks_mut(size(STAGE_BYTES)).zip((offset..).step_by(size(STAGE_BYTES))) {
            let bytes = part.len() as u64;
            runtime.copy(stage.span(0, bytes), self.span(at, bytes), &[])?.wait(None)?;
            stage.read(0, part)?;
        }
        Ok(())
    }

    fn stage(&self, runtime: &Runtime, bytes: u64) -> Result<Buffer, CopyError> {
        let stage = runtime.gtt().alloc(bytes.clamp(1, STAGE_BYTES));
        stage.map_err(|error| CopyError::Stage(Box::new(error)))
    }
}
