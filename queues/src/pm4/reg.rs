// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers that a compute queue's packets name, as absolute dword addresses.
//!
//! INVARIANT: an address here is `base + offset` in dwords, the number that `WAIT_REG_MEM` and `COPY_DATA`
//! carry whole and from which the `SET_*_REG` packets subtract their range's base. Addresses are those of
//! gfx11 (`gc_11_0_0_offset.h`: segment base 0x1260 plus 0x1ba0 is `COMPUTE_DISPATCH_INITIATOR`); gfx9 and
//! gfx10 share all of them but the ones whose names say otherwise.

use std::ops::Range;

/// First register of [`SH_RANGE`], which `SET_SH_REG` counts from.
pub const SH_BASE: u32 = 0x2C00;
/// Registers that `SET_SH_REG` can write (`PACKET3_SET_SH_REG_START`, `_END`).
pub const SH_RANGE: Range<u32> = SH_BASE..0x3000;
/// First register of [`UCONFIG_RANGE`], which `SET_UCONFIG_REG` counts from.
pub const UCONFIG_BASE: u32 = 0xC000;
/// Registers that `SET_UCONFIG_REG` can write.
pub const UCONFIG_RANGE: Range<u32> = UCONFIG_BASE..0x1_0000;
/// The compute part of [`SH_RANGE`]: what one dispatch takes its state from.
pub const COMPUTE_RANGE: Range<u32> = 0x2E00..0x2E80;

/// How a dispatch starts; see [`Initiator`](super::Initiator).
pub const COMPUTE_DISPATCH_INITIATOR: u32 = 0x2E00;
/// Work-groups in x.
pub const COMPUTE_DIM_X: u32 = 0x2E01;
/// Work-groups in y.
pub const COMPUTE_DIM_Y: u32 = 0x2E02;
/// Work-groups in z.
pub const COMPUTE_DIM_Z: u32 = 0x2E03;
/// First work-group in x.
pub const COMPUTE_START_X: u32 = 0x2E04;
/// First work-group in y.
pub const COMPUTE_START_Y: u32 = 0x2E05;
/// First work-group in z.
pub const COMPUTE_START_Z: u32 = 0x2E06;
/// Work-items of a work-group in x, bits 0..16; those of a partial one in bits 16..32.
pub const COMPUTE_NUM_THREAD_X: u32 = 0x2E07;
/// The same in y.
pub const COMPUTE_NUM_THREAD_Y: u32 = 0x2E08;
/// The same in z.
pub const COMPUTE_NUM_THREAD_Z: u32 = 0x2E09;
/// Whether pipeline statistics are counted.
pub const COMPUTE_PIPELINESTAT_ENABLE: u32 = 0x2E0A;
/// Whether performance counters count.
pub const COMPUTE_PERFCOUNT_ENABLE: u32 = 0x2E0B;
/// Bits 8..40 of the address of the first instruction.
pub const COMPUTE_PGM_LO: u32 = 0x2E0C;
/// Bits 40..48 of that address.
pub const COMPUTE_PGM_HI: u32 = 0x2E0D;
/// Low bits of the address of the AQL packet that the dispatch comes from.
pub const COMPUTE_DISPATCH_PKT_ADDR_LO: u32 = 0x2E0E;
/// High bits of that address.
pub const COMPUTE_DISPATCH_PKT_ADDR_HI: u32 = 0x2E0F;
/// Bits 8..40 of the scratch memory's address, on chips with architected flat scratch.
///
/// Older chips have the trap handler's address here.
pub const COMPUTE_DISPATCH_SCRATCH_BASE_LO: u32 = 0x2E10;
/// Bits 40..48 of that address.
pub const COMPUTE_DISPATCH_SCRATCH_BASE_HI: u32 = 0x2E11;
/// First resource word of the kernel descriptor.
pub const COMPUTE_PGM_RSRC1: u32 = 0x2E12;
/// Second resource word, with the LDS size.
pub const COMPUTE_PGM_RSRC2: u32 = 0x2E13;
/// Address space of the dispatch; the processor sets it.
pub const COMPUTE_VMID: u32 = 0x2E14;
/// How many waves and work-groups may run at once; 0 is no limit.
pub const COMPUTE_RESOURCE_LIMITS: u32 = 0x2E15;
/// Compute units of shader engine 0 that may be used.
pub const COMPUTE_STATIC_THREAD_MGMT_SE0: u32 = 0x2E16;
/// Compute units of shader engine 1 that may be used.
pub const COMPUTE_STATIC_THREAD_MGMT_SE1: u32 = 0x2E17;
/// Waves that have scratch in bits 0..12, scratch of a wave above.
pub const COMPUTE_TMPRING_SIZE: u32 = 0x2E18;
/// Compute units of shader engine 2 that may be used.
pub const COMPUTE_STATIC_THREAD_MGMT_SE2: u32 = 0x2E19;
/// Compute units of shader engine 3 that may be used.
pub const COMPUTE_STATIC_THREAD_MGMT_SE3: u32 = 0x2E1A;
/// Work-group in x at which a preempted dispatch resumes.
pub const COMPUTE_RESTART_X: u32 = 0x2E1B;
/// The same in y.
pub const COMPUTE_RESTART_Y: u32 = 0x2E1C;
/// The same in z.
pub const COMPUTE_RESTART_Z: u32 = 0x2E1D;
/// Whether the dispatch is traced.
pub const COMPUTE_THREAD_TRACE_ENABLE: u32 = 0x2E1E;
/// Third resource word of gfx10 and gfx11.
pub const COMPUTE_PGM_RSRC3: u32 = 0x2E28;
/// Third resource word of gfx90a and later gfx9 chips.
pub const COMPUTE_PGM_RSRC3_GFX9: u32 = 0x2E2D;
/// First of the [`USER_DATA_COUNT`] words that waves find in their first SGPRs.
pub const COMPUTE_USER_DATA_0: u32 = 0x2E40;
/// How many user data registers there are.
pub const USER_DATA_COUNT: u32 = 16;

