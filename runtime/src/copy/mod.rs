// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills: by the agent's own kernels on a queue the runtime keeps for it, or by the CPU where it sees the
//! memory.
//!
//! INVARIANT: a transfer in flight counts as a use of its buffers by that queue, so none of them is freed under it.

use std::sync::Arc;
use std::time::Duration;

use device_lib::DeviceLibError;

use crate::agent::Agent;
use crate::error::{AllocError, CopyError, SubmitError, WaitError};
use crate::executable::{Executable, Kernel};
use crate::pool::Buffer;
use crate::queue::{Queue, QueueOptions};
use crate::registry::state::{AgentIndex, BoKind};
use crate::runtime::{Inner, Runtime};
use crate::signal::Signal;

/// Bytes moved at once through system memory to or from an agent whose memory the CPU does not see.
const STAGE_BYTES: u64 = 4 << 20;

/// An agent's copy queue and kernels.
#[derive(Debug)]
pub(crate) struct Engine {
    queue: Queue,
    fill: Kernel,
    copy: Kernel,
}

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
}

impl Transfer {
    /// The signal it completes: 1 while in flight, then 0. Other packets can wait for it.
    pub fn signal(&self) -> &Signal {
        &self.signal
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

impl Engine {
    fn new(agent: &Agent) -> Result<Self, CopyError> {
        let object = device_lib::object_for(agent.name()).map_err(CopyError::NoKernels)?;
        let load = |error| CopyError::Load(Box::new(error));
        let executable = Executable::load(agent, object).map_err(load)?;
        let pass = agent.inner.gate.enter()?;
        let options = QueueOptions { packets: 256, kernarg_slot_bytes: 64, ..QueueOptions::default() };
        let queue = agent.inner.create_queue(&pass, agent, options, true);
        Ok(Engine {
            queue: queue.map_err(|error| CopyError::Queue(Box::new(error)))?,
            fill: executable.kernel(device_lib::FILL).map_err(load)?,
            copy: executable.kernel(device_lib::COPY).map_err(load)?,
        })
    }

    /// Submits one launch after `after`, and a signal for its completion.
    fn submit(
        &self,
        runtime: &Runtime,
        kernel: &Kernel,
        launch: &device_lib::Launch<Vec<u8>>,
        after: &[&Signal],
        buffers: &[&Buffer],
    ) -> Result<Transfer, CopyError> {
        let signal =
            Signal::new(runtime, 1).map_err(|error: AllocError| CopyError::Signal(Box::new(error)))?;
        for buffer in buffers {
            buffer.note_use(self.queue.key());
        }
        for five in after.chunks(5) {
            self.with_room(|| self.queue.barrier(five, None))?;
        }
        self.with_room(|| {
            self.queue
                .dispatch(kernel)
                .grid(launch.grid)
                .block(launch.workgroup)
                .raw_kernarg(&launch.arguments)
                // Transfers overlap unless they were told to wait.
                .barrier(!after.is_empty())
                .completion(&signal)
                .submit()
        })?;
        Ok(Transfer { signal })
    }

    /// Tries again as long as the queue is full.
    fn with_room(&self, submit: impl Fn() -> Result<u64, SubmitError>) -> Result<(), CopyError> {
        loop {
            match submit() {
                Ok(_) => return Ok(()),
                // TIMEOUT: room comes with the next transfer that ends, or the queue fails.
                Err(SubmitError::WouldBlock { .. }) => std::thread::sleep(Duration::from_micros(50)),
                Err(error) => return Err(CopyError::Submit(Box::new(error))),
            }
        }
    }
}

impl Inner {
    /// The copy engine of an agent, made when first needed; made again after its queue has failed.
    fn engine(self: &Arc<Self>, index: AgentIndex) -> Result<Arc<Engine>, CopyError> {
        // Held while the engine is made. Making it passes the gate, so this lock comes before the gate in the order;
        // nobody inside the gate takes it.
        let mut place = self.engines[index.at()].lock();
        if let Some(engine) = place.as_ref().filter(|engine| engine.queue.fault().is_none()) {
            return Ok(Arc::clone(engine));
        }
        let agent = Agent { inner: Arc::clone(self), info: Arc::clone(&self.agents[index.at()]) };
        let engine = Arc::new(Engine::new(&agent)?);
        *place = Some(Arc::clone(&engine));
        Ok(engine)
    }

    /// The agent that is to move bytes of these buffers: the first that owns one of them, to which all are then
    /// mapped.
    fn mover(&self, buffers: &[&Buffer]) -> Result<AgentIndex, CopyError> {
        let pass = self.gate.enter()?;
        let mut registry = self.registry.lock();
        let mut owner = None;
        for buffer in buffers {
            let bo = registry.bos.get(buffer.key()).ok_or(CopyError::Freed { key: buffer.key() })?;
            if bo.state.kind == BoKind::Vram {
                owner = owner.or(Some(bo.state.agent));
            }
        }
        let owner = owner.unwrap_or(AgentIndex(0));
        let device = self.device_or_lost(&pass)?;
        for buffer in buffers {
            if let Some(bo) = registry.bos.get_mut(buffer.key()) {
                device.map_bo(bo, owner).map_err(CopyError::Peer)?;
            }
        }
        Ok(owner)
    }
}

impl Runtime {
    /// Copies `from` to `to`, of equal length, on an agent, once all of `after` have reached 0. Returns at once.
    ///
    /// # Errors
    /// [`CopyError`]; nothing is copied then.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>, after: &[&Signal]) -> Result<Transfer, CopyError> {
        if to.bytes != from.bytes {
            return Err(CopyError::Length { to: to.bytes, from: from.bytes });
        }
        let launch = device_lib::copy(to.va()?, from.va()?, to.bytes).map_err(from_library(to.buffer))?;
        let buffers = [to.buffer, from.buffer];
        let engine = self.inner().engine(self.inner().mover(&buffers)?)?;
        let launch = device_lib::Launch {
            arguments: launch.arguments.to_bytes().to_vec(),
            grid: launch.grid,
            workgroup: launch.workgroup,
        };
        engine.submit(self, &engine.copy, &launch, after, &buffers)
    }

    /// Fills `to` with a pattern of 1, 2, 4, 8 or 16 bytes on an agent, once all of `after` have reached 0. Returns
    /// at once.
    ///
    /// # Errors
    /// [`CopyError`]; nothing is filled then.
    pub fn fill(&self, to: Span<'_>, pattern: &[u8], after: &[&Signal]) -> Result<Transfer, CopyError> {
        let launch = device_lib::fill(to.va()?, to.bytes, pattern).map_err(from_library(to.buffer))?;
        let engine = self.inner().engine(self.inner().mover(&[to.buffer])?)?;
        let launch = device_lib::Launch {
            arguments: launch.arguments.to_bytes().to_vec(),
            grid: launch.grid,
            workgroup: launch.workgroup,
        };
        engine.submit(self, &engine.fill, &launch, after, &[to.buffer])
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
