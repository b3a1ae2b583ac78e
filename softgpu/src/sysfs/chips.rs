// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chips that the device can be: what all cards of one have in common.
//!
//! Numbers are those of public sysfs dumps and of the kernel's tables unless a line says that they are inferred; an
//! inferred number is of the right size for the chip, but no card was seen to report it. INVARIANT: every chip has an
//! entry in the target table, and its shape gives a save area geometry.

use queues::cwsr::NodeShape;
use queues::target::Target;

use super::caches::{self, Caches};

/// What all cards of one chip share.
#[derive(Debug)]
pub(super) struct Chip {
    pub name: &'static str,
    pub shape: NodeShape,
    pub cu_per_simd_array: u32,
    pub max_waves_per_simd: u32,
    pub wave_front_size: u32,
    pub device_id: u32,
    pub subsystem: u32,
    /// PCI class code: VGA, another display controller, or a processing accelerator.
    pub pci_class: u32,
    /// PCI revision, which with the device id names the product (`amdgpu.ids` of libdrm).
    pub pci_revision: u8,
    pub vram_bytes: u64,
    pub vram_width: u32,
    pub vram_mhz: u32,
    pub max_engine_mhz: u32,
    pub num_gws: u32,
    pub num_sdma_engines: u32,
    pub num_sdma_xgmi_engines: u32,
    /// Queues of an SDMA engine, those reserved for the kernel's own use included.
    pub sdma_queues_per_engine: u32,
    pub reserved_sdma_queues_per_engine: u32,
    pub num_cp_queues: u32,
    pub fw_version: u32,
    pub sdma_fw_version: u32,
    /// Of a kernel that was built with everything.
    pub capability: u32,
    pub debug_prop: u32,
    pub gb_addr_config: u32,
    /// MB/s of one XGMI link: 16 lanes of 25 or 32 GT/s.
    pub xgmi_mbytes: u32,
    pub caches: &'static Caches,
}

impl Chip {
    /// The shape of a node of so many XCCs, each of which is like those of the chip.
    pub fn shape_of(&self, xccs: u32) -> NodeShape {
        let own = self.shape.num_xcc;
        NodeShape {
            num_xcc: xccs,
            simd_count: self.shape.simd_count / own * xccs,
            array_count: self.shape.array_count / own * xccs,
            ..self.shape
        }
    }

    /// VRAM of a node of so many XCCs, bytes: its share, if it is a part of the chip (`KFD_XCP_MEMORY_SIZE`).
    pub fn vram_of(&self, xccs: u32) -> u64 {
        let own = self.shape.num_xcc;
        self.vram_bytes / u64::from(own) * u64::from(xccs.min(own))
    }

    /// XGMI copy engines of a node of so many XCCs: a part of the chip has as large a part of all its copy engines, the first of
    /// which are those for PCIe (`kfd_get_num_sdma_engines`, `kfd_get_num_xgmi_sdma_engines`).
    pub fn xgmi_engines(&self, xccs: u32) -> u32 {
        let (own, all) = (self.shape.num_xcc, self.num_sdma_engines + self.num_sdma_xgmi_engines);
        (all * xccs.min(own) / own).saturating_sub(self.num_sdma_engines)
    }

    /// The node's `name` file.
    pub fn asic_name(&self) -> &'static str {
        Target::by_name(self.name).map_or("", |target| target.asic_name)
    }

    /// The chip of this name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        CHIPS.iter().find(|chip| chip.name == name)
    }
}

/// Bit 27 of the capability word (`HSA_CAP_SVMAPI_SUPPORTED`): the SVM ioctl works. A kernel that was built without
/// HSA_AMD_SVM clears it.
pub(super) const CAPABILITY_SVM: u32 = 1 << 27;

/// 7900 XTX.
const GFX1100: Chip = Chip {
    name: "gfx1100",
    shape: NodeShape {
        gfx_target_version: 110_000,
        simd_count: 192,
        simd_per_cu: 2,
        num_xcc: 1,
        array_count: 12,
        simd_arrays_per_engine: 2,
        lds_size_in_kb: 64,
        cwsr_size: None,
        ctl_stack_size: None,
    },
    cu_per_simd_array: 8,
    max_waves_per_simd: 16,
    wave_front_size: 32,
    device_id: 29772,
    subsystem: 0x0e3b_1002,
    pci_class: 0x03_0000,
    pci_revision: 0xc8,
    vram_bytes: 25_753_026_560,
    vram_width: 384,
    vram_mhz: 1249,
    max_engine_mhz: 2482,
    num_gws: 64,
    num_sdma_engines: 2,
    num_sdma_xgmi_engines: 0,
    sdma_queues_per_engine: 8,
    reserved_sdma_queues_per_engine: 2,
    num_cp_queues: 8,
    fw_version: 2140,
    sdma_fw_version: 20,
    capability: 671_588_992,
    debug_prop: 1495,
    // Inferred: 32 pipes, 32 packers, two compressed fragments. Nothing of a compute client depends on it.
    gb_addr_config: 0x545,
    // No card of these has XGMI; a machine may be described that has it all the same.
    xgmi_mbytes: 50_000,
    caches: &caches::NAVI31,
};

/// 7800 XT. Inferred but for the shape, the device id and the revision (`amdgpu.ids`), from Navi 31 and the product's data sheet.
const GFX1101: Chip = Chip {
    name: "gfx1101",
    shape: NodeShape { gfx_target_version: 110_001, simd_count: 120, array_count: 6, ..GFX1100.shape },
    cu_per_simd_array: 10,
    device_id: 0x747e,
    pci_revision: 0xc8,
    vram_bytes: 17_163_091_968,
    vram_width: 256,
    vram_mhz: 1218,
    max_engine_mhz: 2430,
    gb_addr_config: 0x444,
    caches: &caches::NAVI32,
    ..GFX1100
};

