// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCIe links between nodes as KFD prints them.
//!
//! All cards sit under the one CPU node and show all their VRAM, so every link exists in both directions.

/// `CRAT_IOLINK_TYPE_PCIEXPRESS`.
const PCIE: u32 = 2;
/// KFD's weight of one PCIe hop.
const HOP_WEIGHT: u32 = 20;
/// Gen 1 x1 and gen 4 x16 in MB/s, as `amdgpu_amdkfd_get_pcie_bandwidth_mbytes` computes them.
const BANDWIDTH: (u32, u32) = (312, 32_000);
const ENABLED: u32 = 1;
const NON_COHERENT: u32 = 2;

/// A directed link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub from: usize,
    pub to: usize,
    pub sdma_engines: u32,
}

impl Link {
    /// A GPU's link to its CPU: coherent.
    pub fn to_cpu(self) -> String {
        self.print(1, ENABLED)
    }

    /// The CPU's link to a GPU.
    pub fn to_gpu(self) -> String {
        self.print(1, ENABLED | NON_COHERENT)
    }

    /// A GPU's link to another through the root complex: two hops.
    pub fn to_peer(self) -> String {
        self.print(2, ENABLED | NON_COHERENT)
    }

    fn print(self, hops: u32, flags: u32) -> String {
        format!(
            "type {PCIE}\nversion_major 0\nversion_minor 0\nnode_from {}\nnode_to {}\nweight {}\nmin_latency 0\n\
             max_latency 0\nmin_bandwidth {}\nmax_bandwidth {}\nrecommended_transfer_size 0\n\
             recommended_sdma_engine_id_mask {}\nflags {flags}\n",
            self.from,
            self.to,
            HOP_WEIGHT * hops,
            BANDWIDTH.0,
            BANDWIDTH.1,
            (1u64 << self.sdma_engines) - 1,
        )
    }
}
