// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission: are the agents here the ones the process had? Judged before anything is changed, every difference named.
//!
//! What must be equal and what may grow follows CRIU's amdgpu plugin (`device_properties_match`), plus the gfx target,
//! which a drained process still needs because its code objects are for one target.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kfd::Topology;
use kfd::topology::Node;
use serde::{Deserialize, Serialize};

use super::CheckpointError;
use super::parked::Parked;
use crate::error::OpenError;
use crate::runtime::Inner;

/// How a property is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Must be the same.
    Equal,
    /// May be larger here.
    AtLeast,
}

/// An agent as an image remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentIdentity {
    /// Serial number.
    pub unique_id: u64,
    /// ASIC name.
    pub name: String,
    /// The properties that are compared, by their sysfs names.
    pub properties: BTreeMap<String, u64>,
}

/// Which differences are borne.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admission {}

impl Admission {
    /// As the environment of this process says.
    #[must_use]
    pub fn from_env() -> Self {
        Self::default()
    }
}

/// One reason not to admit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Index of the agent.
    pub agent: usize,
    /// The property.
    pub property: String,
    /// What the process had.
    pub had: u64,
    /// What is here; `None`: there is no such agent.
    pub here: Option<u64>,
    /// Whether more would do.
    pub at_least: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.here {
            Some(here) => write!(
                f,
                "agent {} had {} {}{}, here it is {here}",
                self.agent,
                self.property,
                self.had,
                if self.at_least { " (or more)" } else { "" }
            ),
            None => write!(f, "there is no agent {}", self.agent),
        }
    }
}

fn compared(node: &Node) -> [(&'static str, u64, Rule); 23] {
    let p = &node.properties;
    let equal = |name, value: u32| (name, u64::from(value), Rule::Equal);
    let grows = |name, value: u32| (name, u64::from(value), Rule::AtLeast);
    [
        equal("gfx_target_version", p.gfx_target_version),
        equal("simd_count", p.simd_count),
        equal("mem_banks_count", p.mem_banks_count),
        equal("io_links_count", p.io_links_count),
        equal("max_waves_per_simd", p.max_waves_per_simd),
        equal("lds_size_in_kb", p.lds_size_in_kb),
        equal("wave_front_size", p.wave_front_size),
        equal("array_count", p.array_count),
        equal("simd_arrays_per_engine", p.simd_arrays_per_engine),
        equal("cu_per_simd_array", p.cu_per_simd_array),
        equal("simd_per_cu", p.simd_per_cu),
        equal("max_slots_scratch_cu", p.max_slots_scratch_cu),
        equal("vendor_id", p.vendor_id),
        equal("device_id", p.device_id),
        equal("num_sdma_engines", p.num_sdma_engines),
        equal("num_sdma_xgmi_engines", p.num_sdma_xgmi_engines),
        equal("num_sdma_queues_per_engine", p.num_sdma_queues_per_engine),
        equal("num_cp_queues", p.num_cp_queues),
        equal("capability", p.capability),
        grows("num_gws", p.num_gws),
        grows("caches_count", p.caches_count),
        grows("fw_version", p.fw_version),
        ("vram_bytes", node.vram_bytes(), Rule::AtLeast),
    ]
}

impl AgentIdentity {
    /// What is remembered of an agent.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        Self {
            unique_id: node.properties.unique_id,
            name: node.name.clone(),
            properties: compared(node).iter().map(|(name, value, _)| ((*name).to_owned(), *value)).collect(),
        }
    }

    /// What is in the way of `here` taking the place of this agent, whose index is `agent`.
    pub(super) fn differences(&self, agent: usize, here: Option<&Node>) -> Vec<Difference> {
        let Some(here) = here else {
            return vec![Difference { agent, property: String::new(), had: 0, here: None, at_least: false }];
        };
        compared(here)
            .iter()
            .filter_map(|(name, value, rule)| {
                let had = *self.properties.get(*name)?;
                let fits = if *rule == Rule::Equal { had == *value } else { had <= *value };
                (!fits).then(|| Difference {
                    agent,
                    property: (*name).to_owned(),
                    had,
                    here: Some(*value),
                    at_least: *rule == Rule::AtLeast,
                })
            })
            .collect()
    }
}

/// Compares the agents here with those of the process; nothing is changed unless all fit.
pub(super) fn admit(
    inner: &Arc<Inner>,
    parked: &Parked,
    _admission: &Admission,
) -> Result<(), CheckpointError> {
    let transport = &parked.transport;
    let topology = Topology::read(transport.sysfs()).map_err(|source| {
        CheckpointError::Open(OpenError::Topology { transport: transport.name().to_owned(), source })
    })?;
    let nodes: Vec<_> = topology.gpus().collect();
    // The same GPU if it is here, else the one in its place.
    let node_of = |agent: &AgentIdentity, index: usize| {
        nodes.iter().find(|n| n.properties.unique_id == agent.unique_id).or_else(|| nodes.get(index)).copied()
    };
    let found: Vec<_> = parked.agents.iter().enumerate().map(|(n, agent)| node_of(agent, n)).collect();
    let differences: Vec<_> = parked
        .agents
        .iter()
        .zip(&found)
        .enumerate()
        .flat_map(|(n, (agent, node))| agent.differences(n, *node))
        .collect();
    if !differences.is_empty() {
        return Err(CheckpointError::Agents { differences });
    }
    if let Some(captured) = &parked.captured {
        captured.check_gpus(&nodes.iter().map(|node| node.gpu_id).collect::<Vec<_>>())?;
    }
    for (agent, node) in inner.agents.iter().zip(found) {
        if let Some(node) = node {
            agent.set_gpu(node.gpu_id);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let mut node = Node {
            id: kfd::NodeId(1),
            gpu_id: kfd::GpuId(7),
            name: "gfx1100".into(),
            properties: Default::default(),
            mem_banks: Vec::new(),
            caches: Vec::new(),
            io_links: Vec::new(),
            p2p_links: Vec::new(),
        };
        node.properties.simd_count = 192;
        node.properties.fw_version = 2140;
        node
    }

    #[test]
    fn the_same_agent_is_admitted() {
        assert_eq!(AgentIdentity::of(&node()).differences(0, Some(&node())), []);
    }

    #[test]
    fn newer_firmware_is_admitted_and_older_is_named() {
        let had = AgentIdentity::of(&node());
        let mut here = node();
        here.properties.fw_version += 1;
        assert_eq!(had.differences(0, Some(&here)), []);
        here.properties.fw_version -= 2;
        let found = had.differences(3, Some(&here));
        assert_eq!(found[0].to_string(), "agent 3 had fw_version 2140 (or more), here it is 2139");
    }

    #[test]
    fn every_difference_is_named() {
        let mut here = node();
        here.properties.simd_count = 168;
        here.properties.gfx_target_version = 120001;
        let found = AgentIdentity::of(&node()).differences(0, Some(&here));
        assert_eq!(
            found.iter().map(|d| d.property.as_str()).collect::<Vec<_>>(),
            ["gfx_target_version", "simd_count"]
        );
        assert_eq!(AgentIdentity::of(&node()).differences(1, None)[0].to_string(), "there is no agent 1");
    }
}
