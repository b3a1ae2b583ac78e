// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets against hand-written bytes, against real clients' headers, and against themselves.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;

fn dispatch() -> KernelDispatch {
    KernelDispatch {
        header: Header {
            kind: PacketKind::KernelDispatch,
            barrier: true,
            acquire: FenceScope::System,
            release: FenceScope::Agent,
        },
        dimensions: 3,
        workgroup: [64, 4, 2],
        grid: [1000, 8, 2],
        private_segment_bytes: 528,
        group_segment_bytes: 4096,
        kernel_object: 0x1000_0000_1240,
        kernarg_address: 0x1000_0020_0040,
        completion_signal: 0x1000_0030_0080,
    }
}

fn barrier(kind: PacketKind) -> Barrier {
    Barrier {
        header: Header { kind, barrier: false, acquire: FenceScope::None, release: FenceScope::System },
        dep_signals: [0x1000_0030_0000, 0, 0x1000_0030_0040, 0, 0],
        completion_signal: 0x1000_0030_00c0,
    }
}

fn agent_dispatch() -> AgentDispatch {
    AgentDispatch {
        header: Header { acquire: FenceScope::System, ..Header::new(PacketKind::AgentDispatch) },
        function: 0x8001,
        return_address: 0x1000_0040_0000,
        arguments: [1, 2, 3, 0x4444_4444_5555_5555],
        completion_signal: 0x1000_0030_0100,
    }
}

/// Bytes in rows of 16, then the packet in words.
pub(super) fn picture(packet: &Packet) -> String {
    let mut text = String::new();
    for (row, chunk) in packet.encode().chunks(4).enumerate() {
        write!(text, "{:02x}:", row * 16).unwrap();
        for byte in chunk.iter().flat_map(|word| word.to_le_bytes()) {
            write!(text, " {byte:02x}").unwrap();
        }
        text.push('\n');
    }
    writeln!(text, "{packet}").unwrap();
    text
}

#[test]
fn kernel_dispatch_bytes_and_text() {
    insta::assert_snapshot!(picture(&Packet::KernelDispatch(dispatch())));
}

#[test]
fn barrier_and_bytes_and_text() {
    insta::assert_snapshot!(picture(&Packet::BarrierAnd(barrier(PacketKind::BarrierAnd))));
}

#[test]
fn barrier_or_bytes_and_text() {
    insta::assert_snapshot!(picture(&Packet::BarrierOr(barrier(PacketKind::BarrierOr))));
}

#[test]
fn agent_dispatch_bytes_and_text() {
    insta::assert_snapshot!(picture(&agent_dispatch().into()));
}

#[test]
fn noop_is_a_barrier_and_of_one_header() {
    let raw = Packet::from(Barrier::noop()).encode();
    assert_eq!(raw[0], 3);
    assert_eq!(raw[1..], [0; 15]);
}

#[test]
fn headers_of_real_clients_are_understood() {
    // HIP 5.7 and ROCr 6.1.2, observed.
    for (bits, text) in [
        (0x1502, "kernel_dispatch barrier acquire=system release=system"),
        (0x0b02, "kernel_dispatch barrier acquire=agent release=agent"),
        (0x1503, "barrier_and barrier acquire=system release=system"),
        (0x1103, "barrier_and barrier acquire=none release=system"),
        (0x1402, "kernel_dispatch acquire=system release=system"),
    ] {
        let header = Header::decode(bits).unwrap();
        assert_eq!(header.to_string(), text);
        assert_eq!(header.encode(), bits);
    }
}

#[test]
fn unpublished_slot_is_not_a_fault_of_its_body() {
    let mut raw = [u32::MAX; 16];
    raw[0] = 0xffff_ff01;
    assert_eq!(Packet::decode(&raw), Err(PacketError::Unpublished));
}

#[test]
fn kinds_that_are_not_executed_name_themselves() {
    let decode = |word0| {
        let mut raw = [0; 16];
        raw[0] = word0;
        Packet::decode(&raw).unwrap_err()
    };
    for format in (0..=255).filter(|format| ![1, 2].contains(format)) {
        let error = decode(u32::from(format) << 16);
        assert_eq!(error, PacketError::Vendor { format });
        assert_eq!(error.exception_code(), ExceptionCode::PacketVendorUnsupported);
    }
    for kind in 6..=255 {
        assert_eq!(decode(kind).exception_code(), ExceptionCode::PacketUnsupported);
    }
}

