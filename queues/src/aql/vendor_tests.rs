// SPDX-License-Identifier: MIT OR Apache-2.0
//! Vendor packets against the words that ROCr and tinygrad write.

use super::tests::picture;
use super::*;

fn decode(words: &[u32]) -> Result<Packet, PacketError> {
    let mut raw = [0; 16];
    raw[..words.len()].copy_from_slice(words);
    Packet::decode(&raw)
}

#[test]
fn pm4_ib_bytes_and_text() {
    let ib = Pm4Ib { completion_signal: 0x1000_0030_0140, ..Pm4Ib::new(0x1000_0050_0000, 8) };
    insta::assert_snapshot!(picture(&ib.into()));
}

#[test]
fn barrier_value_bytes_and_text() {
    let mut barrier = BarrierValue::new(0x1000_0030_0000, Condition::Lt, -2);
    barrier.header.barrier = true;
    barrier.mask = 0xff;
    barrier.completion_signal = 0x1000_0030_0180;
    insta::assert_snapshot!(picture(&barrier.into()));
}

#[test]
fn clients_pm4_packets_are_understood() {
    // ROCr's cache invalidation with both fences, tinygrad's launches without.
    for (header, text) in
        [(0x1500, " barrier acquire=system release=system"), (0, " acquire=none release=none")]
    {
        let words = [header | 1 << 16, 0xc002_3f00, 0x2000_0000, 0x7f00, 0x0080_0000 | 71, 10];
        let packet = decode(&words).unwrap();
        let Packet::Pm4Ib(ib) = packet else { panic!("{packet}") };
        assert_eq!((ib.address, ib.dwords, ib.completion_signal), (0x7f00_2000_0000, 71, 0));
        assert_eq!(
            packet.to_string(),
            format!("vendor_specific{text} pm4_ib address=0x7f0020000000 dwords=71 signal=0x0")
        );
        packet.validate().unwrap();
        assert_eq!(packet.encode()[..6], words);
    }
}

#[test]
fn words_that_never_differ_are_checked() {
    let good = Packet::from(Pm4Ib::new(0x1000, 8)).encode();
    for (word, found, wanted) in
        [(1, 0xc003_3f00, 0xc002_3f00), (5, 9, 10), (4, 0, 0x0080_0000), (1, 0, 0xc002_3f00)]
    {
        let mut raw = good;
        raw[word] = found;
        let error = Packet::decode(&raw).unwrap_err();
        assert!(
            matches!(error, PacketError::Constant { found: f, wanted: w, .. } if (f, w) == (found, wanted))
        );
        assert_eq!(error.exception_code(), ExceptionCode::PacketVendorUnsupported);
    }
}

#[test]
fn indirect_buffers_that_cannot_be_fetched_are_refused() {
    for (address, dwords) in [(0x1000, 0), (0x1002, 8), (1 << 48, 8), (0x1000, 1 << 20)] {
        let packet = Packet::from(Pm4Ib::new(address, dwords));
        assert_eq!(packet.validate(), Err(PacketError::IndirectBuffer { address, dwords }));
        // Only the empty one can be written down at all.
        assert_eq!(Packet::decode(&packet.encode()).is_ok(), dwords == 0);
    }
    Packet::from(Pm4Ib::new((1 << 48) - 4, Pm4Ib::MAX_DWORDS)).validate().unwrap();
}

#[test]
fn conditions_compare_signed_masked_values() {
    for (condition, holds) in [
        (Condition::Eq, [false, true, false]),
        (Condition::Ne, [true, false, true]),
        (Condition::Lt, [true, false, false]),
        (Condition::Gte, [false, true, true]),
    ] {
        assert_eq!([-1, 0, 1].map(|found| condition.holds(found, 0)), holds, "{condition}");
    }
    let barrier = BarrierValue { mask: 0xf0, ..BarrierValue::new(8, Condition::Eq, 0x30) };
    assert!(barrier.is_satisfied_by(0x735) && !barrier.is_satisfied_by(0x745));
    assert!(BarrierValue::new(8, Condition::Lt, 0).is_satisfied_by(i64::MIN));
}

#[test]
fn a_fifth_condition_is_refused() {
    for condition in [4, u32::MAX] {
        let error = decode(&[2 << 16, 0, 0, 0, 0, 0, 0, 0, condition]).unwrap_err();
        assert_eq!(error, PacketError::Condition { condition });
        assert_eq!(error.exception_code(), ExceptionCode::PacketReserved);
    }
}

#[test]
fn only_vendor_headers_pass_for_vendor_packets() {
    let mut barrier = BarrierValue::new(0, Condition::Eq, 0);
    barrier.header.kind = PacketKind::BarrierAnd;
    let (found, wanted) = (PacketKind::BarrierAnd, PacketKind::VendorSpecific);
    assert_eq!(Packet::from(barrier).validate(), Err(PacketError::KindMismatch { found, wanted }));
    assert_eq!(Packet::from(barrier).header().kind, wanted);
}

#[test]
fn agent_dispatch_is_read_but_not_run_by_gpus() {
    let packet = decode(&[4 | 7 << 16]).unwrap();
    let Packet::AgentDispatch(dispatch) = packet else { panic!("{packet}") };
    assert_eq!(dispatch.function, 7);
    let error = packet.validate().unwrap_err();
    assert_eq!(error, PacketError::Unsupported { kind: 4 });
    assert_eq!(error.exception_code(), ExceptionCode::PacketUnsupported);
}

#[test]
fn barrier_value_of_hip_with_the_rest_of_its_stack_is_understood() {
    // As HIP 5.7 wrote it for `hipStreamWaitValue64(stream, 0x1000 + 8, 1, hipStreamWaitValueGte)`.
    let raw = [
        0x0002_1500,
        0x0a30_2067,
        0x0021_0cc0,
        0x0000_1000,
        1,
        0,
        u32::MAX,
        u32::MAX,
        3,
        0x730a_3920,
        0x696c_6269,
        0x6d5f_676e,
        0x3120_7061,
        0x302c_302c,
        0x0020_f200,
        0x0000_1000,
    ];
    let Ok(Packet::BarrierValue(barrier)) = Packet::decode(&raw) else {
        panic!("{:?}", Packet::decode(&raw))
    };
    assert_eq!((barrier.signal, barrier.value, barrier.mask), (0x1000_0021_0cc0, 1, -1));
    assert_eq!((barrier.condition, barrier.completion_signal), (Condition::Gte, 0x1000_0020_f200));
    assert!(barrier.header.barrier);
}
