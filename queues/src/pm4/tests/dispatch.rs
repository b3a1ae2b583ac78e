// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches, dword for dword.

use super::super::*;
use super::{decoded, encoded};
use crate::hsa::KernelDescriptor;
use crate::target::Target;

const TIMELINE: u64 = 0x7f12_3456_7000;
const ENTRY: u64 = 0x7f00_0010_0100;
const SCRATCH: u64 = 0x7f20_0000_0000;
const KERNARG: u64 = 0x7f30_0000_0040;
const MAILBOX: u64 = 0x7f40_0000_0018;

fn descriptor() -> KernelDescriptor {
    KernelDescriptor {
        compute_pgm_rsrc1: 0x60af_0081,
        compute_pgm_rsrc2: 0x0000_009a,
        compute_pgm_rsrc3: 0x0000_0010,
        ..KernelDescriptor::default()
    }
}

fn dispatch<'a>(descriptor: &'a KernelDescriptor, user_data: &'a [u32]) -> Dispatch<'a> {
    Dispatch {
        target: Target::by_name("gfx1100").unwrap(),
        simd_arrays: 12,
        entry: ENTRY,
        descriptor,
        group_segment_bytes: 1025,
        scratch: Some(Scratch { base: SCRATCH, wave_bytes: 8192, waves: 0x200 }),
        user_data,
        workgroup: [256, 2, 1],
        groups: [10, 20, 30],
        wave32: true,
    }
}

/// The stream that tinygrad submits for one launch, as it was recorded.
#[test]
fn whole_launch_is_dword_exact() {
    let descriptor = descriptor();
    let kernarg = words(KERNARG);
    let mut out = encoded(&[
        wait_memory(TIMELINE, Compare::GreaterEqual, 41, u32::MAX),
        // Of the host data path, where its chip has the registers.
        Packet::WaitRegMem(WaitRegMem {
            target: WaitTarget::Request { request: 0xE26, done: 0xE27 },
            function: Compare::GreaterEqual,
            reference: u32::MAX,
            mask: u32::MAX,
            poll_interval: 4,
            cache_policy: CachePolicy::Lru,
            offload: false,
        }),
        memory_barrier(),
        kernel_barrier(),
    ]);
    dispatch(&descriptor, &kernarg).encode(&mut out).unwrap();
    out.extend(encoded(&[cs_partial_flush(), signal(TIMELINE, 42, Width::Bits32), interrupt(MAILBOX, 3)]));

    #[rustfmt::skip]
    let wanted: &[u32] = &[
        0xC005_3C00, 0x15, 0x3456_7000, 0x7f12, 41, !0, 4,
        0xC005_3C00, 0x45, 0xE26, 0xE27, !0, !0, 4,
        0xC006_5800, 0, !0, !0, 0, 0, 0, 0xC3F1,
        0xC006_5800, 0, !0, !0, 0, 0, 0, 0x3F0,
        0xC002_7600, 0x20C, 0x0000_1001, 0x7f,
        0xC002_7600, 0x212, 0x60bf_0081, 0x9a | 3 << 15,
        0xC001_7600, 0x228, 0x10,
        0xC001_7600, 0x218, 0x20200,
        0xC002_7600, 0x210, 0x2000_0000, 0x7f,
        0xC003_7600, 0x21B, 0, 0, 0,
        0xC002_7600, 0x240, 0x40, 0x7f30,
        0xC001_7600, 0x215, 0,
        0xC008_7600, 0x204, 0, 0, 0, 256, 2, 1, 0, 0,
        0xC003_1500, 10, 20, 30, 0x8005,
        0xC000_4600, 0x407,
        0xC006_4900, 0x70F514, 0x2000_0000, 0x3456_7000, 0x7f12, 42, 0, 0,
        0xC006_4900, 0x514, 0x2200_0000, 0x18, 0x7f40, 3, 0, 3,
    ];
    assert_eq!(out, wanted);
    assert_eq!(encoded(&decoded(&out)), out);
}

/// What a stream's `SET_SH_REG` packets leave in a register.
fn register(stream: &[u32], wanted: u32) -> Option<u32> {
    decoded(stream).iter().find_map(|packet| match *packet {
        Packet::SetShReg { register, values } => {
            values.get(usize::try_from(wanted.checked_sub(register)?).unwrap()).copied()
        }
        _ => None,
    })
}

fn launch(dispatch: &Dispatch<'_>) -> Vec<u32> {
    let mut out = Vec::new();
    dispatch.encode(&mut out).unwrap();
    out
}

#[test]
fn priv_is_set_where_the_erratum_is_and_nowhere_else() {
    for (name, simd_arrays, wanted) in [
        ("gfx90a", 8, false),
        ("gfx1030", 8, false),
        ("gfx1100", 12, true),
        ("gfx1100", 1, true),
        ("gfx1101", 2, true),
        ("gfx1102", 1, true),
        ("gfx1103", 1, false),
        ("gfx1103", 2, true),
        ("gfx1150", 2, false),
        ("gfx1151", 2, false),
        ("gfx1200", 4, false),
    ] {
        // The descriptor's own bit must not matter either way.
        for compute_pgm_rsrc1 in [0x60af_0081, 0x60af_0081 | RSRC1_PRIV] {
            let target = Target::by_name(name).unwrap();
            let descriptor = KernelDescriptor { compute_pgm_rsrc1, ..descriptor() };
            let wave32 = target.wave_sizes.contains(&32);
            let dispatch = Dispatch { target, simd_arrays, wave32, ..dispatch(&descriptor, &[]) };
            let rsrc1 = 0x60af_0081 & !RSRC1_PRIV | if wanted { RSRC1_PRIV } else { 0 };
            assert_eq!(dispatch.rsrc1(), rsrc1, "{name} with {simd_arrays} arrays");
            if name != "gfx1200" {
                let unscratched = Dispatch { scratch: None, ..dispatch };
                assert_eq!(register(&launch(&unscratched), reg::COMPUTE_PGM_RSRC1), Some(rsrc1), "{name}");
            }
        }
    }
}

