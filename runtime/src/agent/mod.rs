// SPDX-License-Identifier: MIT OR Apache-2.0
//! Agents: the GPUs a runtime uses, as the topology describes them.
//!
//! INVARIANT: what an agent says about itself does not change while the process lives, except KFD's id for it, which
//! a restore may change, and where it has its seat: the GPU behind it, another one after a restore elsewhere.

mod links;
mod logical;
mod select;
pub mod spec;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kfd::GpuId;
use kfd::topology::{Cache, HEAP_TYPE_FB_PUBLIC, Link, Node};
use parking_lot::Mutex;
use queues::cwsr::CwsrGeometry;
use queues::target::Target;

pub use self::links::{LinkMatrix, NoPath, Path, PathKind, Place, Unreachable};
pub(crate) use self::logical::Claims;
pub use self::logical::{LogicalDevice, LogicalError, Scattered, Share};
pub use self::select::{LeftOut, LeftOutReason};
pub(crate) use self::select::{Selection, select};
use crate::checkpoint::Seat;
use crate::code_object::AgentFeatures;
use crate::error::{AllocError, Lost, OpenError};
use crate::pool::{Pool, PoolKind};
use crate::registry::state::AgentIndex;
use crate::runtime::Inner;

/// What is known of an agent.
#[derive(Debug)]
pub struct AgentInfo {
    index: AgentIndex,
    gpu: AtomicU32,
    render_minor: AtomicU32,
    seat: Mutex<Arc<Seat>>,
    uuid: String,
    target: &'static Target,
    geometry: CwsrGeometry,
    node: Node,
}

impl AgentInfo {
    /// Judges a GPU node, whose seat this is.
    ///
    /// # Errors
    /// [`OpenError::UnknownTarget`], [`OpenError::Geometry`].
    pub fn new(index: AgentIndex, node: Node, seat: Seat) -> Result<Self, OpenError> {
        let uuid = spec::uuid(node.properties.unique_id);
        let version = node.properties.gfx_target_version;
        let Some(target) = Target::from_gfx_version(version) else {
            return Err(OpenError::UnknownTarget { uuid, version });
        };
        let geometry = CwsrGeometry::for_node(&node.properties.shape())
            .map_err(|source| OpenError::Geometry { uuid: uuid.clone(), source })?;
        Ok(AgentInfo {
            index,
            gpu: AtomicU32::new(seat.gpu.0),
            render_minor: AtomicU32::new(seat.render_minor),
            seat: Mutex::new(Arc::new(seat)),
            uuid,
            target,
            geometry,
            node,
        })
    }

    /// Its position among the selected agents.
    pub fn index(&self) -> AgentIndex {
        self.index
    }

    /// KFD's id of the GPU, as of the last open.
    pub fn gpu(&self) -> GpuId {
        GpuId(self.gpu.load(Ordering::Relaxed))
    }

    /// Minor number of the GPU's render node, as of the last open.
    pub fn render_minor(&self) -> u32 {
        self.render_minor.load(Ordering::Relaxed)
    }

    /// The GPU behind it, as of the last open.
    pub fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.seat.lock())
    }

    /// Takes another seat, before the device is opened again.
    pub fn sit(&self, seat: Seat) {
        self.gpu.store(seat.gpu.0, Ordering::Relaxed);
        self.render_minor.store(seat.render_minor, Ordering::Relaxed);
        *self.seat.lock() = Arc::new(seat);
    }

    /// `GPU-` and its unique id.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Its instruction set.
    pub fn target(&self) -> &'static Target {
        self.target
    }

    /// The sizes of a queue's save area.
    pub fn geometry(&self) -> &CwsrGeometry {
        &self.geometry
    }

    /// Its node in the topology, as read when the runtime was opened.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Whether its SRAMs have ECC (capability bit 26), which code may be compiled for.
    pub fn has_sram_ecc(&self) -> bool {
        self.node.properties.capability & 1 << 26 != 0
    }

    /// Whether the CPU sees all of its memory (large BAR).
    pub fn is_visible(&self) -> bool {
        self.node.mem_banks.iter().any(|bank| bank.heap_type == HEAP_TYPE_FB_PUBLIC)
    }
}

/// A handle on an agent.
#[derive(Clone)]
pub struct Agent {
    pub(crate) inner: Arc<Inner>,
    pub(crate) info: Arc<AgentInfo>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("index", &self.info.index.0).field("name", &self.name()).finish()
    }
}

impl Agent {
    /// Its position among the runtime's agents.
    pub fn index(&self) -> usize {
        self.info.index.at()
    }

    /// `GPU-` and its unique id in 16 hexadecimal digits.
    pub fn uuid(&self) -> &str {
        &self.info.uuid
    }

    /// LLVM's name of its instruction set, such as `gfx1100`.
    pub fn name(&self) -> &'static str {
        self.info.target.name
    }

    /// Its instruction set and what follows from it.
    pub fn target(&self) -> &'static Target {
        self.info.target
    }

    /// KFD's id of the GPU.
    pub fn gpu_id(&self) -> GpuId {
        self.info.gpu()
    }

    /// Its node in the topology: properties, memory banks, and what else KFD says.
    pub fn node(&self) -> &Node {
        &self.info.node
    }

    /// Compute units.
    pub fn compute_units(&self) -> u32 {
        let properties = &self.info.node.properties;
        properties.simd_count.checked_div(properties.simd_per_cu).unwrap_or(0)
    }

    /// Its caches.
    pub fn caches(&self) -> &[Cache] {
        &self.info.node.caches
    }

    /// Its links to CPUs and other GPUs, direct ones first.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.info.node.io_links.iter().chain(&self.info.node.p2p_links)
    }

    /// Bytes of its memory.
    pub fn vram_bytes(&self) -> u64 {
        self.info.node.vram_bytes()
    }

    /// Bytes of its memory that could be allocated now.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn vram_available(&self) -> Result<u64, AllocError> {
        let pass = self.inner.gate.enter()?;
        Ok(self.inner.device_or_lost(&pass)?.available(self.info.index)?)
    }

    /// The agent's clock and the host's, read together.
    ///
    /// # Errors
    /// [`AllocError::Device`], [`AllocError::Lost`].
    pub fn clocks(&self) -> Result<kfd::ioctl::ClockCounters, AllocError> {
        let pass = self.inner.gate.enter()?;
        Ok(self.inner.device_or_lost(&pass)?.clocks(self.info.index)?)
    }

    pub(crate) fn features(&self) -> Result<AgentFeatures, Lost> {
        let pass = self.inner.gate.enter()?;
        let xnack = self.inner.device_or_lost(&pass)?.xnack();
        Ok(AgentFeatures { xnack, sramecc: self.info.has_sram_ecc() })
    }

    /// Its memory.
    pub fn vram(&self) -> Pool {
        Pool::new(&self.inner, PoolKind::Vram, self.info.index)
    }

    pub(crate) fn is_of(&self, inner: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.inner, inner)
    }
}
