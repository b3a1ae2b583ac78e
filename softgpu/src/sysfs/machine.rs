// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine: what a device list or a topology file describes, checked, with everything filled in that it leaves out.
//!
//! INVARIANT: a machine that exists is possible: indices are in range, and no two GPUs share a slot, a render node or a
//! serial number. Masks and links speak of GPUs by their position.

mod checks;
#[cfg(test)]
mod tests;

use queues::words::count;
use std::collections::BTreeMap;

use queues::cwsr::{CwsrGeometry, NodeShape};

use super::chips::Chip;
use super::description::{Description, Gpu, LinkKind, Numa};
use super::gpu_id;
use super::host::Host;
use super::machine_error::MachineError;
use super::model::{GpuModel, Reach, SMALL_BAR_BYTES};
use super::spec::{self, MAX_SPEC_GPUS, SpecError};
use super::values::{Bandwidth, Bar, DISTANCES, Slot};

/// Gen 1 x1 and gen 4 x16 in MB/s, as `amdgpu_amdkfd_get_pcie_bandwidth_mbytes` computes them.
const PCIE: Bandwidth = Bandwidth { min: 312, max: 32_000 };
/// The serial number of the first card of a list.
const FIRST_SERIAL: u64 = 11_673_270_660_693_242_239;
/// The golden ratio's bits, so that neighbours' serial numbers differ in all digits.
const SERIAL_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// An XGMI connection of two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Xgmi {
    pub hops: u32,
    pub bandwidth: Bandwidth,
}

/// A NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuNode {
    pub cores: u32,
    /// Number of the first core.
    pub first_core: u32,
    pub ram_bytes: u64,
}

/// CPUs, GPUs, and the links between them.
#[derive(Debug)]
pub struct Machine {
    gpus: Vec<GpuModel>,
    pcie_p2p: bool,
    /// Empty: one node, the host.
    numa: Vec<CpuNode>,
    /// By node and node.
    distances: Vec<Vec<u32>>,
    /// By the lower and the higher GPU.
    xgmi: BTreeMap<(usize, usize), Xgmi>,
}

impl Machine {
    /// The machine of a list such as `gfx1100*2,gfx1201`: one CPU node, every card with a large BAR behind a bridge of
    /// its own, all of them reaching each other over PCIe.
    ///
    /// # Errors
    /// Every [`SpecError`] but those of topology files.
    pub fn of_list(list: &str) -> Result<Self, SpecError> {
        Self::build(&spec::description(list)?)
    }

    /// The machine that the text of a topology file describes (`docs/topology.md`).
    ///
    /// # Errors
    /// [`SpecError::Toml`], [`SpecError::Machine`], [`SpecError::Unknown`], [`SpecError::Empty`],
    /// [`SpecError::TooMany`].
    pub fn of_file(text: &str) -> Result<Self, SpecError> {
        let description = toml::from_str(text).map_err(|error| SpecError::Toml(Box::new(error)))?;
        Self::build(&description)
    }

    fn build(description: &Description) -> Result<Self, SpecError> {
        match description.gpu.len() {
            0 => return Err(SpecError::Empty),
            wanted if wanted > MAX_SPEC_GPUS => return Err(SpecError::TooMany { wanted }),
            _ => checks::numbers(description).map_err(SpecError::Machine)?,
        }
        let mut gpus: Vec<GpuModel> = Vec::with_capacity(description.gpu.len());
        for (index, described) in description.gpu.iter().enumerate() {
            let mut gpu = gpu(index, described)?;
            let taken: Vec<u32> = gpus.iter().map(|gpu| gpu.gpu_id).collect();
            gpu.gpu_id = gpu_id::generate(&gpu.identity(), &taken);
            gpus.push(gpu);
        }
        checks::gpus(&gpus).map_err(SpecError::Machine)?;
        let xgmi = xgmi(description, &gpus).map_err(SpecError::Machine)?;
        let reaches: Vec<Reach> = (0..gpus.len()).map(|from| reach(description, &gpus, from)).collect();
        for (gpu, reach) in gpus.iter_mut().zip(reaches) {
            gpu.reach = reach;
            gpu.cpu_nodes = description.numa.len().max(1);
        }
        let numa = cpu_nodes(&description.numa);
        Ok(Self { gpus, pcie_p2p: description.pcie_p2p, numa, distances: distances(&description.numa), xgmi })
    }

