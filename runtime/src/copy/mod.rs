// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills: by an agent's compute units or copy engines on queues the runtime keeps for them, or by the CPU
//! where it sees the memory.
//!
//! INVARIANT: a transfer in flight counts as a use of its buffers by that queue, so none of them is freed under it.

mod choice;
mod sdma;
mod shader;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use device_lib::DeviceLibError;

pub use self::choice::{CopyEngine, SDMA_IN_AUTO, SDMA_LINK_BYTES, SDMA_LOCAL_BYTES};
use self::choice::{Link, Owner, Way};
use self::shader::Shader;
use crate::agent::Agent;
use crate::error::{CopyError, WaitError};
use crate::pool::Buffer;
use crate::raw::{RawQueue, copy_engines};
use crate::registry::state::{AgentIndex, BoKind};
use crate::runtime::{Inner, Runtime};
use crate::signal::Signal;

/// Bytes moved at once through system memory to or from an agent whose memory the CPU does not see.
const STAGE_BYTES: u64 = 4 << 20;

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    buffer: &'a Buffer,
    offset: u64,
    bytes: u64,
}

impl Buffer {
    /// `bytes` bytes from `offset` on.
    pub fn span(&self, offset: u64, bytes: u64) -> Span<'_> {
        Span { buffer: self, offset, bytes }
    }

    /// All of it.
    pub fn all(&self) -> Span<'_> {
        self.span(0, self.len())
    }
}

impl Span<'_> {
    fn va(&self) -> Result<u64, CopyError> {
        self.buffer.checked_range(self.offset, self.bytes)
    }
}

/// A copy or fill in flight. Dropping it does not stop it.
#[derive(Clone, Debug)]
pub struct Transfer {
    signal: Signal,
    engine: CopyEngine,
}

impl Transfer {
    /// The signal it completes: 1 while in flight, then 0. Other packets can wait for it.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Who does it: [`CopyEngine::Shader`] or [`CopyEngine::Sdma`].
    pub fn engine(&self) -> CopyEngine {
        self.engine
    }

    /// Waits until it is done; `None` waits for ever.
    ///
    /// # Errors
    /// [`CopyError::Wait`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), CopyError> {
        self.signal.wait_done(timeout).map_err(wait)
    }
}

fn wait(error: WaitError) -> CopyError {
    CopyError::Wait(Box::new(error))
}

fn from_library(buffer: &Buffer) -> impl Fn(DeviceLibError) -> CopyError {
    let (key, len) = (buffer.key(), buffer.len());
    move |error| match error {
        DeviceLibError::PatternLength { bytes } => CopyError::Pattern { found: bytes },
        DeviceLibError::Overlap { bytes, .. } => CopyError::Overlap { key, bytes },
        DeviceLibError::Range { bytes, .. } => CopyError::Range { key, offset: 0, bytes, len },
        other => CopyError::NoKernels(other),
    }
}

/// What an agent has for copies, each made when first needed.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    shader: Option<Arc<Shader>>,
    /// By direction: to system memory, and every other.
    sdma: [Option<RawQueue>; 2],
}

impl Inner {
    fn agent_at(self: &Arc<Self>, index: AgentIndex) -> Agent {
        Agent { inner: Arc::clone(self), info: Arc::clone(&self.agents[index.at()]) }
    }

    /// The copy kernels of an agent, loaded when first needed; again after their queue has failed.
    fn shader(self: &Arc<Self>, index: AgentIndex) -> Result<Arc<Shader>, CopyError> {
        // Held while it is made. Making it passes the gate, so this lock comes before the gate in the order; nobody
        // inside the gate takes it.
        let mut engines = self.engines[index.at()].lock();
        if let Some(shader) = engines.shader.as_ref().filter(|shader| !shader.has_failed()) {
            return Ok(Arc::clone(shader));
        }
        let shader = Arc::new(Shader::new(&self.agent_at(index))?);
        engines.shader = Some(Arc::clone(&shader));
        Ok(shader)
    }

    /// The queue of an agent's copy engines for a link, made when first needed; again after it has failed.
    fn sdma(self: &Arc<Self>, index: AgentIndex, link: Link) -> Result<RawQueue, CopyError> {
        // As for `shader`.
        let mut engines = self.engines[index.at()].lock();
        let place = &mut engines.sdma[usize::from(link != Link::ToHost)];
        if let Some(queue) = place.as_ref().filter(|queue| queue.fault().is_none()) {
            return Ok(queue.clone());
        }
        let queue = sdma::queue(&self.agent_at(index))?;
        *place = Some(queue.clone());
        Ok(queue)
    }

