// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many waves of a dispatch the modelled chip would hold at a time.
//!
//! INVARIANT: only resources count. The number of workgroups in the grid, and the number of waves that this host runs
//! at a time, do not matter.
//!
//! Sources: register files and wave slots from the target table; a workgroup has a compute unit's SIMDs and LDS to
//! itself, or a workgroup processor's (two compute units) where its descriptor has WGP_MODE; LDS is allocated in units
//! of 1 KiB since gfx10.3 (Mesa, `ac_gpu_info.c`, `lds_alloc_granularity`).

use crate::launch::{Launch, Plan};

/// The allocation unit of LDS, bytes.
const LDS_GRANULE: u64 = 1024;

/// The resources of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Occupancy {
    /// Registers of a lane, as allocated.
    vgprs: u32,
    /// LDS of a workgroup, bytes, as allocated.
    lds_bytes: u64,
    /// Scratch of a work-item, bytes.
    scratch_bytes: u32,
    waves_per_workgroup: u64,
    /// 0 if no workgroup fits.
    waves_per_simd: f64,
    slots_per_simd: u32,
    limited_by: &'static str,
}

impl Occupancy {
    pub(super) fn new(launch: &Launch, plan: &Plan) -> Occupancy {
        let (descriptor, target) = (&launch.descriptor, launch.target);
        let units = if descriptor.wgp_mode() { 2 } else { 1 };
        let simds = u64::from(units * target.simd_per_cu);
        let vgprs = descriptor.allocated_vgprs(target);
        let lds_bytes = u64::from(launch.packet.group_segment_bytes).next_multiple_of(LDS_GRANULE);
        // CAST: a workgroup has at most 1024 work-items.
        let waves_per_workgroup = plan.max_waves.max(1) as u64;
        let workgroups = |waves: u32| u64::from(waves) * simds / waves_per_workgroup;
        let slots = target.max_waves_per_simd;
        let by_slots = workgroups(slots);
        let by_vgprs = workgroups(target.vgprs(descriptor.wave32()).total / vgprs.max(1));
        let lds = u64::from(units) * u64::from(target.max_group_segment_bytes);
        let by_lds = lds.checked_div(lds_bytes).unwrap_or(u64::MAX);
        let (resident, limited_by) = [(by_slots, "wave slots"), (by_vgprs, "VGPRs"), (by_lds, "LDS")]
            .into_iter()
            .min_by_key(|(workgroups, _)| *workgroups)
            .unwrap_or((0, ""));
        Occupancy {
            vgprs,
            lds_bytes,
            scratch_bytes: plan.private_bytes,
            waves_per_workgroup,
            waves_per_simd: (resident * waves_per_workgroup) as f64 / simds.max(1) as f64,
            slots_per_simd: slots,
            limited_by,
        }
    }

    pub(super) fn json(&self) -> String {
        format!(
            "{{\"vgprs\":{},\"lds_bytes\":{},\"scratch_bytes\":{},\"waves_per_workgroup\":{},\"waves_per_simd\":{:.2},\
             \"slots_per_simd\":{},\"limited_by\":\"{}\"}}",
            self.vgprs,
            self.lds_bytes,
            self.scratch_bytes,
            self.waves_per_workgroup,
            self.waves_per_simd,
            self.slots_per_simd,
            self.limited_by,
        )
    }
}
