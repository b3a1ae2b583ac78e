// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernarg blocks of compiled kernels.

use super::super::*;
use super::compile::Source;
use super::parse;

fn axpy(version: u32) -> Kernel {
    let source = Source::axpy().version(version).compile();
    parse(&source).kernel("axpy").unwrap().clone()
}

fn arguments(builder: KernargBuilder) -> KernargBuilder {
    builder
        .address(0x1122_3344_5566_7788)
        .address(0x99aa_bbcc_ddee_ff00)
        .bytes(&1.5_f32.to_le_bytes())
        .bytes(&1000_u32.to_le_bytes())
}

fn word(block: &[u8], offset: usize, bytes: usize) -> u64 {
    block[offset..offset + bytes].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[test]
fn build_v5_fills_hidden_arguments_at_their_places() {
    let geometry = Geometry {
        global_offset: [5, 6, 7],
        dynamic_lds_bytes: 4096,
        ..Geometry::new([1000, 30, 2], [64, 4, 1])
    };
    let block = arguments(KernargBuilder::new(&axpy(5)).unwrap()).build(&geometry).unwrap();
    assert_eq!(word(&block, 0, 8), 0x1122_3344_5566_7788);
    assert_eq!(word(&block, 16, 4), u64::from(1.5_f32.to_bits()));
    assert_eq!(word(&block, 20, 4), 1000);
    let implicit = 24;
    // Whole workgroups, then sizes, then what is left over.
    assert_eq!([0, 4, 8].map(|at| word(&block, implicit + at, 4)), [15, 7, 2]);
    assert_eq!([12, 14, 16].map(|at| word(&block, implicit + at, 2)), [64, 4, 1]);
    assert_eq!([18, 20, 22].map(|at| word(&block, implicit + at, 2)), [40, 2, 0]);
    assert_eq!([40, 48, 56].map(|at| word(&block, implicit + at, 8)), [5, 6, 7]);
    assert_eq!(word(&block, implicit + 64, 2), 3);
}

#[test]
fn build_v4_fills_the_global_offsets() {
    let geometry = Geometry { global_offset: [9, 8, 7], ..Geometry::new([64, 1, 1], [64, 1, 1]) };
    let kernel = axpy(4);
    let layout = KernargLayout::new(&kernel.metadata).unwrap();
    let block = arguments(KernargBuilder::new(&kernel).unwrap()).build(&geometry).unwrap();
    assert_eq!(block.len(), layout.bytes());
    let hidden = kernel.metadata.arguments.iter().filter(|a| matches!(a.kind, ValueKind::Hidden(_)));
    for argument in hidden {
        let ValueKind::Hidden(HiddenKind::GlobalOffset(axis)) = argument.kind else { continue };
        assert_eq!(word(&block, argument.offset as usize, 8), 9 - u64::from(axis));
    }
}

#[test]
fn build_wrong_count_names_both_numbers() {
    let builder = KernargBuilder::new(&axpy(5)).unwrap().address(0);
    let error = builder.build(&Geometry::new([1; 3], [1; 3])).unwrap_err();
    assert_eq!(error, KernargError::Count { kernel: "axpy".to_owned(), expected: 4, found: 1 });
}

#[test]
fn build_wrong_size_names_the_argument() {
    let builder = KernargBuilder::new(&axpy(5)).unwrap().address(0).address(0).address(0).bytes(&[0; 4]);
    let error = builder.build(&Geometry::new([1; 3], [1; 3])).unwrap_err();
    assert!(matches!(error, KernargError::Size { index: 2, expected: 4, found: 8, .. }), "{error}");
    assert!(error.to_string().contains("argument 2"), "{error}");
}

#[test]
fn fill_raw_takes_the_whole_block_or_the_explicit_part() {
    let layout = KernargLayout::new(&axpy(5).metadata).unwrap();
    let geometry = Geometry::new([128, 1, 1], [64, 1, 1]);
    let mut block = vec![0xff; layout.bytes() + 16];
    assert_eq!(layout.explicit_bytes(), 24);
    layout.fill_raw(&[7; 24], &geometry, &mut block).unwrap();
    assert_eq!(word(&block, 24, 4), 2);
    assert_eq!(block[layout.bytes()..], [0xff; 16]);
    let whole = vec![3; layout.bytes()];
    layout.fill_raw(&whole, &geometry, &mut block).unwrap();
    assert_eq!(block[..layout.bytes()], whole);
    let error = layout.fill_raw(&[0; 23], &geometry, &mut block).unwrap_err();
    assert!(matches!(error, KernargError::RawLength { found: 23, explicit: 24, .. }), "{error}");
}

#[test]
fn fill_short_memory_is_refused_and_unchanged() {
    let layout = KernargLayout::new(&axpy(5).metadata).unwrap();
    let mut block = vec![0xee; layout.bytes() - 1];
    let error = layout.fill_raw(&[1; 24], &Geometry::new([1; 3], [1; 3]), &mut block).unwrap_err();
    assert!(matches!(error, KernargError::Memory { .. }), "{error}");
    assert!(block.iter().all(|byte| *byte == 0xee));
}

#[test]
fn geometry_counts_dimensions_up_to_the_last_used() {
    let dimensions = |grid, workgroup| Geometry::new(grid, workgroup).dimensions;
    assert_eq!(dimensions([100, 1, 1], [64, 1, 1]), 1);
    assert_eq!(dimensions([1, 2, 1], [1, 1, 1]), 2);
    assert_eq!(dimensions([1, 1, 2], [1, 1, 1]), 3);
}

fn described(json_like: &[(&str, u32, u32)], bytes: u32) -> KernelMetadata {
    let mut metadata = axpy(5).metadata;
    let template = metadata.arguments[0].clone();
    metadata.kernarg_bytes = bytes;
    metadata.arguments = json_like
        .iter()
        .map(|(kind, offset, bytes)| Argument {
            name: None,
            offset: *offset,
            bytes: *bytes,
            kind: serde::Deserialize::deserialize(
                serde::de::value::StrDeserializer::<serde::de::value::Error>::new(kind),
            )
            .unwrap(),
            ..template.clone()
        })
        .collect();
    metadata
}

#[test]
fn layout_hidden_argument_of_another_size_is_refused() {
    let error = KernargLayout::new(&described(&[("hidden_group_size_x", 0, 8)], 8)).unwrap_err();
    assert_eq!(
        error,
        KernargError::HiddenSize {
            kernel: "axpy".to_owned(),
            kind: "hidden_group_size_x",
            expected: 2,
            found: 8
        }
    );
}

#[test]
fn layout_unknown_kind_leaves_only_the_raw_block() {
    let layout = KernargLayout::new(&described(&[("hidden_of_tomorrow", 0, 8)], 8)).unwrap();
    let geometry = Geometry::new([1; 3], [1; 3]);
    let none: [&[u8]; 0] = [];
    let error = layout.fill(&none, &geometry, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, KernargError::UnknownKind { index: 0, .. }), "{error}");
    assert_eq!(layout.fill_raw(&[1; 8], &geometry, &mut [0; 8]), Ok(()));
}

