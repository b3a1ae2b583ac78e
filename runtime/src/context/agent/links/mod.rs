// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links: who reaches whose memory, over what.
//!
//! A link of the topology from node A to node B says that A reaches B's memory, not the other way round. KFD lists the
//! links of an XGMI hive under `io_links` and those of PCIe peers under `p2p_links`; the latter only where the peer's
//! BAR shows all of its memory and the bridges between let the transactions through, which may hold in one direction
//! only.
//!
//! INVARIANT: a path is a link that the topology has, in its direction; where it has none the driver refuses to map a
//! peer's memory (EINVAL), and so do we, before it is asked.

use std::fmt;

use kfd::topology::{HEAP_TYPE_FB_PUBLIC, Link, Node};

/// `type` of a link: PCI Express.
const PCIE: u32 = 2;
/// `type` of a link: XGMI.
const XGMI: u32 = 11;
/// Weight of one XGMI hop (`kfd_topology.c`).
const HOP_WEIGHT: u32 = 15;
/// Flag of a link: no DMA between peers (`CRAT_IOLINK_FLAGS_NO_PEER_TO_PEER_DMA`).
const NO_PEER_DMA: u32 = 1 << 4;

/// What a path is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathKind {
    /// One memory: no link lies between.
    Same,
    /// XGMI within a hive.
    Xgmi {
        /// Links on the way.
        hops: u32,
    },
    /// PCI Express; between two agents through the peer's BAR.
    Pcie,
    /// Between processor sockets (HyperTransport, QPI), or within a package.
    Socket,
    /// There is no way.
    None,
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathKind::Same => f.write_str("same"),
            PathKind::Xgmi { hops: 1 } => f.write_str("XGMI"),
            PathKind::Xgmi { hops } => write!(f, "XGMI/{hops}"),
            PathKind::Pcie => f.write_str("PCIe"),
            PathKind::Socket => f.write_str("socket"),
            PathKind::None => f.write_str("-"),
        }
    }
}

/// The way from one place to another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// What it is made of.
    pub kind: PathKind,
    /// KFD's distance: 15 per XGMI hop, 20 per PCIe link to a CPU, so 40 between PCIe peers below one CPU; 0 for the
    /// same memory and for no path.
    pub weight: u32,
    /// Least bandwidth in MB/s, 0 if the topology does not say.
    pub min_bandwidth: u32,
    /// Most bandwidth in MB/s, 0 if the topology does not say.
    pub max_bandwidth: u32,
}

impl Path {
    /// No way.
    pub const NONE: Self = Self::bare(PathKind::None);
    /// The same memory.
    pub const SAME: Self = Self::bare(PathKind::Same);

    const fn bare(kind: PathKind) -> Self {
        Self { kind, weight: 0, min_bandwidth: 0, max_bandwidth: 0 }
    }

    /// Whether there is a way.
    #[must_use]
    pub const fn exists(&self) -> bool {
        !matches!(self.kind, PathKind::None)
    }

    fn over(link: &Link) -> Self {
        let kind = match link.kind {
            PCIE => PathKind::Pcie,
            XGMI => PathKind::Xgmi { hops: (link.weight / HOP_WEIGHT).max(1) },
            _ => PathKind::Socket,
        };
        Self {
            kind,
            weight: link.weight,
            min_bandwidth: link.min_bandwidth,
            max_bandwidth: link.max_bandwidth,
        }
    }
}

/// Why an agent does not reach another one's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The owner's BAR shows a part of its memory only.
    #[error(
        "its BAR shows the host and PCIe peers only a part of it; enable resizable BAR in the firmware's setup, or use \
         memory of Runtime::gtt, or let Runtime::copy stage"
    )]
    SmallBar,
    /// There is a link, but the other way round.
    #[error(
        "there is a P2P link in the other direction only; let the other agent push or pull, or let Runtime::copy stage"
    )]
    OneWay,
    /// There is no link.
    #[error(
        "there is no P2P link between them; the kernel makes one with CONFIG_HSA_AMD_P2P, amdgpu.pcie_p2p=1 and bridges \
         that let peers through; use memory of Runtime::gtt, or let Runtime::copy stage"
    )]
    Unlinked,
}

