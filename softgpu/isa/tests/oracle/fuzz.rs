// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random words: the decoder never panics, agrees with LLVM on the slots of the table, and the def/use sets hold.

use proptest::prelude::*;
use softgpu_isa::{DecodeError, Ty, WaveSize, decode, decode_for, info};

use crate::llvm::{Random, assert_agrees, compare};

/// Uniformly random dwords, a third of them given the prefix of a 64-bit format so that these are not rare.
#[test]
fn random_words_agree_with_llvm() {
    let mut random = Random(0x4655_5a5a);
    const PREFIXES: [u32; 9] = [
        0xd500_0000,
        0xd600_0000,
        0xcc00_0000,
        0xc800_0000,
        0xd800_0000,
        0xdc00_0000,
        0xf400_0000,
        0xe000_0000,
        0xd700_0000,
    ];
    let cases: Vec<[u32; 3]> = (0..100_000)
        .map(|i| {
            let word = random.word();
            let word = if i % 3 == 0 { PREFIXES[i / 3 % PREFIXES.len()] | word & 0x00ff_ffff } else { word };
            [word, random.word(), random.word()]
        })
        .collect();
    let report = compare(&cases, WaveSize::W32);
    println!("{} agree, {} refused by both, {} graphics", report.agreed, report.refused, report.graphics);
    assert_agrees(&report);
    assert!(report.agreed > 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    #[test]
    fn decode_never_panics(words in proptest::collection::vec(any::<u32>(), 0..4)) {
        if let Ok(inst) = decode(&words) {
            prop_assert!(usize::from(inst.size) <= words.len() * 4);
            prop_assert!(inst.to_string().starts_with(info(inst.op).name) || inst.second.is_some());
            let _ = inst.text(WaveSize::W64).to_string();
            for wave in [WaveSize::W32, WaveSize::W64] {
                let effects = inst.effects(wave);
                // A wider wave only adds high halves of lane masks, except that a matrix lies in fewer registers.
                let is_matrix = info(inst.op).src.iter().any(|slot| slot.ty == Ty::ACC);
                prop_assert!(is_matrix || effects.reads.vector == inst.effects(WaveSize::W32).reads.vector);
            }
        }
    }

    /// Words after the instruction never matter, and fewer words than it takes are `Truncated`.
    #[test]
    fn decode_reads_only_its_words(words in any::<[u32; 3]>(), other in any::<[u32; 3]>()) {
        if let Ok(inst) = decode(&words) {
            let taken = usize::from(inst.size) / 4;
            prop_assert_eq!(decode(&words[..taken]), Ok(inst));
            let mut changed = other;
            changed[..taken].copy_from_slice(&words[..taken]);
            prop_assert_eq!(decode(&changed), Ok(inst));
            for fewer in 0..taken {
                let is_truncated = matches!(decode(&words[..fewer]), Err(DecodeError::Truncated { .. }));
                prop_assert!(is_truncated);
            }
        }
    }
}

/// First registers and counts of the tuples of `file` ("v", "s", "ttmp") in an instruction's text.
fn tuples(text: &str, file: &str) -> Vec<(u32, u32)> {
    let operands = text.split_once(' ').map_or("", |(_, operands)| operands);
    let tokens = operands.split(|c: char| !(c.is_ascii_alphanumeric() || "_[]:".contains(c)));
    tokens
        .filter_map(|token| token.strip_prefix(file))
        .filter_map(|rest| match rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(range) => {
                let (first, last) = range.split_once(':')?;
                let first: u32 = first.parse().ok()?;
                Some((first, last.parse::<u32>().ok()? - first + 1))
            }
            None => rest.parse().ok().map(|index| (index, 1)),
        })
        .collect()
}

/// The registers the text names are exactly those of the def/use sets.
#[test]
fn effects_name_the_registers_of_the_text() {
    let mut random = Random(0x4445_4655);
    let mut checked = 0;
    while checked < 50_000 {
        let words =
            [random.word() | [0, 0xc000_0000][random.below(2) as usize], random.word(), random.word()];
        for wave in [WaveSize::W32, WaveSize::W64] {
            let Ok(inst) = decode_for(&words, wave) else { continue };
            let text = inst.text(wave).to_string();
            let effects = inst.effects(wave);
            if inst.tfe || text.contains("hwreg") || text.contains("sendmsg") {
                continue;
            }
            let mut vector = [0_u64; 4];
            for (first, count) in tuples(&text, "v") {
                (first..first + count).for_each(|i| vector[i as usize / 64] |= 1 << (i % 64));
            }
            let named: Vec<u64> = effects
                .reads
                .vector
                .iter()
                .zip(effects.writes.vector)
                .map(|(reads, writes)| reads | writes)
                .collect();
            assert_eq!(named, vector, "{text}");
            let mut scalar = 0_u128;
            for (first, count) in tuples(&text, "s") {
                (first..first + count).for_each(|i| scalar |= 1 << i);
            }
            for (first, count) in tuples(&text, "ttmp") {
                (first..first + count).for_each(|i| scalar |= 1 << (108 + i));
            }
            let general = ((1 << 106) - 1) | (0xffff << 108);
            let ours = (effects.reads.scalar | effects.writes.scalar) & general & !(0b1111 << 124);
            assert_eq!(ours, scalar, "{text}");
            checked += 1;
        }
    }
}
