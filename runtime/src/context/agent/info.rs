// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of an agent.
//!
//! INVARIANT: what an agent says about itself does not change while the process lives, except its placement: the GPU
//! behind it, which a restore may change, and with it KFD's id and the render node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kfd::GpuId;
use kfd::topology::{HEAP_TYPE_FB_PUBLIC, Node};
use parking_lot::Mutex;
use queues::cwsr::{CwsrGeometry, Disagreement, GeometryError, NodeShape};
use queues::sdma::Generation;
use queues::target::Target;

use super::placement::Placement;
use super::spec;
use crate::context::error::OpenError;
use crate::context::registry::state::AgentIndex;

/// What is known of an agent.
#[derive(Debug)]
pub struct AgentInfo {
    index: AgentIndex,
    gpu: AtomicU32,
    render_minor: AtomicU32,
    placement: Mutex<Arc<Placement>>,
    uuid: String,
    target: &'static Target,
    geometry: CwsrGeometry,
    node: Node,
}

impl AgentInfo {
    /// Checks that a GPU node can be an agent.
    ///
    /// # Errors
    /// [`OpenError::UnknownTarget`], [`OpenError::Geometry`].
    pub fn new(index: AgentIndex, node: Node, placement: Placement) -> Result<Self, OpenError> {
        let uuid = spec::uuid(node.properties.unique_id);
        let version = node.properties.gfx_target_version;
        let Some(target) = Target::from_gfx_version(version) else {
            return Err(OpenError::UnknownTarget { uuid, version });
        };
        let geometry = geometry(&node.properties.shape(), &uuid)
            .map_err(|source| OpenError::Geometry { uuid: uuid.clone(), source })?;
        Ok(AgentInfo {
            index,
            gpu: AtomicU32::new(placement.gpu.0),
            render_minor: AtomicU32::new(placement.render_minor),
            placement: Mutex::new(Arc::new(placement)),
            uuid,
            target,
            geometry,
            node,
        })
    }

    /// Its position among the selected agents.
    #[inline]
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
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placement.lock())
    }

    /// Changes the GPU behind it, before the device is opened again.
    pub fn place(&self, placement: Placement) {
        self.gpu.store(placement.gpu.0, Ordering::Relaxed);
        self.render_minor.store(placement.render_minor, Ordering::Relaxed);
        *self.placement.lock() = Arc::new(placement);
    }

    /// `GPU-` and the unique id of the GPU behind it.
    pub fn placed_uuid(&self) -> String {
        self.placement()
            .node()
            .map_or_else(|| self.uuid.clone(), |node| spec::uuid(node.properties.unique_id))
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

    /// How many copy engines it has whose packets are known.
    pub fn copy_engines(&self) -> u32 {
        let properties = &self.node.properties;
        match Generation::of(self.target) {
            Some(_) => properties.num_sdma_engines.saturating_add(properties.num_sdma_xgmi_engines),
            None => 0,
        }
    }

    /// Whether the CPU sees all of its memory (large BAR).
    pub fn is_visible(&self) -> bool {
        self.node.mem_banks.iter().any(|bank| bank.heap_type == HEAP_TYPE_FB_PUBLIC)
    }
}

/// The sizes of a queue's save area, with a warning for each number that the kernel has and the formula does not give:
/// one of them does not know the chip.
fn geometry(shape: &NodeShape, uuid: &str) -> Result<CwsrGeometry, GeometryError> {
    for Disagreement { property, reported, computed } in CwsrGeometry::computed(shape)?.disagreements(shape) {
        let version = shape.gfx_target_version;
        tracing::warn!(target: "queues", uuid, version, property, reported, computed,
            "the kernel sizes save areas otherwise than the table of targets; its control stack and the larger save \
             size are used");
    }
    CwsrGeometry::for_node(shape)
}
