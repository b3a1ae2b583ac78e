// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every GPU whose sizes were worked out by hand, and every shape no GPU has.

use proptest::prelude::*;

use super::*;
use crate::target::TARGETS;

/// Product, version, `[simd_count, simd_per_cu, arrays per XCC, arrays per engine, XCCs]`, compute units per
/// XCC, waves, wave area, control stack before rounding, control stack, `cwsr_size`, debug, total.
type Row = (&'static str, u32, [u32; 5], u32, u32, u32, u32, u32, u32, u32, u64);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("gfx900 Vega64", 90000, [256, 4, 4, 1, 1], 64, 2048, 0x154_0000, 16432, 0x5000, 22_302_720, 0x1_0000, 22_368_256),
    ("gfx906 MI50 60CU", 90006, [240, 4, 4, 1, 1], 60, 2048, 0x13e_c000, 16432, 0x5000, 20_910_080, 0x1_0000, 20_975_616),
    ("gfx906 MI60 64CU", 90006, [256, 4, 4, 1, 1], 64, 2048, 0x154_0000, 16432, 0x5000, 22_302_720, 0x1_0000, 22_368_256),
    ("gfx908 MI100 120CU", 90008, [480, 4, 8, 1, 1], 120, 4096, 0x45d_8000, 32816, 0x9000, 73_273_344, 0x2_0000, 73_404_416),
    ("gfx90a MI210/250 104CU", 90010, [416, 4, 8, 1, 1], 104, 4096, 0x3c8_8000, 32816, 0x9000, 63_508_480, 0x2_0000, 63_639_552),
    ("gfx90a MI250X 110CU", 90010, [440, 4, 8, 1, 1], 110, 4096, 0x400_6000, 32816, 0x9000, 67_170_304, 0x2_0000, 67_301_376),
    ("gfx942 MI300X SPX 304CU", 90402, [1216, 4, 4, 1, 8], 38, 1520, 0x161_e000, 12208, 0x3000, 23_203_840, 0xbe00, 186_019_840),
    ("gfx942 MI300X CPX 38CU", 90402, [152, 4, 4, 1, 1], 38, 1520, 0x161_e000, 12208, 0x3000, 23_203_840, 0xbe00, 23_252_992),
    ("gfx942 MI300A SPX 228CU", 90402, [912, 4, 4, 1, 6], 38, 1520, 0x161_e000, 12208, 0x3000, 23_203_840, 0xbe00, 139_517_952),
    ("gfx950 MI350X SPX 256CU lds160", 90500, [1024, 4, 4, 1, 8], 32, 1280, 0x15a_0000, 10288, 0x3000, 22_687_744, 0xa000, 181_829_632),
    ("gfx1010 5700XT 40CU", 100_100, [80, 2, 4, 2, 1], 40, 1280, 0xd4_8000, 15408, 0x4000, 13_942_784, 0xa000, 13_983_744),
    ("gfx1012 RX5500 20CU", 100_102, [40, 2, 2, 2, 1], 20, 640, 0x6a_4000, 7728, 0x2000, 6_971_392, 0x5000, 6_991_872),
    ("gfx1030 6800XT 72CU", 100_300, [144, 2, 8, 2, 1], 72, 2304, 0x17e_8000, 27696, 0x7000, 25_096_192, 0x1_2000, 25_169_920),
    ("gfx1030 6900XT 80CU", 100_300, [160, 2, 8, 2, 1], 80, 2560, 0x1a9_0000, 30768, 0x7000, 27_881_472, 0x1_4000, 27_963_392),
    ("gfx1100 7900XTX 96CU", 110_000, [192, 2, 12, 2, 1], 96, 3072, 0x2be_0000, 36912, 0xa000, 46_047_232, 0x1_8000, 46_145_536),
    ("gfx1100 7900XT 84CU", 110_000, [168, 2, 12, 2, 1], 84, 2688, 0x266_4000, 32304, 0x8000, 40_288_256, 0x1_5000, 40_374_272),
    ("gfx1101 7800XT 60CU", 110_001, [120, 2, 6, 2, 1], 60, 1920, 0x1b6_c000, 23088, 0x6000, 28_778_496, 0xf000, 28_839_936),
    ("gfx1102 7600 32CU", 110_002, [64, 2, 4, 2, 1], 32, 1024, 0xaa_0000, 12336, 0x4000, 11_157_504, 0x8000, 11_190_272),
    ("gfx1103 780M 12CU", 110_003, [24, 2, 2, 2, 1], 12, 384, 0x3f_c000, 4656, 0x2000, 4_186_112, 0x3000, 4_198_400),
    ("gfx1150 890M 16CU", 110_500, [32, 2, 2, 2, 1], 16, 512, 0x55_0000, 6192, 0x2000, 5_578_752, 0x4000, 5_595_136),
    ("gfx1151 8060S 40CU", 110_501, [80, 2, 4, 2, 1], 40, 1280, 0x124_8000, 15408, 0x4000, 19_185_664, 0xa000, 19_226_624),
    ("gfx1200 9060XT 32CU", 120_000, [64, 2, 4, 2, 1], 32, 1024, 0xea_0000, 12336, 0x4000, 15_351_808, 0x8000, 15_384_576),
    ("gfx1201 9070XT 64CU", 120_001, [128, 2, 8, 2, 1], 64, 2048, 0x1d4_0000, 24624, 0x7000, 30_699_520, 0x1_0000, 30_765_056),
];