#[test]
fn every_reserved_bit_is_refused() {
    let cases: [(Packet, &[(usize, u32)]); 6] = [
        (agent_dispatch().into(), &[(0, 0x0000_e000), (1, u32::MAX), (12, u32::MAX), (13, u32::MAX)]),
        (
            Pm4Ib::new(0x1000, 8).into(),
            &[
                (0, 0xff00_e000),
                (2, 3),
                (3, 0xffff_0000),
                (4, 0xff70_0000),
                (6, u32::MAX),
                (7, u32::MAX),
                (12, u32::MAX),
                (13, u32::MAX),
            ],
        ),
        (BarrierValue::new(0x1000, Condition::Eq, 0).into(), &[(0, 0xff00_e000)]),
        (
            Packet::KernelDispatch(dispatch()),
            &[(0, 0xfffc_e000), (2, 0xffff_0000), (12, u32::MAX), (13, u32::MAX)],
        ),
        (
            Packet::BarrierAnd(barrier(PacketKind::BarrierAnd)),
            &[(0, 0xffff_e000), (1, u32::MAX), (12, u32::MAX), (13, u32::MAX)],
        ),
        (
            Packet::BarrierOr(barrier(PacketKind::BarrierOr)),
            &[(0, 0xffff_e000), (1, u32::MAX), (12, u32::MAX), (13, u32::MAX)],
        ),
    ];
    for (packet, masks) in cases {
        for &(word, mask) in masks {
            for bit in (0..32).filter(|bit| mask >> bit & 1 != 0) {
                let mut raw = packet.encode();
                raw[word] |= 1 << bit;
                let error = Packet::decode(&raw).unwrap_err();
                assert!(
                    matches!(error, PacketError::Reserved { .. }),
                    "{packet}: word {word} bit {bit}: {error}"
                );
                assert_eq!(error.exception_code(), ExceptionCode::PacketReserved);
            }
        }
    }
}

#[test]
fn fence_scope_three_is_refused() {
    for (shift, fence) in [(9, "acquire"), (11, "release")] {
        let bits = 2 | 3 << shift;
        assert_eq!(Header::decode(bits), Err(PacketError::FenceScope { fence }));
        assert_eq!(PacketError::FenceScope { fence }.exception_code(), ExceptionCode::PacketReserved);
    }
}

/// A change that makes a good dispatch bad, and the exception it must raise.
type Damage = (fn(&mut KernelDispatch), ExceptionCode);

#[test]
fn validate_raises_the_exception_of_each_defect() {
    use ExceptionCode as Ec;
    let cases: &[Damage] = &[
        (|d| d.dimensions = 0, Ec::PacketDispatchDimInvalid),
        (|d| d.dimensions = 4, Ec::PacketDispatchDimInvalid),
        (|d| d.dimensions = 2, Ec::PacketDispatchDimInvalid),
        (|d| (d.dimensions, d.workgroup[2]) = (2, 1), Ec::PacketDispatchDimInvalid),
        (|d| (d.dimensions, d.grid[2]) = (2, 1), Ec::PacketDispatchDimInvalid),
        (|d| d.grid[0] = 0, Ec::PacketDispatchDimInvalid),
        (|d| d.grid[2] = 0, Ec::PacketDispatchDimInvalid),
        (|d| d.workgroup[0] = 0, Ec::PacketDispatchWorkGroupSizeInvalid),
        (|d| d.workgroup[2] = 0, Ec::PacketDispatchWorkGroupSizeInvalid),
        (|d| d.workgroup = [1025, 1, 1], Ec::PacketDispatchWorkGroupSizeInvalid),
        (|d| d.workgroup = [512, 2, 2], Ec::PacketDispatchWorkGroupSizeInvalid),
        (|d| d.workgroup = [u16::MAX; 3], Ec::PacketDispatchWorkGroupSizeInvalid),
        (|d| d.kernel_object = 0, Ec::PacketDispatchCodeInvalid),
    ];
    for (position, (damage, code)) in cases.iter().enumerate() {
        let mut bad = dispatch();
        damage(&mut bad);
        let error = Packet::KernelDispatch(bad).validate().unwrap_err();
        assert_eq!(error.exception_code(), *code, "case {position}: {error}");
    }
}

