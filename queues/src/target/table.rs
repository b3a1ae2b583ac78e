// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows. Each chip names what distinguishes it from the base of its family.

use crate::pm4::reg;
use crate::save_area::Layout;

use super::{
    CriuSupport, CwsrSizes, Generation, LdsSize, PrivilegeRule, ScratchFormat, Target, VgprFile, WaveRule,
};

const WAVE64_ONLY: &[u32] = &[64];
const WAVE32_FIRST: &[u32] = &[32, 64];

/// 256 registers per SIMD.
const GFX9_VGPRS: VgprFile = VgprFile { encoding: 4, allocation: 4, total: 256 };
/// 512 registers per SIMD, architectural and accumulation in one file.
const UNIFIED_VGPRS: VgprFile = VgprFile { encoding: 8, allocation: 8, total: 512 };
const GFX10_1_WAVE32: VgprFile = VgprFile { encoding: 8, allocation: 8, total: 1024 };
const GFX10_1_WAVE64: VgprFile = VgprFile { encoding: 4, allocation: 4, total: 512 };
const SMALL_WAVE32: VgprFile = VgprFile { allocation: 16, ..GFX10_1_WAVE32 };
const SMALL_WAVE64: VgprFile = VgprFile { allocation: 8, ..GFX10_1_WAVE64 };
/// Half as many registers again.
const LARGE_WAVE32: VgprFile = VgprFile { encoding: 8, allocation: 24, total: 1536 };
const LARGE_WAVE64: VgprFile = VgprFile { encoding: 4, allocation: 12, total: 768 };

const SMALL_VGPR_BYTES: u32 = 0x40000;
const LARGE_VGPR_BYTES: u32 = 0x60000;
const CDNA_VGPR_BYTES: u32 = 0x80000;

const GFX9_CWSR: CwsrSizes = CwsrSizes {
    waves: WaveRule::FortyPerCuWithin512PerEngine,
    sgpr_bytes_per_cu: 0x4000,
    lds_per_cu: LdsSize::Fixed(0x10000),
    hwreg_bytes_per_cu: 0x1000,
    control_stack_bytes_per_wave: 8,
    control_stack_limit: None,
};
const GFX11_CWSR: CwsrSizes =
    CwsrSizes { waves: WaveRule::ThirtyTwoPerCu, control_stack_bytes_per_wave: 12, ..GFX9_CWSR };
const GFX10_CWSR: CwsrSizes = CwsrSizes { control_stack_limit: Some(0x7000), ..GFX11_CWSR };

const GFX9_SCRATCH: ScratchFormat = ScratchFormat {
    descriptor_word1: 0x8000_0000,
    descriptor_word3: 0x00ea_4fac,
    wave_size_unit: 1024,
    waves_per_engine: false,
};
const GFX10_SCRATCH: ScratchFormat = ScratchFormat { descriptor_word3: 0x2181_4fac, ..GFX9_SCRATCH };
const GFX11_SCRATCH: ScratchFormat = ScratchFormat {
    descriptor_word1: 0x4000_0000,
    descriptor_word3: 0x2081_4fac,
    wave_size_unit: 256,
    waves_per_engine: true,
};

/// What all gfx9 chips share; the name and numbers are placeholders that every row replaces.
const GFX9: Target = Target {
    name: "",
    gfx_version: 0,
    major: 9,
    gfx11_code: false,
    packets_without_code: true,
    elf_mach: 0,
    xnack: true,
    sramecc: true,
    asic_name: "ip discovery",
    wave_sizes: WAVE64_ONLY,
    simd_per_cu: 4,
    max_waves_per_simd: 10,
    vgprs_wave64: GFX9_VGPRS,
    vgprs_wave32: None,
    vgpr_bytes_per_cu: SMALL_VGPR_BYTES,
    max_group_segment_bytes: 0x10000,
    architected_flat_scratch: false,
    kernarg_preload: false,
    workgroup_ids_in_ttmps: false,
    parked_pc: Some(7),
    scratch: Some(GFX9_SCRATCH),
    pm4_dispatch: true,
    pgm_rsrc3: None,
    gcr: false,
    paired_cus: false,
    cwsr: GFX9_CWSR,
    save_layout: Layout::Gfx9,
    eop_bytes: 4096,
    aql_eop: true,
    max_queues_per_process: 127,
    mes: false,
    kernel_control_stack: true,
    sdma: Some(Generation::V4),
    sdma_submission_dwords: 1,
    sdma_hdp_flush: true,
    criu: CriuSupport::Full,
    privilege: PrivilegeRule::Never,
};

const CDNA2: Target = Target {
    max_waves_per_simd: 8,
    vgprs_wave64: UNIFIED_VGPRS,
    vgpr_bytes_per_cu: CDNA_VGPR_BYTES,
    kernarg_preload: true,
    pgm_rsrc3: Some(reg::COMPUTE_PGM_RSRC3_GFX9),
    save_layout: Layout::Gfx90a,
    sdma: Some(Generation::V4_4),
    ..GFX9
};

const CDNA3: Target = Target {
    architected_flat_scratch: true,
    parked_pc: None,
    max_queues_per_process: 255,
    aql_eop: false,
    criu: CriuSupport::WholeChip,
    ..CDNA2
};

const GFX10_1: Target = Target {
    major: 10,
    packets_without_code: false,
    kernel_control_stack: false,
    gcr: true,
    paired_cus: true,
    pgm_rsrc3: Some(reg::COMPUTE_PGM_RSRC3),
    sramecc: false,
    wave_sizes: WAVE32_FIRST,
    simd_per_cu: 2,
    max_waves_per_simd: 20,
    vgprs_wave64: GFX10_1_WAVE64,
    vgprs_wave32: Some(GFX10_1_WAVE32),
    scratch: Some(GFX10_SCRATCH),
    cwsr: GFX10_CWSR,
    save_layout: Layout::Gfx10,
    sdma: Some(Generation::V5),
    sdma_hdp_flush: false,
    ..GFX9
};