fn shape(row: &Row) -> NodeShape {
    let [simd_count, simd_per_cu, arrays, simd_arrays_per_engine, num_xcc] = row.2;
    NodeShape {
        gfx_target_version: row.1,
        simd_count,
        simd_per_cu,
        num_xcc,
        array_count: arrays * num_xcc,
        simd_arrays_per_engine,
        lds_size_in_kb: if row.1 == 90500 { 160 } else { 64 },
        cwsr_size: None,
        ctl_stack_size: None,
    }
}

fn xtx() -> NodeShape {
    shape(ROWS.iter().find(|row| row.0.contains("7900XTX")).unwrap())
}

#[test]
fn sizes_of_every_worked_gpu() {
    for row in ROWS {
        let (name, _, [.., num_xcc], cus, waves, wave_area, raw_stack, stack, save, debug, total) = *row;
        let node = shape(row);
        assert_eq!(node.simd_count / node.simd_per_cu / num_xcc, cus, "{name}");
        let geometry = CwsrGeometry::for_node(&node).unwrap();
        let expected = CwsrGeometry {
            control_stack_bytes: stack,
            save_bytes: save,
            debug_bytes: debug,
            total_bytes: total,
            eop_bytes: 4096,
            waves,
            num_xcc,
        };
        assert_eq!(geometry, expected, "{name}");
        assert_eq!(geometry.save_bytes - geometry.control_stack_bytes, wave_area, "{name}");
        let per_wave = if node.gfx_target_version >= 100_100 { 12 } else { 8 };
        assert_eq!(40 + waves * per_wave + 8, raw_stack, "{name}");

        let agreeing = NodeShape { cwsr_size: Some(save), ctl_stack_size: Some(stack), ..node };
        assert_eq!(CwsrGeometry::for_node(&agreeing), Ok(geometry), "{name}");
    }
}

#[test]
fn every_target_has_a_worked_gpu() {
    // gfx1105 and gfx1152 were never worked out; both take the family's default.
    let worked =
        |version: u32| ROWS.iter().any(|row| row.1 == version) || [110_005, 110_502].contains(&version);
    assert!(TARGETS.iter().all(|target| worked(target.gfx_version)));
}

fn reporting(ctl_stack_size: Option<u32>, cwsr_size: Option<u32>) -> NodeShape {
    NodeShape { cwsr_size, ctl_stack_size, ..xtx() }
}