/// The name of a register of this list.
#[must_use]
pub const fn name(register: u32) -> Option<&'static str> {
    Some(match register {
        COMPUTE_DISPATCH_INITIATOR => "COMPUTE_DISPATCH_INITIATOR",
        COMPUTE_DIM_X => "COMPUTE_DIM_X",
        COMPUTE_DIM_Y => "COMPUTE_DIM_Y",
        COMPUTE_DIM_Z => "COMPUTE_DIM_Z",
        COMPUTE_START_X => "COMPUTE_START_X",
        COMPUTE_START_Y => "COMPUTE_START_Y",
        COMPUTE_START_Z => "COMPUTE_START_Z",
        COMPUTE_NUM_THREAD_X => "COMPUTE_NUM_THREAD_X",
        COMPUTE_NUM_THREAD_Y => "COMPUTE_NUM_THREAD_Y",
        COMPUTE_NUM_THREAD_Z => "COMPUTE_NUM_THREAD_Z",
        COMPUTE_PIPELINESTAT_ENABLE => "COMPUTE_PIPELINESTAT_ENABLE",
        COMPUTE_PERFCOUNT_ENABLE => "COMPUTE_PERFCOUNT_ENABLE",
        COMPUTE_PGM_LO => "COMPUTE_PGM_LO",
        COMPUTE_PGM_HI => "COMPUTE_PGM_HI",
        COMPUTE_DISPATCH_PKT_ADDR_LO => "COMPUTE_DISPATCH_PKT_ADDR_LO",
        COMPUTE_DISPATCH_PKT_ADDR_HI => "COMPUTE_DISPATCH_PKT_ADDR_HI",
        COMPUTE_DISPATCH_SCRATCH_BASE_LO => "COMPUTE_DISPATCH_SCRATCH_BASE_LO",
        COMPUTE_DISPATCH_SCRATCH_BASE_HI => "COMPUTE_DISPATCH_SCRATCH_BASE_HI",
        COMPUTE_PGM_RSRC1 => "COMPUTE_PGM_RSRC1",
        COMPUTE_PGM_RSRC2 => "COMPUTE_PGM_RSRC2",
        COMPUTE_VMID => "COMPUTE_VMID",
        COMPUTE_RESOURCE_LIMITS => "COMPUTE_RESOURCE_LIMITS",
        COMPUTE_STATIC_THREAD_MGMT_SE0 => "COMPUTE_STATIC_THREAD_MGMT_SE0",
        COMPUTE_STATIC_THREAD_MGMT_SE1 => "COMPUTE_STATIC_THREAD_MGMT_SE1",
        COMPUTE_TMPRING_SIZE => "COMPUTE_TMPRING_SIZE",
        COMPUTE_STATIC_THREAD_MGMT_SE2 => "COMPUTE_STATIC_THREAD_MGMT_SE2",
        COMPUTE_STATIC_THREAD_MGMT_SE3 => "COMPUTE_STATIC_THREAD_MGMT_SE3",
        COMPUTE_RESTART_X => "COMPUTE_RESTART_X",
        COMPUTE_RESTART_Y => "COMPUTE_RESTART_Y",
        COMPUTE_RESTART_Z => "COMPUTE_RESTART_Z",
        COMPUTE_THREAD_TRACE_ENABLE => "COMPUTE_THREAD_TRACE_ENABLE",
        COMPUTE_PGM_RSRC3 => "COMPUTE_PGM_RSRC3",
        COMPUTE_PGM_RSRC3_GFX9 => "COMPUTE_PGM_RSRC3 (gfx9)",
        COMPUTE_USER_DATA_0 => "COMPUTE_USER_DATA_0",
        _ => return None,
    })
}