const GFX10_3: Target = Target {
    parked_pc: None,
    xnack: false,
    max_waves_per_simd: 16,
    vgprs_wave64: SMALL_WAVE64,
    vgprs_wave32: Some(SMALL_WAVE32),
    sdma: Some(Generation::V5_2),
    sdma_hdp_flush: true,
    ..GFX10_1
};

const GFX11_0: Target = Target {
    parked_pc: Some(7),
    major: 11,
    gfx11_code: true,
    architected_flat_scratch: true,
    scratch: Some(GFX11_SCRATCH),
    cwsr: GFX11_CWSR,
    mes: true,
    sdma: Some(Generation::V6),
    criu: CriuSupport::DumpOnly,
    ..GFX10_3
};

const GFX11_5: Target = Target { ..GFX11_0 };

const GFX12: Target = Target {
    parked_pc: Some(10),
    major: 12,
    gfx11_code: false,
    pm4_dispatch: false,
    pgm_rsrc3: None,
    vgprs_wave64: LARGE_WAVE64,
    vgprs_wave32: Some(LARGE_WAVE32),
    vgpr_bytes_per_cu: LARGE_VGPR_BYTES,
    workgroup_ids_in_ttmps: true,
    save_layout: Layout::Gfx12,
    sdma: Some(Generation::V7),
    criu: CriuSupport::None,
    ..GFX11_0
};

/// Every known target, by version.
pub static TARGETS: &[Target] = &[
    Target {
        name: "gfx900",
        gfx_version: 90000,
        elf_mach: 0x2c,
        sramecc: false,
        asic_name: "vega10",
        sdma_submission_dwords: 64,
        ..GFX9
    },
    Target { name: "gfx906", gfx_version: 90006, elf_mach: 0x2f, asic_name: "vega20", ..GFX9 },
    Target {
        name: "gfx908",
        gfx_version: 90008,
        elf_mach: 0x30,
        asic_name: "arcturus",
        vgpr_bytes_per_cu: CDNA_VGPR_BYTES,
        save_layout: Layout::Gfx908,
        ..GFX9
    },
    Target { name: "gfx90a", gfx_version: 90010, elf_mach: 0x3f, asic_name: "aldebaran", ..CDNA2 },
    Target { name: "gfx942", gfx_version: 90402, elf_mach: 0x4c, ..CDNA3 },
    Target {
        name: "gfx950",
        gfx_version: 90500,
        elf_mach: 0x4f,
        max_group_segment_bytes: 160 << 10,
        cwsr: CwsrSizes { lds_per_cu: LdsSize::FromNode, ..GFX9_CWSR },
        save_layout: Layout::Gfx950,
        ..CDNA3
    },
    Target { name: "gfx1010", gfx_version: 100_100, elf_mach: 0x33, asic_name: "navi10", ..GFX10_1 },
    Target { name: "gfx1012", gfx_version: 100_102, elf_mach: 0x35, asic_name: "navi14", ..GFX10_1 },
    Target { name: "gfx1030", gfx_version: 100_300, elf_mach: 0x36, asic_name: "sienna_cichlid", ..GFX10_3 },
    Target {
        name: "gfx1100",
        gfx_version: 110_000,
        elf_mach: 0x41,
        vgprs_wave64: LARGE_WAVE64,
        vgprs_wave32: Some(LARGE_WAVE32),
        vgpr_bytes_per_cu: LARGE_VGPR_BYTES,
        privilege: PrivilegeRule::Always,
        ..GFX11_0
    },
    Target {
        name: "gfx1101",
        gfx_version: 110_001,
        elf_mach: 0x46,
        vgprs_wave64: LARGE_WAVE64,
        vgprs_wave32: Some(LARGE_WAVE32),
        vgpr_bytes_per_cu: LARGE_VGPR_BYTES,
        privilege: PrivilegeRule::Always,
        ..GFX11_0
    },
    Target {
        name: "gfx1102",
        gfx_version: 110_002,
        elf_mach: 0x47,
        privilege: PrivilegeRule::Always,
        ..GFX11_0
    },
    Target {
        name: "gfx1103",
        gfx_version: 110_003,
        elf_mach: 0x44,
        privilege: PrivilegeRule::SeveralArrays,
        ..GFX11_0
    },
    // Only in topologies of Linux 6.3 to 6.7, for some gfx1101 boards; no compiler ever had the name, so
    // there is no code object number, and KFD's formula has no entry for it.
    Target {
        name: "gfx1105",
        gfx_version: 110_005,
        elf_mach: 0,
        privilege: PrivilegeRule::Always,
        ..GFX11_0
    },
    Target { name: "gfx1150", gfx_version: 110_500, elf_mach: 0x43, ..GFX11_5 },
    Target {
        name: "gfx1151",
        gfx_version: 110_501,
        elf_mach: 0x4a,
        vgprs_wave64: LARGE_WAVE64,
        vgprs_wave32: Some(LARGE_WAVE32),
        vgpr_bytes_per_cu: LARGE_VGPR_BYTES,
        ..GFX11_5
    },
    Target { name: "gfx1152", gfx_version: 110_502, elf_mach: 0x55, ..GFX11_5 },
    Target { name: "gfx1200", gfx_version: 120_000, elf_mach: 0x48, ..GFX12 },
    Target { name: "gfx1201", gfx_version: 120_001, elf_mach: 0x4e, ..GFX12 },
];