#[test]
fn control_stack_is_the_kernels_and_save_size_the_larger_one() {
    let computed = CwsrGeometry::computed(&xtx()).unwrap();
    let (stack, save) = (computed.control_stack_bytes, computed.save_bytes);
    let area = save - stack;
    // What the kernel reports, and the control stack and save size that follow.
    for (reported_stack, reported_save, expected_stack, expected_save) in [
        (Some(stack), Some(save + 8192), stack, save + 8192),
        // A kernel that knows too few registers of a chip: the chip saves all of them nevertheless.
        (Some(stack), Some(save - 0x20_0000), stack, save),
        (Some(stack + 4096), None, stack + 4096, save + 4096),
        (Some(stack + 4096), Some(save), stack + 4096, save + 4096),
        (Some(stack - 4096), Some(save), stack - 4096, save),
        (Some(4096), None, 4096, 4096 + area),
        (None, Some(save + 4096), stack, save + 4096),
    ] {
        let node = reporting(reported_stack, reported_save);
        let geometry = CwsrGeometry::for_node(&node).unwrap();
        assert_eq!((geometry.control_stack_bytes, geometry.save_bytes), (expected_stack, expected_save));
        assert_eq!(geometry.total_bytes, u64::from(expected_save) + u64::from(computed.debug_bytes));
        let unchanged = CwsrGeometry {
            control_stack_bytes: stack,
            save_bytes: save,
            total_bytes: computed.total_bytes,
            ..geometry
        };
        assert_eq!(unchanged, computed);
    }
}

#[test]
fn disagreements_name_both_numbers() {
    let node = reporting(Some(40_960), Some(46_047_232 + 4096));
    let computed = CwsrGeometry::computed(&node).unwrap();
    let found: Vec<_> = computed.disagreements(&node).collect();
    let expected = Disagreement { property: "cwsr_size", reported: 46_051_328, computed: 46_047_232 };
    assert_eq!(found, [expected]);
    assert_eq!(computed.disagreements(&xtx()).count(), 0);
}

