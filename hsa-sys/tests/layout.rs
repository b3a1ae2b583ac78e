// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layouts in `queues` equal the vendor's: sizes, alignments, every field, and packets bit by bit.

use hsa_sys::raw;
use queues::aql::Barrier;
use queues::aql::FenceScope;
use queues::aql::Header;
use queues::aql::KernelDispatch;
use queues::aql::Packet;
use queues::aql::PacketKind;
use queues::aql::RawPacket;
use queues::hsa::AmdQueue;
use queues::hsa::AmdSignal;
use queues::hsa::KernelDescriptor;
use std::mem::align_of;
use std::mem::offset_of;
use std::mem::size_of;
use std::mem::size_of_val;

/// Compares a field's offset and size in both structures.
macro_rules! same_field {
    ($ours:ty, $theirs:ty, $($our_field:ident = $($their_field:ident).+;)*) => {$(
        assert_eq!(
            offset_of!($ours, $our_field),
            offset_of!($theirs, $($their_field).+),
            "offset of {}",
            stringify!($our_field)
        );
        // SAFETY: both structures are numbers and addresses, for which zeros are valid.
        let (ours, theirs) = unsafe { (std::mem::zeroed::<$ours>(), std::mem::zeroed::<$theirs>()) };
        assert_eq!(
            size_of_val(&ours.$our_field),
            size_of_val(&theirs.$($their_field).+),
            "size of {}",
            stringify!($our_field)
        );
    )*};
}

#[test]
fn amd_signal_equals_the_vendors() {
    assert_eq!(size_of::<AmdSignal>(), size_of::<raw::amd_signal_t>());
    assert_eq!(align_of::<AmdSignal>(), align_of::<raw::amd_signal_t>());
    same_field! { AmdSignal, raw::amd_signal_t,
        kind = kind;
        value = __bindgen_anon_1;
        event_mailbox_ptr = event_mailbox_ptr;
        event_id = event_id;
        reserved1 = reserved1;
        start_ts = start_ts;
        end_ts = end_ts;
        queue_ptr = __bindgen_anon_2;
        reserved3 = reserved3;
    }
    use queues::hsa::signal_kind;
    assert_eq!(signal_kind::INVALID, i64::from(raw::AMD_SIGNAL_KIND_INVALID));
    assert_eq!(signal_kind::USER, i64::from(raw::AMD_SIGNAL_KIND_USER));
    assert_eq!(signal_kind::DOORBELL, i64::from(raw::AMD_SIGNAL_KIND_DOORBELL));
    assert_eq!(signal_kind::LEGACY_DOORBELL, i64::from(raw::AMD_SIGNAL_KIND_LEGACY_DOORBELL));
}

/// The fields that all releases of the header have; what newer ones added lies in what older ones reserve.
#[test]
fn amd_queue_equals_the_vendors() {
    assert_eq!(size_of::<AmdQueue>(), size_of::<raw::amd_queue_t>());
    assert_eq!(align_of::<AmdQueue>(), align_of::<raw::amd_queue_t>());
    same_field! { AmdQueue, raw::amd_queue_t,
        queue_type = hsa_queue.type_;
        features = hsa_queue.features;
        base_address = hsa_queue.base_address;
        doorbell_signal = hsa_queue.doorbell_signal;
        size = hsa_queue.size;
        reserved1 = hsa_queue.reserved1;
        id = hsa_queue.id;
        write_dispatch_id = write_dispatch_id;
        group_segment_aperture_base_hi = group_segment_aperture_base_hi;
        private_segment_aperture_base_hi = private_segment_aperture_base_hi;
        max_cu_id = max_cu_id;
        max_wave_id = max_wave_id;
        max_legacy_doorbell_dispatch_id_plus_1 = max_legacy_doorbell_dispatch_id_plus_1;
        legacy_doorbell_lock = legacy_doorbell_lock;
        read_dispatch_id = read_dispatch_id;
        read_dispatch_id_field_base_byte_offset = read_dispatch_id_field_base_byte_offset;
        compute_tmpring_size = compute_tmpring_size;
        scratch_resource_descriptor = scratch_resource_descriptor;
        scratch_backing_memory_location = scratch_backing_memory_location;
        scratch_backing_memory_byte_size = scratch_backing_memory_byte_size;
        scratch_wave64_lane_byte_size = scratch_wave64_lane_byte_size;
        queue_properties = queue_properties;
        queue_inactive_signal = queue_inactive_signal;
    }
    use queues::hsa::queue_properties;
    assert_eq!(queue_properties::IS_PTR64, raw::AMD_QUEUE_PROPERTIES_IS_PTR64 as u32);
    assert_eq!(queue_properties::ENABLE_PROFILING, raw::AMD_QUEUE_PROPERTIES_ENABLE_PROFILING as u32);
}

/// The vendor's older kernel header shares with the descriptor what the command processor reads.
#[test]
fn kernel_descriptor_shares_the_fields_of_the_kernel_code_header() {
    assert_eq!(size_of::<KernelDescriptor>(), 64);
    same_field! { KernelDescriptor, raw::amd_kernel_code_t,
        kernel_code_entry_byte_offset = kernel_code_entry_byte_offset;
    }
    let registers = offset_of!(raw::amd_kernel_code_t, compute_pgm_rsrc1);
    assert_eq!(offset_of!(KernelDescriptor, compute_pgm_rsrc1), registers);
    assert_eq!(
        offset_of!(KernelDescriptor, compute_pgm_rsrc2),
        offset_of!(raw::amd_kernel_code_t, compute_pgm_rsrc2)
    );
    assert_eq!(
        offset_of!(KernelDescriptor, kernel_code_properties),
        offset_of!(raw::amd_kernel_code_t, kernel_code_properties)
    );
}

