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
use crate::context::clocks::Clocks;
use crate::context::device::Device;
use crate::context::error::{AllocError, CodeCacheError, DeviceError, LoadError, Lost};
use crate::context::memory::host_writes::Written;
use crate::context::queue::code_caches::settle;
use crate::context::registry::state::AgentIndex;

/// An agent's clock and the system's at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Ticks of the agent's clock ([`Agent::clock_frequency`]).
    pub gpu: u64,
    /// CLOCK_BOOTTIME of the process, nanoseconds.
    pub system: u64,
}

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

    pub(crate) fn with_clock<T>(
        &self,
        then: impl FnOnce(&Clocks, &Device, AgentIndex) -> Result<T, DeviceError>,
    ) -> Result<T, AllocError> {
        let pass = self.context.gate.enter()?;
        let on = self.context.device_or_lost(&pass)?;
        Ok(then(&self.context.clocks, on, self.info.index())?)
    }

    /// The agent's clock and the system's, read together. Both go on over a restore where they stood at the checkpoint, at the
    /// same rate, whatever the counter of the agent says that it is restored on; the agent's clock never goes back.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn clocks(&self) -> Result<ClockReading, AllocError> {
        let (gpu, system) = self.with_clock(Clocks::read)?;
        Ok(ClockReading { gpu, system })
    }

    /// Ticks of the agent's clock in a second.
    ///
    /// # Errors
    /// As for [`Agent::clocks`].
    pub fn clock_frequency(&self) -> Result<u64, AllocError> {
        self.with_clock(Clocks::frequency)
    }

    /// The system's time of a tick of the agent's clock: nanoseconds of CLOCK_BOOTTIME.
    ///
    /// # Errors
    /// As for [`Agent::clocks`].
    pub fn system_time(&self, ticks: u64) -> Result<u64, AllocError> {
        self.with_clock(|clocks, on, agent| clocks.time(on, agent, ticks))
    }

    /// The tick of the agent's clock when its counter said `counter`, as kernels read it and packets note it in memory. A value of
    /// before a restore that the counter says once more afterwards is taken for the later one;
    /// [`Signal::timestamps`](crate::Signal::timestamps) knows better.
    ///
    /// # Errors
    /// As for [`Agent::clocks`].
    pub fn ticks_of_counter(&self, counter: u64) -> Result<u64, AllocError> {
        self.with_clock(|clocks, on, agent| clocks.ticks(on, agent, counter))
    }

    /// The agent's counter and the machine's clocks, as the driver reads them (`AMDKFD_IOC_GET_CLOCK_COUNTERS`): they jump over a
    /// restore.
    ///
    /// # Errors
    /// As for [`Agent::clocks`].
    pub fn counters(&self) -> Result<kfd::ioctl::ClockCounters, AllocError> {
        self.with_clock(|_, on, agent| on.clocks(agent))
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
