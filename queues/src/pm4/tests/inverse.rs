// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decoding and encoding undo each other, for whatever words are accepted.

use proptest::prelude::*;

use super::super::field::SHADER_TYPE;
use super::super::*;
use super::{encoded, samples};

/// Decodes; if that succeeds, encodes again, compares and prints.
fn accepted(words: &[u32]) -> bool {
    let Ok((packet, dwords)) = decode(words) else { return false };
    let mut again = Vec::new();
    packet.encode(&mut again).unwrap();
    assert_eq!(again.len(), dwords);
    // The one bit that is accepted without being kept.
    assert_eq!(again[0], words[0] & !SHADER_TYPE);
    assert_eq!(again[1..], words[1..dwords]);
    assert_eq!(packet_dwords(words[0]), Ok(dwords));
    assert!(!packet.to_string().is_empty());
    true
}

#[test]
fn any_flipped_bits_are_kept_or_refused() {
    let (mut kept, mut refused) = (0, 0);
    for packet in samples() {
        let words = encoded(&[packet]);
        let bits = words.len() * 32;
        for first in 0..bits {
            for second in first..bits {
                let mut words = words.clone();
                words[first / 32] ^= 1 << (first % 32);
                words[second / 32] ^= 1 << (second % 32);
                *if accepted(&words) { &mut kept } else { &mut refused } += 1;
            }
        }
    }
    assert!(kept > 100_000 && refused > 100_000, "{kept} kept, {refused} refused");
}

fn header() -> impl Strategy<Value = u32> {
    let known = prop::sample::select(vec![
        0x10, 0x15, 0x16, 0x23, 0x37, 0x3c, 0x3f, 0x40, 0x46, 0x49, 0x58, 0x76, 0x79,
    ]);
    prop_oneof![
        8 => (known, 0_u32..10, 0_u32..4).prop_map(|(opcode, count, low)| {
            3 << 30 | count << 16 | opcode << 8 | if low == 0 { SHADER_TYPE } else { 0 }
        }),
        1 => any::<u32>(),
    ]
}

/// Words with few bits set are accepted more often.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(a, b, c)| a & b & c),
        (any::<u32>(), any::<u32>()).prop_map(|(a, b)| a & b & !7),
        Just(0),
        (0_u32..32).prop_map(|bit| 1 << bit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn random_words_are_kept_or_refused(header in header(), body in prop::collection::vec(word(), 0..12)) {
        let words: Vec<u32> = std::iter::once(header).chain(body).collect();
        accepted(&words);
    }

    #[test]
    fn random_bits_are_kept_or_refused(words in prop::collection::vec(any::<u32>(), 0..12)) {
        accepted(&words);
    }
}