#[test]
fn validate_accepts_the_largest_workgroup_and_partial_ones() {
    let good = KernelDispatch { workgroup: [1024, 1, 1], grid: [1, u32::MAX, 1], ..dispatch() };
    Packet::KernelDispatch(good).validate().unwrap();
    assert_eq!(good.workgroups(), [1, u32::MAX, 1]);
    assert_eq!(dispatch().workgroups(), [16, 2, 1]);
    let one = KernelDispatch { dimensions: 1, workgroup: [64, 1, 1], grid: [12288, 1, 1], ..good };
    Packet::KernelDispatch(one).validate().unwrap();
}

#[test]
fn validate_refuses_a_header_of_another_kind() {
    let odd = Packet::BarrierAnd(barrier(PacketKind::BarrierOr));
    assert!(matches!(odd.validate(), Err(PacketError::KindMismatch { .. })));
    // The bytes still are what the variant says.
    assert_eq!(Packet::decode(&odd.encode()), Ok(Packet::BarrierAnd(barrier(PacketKind::BarrierAnd))));
}

#[test]
fn group_segment_is_checked_against_the_device() {
    assert_eq!(dispatch().check_group_segment(4096), Ok(()));
    let error = dispatch().check_group_segment(4095).unwrap_err();
    assert_eq!(error.exception_code(), ExceptionCode::PacketDispatchGroupSegmentSizeInvalid);
}

