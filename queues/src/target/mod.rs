// SPDX-License-Identifier: MIT OR Apache-2.0
//! What differs from chip to chip: one table, one row per GPU target.
//!
//! INVARIANT: no other module of the workspace compares a gfx version. Code that must behave differently asks
//! a [`Target`] for the fact it depends on.
//!
//! Sources: LLVM AMDGPUUsage (names, `e_flags`, features; checked against clang 19 by the tests), KFD
//! (`kfd_queue.c`, `kfd_device.c` of Linux 7.3) for save area sizes and topology values.

mod sdma_generation;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

pub use sdma_generation::Generation;
pub(crate) use sdma_generation::RectBits;
pub use table::TARGETS;

use crate::save_area::Layout;

/// How a SIMD hands out vector registers to waves of one size. Counts are registers per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VgprFile {
    /// Registers that one step of the descriptor's field means.
    pub encoding: u32,
    /// Registers that are handed out at once.
    pub allocation: u32,
    /// Registers of one SIMD, for all its waves.
    pub total: u32,
}

/// How many waves KFD counts per XCC when it sizes the save area (`get_num_waves`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaveRule {
    /// 40 per compute unit, but no more than 512 per shader engine: before gfx10.1.
    FortyPerCuWithin512PerEngine,
    /// 32 per compute unit.
    ThirtyTwoPerCu,
}

/// How much LDS of a compute unit the save area holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LdsSize {
    /// This many bytes.
    Fixed(u32),
    /// What the node's `lds_size_in_kb` says.
    FromNode,
}

/// What KFD's save area formula takes per compute unit and per wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CwsrSizes {
    /// How waves are counted.
    pub waves: WaveRule,
    /// SGPR bytes per compute unit.
    pub sgpr_bytes_per_cu: u32,
    /// LDS bytes per compute unit.
    pub lds_per_cu: LdsSize,
    /// Hardware register bytes per compute unit.
    pub hwreg_bytes_per_cu: u32,
    /// Control stack bytes per wave.
    pub control_stack_bytes_per_wave: u32,
    /// The most a control stack may have, bytes; gfx10 only.
    pub control_stack_limit: Option<u32>,
}

/// How scratch memory is described to waves and to the processor (ROCr `FillBufRsrcWord*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScratchFormat {
    /// Bits to OR into word 1 of the buffer descriptor.
    pub descriptor_word1: u32,
    /// Word 3 of the buffer descriptor.
    pub descriptor_word3: u32,
    /// Unit of `COMPUTE_TMPRING_SIZE.WAVESIZE`, bytes.
    pub wave_size_unit: u32,
    /// Whether `COMPUTE_TMPRING_SIZE.WAVES` counts per shader engine instead of per device.
    pub waves_per_engine: bool,
}

/// How KFD can checkpoint and restore a queue of this chip (`CRIU_OP`, Linux 7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CriuSupport {
    /// Dump and restore.
    Full,
    /// Dump and restore, but not where a node is a part of the chip: kernels with "Fix checkpoint-restore on multi-xcc" (6.18)
    /// and without "use node XCC count for v9 CRIU control stack restore" (June 2026) divide the control stack by the
    /// XCCs of the whole chip, and write behind their own buffer.
    WholeChip,
    /// Dump only: restoring fails because the write pointer's buffer is not rebuilt.
    DumpOnly,
    /// Neither.
    None,
}

/// When a PM4 dispatch must set `COMPUTE_PGM_RSRC1.PRIV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PrivilegeRule {
    Never,
    Always,
    SeveralArrays,
}

