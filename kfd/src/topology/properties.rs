// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of a node: its properties, memory banks, caches and links, key by key as KFD prints them.
//!
//! An absent key (older kernel, CPU node) reads as 0. An unknown key (newer kernel) is kept.

use std::collections::BTreeMap;

use queues::cwsr::NodeShape;

use super::TopologyError;
use super::text::for_each_line;

macro_rules! record {
    (
        $(#[$meta:meta])*
        $name:ident {
            $( $(#[$doc:meta])* $method:ident $key:ident: $ty:ty = $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$doc])* pub $key: $ty, )*
            /// Keys this library does not know, with their text.
            pub unknown: BTreeMap<String, String>,
        }

        impl $name {
            /// Parses the text of a `properties` file; `file` is for errors.
            ///
            /// # Errors
            /// [`TopologyError`] naming file, line and key.
            pub fn parse(file: &str, text: &str) -> Result<Self, TopologyError> {
                let mut this = Self::default();
                for_each_line(file, text, |line| match line.key {
                    $( $text => line.$method(&mut this.$key), )*
                    key => {
                        this.unknown.insert(key.to_owned(), line.value.to_owned());
                        Ok(())
                    }
                })?;
                Ok(this)
            }
        }
    };
}

record! {
    /// `nodes/<i>/properties`, in the order KFD prints them.
    NodeProperties {
        /// Logical CPUs of a CPU node.
        number cpu_cores_count: u32 = "cpu_cores_count",
        /// SIMDs over all XCCs; 0 for a CPU node.
        number simd_count: u32 = "simd_count",
        /// Memory banks.
        number mem_banks_count: u32 = "mem_banks_count",
        /// Caches.
        number caches_count: u32 = "caches_count",
        /// Direct links.
        number io_links_count: u32 = "io_links_count",
        /// Indirect and peer links.
        number p2p_links_count: u32 = "p2p_links_count",
        /// First CPU id.
        number cpu_core_id_base: u32 = "cpu_core_id_base",
        /// First SIMD id.
        number simd_id_base: u32 = "simd_id_base",
        /// Waves a SIMD holds.
        number max_waves_per_simd: u32 = "max_waves_per_simd",
        /// LDS of a compute unit in KiB.
        number lds_size_in_kb: u32 = "lds_size_in_kb",
        /// Global data share in KiB.
        number gds_size_in_kb: u32 = "gds_size_in_kb",
        /// Global wave sync barriers.
        number num_gws: u32 = "num_gws",
        /// Native lanes of a wave.
        number wave_front_size: u32 = "wave_front_size",
        /// Shader arrays over all XCCs.
        number array_count: u32 = "array_count",
        /// Shader arrays of a shader engine.
        number simd_arrays_per_engine: u32 = "simd_arrays_per_engine",
        /// Compute unit slots of a shader array, harvested ones included.
        number cu_per_simd_array: u32 = "cu_per_simd_array",
        /// SIMDs of a compute unit.
        number simd_per_cu: u32 = "simd_per_cu",
        /// Scratch slots of a compute unit.
        number max_slots_scratch_cu: u32 = "max_slots_scratch_cu",
        /// Target as major * 10000 + minor * 100 + stepping, decimal.
        number gfx_target_version: u32 = "gfx_target_version",
        /// PCI vendor.
        number vendor_id: u32 = "vendor_id",
        /// PCI device.
        number device_id: u32 = "device_id",
        /// PCI bus and function, `bus << 8 | devfn`.
        number location_id: u32 = "location_id",
        /// PCI domain.
        number domain: u32 = "domain",
        /// Minor number of the render node, 0 for a CPU node.
        number drm_render_minor: u32 = "drm_render_minor",
        /// XGMI hive, 0 for none.
        number hive_id: u64 = "hive_id",
        /// Copy engines.
        number num_sdma_engines: u32 = "num_sdma_engines",
        /// Copy engines for XGMI peers.
        number num_sdma_xgmi_engines: u32 = "num_sdma_xgmi_engines",
        /// Queues of a copy engine.
        number num_sdma_queues_per_engine: u32 = "num_sdma_queues_per_engine",
        /// Hardware compute queues.
        number num_cp_queues: u32 = "num_cp_queues",
        /// Context save bytes of one XCC without the debugger's part; absent before Linux 6.12.
        optional cwsr_size: Option<u32> = "cwsr_size",
        /// Control stack bytes of one XCC; absent before Linux 6.12.
        optional ctl_stack_size: Option<u32> = "ctl_stack_size",
        /// Shader clock in MHz.
        number max_engine_clk_fcompute: u32 = "max_engine_clk_fcompute",
        /// Always 0; see the memory banks.
        number local_mem_size: u64 = "local_mem_size",
        /// Compute firmware.
        number fw_version: u32 = "fw_version",
        /// `HSA_CAP_*` bits.
        number capability: u32 = "capability",
        /// More of them, since Linux 7.
        number capability2: u32 = "capability2",
        /// `HSA_DBG_*` bits; 64 bits wide in `kfd_sysfs.h`.
        number debug_prop: u64 = "debug_prop",
        /// Copy engine firmware.
        number sdma_fw_version: u32 = "sdma_fw_version",
        /// Serial number.
        number unique_id: u64 = "unique_id",
        /// Compute complexes (XCC).
        number num_xcc: u32 = "num_xcc",
        /// CPU clock in MHz.
        number max_engine_clk_ccompute: u32 = "max_engine_clk_ccompute",
    }
}

record! {
    /// `nodes/<i>/mem_banks/<k>/properties`.
    MemBank {
        /// `HEAP_TYPE_*`.
        number heap_type: u32 = "heap_type",
        /// Bytes.
        number size_in_bytes: u64 = "size_in_bytes",
        /// Flags.
        number flags: u32 = "flags",
        /// Bus width in bits.
        number width: u32 = "width",
        /// Clock in MHz.
        number mem_clk_max: u32 = "mem_clk_max",
    }
}

record! {
    /// `nodes/<i>/caches/<k>/properties`.
    Cache {
        /// First processor (CPU or SIMD id) that shares it.
        number processor_id_low: u32 = "processor_id_low",
        /// Level, from 1.
        number level: u32 = "level",
        /// Size in KiB.
        number size: u32 = "size",
        /// Line in bytes.
        number cache_line_size: u32 = "cache_line_size",
        /// Lines per tag.
        number cache_lines_per_tag: u32 = "cache_lines_per_tag",
        /// Associativity.
        number association: u32 = "association",
        /// Latency.
        number latency: u32 = "latency",
        /// Bits: 1 data, 2 instruction, 4 CPU, 8 shader.
        number kind: u32 = "type",
        /// Which processors from `processor_id_low` on share it.
        flags sibling_map: Vec<bool> = "sibling_map",
    }
}

record! {
    /// `nodes/<i>/io_links/<k>/properties` and `p2p_links/<k>/properties`.
    Link {
        /// 1 HyperTransport, 2 PCIe, 5 QPI, 11 XGMI.
        number kind: u32 = "type",
        /// Version.
        number version_major: u32 = "version_major",
        /// Version.
        number version_minor: u32 = "version_minor",
        /// This node.
        number node_from: u32 = "node_from",
        /// The other.
        number node_to: u32 = "node_to",
        /// Distance: PCIe 20, XGMI 15 per hop.
        number weight: u32 = "weight",
        /// Latency.
        number min_latency: u32 = "min_latency",
        /// Latency.
        number max_latency: u32 = "max_latency",
        /// Bandwidth in MB/s.
        number min_bandwidth: u32 = "min_bandwidth",
        /// Bandwidth in MB/s.
        number max_bandwidth: u32 = "max_bandwidth",
        /// Bytes.
        number recommended_transfer_size: u32 = "recommended_transfer_size",
        /// Copy engines to use.
        number recommended_sdma_engine_id_mask: u32 = "recommended_sdma_engine_id_mask",
        /// Bits: 0 enabled, 1 not coherent, 2/3 no 32/64-bit atomics, 4 no peer DMA.
        number flags: u32 = "flags",
    }
}

/// Memory bank: system memory.
pub const HEAP_TYPE_SYSTEM: u32 = 0;
/// Memory bank: device memory that the CPU can map wholly.
pub const HEAP_TYPE_FB_PUBLIC: u32 = 1;
/// Memory bank: device memory behind a small BAR.
pub const HEAP_TYPE_FB_PRIVATE: u32 = 2;

impl NodeProperties {
    /// What sizes of the context save area depend on.
    pub fn shape(&self) -> NodeShape {
        NodeShape {
            gfx_target_version: self.gfx_target_version,
            simd_count: self.simd_count,
            simd_per_cu: self.simd_per_cu,
            // Kernels before multi-XCC parts do not print it.
            num_xcc: self.num_xcc.max(1),
            array_count: self.array_count,
            simd_arrays_per_engine: self.simd_arrays_per_engine,
            lds_size_in_kb: self.lds_size_in_kb,
            cwsr_size: self.cwsr_size,
            ctl_stack_size: self.ctl_stack_size,
        }
    }
}
