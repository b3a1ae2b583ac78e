// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology file as it is written: keys and types, nothing judged (`docs/topology.md`).
//!
//! INVARIANT: a key that is not here is refused by name, never ignored: a misspelt one would quietly model another
//! machine than the one that was meant.

use serde::Deserialize;

use super::values::{Bandwidth, Bar, Bytes, Slot, Wide};

/// A whole machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    /// Whether the kernel was built with `CONFIG_HSA_AMD_P2P` and runs with `pcie_p2p`.
    #[serde(default = "yes")]
    pub pcie_p2p: bool,
    #[serde(default)]
    pub numa: Vec<Numa>,
    #[serde(default)]
    pub gpu: Vec<Gpu>,
    #[serde(default)]
    pub link: Vec<Link>,
    #[serde(default)]
    pub unreachable: Vec<Unreachable>,
}

/// A NUMA node with its processors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Numa {
    pub memory: Bytes,
    pub cores: u32,
    /// To every node, in order.
    pub distance: Option<Vec<u32>>,
}

/// A GPU.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gpu {
    pub chip: String,
    pub vram_bytes: Option<Bytes>,
    pub bar: Option<Bar>,
    pub bar_read_mbytes: Option<u32>,
    pub numa_node: Option<usize>,
    pub pci: Option<Slot>,
    pub unique_id: Option<Wide>,
    pub render_minor: Option<u32>,
    pub hive: Option<Wide>,
    pub pcie_bandwidth: Option<Bandwidth>,
    pub num_xcc: Option<u32>,
    pub cwsr_size: Option<u32>,
    pub ctl_stack_size: Option<u32>,
}

/// What a link is made of; PCIe needs no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LinkKind {
    Xgmi,
}

/// A link between two GPUs, in both directions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub kind: LinkKind,
    pub gpus: [usize; 2],
    pub hops: Option<u32>,
    pub bandwidth: Option<Bandwidth>,
}

/// GPU `from` gets no PCIe transaction through to GPU `to` (`pci_p2pdma_distance` < 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unreachable {
    pub from: usize,
    pub to: usize,
}

impl Description {
    /// GPUs with nothing said about them.
    pub fn of_chips(chips: Vec<&str>) -> Self {
        let gpu = |chip: &str| Gpu { chip: chip.to_owned(), ..Gpu::default() };
        let gpu = chips.into_iter().map(gpu).collect();
        Self { pcie_p2p: yes(), numa: Vec::new(), gpu, link: Vec::new(), unreachable: Vec::new() }
    }
}

fn yes() -> bool {
    true
}
