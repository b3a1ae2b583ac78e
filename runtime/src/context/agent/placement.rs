// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPU behind an agent.
//!
//! INVARIANT: a placement and the topology it was found in belong to the same reading of the topology.

use std::sync::Arc;

use kfd::GpuId;
use kfd::topology::{Node, Topology};

/// A GPU that is here, for an agent to be placed on.
#[derive(Clone, Debug)]
pub struct Placement {
    /// KFD's id.
    pub gpu: GpuId,
    /// Minor number of its render node.
    pub render_minor: u32,
    topology: Arc<Topology>,
}

impl Placement {
    /// All GPUs of a topology, in its order.
    pub fn all(topology: &Topology) -> Vec<Self> {
        let shared = Arc::new(topology.clone());
        let placement = |node: &Node| Placement {
            gpu: node.gpu_id,
            render_minor: node.properties.drm_render_minor,
            topology: Arc::clone(&shared),
        };
        topology.gpus().map(placement).collect()
    }

    /// The topology it was found in.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Its node there.
    pub fn node(&self) -> Option<&Node> {
        self.topology.gpu(self.gpu)
    }
}
