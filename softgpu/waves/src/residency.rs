// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many workgroups of a dispatch the modelled chip holds at a time.
//!
//! INVARIANT: only the chip's resources count, never those of this host. A dispatch whose workgroups wait for each other
//! ends here exactly where it ends on hardware that has nothing else to run.
//!
//! Sources: register files and wave slots from the target table; a workgroup has a compute unit's SIMDs and LDS to
//! itself, or a workgroup processor's (two compute units) where its descriptor has WGP_MODE; LDS is allocated in units
//! of 1 KiB since gfx10.3 (Mesa, `ac_gpu_info.c`, `lds_alloc_granularity`).

use crate::launch::Launch;

/// The allocation unit of LDS, bytes.
const LDS_GRANULE: u64 = 1024;

/// The resources that the workgroups of a dispatch have, and what they leave room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Residency {
    /// Registers of a lane, as allocated.
    pub(crate) vgprs: u32,
    /// LDS of a workgroup, bytes, as allocated.
    pub(crate) lds_bytes: u64,
    /// Waves of a whole workgroup, not 0.
    pub(crate) waves_per_workgroup: u64,
    /// SIMDs that the waves of a workgroup are spread over.
    pub(crate) simds: u64,
    /// Workgroups that one compute unit holds, or one workgroup processor; 0 if none fits.
    pub(crate) per_unit: u64,
    /// Which resource is used up first.
    pub(crate) limited_by: &'static str,
    /// Compute units of the chip that share a workgroup's resources: 1, or 2 of a workgroup processor.
    units: u32,
}

impl Residency {
    pub(crate) fn new(launch: &Launch) -> Residency {
        let (descriptor, target) = (&launch.descriptor, launch.target);
        let units = if descriptor.wgp_mode() { 2 } else { 1 };
        let simds = u64::from(units * target.simd_per_cu);
        let vgprs = descriptor.allocated_vgprs(target);
        let lds_bytes = u64::from(launch.packet.group_segment_bytes).next_multiple_of(LDS_GRANULE);
        let waves_per_workgroup =
            launch.packet.workgroup_items().div_ceil(u64::from(descriptor.lanes())).max(1);
        let workgroups = |waves: u32| u64::from(waves) * simds / waves_per_workgroup;
        let by_slots = workgroups(target.max_waves_per_simd);
        let by_vgprs = workgroups(target.vgprs(descriptor.wave32()).total / vgprs.max(1));
        let lds = u64::from(units) * u64::from(target.max_group_segment_bytes);
        let by_lds = lds.checked_div(lds_bytes).unwrap_or(u64::MAX);
        let (per_unit, limited_by) = [(by_slots, "wave slots"), (by_vgprs, "VGPRs"), (by_lds, "LDS")]
            .into_iter()
            .min_by_key(|(workgroups, _)| *workgroups)
            .unwrap_or((0, ""));
        Residency { vgprs, lds_bytes, waves_per_workgroup, simds, per_unit, limited_by, units }
    }

    /// Workgroups that a chip of so many compute units holds, at least 1: one that fits nowhere would never start, and the
    /// dispatch never end.
    pub(crate) fn workgroups(&self, compute_units: u32) -> u64 {
        (u64::from(compute_units / self.units) * self.per_unit).max(1)
    }
}

#[cfg(test)]
mod tests {
    use queues::aql::{Header, KernelDispatch, PacketKind};
    use queues::hsa::KernelDescriptor;
    use queues::target::Target;

    use super::*;

    /// A dispatch on a gfx1100 of `items` per workgroup; `vgprs` in eights, wave32.
    fn residency(items: u16, vgprs: u32, lds: u32, wgp_mode: bool) -> Residency {
        let descriptor = KernelDescriptor {
            compute_pgm_rsrc1: vgprs.div_ceil(8).saturating_sub(1) | u32::from(wgp_mode) << 29,
            kernel_code_properties: 1 << 10,
            ..KernelDescriptor::default()
        };
        let packet = KernelDispatch {
            header: Header::new(PacketKind::KernelDispatch),
            dimensions: 1,
            workgroup: [items, 1, 1],
            grid: [u32::from(items), 1, 1],
            private_segment_bytes: 0,
            group_segment_bytes: lds,
            kernel_object: 0,
            kernarg_address: 0,
            completion_signal: 0,
        };
        Residency::new(&Launch {
            target: Target::by_name("gfx1100").unwrap(),
            compute_units: 96,
            descriptor,
            kernel_object: 0,
            entry: 0,
            packet,
            user_data: None,
            first_workgroup: [0; 3],
            packet_address: 0,
            queue_address: 0,
            dispatch_id: 0,
            scratch: None,
            doorbell: 0,
            priority: 7,
            privileged: true,
        })
    }

    #[test]
    fn the_resource_that_is_used_up_first_is_the_limit() {
        let found = |items, vgprs, lds, wgp_mode| {
            let found = residency(items, vgprs, lds, wgp_mode);
            (found.workgroups(96), found.limited_by)
        };
        // 16 waves on each of 192 SIMDs.
        assert_eq!(found(32, 8, 0, false), (3072, "wave slots"));
        assert_eq!(found(1024, 8, 0, true), (96, "wave slots"));
        // 1,536 registers of a SIMD are 6 times 240.
        assert_eq!(found(32, 240, 0, false), (6 * 192, "VGPRs"));
        assert_eq!(found(32, 8, 60_000, false), (96, "LDS"));
        assert_eq!(found(32, 8, 40_000, true), (3 * 48, "LDS"));
    }

    #[test]
    fn a_dispatch_that_fits_nowhere_has_one_workgroup_at_a_time() {
        let found = residency(1024, 256, 0, false);
        assert_eq!((found.per_unit, found.workgroups(96)), (0, 1));
        assert_eq!(residency(32, 8, 0, true).workgroups(1), 1);
    }
}