fn words<T>(packet: T) -> RawPacket {
    assert_eq!(size_of::<T>(), queues::aql::PACKET_BYTES);
    // SAFETY: the sizes are equal, and a packet has no padding: its fields are naturally aligned without gaps.
    unsafe { std::mem::transmute_copy(&packet) }
}

fn vendor_header(kind: u32, barrier: u16, acquire: u32, release: u32) -> u16 {
    let field = |value: u32, at: u32| u16::try_from(value << at).expect("a 16-bit field");
    field(kind, raw::HSA_PACKET_HEADER_TYPE)
        | field(barrier.into(), raw::HSA_PACKET_HEADER_BARRIER)
        | field(acquire, raw::HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE)
        | field(release, raw::HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE)
}

fn signal(handle: u64) -> raw::hsa_signal_t {
    raw::hsa_signal_t { handle }
}

#[test]
fn kernel_dispatch_packet_equals_the_vendors() {
    let theirs = raw::hsa_kernel_dispatch_packet_t {
        header: vendor_header(
            raw::HSA_PACKET_TYPE_KERNEL_DISPATCH,
            1,
            raw::HSA_FENCE_SCOPE_SYSTEM,
            raw::HSA_FENCE_SCOPE_AGENT,
        ),
        setup: 3 << raw::HSA_KERNEL_DISPATCH_PACKET_SETUP_DIMENSIONS,
        workgroup_size_x: 0x0102,
        workgroup_size_y: 0x0304,
        workgroup_size_z: 0x0506,
        grid_size_x: 0x1112_1314,
        grid_size_y: 0x2122_2324,
        grid_size_z: 0x3132_3334,
        private_segment_size: 0x4142_4344,
        group_segment_size: 0x5152_5354,
        kernel_object: 0x6162_6364_6566_6740,
        kernarg_address: 0x7172_7374_7576_7780_usize as *mut _,
        completion_signal: signal(0x8182_8384_8586_8780),
        ..Default::default()
    };
    let mut header = Header::new(PacketKind::KernelDispatch);
    header.barrier = true;
    header.acquire = FenceScope::System;
    header.release = FenceScope::Agent;
    let ours = Packet::KernelDispatch(KernelDispatch {
        header,
        dimensions: 3,
        workgroup: [0x0102, 0x0304, 0x0506],
        grid: [0x1112_1314, 0x2122_2324, 0x3132_3334],
        private_segment_bytes: 0x4142_4344,
        group_segment_bytes: 0x5152_5354,
        kernel_object: 0x6162_6364_6566_6740,
        kernarg_address: 0x7172_7374_7576_7780,
        completion_signal: 0x8182_8384_8586_8780,
    });
    assert_eq!(ours.encode(), words(theirs));
    assert_eq!(Packet::decode(&words(theirs)).unwrap(), ours);
}

#[test]
fn barrier_packets_equal_the_vendors() {
    let handles = [0x10, 0x20, 0x30, 0x40, 0x50].map(|low| 0xa1a2_a3a4_a5a6_a700 | low);
    let dep_signal = handles.map(signal);
    let completion_signal = signal(0xb1b2_b3b4_b5b6_b780);
    let header = |kind| vendor_header(kind, 0, raw::HSA_FENCE_SCOPE_AGENT, raw::HSA_FENCE_SCOPE_SYSTEM);
    let and = raw::hsa_barrier_and_packet_t {
        header: header(raw::HSA_PACKET_TYPE_BARRIER_AND),
        dep_signal,
        completion_signal,
        ..Default::default()
    };
    let or = raw::hsa_barrier_or_packet_t {
        header: header(raw::HSA_PACKET_TYPE_BARRIER_OR),
        dep_signal,
        completion_signal,
        ..Default::default()
    };
    for (kind, theirs, make) in [
        (PacketKind::BarrierAnd, words(and), Packet::BarrierAnd as fn(Barrier) -> Packet),
        (PacketKind::BarrierOr, words(or), Packet::BarrierOr),
    ] {
        let mut header = Header::new(kind);
        header.acquire = FenceScope::Agent;
        header.release = FenceScope::System;
        let ours =
            make(Barrier { header, dep_signals: handles, completion_signal: completion_signal.handle });
        assert_eq!(ours.encode(), theirs, "{kind:?}");
        assert_eq!(Packet::decode(&theirs).unwrap(), ours);
    }
}

#[test]
fn packet_kinds_equal_the_vendors() {
    for (ours, theirs) in [
        (PacketKind::VendorSpecific, raw::HSA_PACKET_TYPE_VENDOR_SPECIFIC),
        (PacketKind::Invalid, raw::HSA_PACKET_TYPE_INVALID),
        (PacketKind::KernelDispatch, raw::HSA_PACKET_TYPE_KERNEL_DISPATCH),
        (PacketKind::BarrierAnd, raw::HSA_PACKET_TYPE_BARRIER_AND),
        (PacketKind::AgentDispatch, raw::HSA_PACKET_TYPE_AGENT_DISPATCH),
        (PacketKind::BarrierOr, raw::HSA_PACKET_TYPE_BARRIER_OR),
    ] {
        assert_eq!(ours as u32, theirs, "{ours:?}");
    }
}
