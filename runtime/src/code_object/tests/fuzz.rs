// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damaged files: whatever a file holds, the answer is a code object or a typed error, never a panic.

use super::super::*;
use super::compile::Source;
use proptest::prelude::*;
use std::sync::LazyLock;

static V5: LazyLock<Vec<u8>> = LazyLock::new(|| Source::axpy().compile());
static OUTSIDE: LazyLock<Vec<u8>> =
    LazyLock::new(|| Source::outside().version(4).flag("-Wl,--unresolved-symbols=ignore-all").compile());

/// Does with a file all that a runtime would.
fn use_all(bytes: &[u8]) {
    let object = match CodeObject::parse(bytes) {
        Ok(object) => object,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    if object.plan().image_bytes() < 16 << 20 {
        let _ = object.plan().relocate_with(object.plan().alignment() * 3, |_| Some(u64::MAX - 7));
    }
    let geometry = Geometry::new([100, 7, 3], [32, 2, 1]);
    for kernel in object.kernels() {
        assert!(kernel.entry_offset < object.plan().image_bytes());
        let _ = kernel.check_launch(&geometry, 0x10000);
        let Ok(layout) = KernargLayout::new(&kernel.metadata) else { continue };
        let arguments: Vec<Vec<u8>> = layout.explicit().iter().map(|a| vec![0xaa; a.bytes]).collect();
        let mut block = vec![0; layout.bytes()];
        let _ = layout.fill(&arguments, &geometry, &mut block);
        let _ = layout.fill_raw(&block.clone(), &geometry, &mut block);
    }
}

#[test]
fn parse_every_single_bit_flipped_never_panics() {
    for original in [&*V5, &*OUTSIDE] {
        let mut bytes = original.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            use_all(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn parse_every_truncation_never_panics() {
    for length in 0..V5.len() {
        use_all(&V5[..length]);
    }
    // Nothing of what is loaded can be missing.
    let object = CodeObject::parse(&V5).unwrap();
    let loaded: usize = object.plan().segments().iter().map(|segment| segment.contents.len()).sum();
    assert!(CodeObject::parse(&V5[..loaded]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn parse_bytes_overwritten_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        words in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![
            0_u64, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX, u64::MAX - 4095,
        ])), 0..4),
        which in any::<bool>(),
    ) {
        let mut bytes = if which { V5.clone() } else { OUTSIDE.clone() };
        for (place, value) in changes {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        for (place, value) in words {
            let at = place.index(bytes.len() - 8) & !7;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        use_all(&bytes);
    }

    #[test]
    fn parse_headers_overwritten_never_panics(
        words in prop::collection::vec((0_usize..0x240 / 8, prop::sample::select(vec![
            0_u64, 1, 8, 0x1000, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX, u64::MAX - 4095,
        ])), 1..5),
    ) {
        let mut bytes = V5.clone();
        for (word, value) in words {
            // The first two words say what the file is.
            let at = (word + 2) * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        use_all(&bytes);
    }

    #[test]
    fn parse_random_bytes_after_a_good_identification_never_panics(
        tail in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut bytes = V5[..64].to_vec();
        bytes.extend(tail);
        use_all(&bytes);
    }
}

#[test]
fn metadata_nested_deeply_is_refused() {
    let note = [vec![0x91; 100_000], vec![0xc0]].concat();
    assert!(matches!(metadata::parse(&note), Err(CodeObjectError::Metadata { .. })));
    let inside = [b"\x81\xa1x".to_vec(), vec![0x91; 100_000], vec![0xc0]].concat();
    assert!(matches!(metadata::parse(&inside), Err(CodeObjectError::Metadata { .. })));
}

#[test]
fn metadata_promised_giant_array_allocates_nothing() {
    // { "amdhsa.version": [1, 2], "amdhsa.kernels": array of 2^32 - 1 }
    let mut note = b"\x82\xaeamdhsa.version\x92\x01\x02\xaeamdhsa.kernels".to_vec();
    note.extend([0xdd, 0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(metadata::parse(&note), Err(CodeObjectError::Metadata { .. })));
}
