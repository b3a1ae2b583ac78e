// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of real kernels, and the shared structures' bytes.

use proptest::prelude::*;

use super::*;
use crate::target::{TARGETS, Target};

fn gfx1100() -> &'static Target {
    Target::by_name("gfx1100").unwrap()
}

/// The header of ROCr's gfx11 blit kernel, as observed: an `amd_kernel_code_t`, waves of 64.
fn blit() -> KernelDescriptor {
    KernelDescriptor {
        kernel_code_entry_byte_offset: 256,
        compute_pgm_rsrc1: 0x008c_00c2,
        compute_pgm_rsrc2: 0x84,
        kernel_code_properties: 8,
        ..KernelDescriptor::default()
    }
}

#[test]
fn blit_kernel_is_read_as_hardware_reads_it() {
    let kd = blit();
    assert_eq!((kd.lanes(), kd.vgpr_count(kd.wave32())), (64, 12));
    assert_eq!(kd.allocated_vgprs(gfx1100()), 12);
    assert_eq!(kd.float_mode(), 0xc0);
    assert!(kd.ieee() && !kd.dx10_clamp() && !kd.privileged());
    assert_eq!(kd.user_sgpr_count(), 2);
    assert_eq!(kd.entry(0x1000), 0x1100);
    let sgprs = UserSgprs::new(&kd, gfx1100());
    assert_eq!(sgprs.kernarg_segment_ptr, Some(0));
    assert_eq!(sgprs.workgroup_id, [Some(2), None, None]);
    assert_eq!(kd.workitem_id_dimensions(), 0);
}

#[test]
fn system_sgprs_start_at_the_count_not_behind_the_used() {
    // A compiler's answer to the gfx1100 erratum: two used, fifteen asked for.
    let kd = KernelDescriptor { compute_pgm_rsrc2: 15 << 1 | 1 << 7, kernel_code_properties: 8, ..blit() };
    let sgprs = UserSgprs::new(&kd, gfx1100());
    assert_eq!((sgprs.used, sgprs.workgroup_id), (2, [Some(15), None, None]));
}

#[test]
fn all_user_sgprs_lie_in_the_abi_order() {
    let kd = KernelDescriptor {
        compute_pgm_rsrc2: 1 | 16 << 1 | 0xf << 7,
        kernel_code_properties: 0x7f,
        ..KernelDescriptor::default()
    };
    let expected = UserSgprs {
        private_segment_buffer: Some(0),
        dispatch_ptr: Some(4),
        queue_ptr: Some(6),
        kernarg_segment_ptr: Some(8),
        dispatch_id: Some(10),
        flat_scratch_init: Some(12),
        private_segment_size: Some(14),
        kernarg_preload: None,
        used: 15,
        workgroup_id: [Some(16), Some(17), Some(18)],
        workgroup_info: Some(19),
        private_segment_wave_offset: Some(20),
    };
    assert_eq!(UserSgprs::new(&kd, Target::by_name("gfx1030").unwrap()), expected);
    // Architected flat scratch needs none of the scratch values.
    let architected = UserSgprs::new(&kd, gfx1100());
    assert_eq!(architected.private_segment_buffer, None);
    assert_eq!(architected.flat_scratch_init, None);
    assert_eq!(architected.private_segment_wave_offset, None);
    assert_eq!((architected.dispatch_ptr, architected.used), (Some(0), 9));
    let gfx12 = UserSgprs::new(&kd, Target::by_name("gfx1200").unwrap());
    assert_eq!(gfx12.workgroup_id, [None; 3]);
}

#[test]
fn validate_names_what_a_loader_refuses() {
    blit().validate(gfx1100()).unwrap();
    let bad = KernelDescriptor { reserved3: [0, 0, 0, 1], ..blit() };
    assert!(matches!(bad.validate(gfx1100()), Err(DescriptorError::Reserved { field: "bytes 60..64", .. })));
    let bad = KernelDescriptor { reserved1: [1; 20], ..blit() };
    assert!(matches!(bad.validate(gfx1100()), Err(DescriptorError::Reserved { field: "bytes 24..44", .. })));
    let wave32 = KernelDescriptor { kernel_code_properties: 1 << 10, ..blit() };
    let vega = Target::by_name("gfx906").unwrap();
    assert_eq!(wave32.validate(vega), Err(DescriptorError::WaveSize { lanes: 32, target: "gfx906" }));
    let bad = KernelDescriptor { kernel_code_entry_byte_offset: -4, ..blit() };
    insta::assert_snapshot!(bad.validate(gfx1100()).unwrap_err(), @"Kernel entry must be a multiple of 64 B from its descriptor, found -4");
}

#[test]
fn lds_granules_hold_the_bytes() {
    for (bytes, granules) in [(0, 0), (1, 1), (512, 1), (513, 2), (65_536, 128), (u32::MAX, 1 << 23)] {
        assert_eq!(KernelDescriptor::lds_granules_for(bytes), granules);
    }
}

#[test]
fn queue_and_signal_are_plain_bytes() {
    let queue =
        AmdQueue { write_dispatch_id: 0x1122_3344_5566_7788, read_dispatch_id: 5, ..AmdQueue::default() };
    let bytes: [u8; 256] = bytemuck::cast(queue);
    assert_eq!(bytes[56..64], 0x1122_3344_5566_7788_u64.to_le_bytes());
    assert_eq!(bytes[128], 5);
    let signal = AmdSignal { kind: signal_kind::DOORBELL, value: 7, queue_ptr: 9, ..AmdSignal::default() };
    let bytes: [u8; 64] = bytemuck::cast(signal);
    assert_eq!((bytes[0], bytes[8], bytes[48]), (255, 7, 9));
}

proptest! {
    #[test]
    fn any_bytes_are_a_descriptor(low in any::<[u8; 32]>(), high in any::<[u8; 32]>(), object in any::<u64>()) {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&low);
        bytes[32..].copy_from_slice(&high);
        let kd = KernelDescriptor::from_bytes(&bytes);
        prop_assert_eq!(kd.to_bytes(), bytes);
        let _ = (kd.entry(object), kd.initial_mode(), kd.instruction_prefetch(), kd.priority());
        for target in TARGETS {
            let _ = kd.validate(target);
            prop_assert!(kd.allocated_vgprs(target) >= kd.vgpr_count(true).min(4));
            // 4 + 5 * 2 + 1 pointers, then up to 127 preloaded words.
            prop_assert!(UserSgprs::new(&kd, target).used <= 15 + 127);
        }
    }
}