#[test]
fn error_texts() {
    let errors = [
        PacketError::Unpublished,
        PacketError::Unsupported { kind: 4 },
        PacketError::Vendor { format: 3 },
        PacketError::KindMismatch { found: PacketKind::BarrierOr, wanted: PacketKind::BarrierAnd },
        PacketError::Reserved { field: "setup", value: 0x10 },
        PacketError::FenceScope { fence: "acquire" },
        PacketError::Constant { field: "IB_VALID bit", found: 0, wanted: 0x80_0000 },
        PacketError::Condition { condition: 4 },
        PacketError::IndirectBuffer { address: 0x1002, dwords: 8 },
        PacketError::Dimensions { dimensions: 0 },
        PacketError::UnusedDimension { dimensions: 1, axis: 2, workgroup: 1, grid: 7 },
        PacketError::EmptyGrid { grid: [1, 0, 1] },
        PacketError::WorkgroupSize { workgroup: [1025, 1, 1], limit: 1024 },
        PacketError::GroupSegment { bytes: 70_000, limit: 65_536 },
        PacketError::CodeObject { address: 0 },
        PacketError::Registers { wanted: 264, limit: 256 },
    ];
    let text: String = errors.iter().map(|error| format!("{}: {error}\n", error.exception_code())).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn exception_codes_are_the_kernels() {
    for &code in ExceptionCode::ALL {
        assert_eq!(ExceptionCode::from_code(code.code()), Some(code));
        assert_eq!(code.mask().trailing_zeros() + 1, code.code());
    }
    for gap in [0, 7, 15, 24, 29, 37, 47, 50, u32::MAX] {
        assert_eq!(ExceptionCode::from_code(gap), None);
    }
    // What ROCr's handler of queue_inactive_signal understands.
    for (code, signal) in [
        (ExceptionCode::PacketDispatchDimInvalid, 2),
        (ExceptionCode::PacketDispatchGroupSegmentSizeInvalid, 4),
        (ExceptionCode::PacketDispatchCodeInvalid, 8),
        (ExceptionCode::PacketUnsupported, 32),
        (ExceptionCode::PacketDispatchWorkGroupSizeInvalid, 64),
        (ExceptionCode::PacketDispatchRegisterInvalid, 128),
        (ExceptionCode::PacketVendorUnsupported, 256),
        (ExceptionCode::WaveTrap, 0x8000_0000),
    ] {
        assert_eq!(code.inactive_signal_code(), Some(signal));
    }
    assert_eq!(ExceptionCode::DeviceRasError.inactive_signal_code(), None);
}

fn scopes() -> impl Strategy<Value = FenceScope> {
    prop_oneof![Just(FenceScope::None), Just(FenceScope::Agent), Just(FenceScope::System)]
}

fn headers(kind: PacketKind) -> impl Strategy<Value = Header> {
    (any::<bool>(), scopes(), scopes()).prop_map(move |(barrier, acquire, release)| Header {
        kind,
        barrier,
        acquire,
        release,
    })
}

fn dispatches() -> impl Strategy<Value = Packet> {
    (
        headers(PacketKind::KernelDispatch),
        0_u8..4,
        any::<[u16; 3]>(),
        any::<[u32; 3]>(),
        any::<[u32; 2]>(),
        any::<[u64; 3]>(),
    )
        .prop_map(|(header, dimensions, workgroup, grid, segments, addresses)| {
            Packet::KernelDispatch(KernelDispatch {
                header,
                dimensions,
                workgroup,
                grid,
                private_segment_bytes: segments[0],
                group_segment_bytes: segments[1],
                kernel_object: addresses[0],
                kernarg_address: addresses[1],
                completion_signal: addresses[2],
            })
        })
}

/// Agent dispatches and vendor packets.
fn others() -> impl Strategy<Value = Packet> {
    let agent = (headers(PacketKind::AgentDispatch), any::<u16>(), any::<[u64; 6]>()).prop_map(
        |(header, function, [return_address, a, b, c, d, completion_signal])| {
            let arguments = [a, b, c, d];
            AgentDispatch { header, function, return_address, arguments, completion_signal }.into()
        },
    );
    let ib = (headers(PacketKind::VendorSpecific), 0_u64..1 << 46, 0..=Pm4Ib::MAX_DWORDS, any::<u64>())
        .prop_map(|(header, quarter, dwords, completion_signal)| {
            Pm4Ib { header, address: quarter * 4, dwords, completion_signal }.into()
        });
    let conditions =
        proptest::sample::select(vec![Condition::Eq, Condition::Ne, Condition::Lt, Condition::Gte]);
    let value = (headers(PacketKind::VendorSpecific), conditions, any::<[i64; 2]>(), any::<[u64; 2]>())
        .prop_map(|(header, condition, [value, mask], [signal, completion_signal])| {
            BarrierValue { header, signal, value, mask, condition, completion_signal }.into()
        });
    prop_oneof![agent, ib, value]
}

fn packets() -> impl Strategy<Value = Packet> {
    let barriers = |kind| {
        (headers(kind), any::<[u64; 5]>(), any::<u64>()).prop_map(
            |(header, dep_signals, completion_signal)| {
                Packet::from(Barrier { header, dep_signals, completion_signal })
            },
        )
    };
    prop_oneof![dispatches(), barriers(PacketKind::BarrierAnd), barriers(PacketKind::BarrierOr), others(),]
}

/// Words that often look like a packet: a random body under a plausible header.
fn raw_packets() -> impl Strategy<Value = RawPacket> {
    let sparse = prop_oneof![4 => Just(0_u32), 1 => any::<u32>()];
    let word0 = prop_oneof![
        (0_u32..6).prop_flat_map(|kind| (0_u32..0x20).prop_map(move |hi| kind | hi << 8)),
        (0_u32..0x20, 0_u32..4).prop_map(|(hi, format)| hi << 8 | format << 16),
        any::<u32>()
    ];
    (word0, proptest::array::uniform15(sparse)).prop_map(|(word0, rest)| {
        let mut raw = [0; 16];
        raw[0] = word0;
        raw[1..].copy_from_slice(&rest);
        raw
    })
}

proptest! {
    #[test]
    fn decode_inverts_encode(packet in packets()) {
        prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
    }

    #[test]
    fn what_decodes_encodes_to_the_same_words(raw in raw_packets()) {
        if let Ok(packet) = Packet::decode(&raw) {
            let mut wanted = raw;
            if matches!(packet, Packet::BarrierValue(_)) {
                // HIP does not set what is reserved there.
                wanted[1] = 0;
                wanted[9..14].fill(0);
            }
            prop_assert_eq!(packet.encode(), wanted);
        }
    }

    #[test]
    fn validate_and_display_take_any_packet(packet in packets()) {
        let _ = packet.validate();
        prop_assert!(!packet.to_string().contains('\n'));
    }

    #[test]
    fn every_header_decodes_or_says_why(bits in any::<u16>()) {
        match Header::decode(bits) {
            Ok(header) => prop_assert_eq!(header.encode(), bits),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
