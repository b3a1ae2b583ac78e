// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a recorded dispatch tells of the waves that the modelled chip holds of it.
//!
//! INVARIANT: the number of workgroups in the grid does not matter.

use crate::launch::{Launch, Plan};
use crate::residency::Residency;

/// The resources of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Occupancy {
    residency: Residency,
    /// Scratch of a work-item, bytes.
    scratch_bytes: u32,
    slots_per_simd: u32,
}

impl Occupancy {
    pub(super) fn new(launch: &Launch, plan: &Plan) -> Occupancy {
        Occupancy {
            residency: Residency::new(launch),
            scratch_bytes: plan.private_bytes,
            slots_per_simd: launch.target.max_waves_per_simd,
        }
    }

    /// 0 if no workgroup fits.
    fn waves_per_simd(&self) -> f64 {
        let Residency { per_unit, waves_per_workgroup, simds, .. } = self.residency;
        (per_unit * waves_per_workgroup) as f64 / simds.max(1) as f64
    }

    pub(super) fn json(&self) -> String {
        format!(
            "{{\"vgprs\":{},\"lds_bytes\":{},\"scratch_bytes\":{},\"waves_per_workgroup\":{},\"waves_per_simd\":{:.2},\
             \"slots_per_simd\":{},\"limited_by\":\"{}\"}}",
            self.residency.vgprs,
            self.residency.lds_bytes,
            self.scratch_bytes,
            self.residency.waves_per_workgroup,
            self.waves_per_simd(),
            self.slots_per_simd,
            self.residency.limited_by,
        )
    }
}