    /// The agent that is to move bytes between these buffers, `to` first, and what lies between them. It is the first
    /// that owns one of them, to which all are then mapped.
    fn mover(&self, buffers: &[&Buffer]) -> Result<(AgentIndex, Link), CopyError> {
        let pass = self.gate.enter()?;
        let mut registry = self.registry.lock();
        let mut owners = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let bo = registry.bos.get(buffer.key()).ok_or(CopyError::Freed { key: buffer.key() })?;
            owners.push(match bo.state.kind {
                BoKind::Vram => Owner::Agent(bo.state.agent),
                BoKind::Gtt | BoKind::Userptr { .. } | BoKind::Doorbell | BoKind::Imported => Owner::Host,
            });
        }
        let agents = owners.iter().filter_map(|owner| match owner {
            Owner::Agent(agent) => Some(*agent),
            Owner::Host => None,
        });
        let mover = agents.into_iter().next().unwrap_or(AgentIndex(0));
        let device = self.device_or_lost(&pass)?;
        for buffer in buffers {
            if let Some(bo) = registry.bos.get_mut(buffer.key()) {
                device.map_bo(bo, mover).map_err(CopyError::Peer)?;
            }
        }
        Ok((mover, Link::between(&owners)))
    }

    /// Who is to move `bytes` bytes over a link.
    fn way(&self, asked: CopyEngine, index: AgentIndex, link: Link, bytes: u64) -> Result<Way, CopyError> {
        let info = &self.agents[index.at()];
        choice::choose(asked, link, bytes, copy_engines(info), SDMA_IN_AUTO)
            .ok_or_else(|| CopyError::NoEngine { agent: info.target().name.to_owned() })
    }
}

fn launch_of<A: AsRef<[u8]>>(
    launch: &device_lib::Launch<impl Sized>,
    arguments: A,
) -> device_lib::Launch<Vec<u8>> {
    let arguments = arguments.as_ref().to_vec();
    device_lib::Launch { arguments, grid: launch.grid, workgroup: launch.workgroup }
}

impl Runtime {
    /// Copies `from` to `to`, of equal length, on an agent, once all of `after` have reached 0. Returns at once.
    ///
    /// # Errors
    /// [`CopyError`]; nothing is copied then.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>, after: &[&Signal]) -> Result<Transfer, CopyError> {
        self.copy_by(CopyEngine::Auto, to, from, after)
    }

    /// As [`Runtime::copy`], by this engine.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::NoEngine`] where the agent has no copy engines. Nothing is copied then.
    pub fn copy_by(
        &self,
        engine: CopyEngine,
        to: Span<'_>,
        from: Span<'_>,
        after: &[&Signal],
    ) -> Result<Transfer, CopyError> {
        if to.bytes != from.bytes {
            return Err(CopyError::Length { to: to.bytes, from: from.bytes });
        }
        let launch = device_lib::copy(to.va()?, from.va()?, to.bytes).map_err(from_library(to.buffer))?;
        let buffers = [to.buffer, from.buffer];
        let (agent, link) = self.inner().mover(&buffers)?;
        match self.inner().way(engine, agent, link, to.bytes)? {
            Way::Shader => {
                let shader = self.inner().shader(agent)?;
                let launch = launch_of(&launch, launch.arguments.to_bytes());
                shader.submit(self, &shader.copy, &launch, after, &buffers)
            }
            Way::Sdma => {
                let queue = self.inner().sdma(agent, link)?;
                sdma::copy(self, &queue, to.va()?, from.va()?, to.bytes, after, &buffers)
            }
        }
    }

    /// Fills `to` with a pattern of 1, 2, 4, 8 or 16 bytes on an agent, once all of `after` have reached 0. Returns
    /// at once.
    ///
    /// # Errors
    /// [`CopyError`]; nothing is filled then.
    pub fn fill(&self, to: Span<'_>, pattern: &[u8], after: &[&Signal]) -> Result<Transfer, CopyError> {
        self.fill_by(CopyEngine::Auto, to, pattern, after)
    }

    /// As [`Runtime::fill`], by this engine. A copy engine fills whole aligned dwords with one dword: other fills go by
    /// shader in [`CopyEngine::Auto`].
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::NoEngine`] where the agent has no copy engines, [`CopyError::Dwords`] for what they
    /// cannot fill. Nothing is filled then.
    pub fn fill_by(
        &self,
        engine: CopyEngine,
        to: Span<'_>,
        pattern: &[u8],
        after: &[&Signal],
    ) -> Result<Transfer, CopyError> {
        let (va, bytes) = (to.va()?, to.bytes);
        let launch = device_lib::fill(va, bytes, pattern).map_err(from_library(to.buffer))?;
        let (agent, link) = self.inner().mover(&[to.buffer])?;
        let dword = choice::dword_of(pattern).filter(|_| va.is_multiple_of(4) && bytes.is_multiple_of(4));
        let way = match (self.inner().way(engine, agent, link, bytes)?, dword) {
            (Way::Sdma, None) if engine == CopyEngine::Auto => Way::Shader,
            (way, _) => way,
        };
        match (way, dword) {
            (Way::Shader, _) => {
                let shader = self.inner().shader(agent)?;
                let launch = launch_of(&launch, launch.arguments.to_bytes());
                shader.submit(self, &shader.fill, &launch, after, &[to.buffer])
            }
            (Way::Sdma, Some(dword)) => {
                let queue = self.inner().sdma(agent, link)?;
                sdma::fill(self, &queue, va, dword, bytes, after, to.buffer)
            }
            (Way::Sdma, None) => Err(CopyError::Dwords { address: va, bytes, pattern: pattern.len() }),
        }
    }
}

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
        let runtime = Runtime::from_inner(&self.0.inner);
        let stage = self.stage(&runtime, from.len() as u64)?;
        for (part, at) in from.chunks(STAGE_BYTES as usize).zip((offset..).step_by(STAGE_BYTES as usize)) {
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
        let runtime = Runtime::from_inner(&self.0.inner);
        let stage = self.stage(&runtime, to.len() as u64)?;
        for (part, at) in to.chunks_mut(STAGE_BYTES as usize).zip((offset..).step_by(STAGE_BYTES as usize)) {
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
