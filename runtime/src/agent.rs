// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle on an agent: a GPU that the runtime uses, as the topology describes it.
//!
//! INVARIANT: a handle stays valid while the process lives; after a restore it may stand for another GPU.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use kfd::GpuId;
use kfd::topology::{Cache, Link, Node};
use queues::target::Target;

use crate::code_object::AgentFeatures;
use crate::code_object::bundle::code_for;
use crate::context::Context;
use crate::context::agent::agents::{path, reach};
use crate::context::agent::info::AgentInfo;
use crate::context::agent::links::{NoPath, Path};
use crate::context::error::{AllocError, CodeCacheError, LoadError, Lost};
use crate::context::memory::host_writes::Written;
use crate::context::queue::code_caches::settle;

/// A handle on an agent.
#[derive(Clone)]
pub struct Agent {
    pub(crate) context: Arc<Context>,
    pub(crate) info: Arc<AgentInfo>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("index", &self.info.index().0).field("name", &self.name()).finish()
    }
}

impl Agent {
    /// Its position among the runtime's agents.
    #[inline]
    pub fn index(&self) -> usize {
        self.info.index().at()
    }

    /// `GPU-` and its unique id in 16 hexadecimal digits.
    pub fn uuid(&self) -> &str {
        self.info.uuid()
    }

    /// LLVM's name of its instruction set, such as `gfx1100`.
    pub fn name(&self) -> &'static str {
        self.info.target().name
    }

    /// Its instruction set and what follows from it.
    pub fn target(&self) -> &'static Target {
        self.info.target()
    }

    /// KFD's id of the GPU.
    pub fn gpu_id(&self) -> GpuId {
        self.info.gpu()
    }

    /// Its node in the topology: properties, memory banks, and what else KFD says.
    pub fn node(&self) -> &Node {
        self.info.node()
    }

    /// Compute units.
    pub fn compute_units(&self) -> u32 {
        let properties = &self.info.node().properties;
        properties.simd_count.checked_div(properties.simd_per_cu).unwrap_or(0)
    }

    /// Its caches.
    pub fn caches(&self) -> &[Cache] {
        &self.info.node().caches
    }

    /// Its links to CPUs and other GPUs, direct ones first.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.info.node().io_links.iter().chain(&self.info.node().p2p_links)
    }

    /// Bytes of its memory.
    pub fn vram_bytes(&self) -> u64 {
        self.info.node().vram_bytes()
    }

    /// Bytes of its memory that could be allocated now.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn vram_available(&self) -> Result<u64, AllocError> {
        let pass = self.context.gate.enter()?;
        Ok(self.context.device_or_lost(&pass)?.available(self.info.index())?)
    }

    /// The agent's clock and the host's, read together.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn clocks(&self) -> Result<kfd::ioctl::ClockCounters, AllocError> {
        let pass = self.context.gate.enter()?;
        Ok(self.context.device_or_lost(&pass)?.clocks(self.info.index())?)
    }

    /// The code object of a file that this agent would load: the file itself, or of an offload bundle the entry for this
    /// agent's processor and settings, else the one for a generic target that its processor belongs to. The file is not
    /// parsed beyond that.
    ///
    /// # Errors
    /// [`LoadError::CodeObject`] for a bundle that is damaged or has no code for it, [`LoadError::Lost`].
    pub fn code_of<'data>(&self, file: &'data [u8]) -> Result<Cow<'data, [u8]>, LoadError> {
        Ok(code_for(file, self.target(), self.features()?)?)
    }

    /// Has everything that the host wrote to agents' memory through pointers or buffers reach that memory. Packets and signals
    /// do it by themselves: this is for kernels that run already and look at memory again and again, and for other
    /// processes that have the memory.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn flush_host_writes(&self) -> Result<(), Lost> {
        let pass = self.context.gate.enter()?;
        self.context.host_writes.note(Written::to(self.info.index()));
        self.context.host_writes.flush(&pass);
        Ok(())
    }

    /// Makes the agent fetch code from memory that it may have older bytes of in its instruction caches; returns when that
    /// is done. For those who write instructions into buffers themselves: [`Executable::load`](crate::Executable::load)
    /// does it where it must. No packet that runs such code may have been submitted.
    ///
    /// # Errors
    /// [`CodeCacheError`]; the agent may run older code then.
    pub fn invalidate_code(&self) -> Result<(), CodeCacheError> {
        let pass = self.context.gate.enter()?;
        self.context.code_caches.mark_stale(self.info.index());
        settle(&self.context, &pass, &self.info)
    }

    pub(crate) fn features(&self) -> Result<AgentFeatures, Lost> {
        let pass = self.context.gate.enter()?;
        let xnack = self.context.device_or_lost(&pass)?.xnack();
        Ok(AgentFeatures { xnack, sramecc: self.info.has_sram_ecc() })
    }

    #[inline]
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

impl Agent {
    /// The way from this agent to another one's memory, on the GPUs they have now. Not the way back: that is
    /// `other.path_to(self)`.
    pub fn path_to(&self, other: &Agent) -> Path {
        path(&self.context, self.info.index(), other.info.index())
    }

    /// As [`Agent::path_to`], or why there is none.
    ///
    /// # Errors
    /// [`NoPath`], naming both agents.
    pub fn reach(&self, other: &Agent) -> Result<Path, NoPath> {
        reach(&self.context, self.info.index(), other.info.index())
    }
}
