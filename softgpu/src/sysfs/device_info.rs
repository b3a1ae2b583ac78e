// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the render node's driver says of a GPU beyond the topology (`amdgpu_kms.c`, `amdgpu_discovery.c`).
//!
//! INVARIANT: what the topology says, too, is computed from the same numbers. Fields that only graphics uses are zero: the
//! device draws nothing.

use kfd::sys::*;

use super::caches::active_cus;
use super::model::GpuModel;
use crate::hardware::CLOCK_HZ;

/// First address that no GPU mapping reaches: the hole between the halves of the address space (`AMDGPU_GMC_HOLE_START`).
const HOLE_START: u64 = 0x8000_0000_0000;
/// Bytes of a page, also the smallest that a GPU maps.
const PAGE: u32 = 4096;
/// Bytes that one entry of a page table can stand for, by the default of `amdgpu_vm_adjust_size`.
const FRAGMENT: u32 = 2 << 20;
/// Vector registers that an instruction's operand can name.
const VISIBLE_VGPRS: u32 = 256;
/// KiB of a channel of the level 2 cache. The topology gives the size of all channels.
const CHANNEL_KIB: u32 = 256;
/// Bits of the capability word with the chip's revision (`HSA_CAP_ASIC_REVISION_MASK`).
const REVISION: (u32, u32) = (22, 0xf);
/// MB/s of a lane of PCIe generation 1, and lanes of a card.
const PCIE_LANE: (u32, u32) = (250, 16);

/// What an engine is: version of the driver's block (major, minor) and of the hardware (major, minor, revision).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineVersion {
    /// `amdgpu_ip_block_version`.
    pub block: (u32, u32),
    /// From the card's discovery table (`Documentation/gpu/amdgpu/dgpu-asic-info-table.csv`).
    pub hardware: (u32, u32, u32),
}

/// What the driver knows of a chip and the topology does not say.
#[derive(Debug)]
struct Facts {
    chip: &'static str,
    /// `AMDGPU_FAMILY_*`.
    family: u32,
    /// What is added to the revision (`soc15.c`, `soc21.c`, `soc24.c`).
    external_revision: u32,
    vram_type: u32,
    compute: EngineVersion,
    copy: EngineVersion,
}

const fn version(block: (u32, u32), hardware: (u32, u32, u32)) -> EngineVersion {
    EngineVersion { block, hardware }
}

const NAVI31: Facts = Facts {
    chip: "gfx1100",
    family: AMDGPU_FAMILY_GC_11_0_0,
    external_revision: 0x1,
    vram_type: AMDGPU_VRAM_TYPE_GDDR6,
    compute: version((11, 0), (11, 0, 0)),
    copy: version((6, 0), (6, 0, 0)),
};

static FACTS: [Facts; 6] = [
    NAVI31,
    Facts {
        chip: "gfx1101",
        external_revision: 0x20,
        compute: version((11, 0), (11, 0, 3)),
        copy: version((6, 0), (6, 0, 3)),
        ..NAVI31
    },
    Facts {
        chip: "gfx1102",
        external_revision: 0x10,
        compute: version((11, 0), (11, 0, 2)),
        copy: version((6, 0), (6, 0, 2)),
        ..NAVI31
    },
    Facts {
        chip: "gfx1201",
        family: AMDGPU_FAMILY_GC_12_0_0,
        external_revision: 0x50,
        compute: version((12, 0), (12, 0, 1)),
        copy: version((7, 0), (7, 0, 1)),
        ..NAVI31
    },
    Facts {
        chip: "gfx90a",
        family: AMDGPU_FAMILY_AI,
        external_revision: 0x3c,
        vram_type: AMDGPU_VRAM_TYPE_HBM,
        compute: version((9, 0), (9, 4, 2)),
        copy: version((4, 0), (4, 4, 0)),
    },
    Facts {
        chip: "gfx942",
        family: AMDGPU_FAMILY_AI,
        external_revision: 0x46,
        vram_type: AMDGPU_VRAM_TYPE_HBM,
        compute: version((9, 4), (9, 4, 3)),
        copy: version((4, 4), (4, 4, 2)),
    },
];

