// SPDX-License-Identifier: MIT OR Apache-2.0
//! One GPU of the machine: its chip, its place, its memory, and whose memory it reaches.
//!
//! INVARIANT: the same specification always gives the same GPUs, down to gpu_id, slot and serial number, so that a
//! checkpoint finds its agents again.

use queues::cwsr::{CwsrGeometry, NodeShape};

use super::chips::{CAPABILITY_SVM, Chip};
use super::gpu_id::Identity;
use super::values::{Bandwidth, Slot};

/// VRAM that the CPU sees of a board without resizable BAR, bytes.
pub(super) const SMALL_BAR_BYTES: u64 = 256 << 20;

/// Which other GPUs' memory a GPU reaches, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// Through PCIe: VRAM, doorbells and registers.
    pub pcie: u64,
    /// Through the hive: VRAM.
    pub hive: u64,
}

/// One GPU of the machine.
#[derive(Clone, Debug)]
pub struct GpuModel {
    pub(super) chip: &'static Chip,
    pub(super) shape: NodeShape,
    pub(super) index: usize,
    pub(super) gpu_id: u32,
    pub(super) geometry: CwsrGeometry,
    pub(super) vram_bytes: u64,
    pub(super) visible_bytes: u64,
    pub(super) bar_read_mbytes: Option<u32>,
    pub(super) numa_node: usize,
    pub(super) slot: Slot,
    pub(super) unique_id: u64,
    pub(super) render_minor: u32,
    pub(super) hive: u64,
    pub(super) pcie: Bandwidth,
    pub(super) reach: Reach,
    pub(super) cpu_nodes: usize,
    /// Whether the kernel was built with HSA_AMD_SVM.
    pub(super) kernel_has_svm: bool,
}

impl GpuModel {
    pub(super) fn identity(&self) -> Identity {
        Identity {
            location_id: self.slot.location_id,
            domain: self.slot.domain,
            device_id: self.chip.device_id,
            subsystem: self.chip.subsystem,
            vram_bytes: self.vram_bytes,
            num_xcc: self.shape.num_xcc,
        }
    }