/// An agent does not reach another one's memory. The driver was not asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Agent {accessor} cannot address the memory of agent {owner}: {why}")]
pub struct NoPath {
    /// Index, uuid and target of the agent that was to address it.
    pub accessor: String,
    /// Index, uuid and target of the agent whose memory it is.
    pub owner: String,
    /// Why.
    pub why: Unreachable,
}

fn links(node: &Node) -> impl Iterator<Item = &Link> {
    node.io_links.iter().chain(&node.p2p_links)
}

/// The best way from a node to another one's memory.
pub fn path(from: &Node, to: &Node) -> Path {
    if from.id == to.id {
        return Path::SAME;
    }
    let peers = from.is_gpu() && to.is_gpu();
    links(from)
        .filter(|link| link.node_from == from.id.0 && link.node_to == to.id.0)
        .filter(|link| !peers || link.flags & NO_PEER_DMA == 0)
        .min_by_key(|link| (link.kind != XGMI, link.weight))
        .map_or(Path::NONE, Path::over)
}

/// Why there is no way from a node to another one's memory.
pub fn why_not(from: &Node, to: &Node) -> Unreachable {
    let public = to.mem_banks.iter().any(|bank| bank.heap_type == HEAP_TYPE_FB_PUBLIC);
    if !public {
        Unreachable::SmallBar
    } else if path(to, from).exists() {
        Unreachable::OneWay
    } else {
        Unreachable::Unlinked
    }
}

/// A row and column of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// An agent.
    Agent {
        /// Its index in the runtime.
        index: usize,
        /// Its uuid.
        uuid: String,
        /// Its target.
        target: &'static str,
    },
    /// A NUMA node of the host.
    Host {
        /// Its node in the topology.
        node: u32,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Agent { index, target, .. } => write!(f, "{index} {target}"),
            Place::Host { node } => write!(f, "host {node}"),
        }
    }
}

/// The links over which each place reaches the memory of each other: the agents, then the host's NUMA nodes.
///
/// As text it is a table: a row's place reaches the memory of the column's over what is in the cell, with its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkMatrix {
    places: Vec<Place>,
    /// Row by row.
    paths: Vec<Path>,
}

impl LinkMatrix {
    /// The matrix of these places, whose nodes are of one topology.
    pub fn new(nodes: &[(Place, &Node)]) -> Self {
        let paths = nodes.iter().flat_map(|(_, from)| nodes.iter().map(|(_, to)| path(from, to))).collect();
        Self { places: nodes.iter().map(|(place, _)| place.clone()).collect(), paths }
    }

    /// Its rows and columns.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The way from one place to another's memory, by their positions in [`LinkMatrix::places`]; none for a position
    /// that does not exist.
    #[must_use]
    pub fn path(&self, from: usize, to: usize) -> Path {
        let n = self.places.len();
        let cell = (from < n && to < n).then(|| self.paths.get(from * n + to).copied());
        cell.flatten().unwrap_or(Path::NONE)
    }

    /// All pairs of different places.
    pub fn pairs(&self) -> impl Iterator<Item = (&Place, &Place, Path)> {
        let cell = move |from: usize, to: usize| (&self.places[from], &self.places[to], self.path(from, to));
        let n = self.places.len();
        (0..n).flat_map(move |from| (0..n).filter(move |to| *to != from).map(move |to| cell(from, to)))
    }
}

impl fmt::Display for LinkMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.places.iter().map(Place::to_string).collect();
        let cell = |from, to| match self.path(from, to) {
            Path { kind: kind @ (PathKind::Same | PathKind::None), .. } => kind.to_string(),
            Path { kind, weight, .. } => format!("{kind} {weight}"),
        };
        let n = names.len();
        let width = |to: usize| {
            let cells = (0..n).map(|from| cell(from, to).chars().count());
            cells.chain([names[to].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..n).map(width).collect();
        let first = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let mut line = format!("{:first$}", "");
        for (name, width) in names.iter().zip(&widths) {
            line.push_str(&format!("  {name:width$}"));
        }
        writeln!(f, "{}", line.trim_end())?;
        for (from, name) in names.iter().enumerate() {
            let mut line = format!("{name:first$}");
            for (to, width) in widths.iter().enumerate() {
                line.push_str(&format!("  {:width$}", cell(from, to)));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