#[test]
fn layout_without_arguments_in_the_metadata_asks_for_a_raw_block() {
    let layout = KernargLayout::new(&described(&[], 16)).unwrap();
    let geometry = Geometry::new([1; 3], [1; 3]);
    let none: [&[u8]; 0] = [];
    assert!(matches!(
        layout.fill(&none, &geometry, &mut [0; 16]),
        Err(KernargError::Undeclared { bytes: 16, .. })
    ));
    assert_eq!(layout.fill_raw(&[1; 16], &geometry, &mut [0; 16]), Ok(()));
}

#[test]
fn hidden_values_that_come_from_the_runtime() {
    let kinds = [
        ("hidden_dynamic_lds_size", 0, 4),
        ("hidden_private_base", 4, 4),
        ("hidden_shared_base", 8, 4),
        ("hidden_queue_ptr", 16, 8),
        ("hidden_heap_v1", 24, 8),
        ("hidden_none", 32, 16),
    ];
    let layout = KernargLayout::new(&described(&kinds, 48)).unwrap();
    let geometry = Geometry {
        dynamic_lds_bytes: 77,
        private_base_hi: 0x20000,
        shared_base_hi: 0x10000,
        queue: 0xabc0,
        ..Geometry::new([1; 3], [1; 3])
    };
    let mut block = [0xff; 48];
    let none: [&[u8]; 0] = [];
    layout.fill(&none, &geometry, &mut block).unwrap();
    assert_eq!([0, 4, 8].map(|at| word(&block, at, 4)), [77, 0x20000, 0x10000]);
    assert_eq!([16, 24, 32, 40].map(|at| word(&block, at, 8)), [0xabc0, 0, 0, 0]);
}
