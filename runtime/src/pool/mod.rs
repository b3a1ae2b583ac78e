// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: the address window, the pools, and the buffers allocated from them.
//!
//! INVARIANT: a buffer has one address for its whole life, the same for the CPU and every agent, across checkpoints
//! too.

mod buffer;
mod pointer;
mod registered;
pub mod stats;
mod typed;

use std::fmt;
use std::sync::Arc;

pub use self::buffer::{Buffer, HostGuard};
pub use self::pointer::{PointerInfo, PointerKind};
pub use self::registered::Registered;
pub use self::typed::TypedBuffer;
use kfd::meminfo;

use crate::agent::Agent;
use crate::context::Context;
use crate::context::device::flags;
use crate::context::error::AllocError;
use crate::context::memory::free::free_deferred;
use crate::context::memory::make::make_bo;
use crate::context::memory::request::Request;
use crate::context::registry::arena;
use crate::context::registry::state::{AgentIndex, BoRole};
use crate::runtime::Runtime;

/// What a pool's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// An agent's own memory, coarse-grained: what a kernel writes others see when it ends.
    Vram,
    /// An agent's own memory, fine-grained: others see what a kernel writes while it runs.
    FineVram,
    /// System memory that all agents map, coherent: the host's pool.
    Gtt,
    /// System memory for kernel arguments.
    Kernarg,
}

/// Where buffers come from.
#[derive(Clone)]
pub struct Pool {
    context: Arc<Context>,
    kind: PoolKind,
    agent: AgentIndex,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("kind", &self.kind).field("agent", &self.agent).finish()
    }
}

impl Pool {
    pub(crate) fn new(context: &Arc<Context>, kind: PoolKind, agent: AgentIndex) -> Self {
        Pool { context: Arc::clone(context), kind, agent }
    }

    /// What its memory is.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Whether the CPU sees its memory.
    pub fn is_visible(&self) -> bool {
        !self.is_of_agent() || self.context.agents[self.agent.at()].is_visible()
    }

    fn is_of_agent(&self) -> bool {
        matches!(self.kind, PoolKind::Vram | PoolKind::FineVram)
    }

    /// Index of the agent it was asked of; for system memory that matters to nobody.
    pub fn agent(&self) -> usize {
        self.agent.at()
    }

    /// Whole bytes that an allocation takes a multiple of.
    pub const fn granularity(&self) -> u64 {
        arena::PAGE
    }

    /// Bytes of memory there are, of the agent or the host, in use or not.
    pub fn bytes(&self) -> u64 {
        match self.is_of_agent() {
            true => self.context.agents[self.agent.at()].node().vram_bytes(),
            false => meminfo::bytes("MemTotal").unwrap_or(0),
        }
    }

    /// Bytes that could be allocated now, as the driver or the kernel says.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn available(&self) -> Result<u64, AllocError> {
        if !self.is_of_agent() {
            return Ok(meminfo::bytes("MemAvailable").unwrap_or(0));
        }
        let pass = self.context.gate.enter()?;
        Ok(self.context.device_or_lost(&pass)?.available(self.agent)?)
    }

    /// What an allocation of `bytes` bytes is made of.
    pub(crate) fn request(&self, bytes: u64) -> Request {
        match self.kind {
            PoolKind::Vram => Request::vram(BoRole::User, bytes, self.agent, self.is_visible()),
            PoolKind::FineVram => Request {
                flags: if self.is_visible() { flags::VRAM_FINE } else { flags::VRAM_FINE_HIDDEN },
                ..Request::vram(BoRole::User, bytes, self.agent, self.is_visible())
            },
            PoolKind::Gtt | PoolKind::Kernarg => {
                Request::shared(BoRole::User, bytes, self.context.agents.len())
            }
        }
    }

    /// Makes what was requested; `bytes` is what the handle says.
    pub(crate) fn make(&self, request: Request, bytes: u64) -> Result<Buffer, AllocError> {
        make_buffer(&self.context, request, bytes)
    }

    /// Allocates a buffer of at least `bytes` bytes, zeroed or with what a buffer before it left.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with what is available, [`AllocError::Empty`], [`AllocError::Address`],
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, AllocError> {
        self.make(self.request(bytes), bytes)
    }

    /// As [`Pool::alloc`], and waves may execute what is written there: for those who write packets themselves, and place code for them.
    ///
    /// # Errors
    /// As for [`Pool::alloc`].
    pub fn alloc_executable(&self, bytes: u64) -> Result<Buffer, AllocError> {
        let request = self.request(bytes);
        self.make(Request { flags: request.flags | flags::EXECUTABLE, ..request }, bytes)
    }
}

/// Makes a buffer object and a handle that says `bytes`.
pub(crate) fn make_buffer(
    context: &Arc<Context>,
    request: Request,
    bytes: u64,
) -> Result<Buffer, AllocError> {
    let pass = context.gate.enter()?;
    free_deferred(context, &pass);
    let mut registry = context.registry.lock();
    let device = context.device_or_lost(&pass)?;
    let key = make_bo(context, &mut registry, device, request)?;
    Ok(Buffer::new(context, &registry, key, bytes))
}

impl Agent {
    /// Its memory.
    pub fn vram(&self) -> Pool {
        Pool::new(&self.context, PoolKind::Vram, self.info.index())
    }

    /// All pools it can use: its own memory, coarse-grained and, where the CPU sees it, fine-grained, then the host's and
    /// that for kernel arguments.
    pub fn pools(&self) -> Vec<Pool> {
        let fine = self.info.is_visible().then(|| self.fine_vram());
        [Some(self.vram()), fine, Some(self.host()), Some(self.kernarg())].into_iter().flatten().collect()
    }

    /// Its memory, fine-grained. Of use where the CPU sees it (large BAR).
    pub fn fine_vram(&self) -> Pool {
        Pool::new(&self.context, PoolKind::FineVram, self.info.index())
    }

    /// System memory that all agents map, as [`crate::Runtime::gtt`].
    pub fn host(&self) -> Pool {
        Pool::new(&self.context, PoolKind::Gtt, self.info.index())
    }

    /// System memory for kernel arguments.
    pub fn kernarg(&self) -> Pool {
        Pool::new(&self.context, PoolKind::Kernarg, self.info.index())
    }
}

impl Runtime {
    /// System memory that all agents map.
    pub fn gtt(&self) -> Pool {
        Pool::new(self.context(), PoolKind::Gtt, AgentIndex(0))
    }

    /// System memory for kernel arguments.
    pub fn kernarg(&self) -> Pool {
        Pool::new(self.context(), PoolKind::Kernarg, AgentIndex(0))
    }
}