    /// Target name, e.g. `gfx1100`.
    pub fn name(&self) -> &'static str {
        self.chip.name
    }

    /// Position among the GPUs, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// KFD's 16-bit id.
    pub fn gpu_id(&self) -> u32 {
        self.gpu_id
    }

    /// Minor of the render node.
    pub fn render_minor(&self) -> u32 {
        self.render_minor
    }

    /// Picoseconds that a byte read through the PCI aperture takes; none if it is as fast as memory.
    pub fn aperture_read_cost(&self) -> Option<u64> {
        // 1 MB/s is a byte every 10^6 ps.
        self.bar_read_mbytes.map(|mbytes| 1_000_000 / u64::from(mbytes.max(1)))
    }

    /// PCI revision, which with the device id names the product.
    pub fn pci_revision(&self) -> u8 {
        self.chip.pci_revision
    }

    /// Minor of the primary node: render nodes are numbered from 128 on.
    pub fn card_minor(&self) -> u32 {
        self.render_minor - 128
    }

    /// PCI slot, `bus << 8 | devfn`.
    pub fn location_id(&self) -> u32 {
        self.slot.location_id
    }

    /// PCI domain.
    pub fn domain(&self) -> u32 {
        self.slot.domain
    }

    /// Serial number.
    pub fn unique_id(&self) -> u64 {
        self.unique_id
    }

    /// The XGMI hive it is in, 0 for none.
    pub fn hive_id(&self) -> u64 {
        self.hive
    }

    /// The NUMA node that its slot belongs to.
    pub fn numa_node(&self) -> usize {
        self.numa_node
    }

    /// VRAM in bytes.
    pub fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    /// VRAM that the CPU sees, bytes.
    pub fn visible_vram_bytes(&self) -> u64 {
        self.visible_bytes
    }

    /// Whether all VRAM is visible through the BAR; so PCIe peers can reach it too.
    pub fn large_bar(&self) -> bool {
        self.visible_bytes == self.vram_bytes
    }

    /// Whether this GPU can map VRAM of the GPU at index `owner`: its own, that of its hive, and over PCIe what is
    /// all visible there, where the machine lets it through (`amdgpu_device_is_peer_accessible`).
    pub fn reaches_vram(&self, owner: usize) -> bool {
        self.index == owner || has(self.reach.hive, owner) || has(self.reach.pcie, owner)
    }

    /// Whether this GPU can map doorbells and registers of the GPU at index `owner`. The way there is always PCIe,
    /// also within a hive.
    pub fn reaches_registers(&self, owner: usize) -> bool {
        self.index == owner || has(self.reach.pcie, owner)
    }

    /// Topology nodes of the machine that are CPUs.
    pub fn cpu_nodes(&self) -> usize {
        self.cpu_nodes
    }

    /// What the context save geometry follows from.
    pub fn shape(&self) -> &NodeShape {
        &self.shape
    }

    /// Compute queues that are on the hardware at a time.
    pub fn compute_queues(&self) -> u32 {
        self.chip.num_cp_queues
    }

    /// Sizes of the context save area.
    pub fn geometry(&self) -> &CwsrGeometry {
        &self.geometry
    }

    /// PCIe copy engines.
    pub fn sdma_engines(&self) -> u32 {
        self.chip.num_sdma_engines
    }

    /// Copy engines towards XGMI peers.
    pub fn sdma_xgmi_engines(&self) -> u32 {
        self.chip.xgmi_engines(self.shape.num_xcc)
    }

    /// The same GPU under a kernel that was built with HSA_AMD_SVM, or without it.
    #[must_use]
    pub fn with_kernel_svm(self, kernel_has_svm: bool) -> Self {
        Self { kernel_has_svm, ..self }
    }

    /// Whether the GPU can use memory by the SVM ioctl (`KFD_IS_SVM_API_SUPPORTED`).
    pub fn has_svm(&self) -> bool {
        self.capability() & CAPABILITY_SVM != 0
    }

    /// The capability word of the topology.
    pub(super) fn capability(&self) -> u32 {
        if self.kernel_has_svm { self.chip.capability } else { self.chip.capability & !CAPABILITY_SVM }
    }

    /// Compute units of all XCCs.
    pub(super) fn cu_count(&self) -> u32 {
        self.shape.simd_count / self.shape.simd_per_cu
    }

    /// Numbers of the SDMA queues that processes may have: `queue * engines + engine`, the kernel's own taken out.
    pub fn sdma_queue_ids(&self) -> std::ops::Range<u32> {
        let engines = self.chip.num_sdma_engines;
        engines * self.chip.reserved_sdma_queues_per_engine..engines * self.chip.sdma_queues_per_engine
    }

    /// Whether the chip has global wave sync.
    pub fn has_gws(&self) -> bool {
        self.chip.num_gws != 0
    }

    /// The GB_ADDR_CONFIG register.
    pub fn gb_addr_config(&self) -> u32 {
        self.chip.gb_addr_config
    }
}

/// Whether bit `index` is set.
fn has(mask: u64, index: usize) -> bool {
    index < 64 && mask >> index & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_one_machine_are_told_apart_and_stay_the_same() {
        let models = GpuModel::parse_spec("gfx1100*16").unwrap();
        let again = GpuModel::parse_spec("gfx1100*16").unwrap();
        for (at, model) in models.iter().enumerate() {
            assert_eq!(model.gpu_id(), again[at].gpu_id());
            assert!(model.gpu_id() > 0 && model.gpu_id() <= 0xffff);
            for other in &models[..at] {
                assert_ne!(model.gpu_id(), other.gpu_id());
                assert_ne!(model.unique_id(), other.unique_id());
                assert_ne!(model.location_id(), other.location_id());
            }
        }
    }

    #[test]
    fn gpus_of_a_list_reach_each_other_and_nobody_else() {
        let models = GpuModel::parse_spec("gfx1100,gfx1201").unwrap();
        for gpu in &models {
            for (owner, reached) in [(0, true), (1, true), (2, false), (64, false)] {
                assert_eq!((gpu.reaches_vram(owner), gpu.reaches_registers(owner)), (reached, reached));
            }
        }
    }
}