/// 7600. Inferred but for the shape, the device id and the revision, as above.
const GFX1102: Chip = Chip {
    name: "gfx1102",
    shape: NodeShape { gfx_target_version: 110_002, simd_count: 64, array_count: 4, ..GFX1100.shape },
    device_id: 0x7480,
    pci_revision: 0xcf,
    vram_bytes: 8_573_157_376,
    vram_width: 128,
    vram_mhz: 1124,
    max_engine_mhz: 2655,
    gb_addr_config: 0x243,
    caches: &caches::NAVI33,
    ..GFX1100
};

/// Radeon AI PRO R9700, whose 32 GiB a topology file makes the 16 GiB of a 9070 XT. Inferred: clocks, copy engines, capability
/// (gfx1100's and precise ALU exceptions), copy firmware.
const GFX1201: Chip = Chip {
    name: "gfx1201",
    shape: NodeShape { gfx_target_version: 120_001, simd_count: 128, array_count: 8, ..GFX1100.shape },
    device_id: 30033,
    pci_revision: 0xc0,
    vram_bytes: 34_208_743_424,
    vram_width: 256,
    vram_mhz: 1258,
    max_engine_mhz: 2920,
    fw_version: 3010,
    sdma_fw_version: 7,
    capability: 671_588_992 | 1 << 30,
    caches: &caches::NAVI48,
    ..GFX1100
};

/// MI210. Inferred: memory size, capability, subsystem; GB_ADDR_CONFIG is not known.
const GFX90A: Chip = Chip {
    name: "gfx90a",
    shape: NodeShape {
        gfx_target_version: 90010,
        simd_count: 416,
        simd_per_cu: 4,
        array_count: 8,
        simd_arrays_per_engine: 1,
        ..GFX1100.shape
    },
    cu_per_simd_array: 14,
    max_waves_per_simd: 8,
    wave_front_size: 64,
    device_id: 29711,
    subsystem: 0x0c34_1002,
    pci_class: 0x03_8000,
    pci_revision: 0x02,
    vram_bytes: 68_702_699_520,
    vram_width: 4096,
    vram_mhz: 1600,
    max_engine_mhz: 1700,
    num_sdma_xgmi_engines: 3,
    reserved_sdma_queues_per_engine: 0,
    num_cp_queues: 24,
    fw_version: 78,
    sdma_fw_version: 8,
    capability: 746_037_888,
    debug_prop: 1494,
    gb_addr_config: 0,
    caches: &caches::ALDEBARAN,
    ..GFX1100
};

/// MI300X in SPX mode. Inferred: memory size, subsystem; GB_ADDR_CONFIG is not known.
const GFX942: Chip = Chip {
    name: "gfx942",
    shape: NodeShape {
        gfx_target_version: 90402,
        simd_count: 1216,
        array_count: 32,
        num_xcc: 8,
        ..GFX90A.shape
    },
    cu_per_simd_array: 10,
    device_id: 29857,
    subsystem: 0x74a1_1002,
    pci_class: 0x12_0000,
    pci_revision: 0,
    vram_bytes: 206_141_652_992,
    vram_width: 8192,
    vram_mhz: 1300,
    max_engine_mhz: 2100,
    num_sdma_xgmi_engines: 14,
    fw_version: 166,
    sdma_fw_version: 22,
    debug_prop: 1511,
    xgmi_mbytes: 64_000,
    caches: &caches::MI300X,
    ..GFX90A
};

static CHIPS: [Chip; 6] = [GFX1100, GFX1101, GFX1102, GFX1201, GFX90A, GFX942];

/// Every chip's name, for a message.
pub(super) fn known() -> String {
    CHIPS.iter().map(|chip| chip.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use queues::cwsr::CwsrGeometry;

    #[test]
    fn chips_have_the_published_save_areas() {
        let sizes = |chip: &Chip| {
            let geometry = CwsrGeometry::for_node(&chip.shape).unwrap();
            (chip.name, geometry.save_bytes, geometry.control_stack_bytes, geometry.total_bytes)
        };
        let found: Vec<_> = CHIPS.iter().map(sizes).collect();
        let wanted = [
            ("gfx1100", 46_047_232, 0xa000, 46_145_536),
            ("gfx1101", 28_778_496, 0x6000, 28_839_936),
            ("gfx1102", 11_157_504, 0x4000, 11_190_272),
            ("gfx1201", 30_699_520, 0x7000, 30_765_056),
            ("gfx90a", 63_508_480, 0x9000, 63_639_552),
            ("gfx942", 23_203_840, 0x3000, 186_019_840),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn chips_agree_with_the_target_table() {
        for chip in &CHIPS {
            let target = Target::by_name(chip.name).unwrap();
            assert_eq!(target.gfx_version, chip.shape.gfx_target_version, "{}", chip.name);
            assert_eq!(target.simd_per_cu, chip.shape.simd_per_cu, "{}", chip.name);
            assert_eq!(target.max_waves_per_simd, chip.max_waves_per_simd, "{}", chip.name);
            assert_eq!(target.wave_front_size(), chip.wave_front_size, "{}", chip.name);
            assert!(
                chip.vram_bytes.is_multiple_of(4096)
                    && chip.cu_per_simd_array * chip.shape.array_count * chip.shape.simd_per_cu
                        >= chip.shape.simd_count
            );
        }
    }

    #[test]
    fn chips_have_as_many_caches_as_public_dumps_show() {
        let count = |name| {
            let chip = Chip::by_name(name).unwrap();
            caches::properties(chip, &chip.shape, 0).len()
        };
        assert_eq!(["gfx1100", "gfx90a", "gfx942"].map(count), [206, 217, 626]);
    }
}
