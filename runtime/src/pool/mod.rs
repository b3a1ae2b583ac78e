// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: the address window, the pools, and the buffers allocated from them.
//!
//! INVARIANT: a buffer has one address for its whole life, the same for the CPU and every agent, across checkpoints
//! too.

pub mod arena;
mod buffer;
pub mod mapped;
mod pointer;
mod registered;
pub mod stats;
pub mod window;

use std::fmt;
use std::sync::Arc;

use kfd::Errno;

use self::arena::page_align;
pub use self::buffer::{Buffer, HostGuard};
use self::mapped::Mapped;
pub use self::pointer::{PointerInfo, PointerKind};
pub use self::registered::Registered;
use self::stats::Holdings;
use crate::agent::Agent;
use crate::device::{Device, flags};
use crate::error::{AllocError, DeviceError};
use crate::gate::Pass;
use crate::registry::Registry;
use crate::registry::state::{AgentIndex, BoKey, BoKind, BoRole, BoState};
use crate::runtime::Inner;

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
    inner: Arc<Inner>,
    kind: PoolKind,
    agent: AgentIndex,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("kind", &self.kind).field("agent", &self.agent).finish()
    }
}

/// Memory to be made for the runtime itself or a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub kind: BoKind,
    pub role: BoRole,
    pub bytes: u64,
    pub flags: u32,
    pub agent: AgentIndex,
    pub mapped: Vec<AgentIndex>,
    pub cpu_mapped: bool,
    /// Power of two, at least a page.
    pub align: u64,
}

impl Request {
    /// System memory for the runtime's own structures, mapped to one agent.
    pub fn queue_memory(role: BoRole, bytes: u64, agent: AgentIndex) -> Self {
        Request {
            kind: BoKind::Gtt,
            role,
            bytes,
            flags: flags::QUEUE,
            agent,
            mapped: vec![agent],
            cpu_mapped: true,
            align: arena::PAGE,
        }
    }

    /// System memory mapped to all `agents` agents.
    pub fn shared(role: BoRole, bytes: u64, agents: usize) -> Self {
        // CAST: there are at most 64 agents.
        let mapped = (0..agents as u32).map(AgentIndex).collect();
        Request { mapped, flags: flags::GTT, ..Request::queue_memory(role, bytes, AgentIndex(0)) }
    }

    /// An agent's memory; the CPU sees it if it can.
    pub fn vram(role: BoRole, bytes: u64, agent: AgentIndex, visible: bool) -> Self {
        Request {
            kind: BoKind::Vram,
            flags: if visible { flags::VRAM_VISIBLE } else { flags::VRAM_HIDDEN },
            cpu_mapped: visible,
            ..Request::queue_memory(role, bytes, agent)
        }
    }
}

impl Request {
    /// Its entry's state, for the pages it takes; the address is chosen at registration.
    pub fn into_state(self) -> BoState {
        let Request { kind, role, bytes, flags, agent, mapped, cpu_mapped, align: _ } = self;
        // Saturates above any window's length; the registration refuses it then.
        let bytes = page_align(bytes).unwrap_or(!(arena::PAGE - 1));
        BoState {
            kind,
            role,
            bytes,
            va: 0,
            flags,
            agent,
            mapped,
            for_copies: Vec::new(),
            cpu_mapped,
            sharing: None,
        }
    }
}

impl Pool {
    pub(crate) fn new(inner: &Arc<Inner>, kind: PoolKind, agent: AgentIndex) -> Self {
        Pool { inner: Arc::clone(inner), kind, agent }
    }

    /// What its memory is.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Whether the CPU sees its memory.
    pub fn is_visible(&self) -> bool {
        !self.is_of_agent() || self.inner.agents[self.agent.at()].is_visible()
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
            true => self.inner.agents[self.agent.at()].node().vram_bytes(),
            false => host_memory("MemTotal:"),
        }
    }

    /// Bytes that could be allocated now, as the driver or the kernel says.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn available(&self) -> Result<u64, AllocError> {
        if !self.is_of_agent() {
            return Ok(host_memory("MemAvailable:"));
        }
        let pass = self.inner.gate.enter()?;
        Ok(self.inner.device_or_lost(&pass)?.available(self.agent)?)
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
                Request::shared(BoRole::User, bytes, self.inner.agents.len())
            }
        }
    }

    /// Makes what was requested; `bytes` is what the handle says.
    pub(crate) fn make(&self, request: Request, bytes: u64) -> Result<Buffer, AllocError> {
        self.inner.make_buffer(request, bytes)
    }

    /// Allocates a buffer of at least `bytes` bytes, zeroed or with what a buffer before it left.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with what is available, [`AllocError::Empty`], [`AllocError::Address`],
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, AllocError> {
        self.make(self.request(bytes), bytes)
    }
}