impl GpuModel {
    fn facts(&self) -> &'static Facts {
        let facts = FACTS.iter().find(|facts| facts.chip == self.chip.name);
        facts.unwrap_or(&NAVI31)
    }

    /// The engine of graphics and compute.
    pub fn compute_engine(&self) -> EngineVersion {
        self.facts().compute
    }

    /// The copy engines.
    pub fn copy_engine(&self) -> EngineVersion {
        self.facts().copy
    }

    /// Version of the firmware of compute queues.
    pub fn compute_firmware(&self) -> u32 {
        self.chip.fw_version
    }

    /// Version of the firmware of copy engines.
    pub fn copy_firmware(&self) -> u32 {
        self.chip.sdma_fw_version
    }

    /// Whether the chip is of gfx11 or newer.
    fn has_graphics_caches(&self) -> bool {
        self.shape.gfx_target_version >= 110_000
    }

    /// The answer to DEV_INFO.
    pub fn device_info(&self) -> drm_amdgpu_info_device {
        let (chip, facts) = (self.chip, self.facts());
        let revision = chip.capability >> REVISION.0 & REVISION.1;
        let (engine, memory) = (khz(chip.max_engine_mhz), khz(chip.vram_mhz));
        let arrays = self.shape.simd_arrays_per_engine;
        let bitmap = self.cu_bitmap();
        let (pcie_gen, pcie_num_lanes) = self.pcie();
        let info = drm_amdgpu_info_device {
            device_id: chip.device_id,
            chip_rev: revision,
            external_rev: revision + facts.external_revision,
            pci_rev: u32::from(self.pci_revision()),
            family: facts.family,
            num_shader_engines: self.shape.array_count / self.shape.num_xcc.max(1) / arrays.max(1),
            num_shader_arrays_per_engine: arrays,
            gpu_counter_freq: u32::try_from(CLOCK_HZ / 1000).unwrap_or(u32::MAX),
            // The clocks never change, as under a driver without power management.
            max_engine_clock: engine,
            max_memory_clock: memory,
            min_engine_clock: engine,
            min_memory_clock: memory,
            cu_active_number: self.cu_count(),
            cu_bitmap: bitmap,
            // gfx9 lists them; later drivers leave the words zero.
            cu_ao_bitmap: if self.has_graphics_caches() { Default::default() } else { bitmap },
            pcie_gen,
            pcie_num_lanes,
            virtual_address_offset: AMDGPU_VA_RESERVED_BOTTOM,
            // The address space has no upper half here (`driver/drm/va.rs`).
            virtual_address_max: HOLE_START,
            virtual_address_alignment: PAGE,
            pte_fragment_size: FRAGMENT,
            gart_page_size: PAGE,
            vram_type: facts.vram_type,
            vram_bit_width: chip.vram_width,
            wave_front_size: chip.wave_front_size,
            num_shader_visible_vgprs: VISIBLE_VGPRS,
            num_cu_per_sh: chip.cu_per_simd_array,
            num_tcc_blocks: chip.caches.sizes().level2 / CHANNEL_KIB,
            ..Default::default()
        };
        if self.has_graphics_caches() { self.with_caches(info) } else { info }
    }

    fn with_caches(&self, info: drm_amdgpu_info_device) -> drm_amdgpu_info_device {
        let caches = self.chip.caches.sizes();
        drm_amdgpu_info_device {
            tcp_cache_size: caches.vector,
            num_sqc_per_wgp: 1,
            sqc_data_cache_size: caches.scalar,
            sqc_inst_cache_size: caches.instruction,
            gl1c_cache_size: caches.array,
            gl2c_cache_size: caches.level2,
            mall_size: u64::from(caches.level3) << 10,
            ..info
        }
    }

    /// The compute units of the first XCC. The words are four by four: engines from the fifth on have the columns behind those
    /// of the first four's arrays.
    fn cu_bitmap(&self) -> [[u32; 4]; 4] {
        let arrays = (self.shape.simd_arrays_per_engine as usize).clamp(1, 2);
        let of_xcc = (self.shape.array_count / self.shape.num_xcc.max(1)) as usize;
        let mut words = [[0; 4]; 4];
        for (at, cus) in active_cus(&self.shape).into_iter().take(of_xcc).enumerate() {
            let (engine, array) = (at / arrays, at % arrays);
            if let Some(word) = words[engine % 4].get_mut(array + engine / 4 * arrays) {
                *word = 1u32.checked_shl(cus).unwrap_or_default().wrapping_sub(1);
            }
        }
        words
    }

    /// Generation and lanes of the card's PCIe link: the first generation with which sixteen lanes are as fast as the link.
    fn pcie(&self) -> (u32, u32) {
        let (slowest, lanes) = PCIE_LANE;
        let fast_enough = |generation: &u32| (slowest * lanes) << (generation - 1) >= self.pcie.max;
        ((1..5).find(fast_enough).unwrap_or(5), lanes)
    }

    /// Copy engines of both kinds.
    pub fn all_sdma_engines(&self) -> u32 {
        self.sdma_engines() + self.sdma_xgmi_engines()
    }
}

