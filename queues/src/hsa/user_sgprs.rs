// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which SGPR holds what when a wave starts.
//!
//! INVARIANT: user SGPRs lie densely from s0 in the order of the fields below; system SGPRs start at the
//! descriptor's `USER_SGPR` count, which compilers pad on chips with the 16-SGPR initialisation erratum
//! (gfx1100, gfx1102), so never at the last used user SGPR.

use super::KernelDescriptor;
use crate::target::Target;

/// Index of the first SGPR of each initial value, `None` where the kernel does not ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSgprs {
    /// Scratch buffer descriptor, 4 SGPRs.
    pub private_segment_buffer: Option<u32>,
    /// Address of the packet in the ring, 2 SGPRs.
    pub dispatch_ptr: Option<u32>,
    /// Address of the `amd_queue_t`, 2 SGPRs.
    pub queue_ptr: Option<u32>,
    /// Address of the kernel arguments, 2 SGPRs.
    pub kernarg_segment_ptr: Option<u32>,
    /// Index of the packet, 2 SGPRs.
    pub dispatch_id: Option<u32>,
    /// Initial flat scratch, 2 SGPRs.
    pub flat_scratch_init: Option<u32>,
    /// Scratch bytes per work-item, 1 SGPR.
    pub private_segment_size: Option<u32>,
    /// Preloaded kernel arguments, `kernarg_preload_length` SGPRs.
    pub kernarg_preload: Option<u32>,
    /// User SGPRs used; never more than `USER_SGPR` in a well-formed descriptor.
    pub used: u32,
    /// Work-group id in x, y and z, 1 SGPR each. `None` on gfx12, which keeps them in trap temporaries.
    pub workgroup_id: [Option<u32>; 3],
    /// Waves in the work-group and the wave's number in it, 1 SGPR.
    pub workgroup_info: Option<u32>,
    /// The wave's scratch offset, 1 SGPR, where flat scratch is not architected.
    pub private_segment_wave_offset: Option<u32>,
}

impl UserSgprs {
    /// Where the initial values of this descriptor go on this target.
    #[must_use]
    pub fn new(descriptor: &KernelDescriptor, target: &Target) -> Self {
        let mut next = 0;
        let mut take = |wanted: bool, count: u32| {
            wanted.then(|| {
                let first = next;
                next += count;
                first
            })
        };
        let architected = target.architected_flat_scratch;
        let mut sgprs = Self {
            private_segment_buffer: take(descriptor.enable_private_segment_buffer() && !architected, 4),
            dispatch_ptr: take(descriptor.enable_dispatch_ptr(), 2),
            queue_ptr: take(descriptor.enable_queue_ptr(), 2),
            kernarg_segment_ptr: take(descriptor.enable_kernarg_segment_ptr(), 2),
            dispatch_id: take(descriptor.enable_dispatch_id(), 2),
            flat_scratch_init: take(descriptor.enable_flat_scratch_init() && !architected, 2),
            private_segment_size: take(descriptor.enable_private_segment_size(), 1),
            kernarg_preload: take(
                target.kernarg_preload && descriptor.kernarg_preload_length() > 0,
                descriptor.kernarg_preload_length(),
            ),
            ..Self::default()
        };
        sgprs.used = next;

        next = descriptor.user_sgpr_count();
        let mut take = |wanted: bool| {
            wanted.then(|| {
                let first = next;
                next += 1;
                first
            })
        };
        let ids_in_sgprs = !target.workgroup_ids_in_ttmps;
        sgprs.workgroup_id = [
            take(ids_in_sgprs && descriptor.enable_workgroup_id_x()),
            take(ids_in_sgprs && descriptor.enable_workgroup_id_y()),
            take(ids_in_sgprs && descriptor.enable_workgroup_id_z()),
        ];
        sgprs.workgroup_info = take(ids_in_sgprs && descriptor.enable_workgroup_info());
        sgprs.private_segment_wave_offset = take(!architected && descriptor.enable_private_segment());
        sgprs
    }
}