    /// The same machine under a kernel that was built with HSA_AMD_SVM.
    #[must_use]
    pub fn with_svm(mut self) -> Self {
        self.gpus.iter_mut().for_each(|gpu| gpu.kernel_has_svm = true);
        self
    }

    /// The GPUs, in order.
    pub fn gpus(&self) -> &[GpuModel] {
        &self.gpus
    }

    /// The GPUs without the rest of the machine; each one lists the GPUs that it reaches.
    pub fn into_gpus(self) -> Vec<GpuModel> {
        self.gpus
    }

    /// `host` with the memory and processors of the machine's description.
    pub fn host(&self, host: &Host) -> Host {
        if self.numa.is_empty() {
            return *host;
        }
        let cores = self.numa.iter().map(|node| node.cores).sum();
        Host { cores, ram_bytes: self.numa.iter().map(|node| node.ram_bytes).sum(), ..*host }
    }

    /// Whether GPUs reach each other through PCIe (amdgpu's parameter `pcie_p2p`).
    pub(super) fn pcie_p2p(&self) -> bool {
        self.pcie_p2p
    }

    /// The NUMA nodes, of which there is at least one.
    pub(super) fn cpus(&self, host: &Host) -> Vec<CpuNode> {
        if self.numa.is_empty() {
            return vec![CpuNode { cores: host.cores, first_core: 0, ram_bytes: host.ram_bytes }];
        }
        self.numa.clone()
    }

    /// How many NUMA nodes there are: topology nodes before the first GPU's.
    pub(super) fn cpu_count(&self) -> usize {
        self.numa.len().max(1)
    }

    /// The topology node of a GPU: they come behind the CPUs.
    pub(super) fn node_of(&self, gpu: &GpuModel) -> usize {
        self.cpu_count() + gpu.index()
    }

    /// The distance of two NUMA nodes (`node_distance`).
    pub(super) fn distance(&self, from: usize, to: usize) -> u32 {
        let row = self.distances.get(from).and_then(|row| row.get(to));
        row.copied().unwrap_or(if from == to { DISTANCES.0 } else { DISTANCES.1 })
    }

    /// The XGMI connection of two GPUs of one hive.
    pub(super) fn xgmi(&self, a: usize, b: usize) -> Option<Xgmi> {
        self.xgmi.get(&(a.min(b), a.max(b))).copied()
    }
}

impl GpuModel {
    /// The GPUs that a list such as `gfx1100*2` names, in its order.
    ///
    /// # Errors
    /// Every [`SpecError`] but those of topology files.
    pub fn parse_spec(spec: &str) -> Result<Vec<Self>, SpecError> {
        Machine::of_list(spec).map(Machine::into_gpus)
    }
}

fn gpu(index: usize, described: &Gpu) -> Result<GpuModel, SpecError> {
    let name = &described.chip;
    let chip = Chip::by_name(name).ok_or_else(|| SpecError::Unknown { name: name.clone() })?;
    let xccs = described.num_xcc.unwrap_or(chip.shape.num_xcc);
    let shape = chip.shape_of(xccs);
    let geometry = geometry(chip, &shape, described)?;
    let vram_bytes = described.vram_bytes.map_or(chip.vram_of(xccs), |bytes| bytes.0);
    let visible_bytes = match described.bar.unwrap_or(Bar::Large) {
        Bar::Large => vram_bytes,
        // A board whose VRAM is no larger than that shows all of it, as real ones do.
        Bar::Small => vram_bytes.min(SMALL_BAR_BYTES),
        Bar::Visible(bytes) => bytes,
    };
    // Every card behind its own bridge, three buses apart.
    let slot = Slot { domain: 0, location_id: (3 + 3 * count(index)) << 8 };
    Ok(GpuModel {
        chip,
        shape,
        index,
        gpu_id: 0,
        geometry,
        vram_bytes,
        visible_bytes,
        bar_read_mbytes: described.bar_read_mbytes,
        numa_node: described.numa_node.unwrap_or(0),
        slot: described.pci.unwrap_or(slot),
        // CAST: widening.
        unique_id: described.unique_id.map_or_else(
            || FIRST_SERIAL.wrapping_add((index as u64).wrapping_mul(SERIAL_STEP)),
            |serial| serial.0,
        ),
        render_minor: described.render_minor.unwrap_or(128 + count(index)),
        hive: described.hive.map_or(0, |hive| hive.0),
        pcie: described.pcie_bandwidth.unwrap_or(PCIE),
        reach: Reach::default(),
        cpu_nodes: 1,
        kernel_has_svm: false,
    })
}

