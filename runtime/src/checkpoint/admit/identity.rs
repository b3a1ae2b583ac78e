// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a GPU and its surroundings: of one that an agent had, and of one that is here.
//!
//! INVARIANT: both are described by the same functions ([`Candidate::all`], [`AgentIdentity::of`]), so what differs in
//! the descriptions differs in the machines. What an older image does not say is absent, not zero.

use std::collections::BTreeMap;
use std::fmt;

use kfd::NodeId;
use kfd::topology::{Link, Node, Topology};
use serde::{Deserialize, Serialize};

use super::rules::{self, KFD_MAJOR, KFD_MINOR};
use crate::context::agent::placement::Placement;
use crate::context::agent::spec;

/// `type` of a link: PCI Express.
const PCIE: u32 = 2;
/// `type` of a link: XGMI.
const XGMI: u32 = 11;

/// What a link is made of: `type` of `io_links` and `p2p_links` (`kfd_topology.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkKind(pub u32);

impl LinkKind {
    /// PCI Express.
    pub const PCIE: Self = Self(PCIE);
    /// XGMI.
    pub const XGMI: Self = Self(XGMI);

    /// The better of two links between the same nodes.
    fn better(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other == Self::XGMI => other,
            _ => self,
        }
    }

    /// Whether `here` does for what was `had`: XGMI for anything, and anything where there was nothing.
    pub(super) fn does(had: Option<Self>, here: Option<Self>) -> bool {
        had.is_none() || here == had || here == Some(Self::XGMI)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("HyperTransport"),
            PCIE => f.write_str("PCIe"),
            5 => f.write_str("QPI"),
            XGMI => f.write_str("XGMI"),
            other => write!(f, "link type {other}"),
        }
    }
}

/// A link to a CPU node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLink {
    /// Which node.
    pub node: u32,
    /// What it is made of.
    pub kind: LinkKind,
}

/// What an agent was connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// The CPU node beside it.
    pub cpu: Option<CpuLink>,
    /// The process's other agents, by index, that it had a link to.
    pub agents: BTreeMap<u32, LinkKind>,
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
    /// KFD's id of the GPU. Since format 1.1.
    #[serde(default)]
    pub gpu_id: Option<u32>,
    /// Its position among all GPUs of its machine. Since format 1.1.
    #[serde(default)]
    pub ordinal: Option<u32>,
    /// What it was connected to. Since format 1.1.
    #[serde(default)]
    pub links: Option<Links>,
}

/// A GPU that is here, for an agent to take.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which GPU it is.
    pub placement: Placement,
    node: NodeId,
    ordinal: u32,
    unique_id: u64,
    name: String,
    properties: BTreeMap<String, u64>,
    /// The CPU node beside it.
    pub(super) cpu: Option<CpuLink>,
    links: Vec<(NodeId, LinkKind)>,
}

/// Version of the driver's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Changes that break.
    pub major: u32,
    /// Additions.
    pub minor: u32,
}

fn links(node: &Node) -> impl Iterator<Item = &Link> {
    node.io_links.iter().chain(&node.p2p_links)
}

impl Candidate {
    /// All GPUs of a topology, in its order.
    pub fn all(topology: &Topology) -> Vec<Self> {
        Placement::all(topology).iter().filter_map(Candidate::of).collect()
    }

    /// What is known of the GPU of a placement; `None` if its topology does not have it.
    pub fn of(placement: &Placement) -> Option<Self> {
        let topology = placement.topology();
        let (node, ordinal) = topology.gpus().zip(0..).find(|(node, _)| node.gpu_id == placement.gpu)?;
        let is_cpu =
            |number: u32| topology.nodes.iter().any(|node| node.id == NodeId(number) && !node.is_gpu());
        let cpu = links(node).find(|link| is_cpu(link.node_to));
        Some(Self {
            placement: placement.clone(),
            node: node.id,
            ordinal,
            unique_id: node.properties.unique_id,
            name: node.name.clone(),
            properties: rules::read(node),
            cpu: cpu.map(|link| CpuLink { node: link.node_to, kind: LinkKind(link.kind) }),
            links: links(node)
                .filter(|link| !is_cpu(link.node_to))
                .map(|link| (NodeId(link.node_to), LinkKind(link.kind)))
                .collect(),
        })
    }

    /// `GPU-` and its unique id.
    pub fn uuid(&self) -> String {
        spec::uuid(self.unique_id)
    }

    /// The link from here to there; the better one if there are several.
    pub(super) fn link_to(&self, other: &Self) -> Option<LinkKind> {
        let here = self.links.iter().filter(|(to, _)| *to == other.node).map(|(_, kind)| *kind);
        here.fold(None, |best, kind| Some(kind.better(best)))
    }

    /// A property, if it is known; `interface` answers for the machine's.
    pub(super) fn property(&self, name: &str, interface: Interface) -> Option<u64> {
        match name {
            name if name == KFD_MAJOR.property => Some(interface.major.into()),
            name if name == KFD_MINOR.property => Some(interface.minor.into()),
            name => self.properties.get(name).copied(),
        }
    }
}

impl AgentIdentity {
    /// What is remembered of agents on these GPUs, in their order.
    pub(super) fn of(candidates: &[&Candidate], interface: Interface) -> Vec<Self> {
        let agent = |(index, candidate): (usize, &&Candidate)| {
            let machine = [(KFD_MAJOR, interface.major), (KFD_MINOR, interface.minor)];
            let mut properties = candidate.properties.clone();
            properties.extend(machine.map(|(rule, value)| (rule.property.to_owned(), value.into())));
            let others = (0..).zip(candidates).filter(|(other, _)| *other as usize != index);
            Self {
                unique_id: candidate.unique_id,
                name: candidate.name.clone(),
                properties,
                gpu_id: Some(candidate.placement.gpu.0),
                ordinal: Some(candidate.ordinal),
                links: Some(Links {
                    cpu: candidate.cpu,
                    agents: others.filter_map(|(n, other)| Some((n, candidate.link_to(other)?))).collect(),
                }),
            }
        };
        candidates.iter().enumerate().map(agent).collect()
    }

    /// `GPU-` and its unique id.
    #[must_use]
    pub fn uuid(&self) -> String {
        spec::uuid(self.unique_id)
    }

    /// The CPU node beside it, if it is known.
    pub(super) fn cpu(&self) -> Option<CpuLink> {
        self.links.as_ref()?.cpu
    }

    /// The link to another agent of the process; `None` too if it is not known.
    pub(super) fn link_to(&self, agent: usize) -> Option<LinkKind> {
        let index = u32::try_from(agent).ok()?;
        self.links.as_ref()?.agents.get(&index).copied()
    }

    /// Whether this GPU is the one, or has its position.
    pub(super) fn likeness(&self, index: usize, candidate: &Candidate) -> Likeness {
        let ordinal = self.ordinal.map_or(index, |ordinal| ordinal as usize);
        match candidate {
            // Chips without a serial number all show 0.
            candidate if candidate.unique_id == self.unique_id && self.unique_id != 0 => Likeness::Same,
            candidate if candidate.ordinal as usize == ordinal => Likeness::SamePosition,
            _ => Likeness::None,
        }
    }
}

/// What speaks for a GPU, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Likeness {
    /// It is the same one.
    Same,
    /// It has the same position among its machine's GPUs.
    SamePosition,
    /// Nothing.
    None,
}