#[test]
fn registers_follow_the_generation() {
    let descriptor = descriptor();
    let base = dispatch(&descriptor, &[1]);
    for (name, third, scratch_base) in [
        ("gfx900", None, false),
        ("gfx90a", Some(reg::COMPUTE_PGM_RSRC3_GFX9), false),
        ("gfx942", Some(reg::COMPUTE_PGM_RSRC3_GFX9), true),
        ("gfx1030", Some(reg::COMPUTE_PGM_RSRC3), false),
        ("gfx1100", Some(reg::COMPUTE_PGM_RSRC3), true),
        ("gfx1151", Some(reg::COMPUTE_PGM_RSRC3), true),
    ] {
        let target = Target::by_name(name).unwrap();
        let out = launch(&Dispatch { target, wave32: false, ..base });
        for register_of_third in [reg::COMPUTE_PGM_RSRC3, reg::COMPUTE_PGM_RSRC3_GFX9] {
            let wanted = (third == Some(register_of_third)).then_some(descriptor.compute_pgm_rsrc3);
            assert_eq!(register(&out, register_of_third), wanted, "{name}");
        }
        let found = register(&out, reg::COMPUTE_DISPATCH_SCRATCH_BASE_LO).is_some();
        assert_eq!(found, scratch_base, "{name}");
        let unit = target.scratch.unwrap().wave_size_unit;
        assert_eq!(register(&out, reg::COMPUTE_TMPRING_SIZE), Some(0x200 | (8192 / unit) << 12), "{name}");
        assert!(matches!(decoded(&out).last(), Some(Packet::DispatchDirect { initiator, .. })
            if !initiator.wave32() && initiator.compute_shader_en() && initiator.force_start_at_000()));
    }
}

#[test]
fn launch_without_scratch_or_user_data_leaves_no_old_registers() {
    let descriptor = descriptor();
    let out = launch(&Dispatch { scratch: None, group_segment_bytes: 0, ..dispatch(&descriptor, &[]) });
    assert_eq!(register(&out, reg::COMPUTE_TMPRING_SIZE), Some(0));
    assert_eq!(register(&out, reg::COMPUTE_DISPATCH_SCRATCH_BASE_LO), Some(0));
    assert_eq!(register(&out, reg::COMPUTE_PGM_RSRC2), Some(0x9a));
    assert_eq!(register(&out, reg::COMPUTE_USER_DATA_0), None);
}

#[test]
fn refused_launches_say_why_and_append_nothing() {
    let descriptor = descriptor();
    let good = dispatch(&descriptor, &[]);
    let scratch = good.scratch.unwrap();
    let target = |name| Target::by_name(name).unwrap();
    let with = |scratch| Dispatch { scratch: Some(scratch), ..good };
    let wrong_scratch = |Scratch { base, wave_bytes, waves }| Pm4Error::Scratch {
        base,
        wave_bytes,
        waves,
        target: "gfx1100",
    };
    let narrow = Scratch { wave_bytes: 8191, ..scratch };
    let long = Scratch { wave_bytes: 8 << 20, ..scratch };
    let many = Scratch { waves: 0x1000, ..scratch };
    let crooked = Scratch { base: SCRATCH + 16, ..scratch };
    for (dispatch, wanted) in [
        (Dispatch { entry: ENTRY + 64, ..good }, Pm4Error::Entry { address: ENTRY + 64 }),
        (Dispatch { entry: 1 << 48, ..good }, Pm4Error::Entry { address: 1 << 48 }),
        (Dispatch { target: target("gfx1200"), ..good }, Pm4Error::Target { target: "gfx1200" }),
        (Dispatch { target: target("gfx90a"), ..good }, Pm4Error::WaveSize { lanes: 32, target: "gfx90a" }),
        (
            Dispatch { workgroup: [1, 0, 1], ..good },
            Pm4Error::WorkgroupSize { workgroup: [1, 0, 1], limit: 1024 },
        ),
        (
            Dispatch { workgroup: [u16::MAX; 3], ..good },
            Pm4Error::WorkgroupSize { workgroup: [u16::MAX; 3], limit: 1024 },
        ),
        (
            Dispatch { group_segment_bytes: 0x10001, ..good },
            Pm4Error::GroupSegment { bytes: 0x10001, limit: 0x10000, target: "gfx1100" },
        ),
        (
            Dispatch { group_segment_bytes: u32::MAX, ..good },
            Pm4Error::GroupSegment { bytes: u32::MAX, limit: 0x10000, target: "gfx1100" },
        ),
        (Dispatch { user_data: &[0; 17], ..good }, Pm4Error::UserData { count: 17, limit: 16 }),
        (with(narrow), wrong_scratch(narrow)),
        (with(long), wrong_scratch(long)),
        (with(many), wrong_scratch(many)),
        (with(crooked), wrong_scratch(crooked)),
    ] {
        let mut out = vec![7];
        assert_eq!(dispatch.encode(&mut out), Err(wanted));
        assert_eq!(out, [7]);
        assert!(!wanted.to_string().is_empty());
    }
    assert!(launch(&Dispatch { user_data: &[0; 16], group_segment_bytes: 0x10000, ..good }).len() > 16);
}