fn khz(mhz: u32) -> u64 {
    u64::from(mhz) * 1000
}

impl EngineVersion {
    /// The hardware's version as HW_IP_INFO has it: a byte for each part.
    pub fn packed(self) -> u32 {
        let (major, minor, revision) = self.hardware;
        major << 16 | minor << 8 | revision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(spec: &str) -> GpuModel {
        GpuModel::parse_spec(spec).unwrap().remove(0)
    }

    #[test]
    fn every_chip_has_facts_of_its_own() {
        for facts in &FACTS {
            let model = gpu(facts.chip);
            assert_eq!(model.facts().chip, facts.chip);
            let (major, ..) = facts.compute.hardware;
            assert_eq!(major, model.shape.gfx_target_version / 10_000, "{}", facts.chip);
        }
    }

    #[test]
    fn bitmaps_count_the_compute_units_of_an_xcc() {
        for (spec, xccs) in [("gfx1100", 1), ("gfx1102", 1), ("gfx1201", 1), ("gfx90a", 1), ("gfx942", 8)] {
            let info = gpu(spec).device_info();
            let words = info.cu_bitmap.iter().flatten().map(|word| word.count_ones());
            // Where the units do not divide evenly, the first XCC has those that the others lack.
            let (of_xcc, even) = (words.clone().sum::<u32>(), info.cu_active_number / xccs);
            assert!((even..=even + 2).contains(&of_xcc), "{spec}: {of_xcc} of {even}");
            let most = words.max();
            assert!(most <= Some(info.num_cu_per_sh), "{spec}: {most:?} of {}", info.num_cu_per_sh);
        }
        // Engines 4 and 5 of two arrays each are in the last two columns.
        let whole = 0xff;
        let wanted = [[whole; 4], [whole; 4], [whole, whole, 0, 0], [whole, whole, 0, 0]];
        assert_eq!(gpu("gfx1100").device_info().cu_bitmap, wanted);
        let aldebaran = gpu("gfx90a").device_info();
        assert_eq!(aldebaran.cu_bitmap, [[0x1fff, 0x1fff, 0, 0]; 4]);
        assert_eq!(aldebaran.cu_ao_bitmap, aldebaran.cu_bitmap);
    }

    #[test]
    fn device_info_agrees_with_public_dumps_of_a_7900_xtx() {
        let info = gpu("gfx1100").device_info();
        assert_eq!((info.device_id, info.family, info.pci_rev), (0x744c, 145, 0xc8));
        assert_eq!(info.external_rev, info.chip_rev + 1);
        assert_eq!((info.num_shader_engines, info.num_shader_arrays_per_engine), (6, 2));
        assert_eq!((info.gpu_counter_freq, info.max_engine_clock), (100_000, 2_482_000));
        assert_eq!((info.vram_type, info.vram_bit_width, info.wave_front_size), (9, 384, 32));
        assert_eq!((info.num_tcc_blocks, info.gl2c_cache_size, info.mall_size), (24, 6144, 96 << 20));
        assert_eq!((info.pcie_gen, info.pcie_num_lanes), (4, 16));
    }

    #[test]
    fn chips_before_gfx11_tell_nothing_of_their_caches() {
        let info = gpu("gfx942").device_info();
        assert_eq!((info.tcp_cache_size, info.gl2c_cache_size, info.mall_size), (0, 0, 0));
        assert_eq!((info.num_shader_engines, info.cu_active_number), (4, 304));
    }
}
