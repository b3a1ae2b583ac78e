// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table against itself. `tests/llvm.rs` compares it with clang.

use super::*;
use crate::pm4::reg;

#[test]
fn required_targets_are_found_by_every_key() {
    for (name, version) in [
        ("gfx900", 90000),
        ("gfx906", 90006),
        ("gfx908", 90008),
        ("gfx90a", 90010),
        ("gfx942", 90402),
        ("gfx950", 90500),
        ("gfx1030", 100_300),
        ("gfx1100", 110_000),
        ("gfx1101", 110_001),
        ("gfx1102", 110_002),
        ("gfx1103", 110_003),
        ("gfx1150", 110_500),
        ("gfx1151", 110_501),
        ("gfx1200", 120_000),
        ("gfx1201", 120_001),
    ] {
        let target = Target::by_name(name).unwrap();
        assert_eq!(target.to_string(), name);
        assert_eq!(target.gfx_version, version);
        assert_eq!(Target::from_gfx_version(version), Some(target));
        assert_eq!(Target::from_elf_mach(target.elf_mach), Some(target));
    }
    assert_eq!(Target::by_name("gfx1"), None);
    assert_eq!(Target::from_gfx_version(0), None);
    assert_eq!(Target::from_elf_mach(0), None);
}

#[test]
fn rows_are_consistent() {
    for (position, target) in TARGETS.iter().enumerate() {
        let version = target.gfx_version;
        let [major, minor, stepping] = [version / 10000, version / 100 % 100, version % 100];
        assert_eq!(target.major, major, "{target}");
        assert_eq!(target.name, format!("gfx{major}{minor}{stepping:x}"));
        assert!((9..=12).contains(&major), "{target}");
        assert_eq!(target.gfx11_code, major == 11);
        assert_eq!(target.packets_without_code, major == 9);
        assert_eq!(target.kernel_control_stack, major == 9);
        assert_eq!(target.gcr, major >= 10);
        assert_eq!(target.paired_cus, major >= 10);
        assert_eq!(target.pm4_dispatch, major < 12);
        let rsrc3 = match major {
            9 if target.vgprs_wave64.total > 256 => Some(reg::COMPUTE_PGM_RSRC3_GFX9),
            10 | 11 => Some(reg::COMPUTE_PGM_RSRC3),
            _ => None,
        };
        assert_eq!(target.pgm_rsrc3, rsrc3, "{target}");
        assert_eq!(target.wave_front_size(), if major == 9 { 64 } else { 32 });
        assert_eq!(target.wave_sizes.contains(&32), target.vgprs_wave32.is_some());
        assert_eq!(target.mes, major >= 11);
        for other in &TARGETS[position + 1..] {
            assert!(target.gfx_version < other.gfx_version, "{target} and {other}");
            assert!(target.elf_mach == 0 || target.elf_mach != other.elf_mach, "{target} and {other}");
        }
    }
}

#[test]
fn copy_engines_are_driven_as_rocr_drives_them() {
    for target in TARGETS {
        // ROCr pads on 9.0.0 to 9.0.4 and 9.0.12, and flushes everywhere but on 10.1.
        let dwords = if matches!(target.gfx_version, 90_000..=90_004 | 90_012) { 64 } else { 1 };
        assert_eq!(target.sdma_submission_dwords, dwords, "{target}");
        assert_eq!(target.sdma_hdp_flush, target.gfx_version / 100 != 1001, "{target}");
    }
}

#[test]
fn aql_queues_of_chips_with_several_xccs_have_no_end_of_pipe_buffer() {
    let without: Vec<_> = TARGETS.iter().filter(|target| !target.aql_eop).map(|target| target.name).collect();
    assert_eq!(without, ["gfx942", "gfx950"]);
}

#[test]
fn vgpr_bytes_follow_from_the_register_files() {
    for target in TARGETS {
        let bytes = |file: VgprFile, lanes: u32| target.simd_per_cu * file.total * lanes * 4;
        // gfx908 has a second file, as large, for accumulation.
        let files = if target.name == "gfx908" { 2 } else { 1 };
        assert_eq!(files * bytes(target.vgprs_wave64, 64), target.vgpr_bytes_per_cu, "{target}");
        assert_eq!(target.vgprs(false), target.vgprs_wave64);
        if let Some(file) = target.vgprs_wave32 {
            assert_eq!(bytes(file, 32), target.vgpr_bytes_per_cu, "{target}");
            assert_eq!(target.vgprs(true), file);
        }
    }
}

#[test]
fn privileged_dispatch_is_true_for_five_chips_only() {
    for target in TARGETS {
        for arrays in [0, 1, 2, 12, u32::MAX] {
            let expected = match target.gfx_version {
                110_000 | 110_001 | 110_002 | 110_005 => true,
                110_003 => arrays > 1,
                _ => false,
            };
            assert_eq!(privileged_dispatch(target, arrays), expected, "{target} with {arrays} arrays");
        }
    }
}