/// One GPU target.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Target {
    /// LLVM's name, `gfx1100`.
    pub name: &'static str,
    /// KFD's `gfx_target_version`: major, minor and stepping as decimal pairs, 110000.
    pub gfx_version: u32,
    /// First part of the version.
    pub major: u32,
    /// Whether its machine code is that of gfx11: the one that `softgpu-isa` decodes and `softgpu` executes.
    pub gfx11_code: bool,
    /// Whether `softgpu` processes its compute queues although it cannot execute the kernels in them.
    pub packets_without_code: bool,
    /// `EF_AMDGPU_MACH` in the `e_flags` of its code objects; 0 (`EF_AMDGPU_MACH_NONE`) if there can be none.
    pub elf_mach: u32,
    /// Whether its code objects carry a choice about XNACK in `e_flags`.
    pub xnack: bool,
    /// Whether its code objects carry a choice about SRAM ECC in `e_flags`.
    pub sramecc: bool,
    /// Name that KFD's topology gives the node.
    pub asic_name: &'static str,

    /// Wave sizes that kernels may be compiled for, in lanes, the topology's `wave_front_size` first.
    pub wave_sizes: &'static [u32],
    /// SIMDs per compute unit.
    pub simd_per_cu: u32,
    /// Waves per SIMD that the topology reports.
    pub max_waves_per_simd: u32,
    /// Vector registers in waves of 64.
    pub vgprs_wave64: VgprFile,
    /// Vector registers in waves of 32.
    pub vgprs_wave32: Option<VgprFile>,
    /// Vector register bytes per compute unit, accumulation registers included.
    pub vgpr_bytes_per_cu: u32,
    /// LDS that one work-group can have, bytes.
    pub max_group_segment_bytes: u32,

    /// Whether flat scratch is a hardware register instead of SGPRs that the kernel sets up.
    pub architected_flat_scratch: bool,
    /// Whether kernel arguments can be preloaded into user SGPRs.
    pub kernarg_preload: bool,
    /// Whether work-group ids are in trap temporaries instead of SGPRs.
    pub workgroup_ids_in_ttmps: bool,
    /// The trap temporary in which a trap handler keeps the low half of a wave's PC when it halts the wave somewhere else;
    /// bits 22 to 7 of `ttmp11` have the rest. `None` where a wave is halted where it stands
    /// ([`crate::save_area::Stopped`]).
    pub parked_pc: Option<usize>,
    /// How scratch is described, where it is known.
    pub scratch: Option<ScratchFormat>,

    /// Whether [`crate::pm4::Dispatch`] can encode its dispatches: gfx12 has moved `COMPUTE_TMPRING_SIZE` and
    /// `COMPUTE_PGM_RSRC3`.
    pub pm4_dispatch: bool,
    /// Dword address of the register for the third resource word of the kernel descriptor. `None` if the chip has no
    /// such register; among gfx9 chips only those with a unified register file have it, for the place where
    /// accumulation registers start.
    pub pgm_rsrc3: Option<u32>,
    /// Whether PM4 packets name caches by the bits of `GCR_CNTL`, as from gfx10 on, instead of by those of
    /// `CP_COHER_CNTL`.
    pub gcr: bool,
    /// Whether compute units come in pairs (work-group processors), which a CU mask must not divide
    /// (`pqm_update_mqd`, `kfd_process_queue_manager.c`).
    pub paired_cus: bool,

    /// What the save area's size follows from.
    pub cwsr: CwsrSizes,
    /// What is where in the save area.
    pub save_layout: Layout,
    /// Bytes of a queue's EOP buffer. KFD accepts 4096 on all of these, and never exports the number.
    pub eop_bytes: u32,
    /// Whether AQL queues have one too. On gfx94x and gfx95x they have none, since each XCC would write to the same
    /// (`libhsakmt/src/queues.c`, `hsaKmtCreateQueueExt`).
    pub aql_eop: bool,
    /// Queues that one process may have on one GPU.
    pub max_queues_per_process: u32,
    /// Whether the MES firmware schedules queues: the write pointer must then be in a GTT buffer of the same
    /// GPU.
    pub mes: bool,
    /// Whether the control stack of a compute queue lies behind its descriptor in the driver's memory (`allocate_mqd` of
    /// `kfd_mqd_manager_v9.c`), so that a checkpoint by the driver carries it.
    pub kernel_control_stack: bool,
    /// Which packets its SDMA engines understand; `None` where [`crate::sdma`] does not know them.
    pub sdma: Option<Generation>,
    /// Least dwords that its SDMA engines may be told of at once: shorter submissions are padded with no-ops
    /// (`amd_blit_sdma.cpp`: `min_submission_size_`). ROCr does not say what an engine does with shorter ones.
    pub sdma_submission_dwords: u32,
    /// Whether a submission may have its SDMA engine flush the host data path. gfx10.1 has trouble with it, so that ROCr
    /// writes no such packet there (`amd_blit_sdma.cpp`: `hdp_flush_support_`).
    pub sdma_hdp_flush: bool,
    /// What KFD's own checkpointing can do with its queues.
    pub criu: CriuSupport,
    privilege: PrivilegeRule,
}

impl Target {
    /// The target with KFD's version number, such as 90010 or 110000.
    #[must_use]
    pub fn from_gfx_version(gfx_target_version: u32) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.gfx_version == gfx_target_version)
    }

    /// The target with LLVM's name, such as `gfx90a` or `gfx1100`.
    ///
    /// ```
    /// let target = queues::target::Target::by_name("gfx1100").unwrap();
    /// assert_eq!((target.gfx_version, target.elf_mach), (110_000, 0x41));
    /// ```
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// The target whose code objects carry this `EF_AMDGPU_MACH` (the low byte of `e_flags`).
    #[must_use]
    pub fn from_elf_mach(mach: u32) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.elf_mach == mach && mach != 0)
    }

    /// Lanes that the topology reports as `wave_front_size`.
    #[must_use]
    pub fn wave_front_size(&self) -> u32 {
        self.wave_sizes.first().copied().unwrap_or(64)
    }

    /// Vector registers in waves of this kind; waves of 64 where the chip has no waves of 32.
    #[must_use]
    pub const fn vgprs(&self, wave32: bool) -> VgprFile {
        match (wave32, self.vgprs_wave32) {
            (true, Some(file)) => file,
            _ => self.vgprs_wave64,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Whether a **PM4** dispatch must set bit 20 (`PRIV`) of `COMPUTE_PGM_RSRC1` on a chip of this target with
/// this many shader arrays (`array_count / num_xcc` of the node).
///
/// gfx1100, gfx1101, gfx1102 and gfx1105 need it always, gfx1103 with more than one shader array, all others
/// hang with it (libhsakmt kfdtest, `NeedCwsrWA`). AQL dispatches never set it: that is the firmware's job.
#[must_use]
pub const fn privileged_dispatch(target: &Target, simd_arrays: u32) -> bool {
    match target.privilege {
        PrivilegeRule::Never => false,
        PrivilegeRule::Always => true,
        PrivilegeRule::SeveralArrays => simd_arrays > 1,
    }
}
