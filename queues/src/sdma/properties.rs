// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold for any dwords, sizes and positions.

use proptest::prelude::*;

use super::*;

fn generations() -> impl Strategy<Value = Generation> {
    proptest::sample::select(Generation::ALL.to_vec())
}

/// Headers that are often a known operation, now and then with a stray bit.
fn headers() -> impl Strategy<Value = u32> {
    let operation = proptest::sample::select(vec![
        0_u32,
        0x0002_0000,
        1,
        0x401,
        0x8000_0401,
        2,
        5,
        0x0003_0005,
        6,
        8,
        0xb000_0008,
        0xd000_0008,
        0x5e00_000a,
        0x5e01_000a,
        11,
        0x4000_000b,
        0x8000_000b,
        0x20d,
        0x111,
    ]);
    prop_oneof![
        6 => operation.clone(),
        1 => (operation, 0_u32..32).prop_map(|(header, bit)| header ^ 1 << bit),
        1 => any::<u32>(),
    ]
}

/// Dwords that often fit a field: small, or with few bits in the places fields have.
fn bodies() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => 0_u32..8,
        2 => (0_u32..0x3fff).prop_map(|n| n * 8),
        1 => any::<u32>().prop_map(|n| n & 0x3fff_3fff),
        1 => any::<u32>(),
    ]
}

fn streams() -> impl Strategy<Value = Vec<u32>> {
    (headers(), proptest::collection::vec(bodies(), 0..20)).prop_map(|(first, mut stream)| {
        stream.insert(0, first);
        stream
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_decodes_encodes_to_the_same_dwords(stream in streams(), generation in generations()) {
        match decode(&stream, generation) {
            Ok((packet, dwords)) => {
                let mut again = Vec::new();
                packet.encode(generation, &mut again).unwrap();
                prop_assert_eq!(&again[..], &stream[..dwords]);
                prop_assert_eq!(packet.dwords(), dwords);
                prop_assert!(!packet.to_string().contains('\n'));
                // A packet needs all its dwords, and nothing behind them.
                prop_assert_eq!(decode(&again, generation), Ok((packet, dwords)));
                let short = decode(&again[..dwords - 1], generation);
                let available = dwords - 1;
                prop_assert!(
                    matches!(short, Err(SdmaError::Truncated { wanted, available: left })
                        if left == available && wanted > available && wanted <= dwords),
                    "{:?}", short
                );
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn streams_end_or_say_why(first in streams(), second in streams(), generation in generations()) {
        let stream = [first, second].concat();
        let mut at = 0;
        for (start, packet) in packets(&stream, generation) {
            prop_assert_eq!(start, at);
            at = packet.map_or(stream.len(), |packet| start + packet.dwords());
        }
        prop_assert_eq!(at, stream.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pieces_of_a_copy_add_up(
        generation in generations(),
        bytes in prop_oneof![0_u64..100, 0_u64..(1 << 28), 0_u64..(1 << 34)],
        dst in 0_u64..(1 << 47),
        src in 0_u64..(1 << 47),
    ) {
        let mut out = Vec::new();
        copy(&mut out, generation, dst, src, bytes).unwrap();
        let mut moved = 0;
        for (_, packet) in packets(&out, generation) {
            let Ok(Packet::CopyLinear(copy)) = packet else { panic!("{packet:?}") };
            prop_assert_eq!((copy.src, copy.dst), (src + moved, dst + moved));
            prop_assert!(u64::from(copy.bytes) <= max_copy_bytes(generation));
            moved += u64::from(copy.bytes);
        }
        prop_assert_eq!(moved, bytes);
        prop_assert_eq!(out.len() as u64, bytes.div_ceil(max_copy_bytes(generation)) * 7);
    }

    #[test]
    fn pieces_of_a_fill_add_up(
        generation in generations(),
        dwords in prop_oneof![0_u64..100, 0_u64..(1 << 28)],
        dst in (0_u64..(1 << 45)).prop_map(|n| n * 4),
        value in any::<u32>(),
    ) {
        let mut out = Vec::new();
        fill(&mut out, generation, dst, value, dwords * 4).unwrap();
        let mut filled = 0;
        for (_, packet) in packets(&out, generation) {
            let Ok(Packet::ConstFill(fill)) = packet else { panic!("{packet:?}") };
            prop_assert_eq!((fill.dst, fill.value, fill.element_bytes()), (dst + filled, value, 4));
            prop_assert!(u64::from(fill.bytes) <= MAX_FILL_BYTES);
            filled += u64::from(fill.bytes);
        }
        prop_assert_eq!(filled, dwords * 4);
    }

    #[test]
    fn nops_fill_exactly(dwords in prop_oneof![
        0_usize..4, 0x3ffe_usize..0x4003, 0x7ffe_usize..0x8003, 0_usize..(1 << 20)
    ]) {
        let mut out = vec![7];
        push_nops(&mut out, dwords);
        prop_assert_eq!(out.len(), 1 + dwords);
        let mut count = 0;
        for (_, packet) in packets(&out[1..], Generation::V4) {
            prop_assert!(matches!(packet, Ok(Packet::Nop { .. })), "{:?}", packet);
            count += 1;
        }
        prop_assert_eq!(count, dwords.div_ceil(0x4000));
    }

    #[test]
    fn a_padded_packet_never_straddles(
        ring in (6_u32..24).prop_map(|log2| 1 << log2),
        position in any::<u64>().prop_map(|n| n & !3),
        dwords in 1_usize..20_000,
    ) {
        let ring_dwords = ring as usize / 4;
        match pad_to_fit(position, ring, dwords) {
            Err(error) => prop_assert!(dwords > ring_dwords, "{}", error),
            Ok(padding) => {
                prop_assert!(padding < ring_dwords);
                let at = (position as usize / 4 + padding) % ring_dwords;
                prop_assert!(at + dwords <= ring_dwords);
                // No padding where none is needed, else up to the ring's end.
                let before = position as usize / 4 % ring_dwords;
                prop_assert_eq!(padding != 0, before + dwords > ring_dwords);
                prop_assert!(padding == 0 || at == 0);
            }
        }
    }
}

#[test]
fn nops_fill_sixteen_million_dwords() {
    for dwords in [(16 << 20) - 1, 16 << 20] {
        let mut out = Vec::new();
        push_nops(&mut out, dwords);
        assert_eq!(out.len(), dwords);
        assert_eq!(packets(&out, Generation::V6).filter(|(_, packet)| packet.is_ok()).count(), 1024);
    }
}