impl Inner {
    /// Makes a buffer object and a handle that says `bytes`.
    fn make_buffer(self: &Arc<Self>, request: Request, bytes: u64) -> Result<Buffer, AllocError> {
        let pass = self.gate.enter()?;
        self.free_deferred(&pass);
        let mut registry = self.registry.lock();
        let device = self.device_or_lost(&pass)?;
        let key = self.make_bo(&mut registry, device, request)?;
        Ok(Buffer::new(self, &registry, key, bytes))
    }

    /// Registers and makes a buffer object.
    pub(crate) fn make_bo(
        &self,
        registry: &mut Registry,
        device: &Device,
        request: Request,
    ) -> Result<BoKey, AllocError> {
        let Request { kind, agent, bytes: wanted, align, .. } = request;
        if wanted == 0 {
            return Err(AllocError::Empty);
        }
        let key = registry.add_aligned_bo(request.into_state(), align)?;
        let Some(bo) = registry.bos.get_mut(key) else {
            return Err(DeviceError::Absent { what: "the entry" }.into());
        };
        match device.create_bo(bo) {
            Ok(()) => {
                registry.tally.settle();
                Ok(key)
            }
            Err(error) => {
                registry.remove_bo(key);
                let held = Holdings::of(registry, stats::place_of(kind, agent));
                Err(self.alloc_error(device, kind, agent, wanted, held, error))
            }
        }
    }

    /// Says how much there is when there was not enough.
    fn alloc_error(
        &self,
        device: &Device,
        kind: BoKind,
        agent: AgentIndex,
        wanted: u64,
        held: Holdings,
        error: DeviceError,
    ) -> AllocError {
        if matches!(error.errno(), Some(Errno::MFILE | Errno::NFILE)) {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            return AllocError::Files { limit: limit.current.unwrap_or(u64::MAX), source: error };
        }
        let no_memory = matches!(&error, DeviceError::Ioctl { source, .. } if source.errno == Errno::NOMEM);
        if !no_memory {
            return error.into();
        }
        let (name, available) = match kind {
            BoKind::Vram => {
                let info = &self.agents[agent.at()];
                let name = format!("{} ({})", info.target().name, info.uuid());
                (name, device.available(agent).unwrap_or(0))
            }
            _ => ("gtt".to_owned(), host_memory("MemAvailable:")),
        };
        AllocError::OutOfMemory { agent: name, wanted, available, held }
    }

    /// A view of a buffer object the CPU sees.
    pub(crate) fn view(registry: &Registry, key: BoKey) -> Option<Mapped> {
        let state = &registry.bos.get(key)?.state;
        if !state.cpu_mapped {
            return None;
        }
        mapped::view(state.va, state.bytes)
    }

    pub(crate) fn device_or_lost<'p>(
        &'p self,
        pass: &'p Pass<'_>,
    ) -> Result<&'p Arc<Device>, crate::error::Lost> {
        self.device(pass)
            .ok_or(crate::error::Lost { what: "the device was closed under an open gate", source: None })
    }
}

/// A line of `/proc/meminfo` in bytes, 0 if it cannot be read.
fn host_memory(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(0, |kib| kib.saturating_mul(1024))
}

impl Agent {
    /// All pools it can use: its own memory, coarse-grained and, where the CPU sees it, fine-grained, then the host's and
    /// that for kernel arguments.
    pub fn pools(&self) -> Vec<Pool> {
        let fine = self.info.is_visible().then(|| self.fine_vram());
        [Some(self.vram()), fine, Some(self.host()), Some(self.kernarg())].into_iter().flatten().collect()
    }

    /// Its memory, fine-grained. Of use where the CPU sees it (large BAR).
    pub fn fine_vram(&self) -> Pool {
        Pool::new(&self.inner, PoolKind::FineVram, self.info.index())
    }

    /// System memory that all agents map, as [`crate::Runtime::gtt`].
    pub fn host(&self) -> Pool {
        Pool::new(&self.inner, PoolKind::Gtt, self.info.index())
    }

    /// System memory for kernel arguments.
    pub fn kernarg(&self) -> Pool {
        Pool::new(&self.inner, PoolKind::Kernarg, self.info.index())
    }
}