#[test]
fn numbers_that_no_kernel_computes_are_refused() {
    let error = CwsrGeometry::for_node(&reporting(Some(40_961), None)).unwrap_err();
    insta::assert_snapshot!(error, @"Kernel reports ctl_stack_size 40961 B for gfx_target_version 110000, which is no whole number of pages above 0 (the formula gives 40960 B), use another kernel");
    for (node, flawed) in [
        (reporting(Some(0), None), "ctl_stack_size"),
        (reporting(None, Some(0)), "cwsr_size"),
        (reporting(Some(40_960), Some(46_047_233)), "cwsr_size"),
    ] {
        let error = CwsrGeometry::for_node(&node).unwrap_err();
        assert!(matches!(error, GeometryError::Reported { property, .. } if property == flawed), "{error}");
    }
    for node in [reporting(Some(u32::MAX - 4095), None), reporting(None, Some(u32::MAX - 4095))] {
        let error = CwsrGeometry::for_node(&node).unwrap_err();
        assert!(matches!(error, GeometryError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn unknown_version_is_refused() {
    for gfx_target_version in [0, 80_003, 110_700, 120_500, u32::MAX] {
        let node = NodeShape { gfx_target_version, ..xtx() };
        assert_eq!(CwsrGeometry::for_node(&node), Err(GeometryError::UnknownTarget { gfx_target_version }));
    }
}

#[test]
fn zero_properties_are_refused_by_name() {
    let mi350 = shape(&ROWS[9]);
    let cases: [(NodeShape, &str); 6] = [
        (NodeShape { simd_count: 0, ..mi350 }, "simd_count"),
        (NodeShape { simd_per_cu: 0, ..mi350 }, "simd_per_cu"),
        (NodeShape { num_xcc: 0, ..mi350 }, "num_xcc"),
        (NodeShape { array_count: 0, ..mi350 }, "array_count"),
        (NodeShape { simd_arrays_per_engine: 0, ..mi350 }, "simd_arrays_per_engine"),
        (NodeShape { lds_size_in_kb: 0, ..mi350 }, "lds_size_in_kb"),
    ];
    for (node, property) in cases {
        assert_eq!(CwsrGeometry::for_node(&node), Err(GeometryError::Zero { property }));
    }
    // gfx10 and later need neither arrays nor the LDS size.
    let node = NodeShape { array_count: 0, simd_arrays_per_engine: 0, lds_size_in_kb: 0, ..xtx() };
    CwsrGeometry::for_node(&node).unwrap();
}

#[test]
fn shapes_without_a_whole_unit_are_refused() {
    let mi300 = shape(&ROWS[6]);
    for node in [
        NodeShape { simd_count: 31, ..mi300 },
        NodeShape { simd_per_cu: u32::MAX, num_xcc: u32::MAX, ..mi300 },
        NodeShape { array_count: 7, ..mi300 },
    ] {
        assert!(matches!(CwsrGeometry::for_node(&node), Err(GeometryError::Shape { .. })), "{node:?}");
    }
}

#[test]
fn sizes_beyond_the_fields_are_refused() {
    let huge = NodeShape { simd_count: u32::MAX, simd_per_cu: 1, ..xtx() };
    assert!(matches!(CwsrGeometry::for_node(&huge), Err(GeometryError::TooLarge { .. })));
    let huge = NodeShape {
        simd_count: u32::MAX,
        simd_per_cu: 1,
        lds_size_in_kb: u32::MAX,
        num_xcc: 1,
        ..shape(&ROWS[9])
    };
    assert!(matches!(CwsrGeometry::for_node(&huge), Err(GeometryError::TooLarge { bytes: u64::MAX, .. })));
}

#[test]
fn areas_of_all_xccs_lie_behind_one_another() {
    let geometry = CwsrGeometry::for_node(&shape(&ROWS[6])).unwrap();
    assert_eq!(geometry.area_offset(0), Some(0));
    assert_eq!(geometry.area_offset(7), Some(7 * 23_203_840));
    assert_eq!(geometry.area_offset(8), None);
}

fn numbers() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX), 0_u32..5000, any::<u32>()]
}

fn shapes() -> impl Strategy<Value = NodeShape> {
    let version = prop_oneof![
        8 => (0..TARGETS.len()).prop_map(|row| TARGETS[row].gfx_version),
        1 => any::<u32>(),
    ];
    (
        version,
        proptest::array::uniform6(numbers()),
        proptest::option::of(numbers()),
        proptest::option::of(numbers()),
    )
        .prop_map(|(gfx_target_version, numbers, cwsr_size, ctl_stack_size)| NodeShape {
            gfx_target_version,
            simd_count: numbers[0],
            simd_per_cu: numbers[1],
            num_xcc: numbers[2],
            array_count: numbers[3],
            simd_arrays_per_engine: numbers[4],
            lds_size_in_kb: numbers[5],
            cwsr_size,
            ctl_stack_size,
        })
}

proptest! {
    #[test]
    fn any_shape_is_sized_or_refused(node in shapes()) {
        let node = NodeShape { cwsr_size: None, ctl_stack_size: None, ..node };
        match CwsrGeometry::for_node(&node) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(geometry) => {
                prop_assert_eq!(geometry.control_stack_bytes % 4096, 0);
                prop_assert_eq!(geometry.save_bytes % 4096, 0);
                prop_assert_eq!(geometry.total_bytes % 4096, 0);
                let parts = (u64::from(geometry.save_bytes) + u64::from(geometry.debug_bytes)) * u64::from(geometry.num_xcc);
                prop_assert!((parts..parts + 4096).contains(&geometry.total_bytes));
            }
        }
    }

    #[test]
    fn reported_numbers_are_met_or_refused(node in shapes()) {
        if let Ok(geometry) = CwsrGeometry::for_node(&node) {
            prop_assert!(node.cwsr_size.is_none_or(|bytes| bytes <= geometry.save_bytes));
            prop_assert!(node.ctl_stack_size.is_none_or(|bytes| bytes == geometry.control_stack_bytes));
            let parts = (u64::from(geometry.save_bytes) + u64::from(geometry.debug_bytes)) * u64::from(geometry.num_xcc);
            prop_assert_eq!(geometry.total_bytes, parts.next_multiple_of(4096));
        }
    }
}