/// The kernel's sizes of save areas: its formula's, or those that the description gives it, which it demands then.
fn geometry(chip: &'static Chip, shape: &NodeShape, described: &Gpu) -> Result<CwsrGeometry, SpecError> {
    let computed =
        CwsrGeometry::computed(shape).map_err(|source| SpecError::Geometry { name: chip.name, source })?;
    let save_bytes = described.cwsr_size.unwrap_or(computed.save_bytes);
    let per_xcc = u64::from(save_bytes) + u64::from(computed.debug_bytes);
    Ok(CwsrGeometry {
        control_stack_bytes: described.ctl_stack_size.unwrap_or(computed.control_stack_bytes),
        save_bytes,
        total_bytes: (per_xcc * u64::from(computed.num_xcc)).next_multiple_of(4096),
        ..computed
    })
}

/// Every pair of a hive is connected, in one hop if no `[[link]]` says otherwise.
fn xgmi(
    description: &Description,
    gpus: &[GpuModel],
) -> Result<BTreeMap<(usize, usize), Xgmi>, MachineError> {
    let mut pairs = BTreeMap::new();
    for (high, gpu) in gpus.iter().enumerate() {
        for (low, peer) in gpus[..high].iter().enumerate().filter(|(_, peer)| same_hive(gpu, peer)) {
            let mbytes = gpu.chip.xgmi_mbytes.min(peer.chip.xgmi_mbytes);
            pairs.insert((low, high), Xgmi { hops: 1, bandwidth: Bandwidth { min: mbytes, max: mbytes } });
        }
    }
    for (index, link) in description.link.iter().enumerate() {
        let (LinkKind::Xgmi, [a, b]) = (link.kind, link.gpus);
        let pair = pairs.get_mut(&(a.min(b), a.max(b)));
        let pair = pair.ok_or(MachineError::NotInOneHive { index, a, b })?;
        pair.hops = link.hops.unwrap_or(pair.hops);
        pair.bandwidth = link.bandwidth.unwrap_or(pair.bandwidth);
    }
    Ok(pairs)
}

fn same_hive(a: &GpuModel, b: &GpuModel) -> bool {
    a.hive != 0 && a.hive == b.hive
}

/// Whose memory `from` reaches.
fn reach(description: &Description, gpus: &[GpuModel], from: usize) -> Reach {
    let mask = |wanted: &dyn Fn(usize, &GpuModel) -> bool| {
        let peers = gpus.iter().enumerate().filter(|(to, peer)| *to != from && wanted(*to, peer));
        peers.fold(0, |mask, (to, _)| mask | 1 << to)
    };
    let blocked = |to| description.unreachable.iter().any(|pair| (pair.from, pair.to) == (from, to));
    Reach {
        pcie: mask(&|to, peer| description.pcie_p2p && peer.large_bar() && !blocked(to)),
        hive: mask(&|_, peer| same_hive(&gpus[from], peer)),
    }
}

fn cpu_nodes(described: &[Numa]) -> Vec<CpuNode> {
    let mut first_core = 0;
    let node = |numa: &Numa| {
        let node = CpuNode { cores: numa.cores, first_core, ram_bytes: numa.memory.0 };
        first_core += numa.cores;
        node
    };
    described.iter().map(node).collect()
}

fn distances(described: &[Numa]) -> Vec<Vec<u32>> {
    described.iter().map(|node| node.distance.clone().unwrap_or_default()).collect()
}
