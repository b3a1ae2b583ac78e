// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every opcode slot of every format with several operand patterns: validity, length and text equal LLVM's.

use softgpu_isa::{Enc, EncodingFamily, Fmt, Op, WaveSize, decode, decode_strict, rows};

use crate::llvm::{PAD, Random, assert_agrees, compare, disassemble};

/// What a field may hold.
#[derive(Clone, Copy)]
enum Kind {
    /// 8- or 9-bit source.
    Source,
    /// 7-bit scalar register.
    Scalar,
    /// Vector register, or anything of its width.
    Register,
    /// Mostly zero.
    Modifier,
    /// Anything.
    Any,
}

struct Format {
    name: &'static str,
    id: u64,
    opcode: (u32, u32),
    slots: u64,
    is_long: bool,
    fields: &'static [(u32, u32, Kind)],
}

use Kind::{Any, Modifier, Register, Scalar, Source};

const VECTOR_LONG: &[(u32, u32, Kind)] = &[
    (0, 8, Register),
    (8, 3, Modifier),
    (11, 4, Modifier),
    (15, 1, Modifier),
    (32, 9, Source),
    (41, 9, Source),
    (50, 9, Source),
    (59, 2, Modifier),
    (61, 3, Modifier),
];
const FLAT: &[(u32, u32, Kind)] = &[
    (0, 13, Any),
    (13, 1, Modifier),
    (14, 1, Any),
    (15, 1, Modifier),
    (32, 8, Register),
    (40, 8, Register),
    (48, 7, Scalar),
    (55, 1, Modifier),
    (56, 8, Register),
];

const FORMATS: &[Format] = &[
    Format {
        name: "SOP2",
        id: 0x8000_0000,
        opcode: (23, 7),
        slots: 96,
        is_long: false,
        fields: &[(0, 8, Source), (8, 8, Source), (16, 7, Scalar)],
    },
    Format {
        name: "SOPK",
        id: 0xb000_0000,
        opcode: (23, 5),
        slots: 29,
        is_long: false,
        fields: &[(0, 16, Any), (16, 7, Scalar)],
    },
    Format {
        name: "SOP1",
        id: 0xbe80_0000,
        opcode: (8, 8),
        slots: 256,
        is_long: false,
        fields: &[(0, 8, Source), (16, 7, Scalar)],
    },
    Format {
        name: "SOPC",
        id: 0xbf00_0000,
        opcode: (16, 7),
        slots: 128,
        is_long: false,
        fields: &[(0, 8, Source), (8, 8, Source)],
    },
    Format {
        name: "SOPP",
        id: 0xbf80_0000,
        opcode: (16, 7),
        slots: 128,
        is_long: false,
        fields: &[(0, 16, Any)],
    },
    Format {
        name: "SMEM",
        id: 0xf400_0000,
        opcode: (18, 8),
        slots: 256,
        is_long: true,
        fields: &[
            (0, 6, Any),
            (6, 7, Scalar),
            (13, 2, Modifier),
            (15, 3, Modifier),
            (32, 21, Any),
            (53, 4, Modifier),
            (57, 7, Scalar),
        ],
    },
    Format {
        name: "VOP2",
        id: 0,
        opcode: (25, 6),
        slots: 62,
        is_long: false,
        fields: &[(0, 9, Source), (9, 8, Register), (17, 8, Register)],
    },
    Format {
        name: "VOP1",
        id: 0x7e00_0000,
        opcode: (9, 8),
        slots: 256,
        is_long: false,
        fields: &[(0, 9, Source), (17, 8, Register)],
    },
    Format {
        name: "VOPC",
        id: 0x7c00_0000,
        opcode: (17, 8),
        slots: 256,
        is_long: false,
        fields: &[(0, 9, Source), (9, 8, Register)],
    },
    Format {
        name: "VOP3",
        id: 0xd400_0000,
        opcode: (16, 10),
        slots: 1024,
        is_long: true,
        fields: VECTOR_LONG,
    },
    Format {
        name: "VOP3P",
        id: 0xcc00_0000,
        opcode: (16, 7),
        slots: 128,
        is_long: true,
        fields: VECTOR_LONG,
    },
    Format {
        name: "VINTERP",
        id: 0xcd00_0000,
        opcode: (16, 7),
        slots: 128,
        is_long: true,
        fields: &[
            (0, 8, Register),
            (8, 3, Any),
            (11, 4, Modifier),
            (15, 1, Modifier),
            (23, 1, Modifier),
            (32, 9, Source),
            (41, 9, Source),
            (50, 9, Source),
            (59, 2, Modifier),
            (61, 3, Any),
        ],
    },
    Format {
        name: "VOPD",
        id: 0xc800_0000,
        opcode: (17, 9),
        slots: 512,
        is_long: true,
        fields: &[
            (0, 9, Source),
            (9, 8, Register),
            (32, 9, Source),
            (41, 8, Register),
            (49, 7, Any),
            (56, 8, Register),
        ],
    },
    Format {
        name: "DS",
        id: 0xd800_0000,
        opcode: (18, 8),
        slots: 256,
        is_long: true,
        fields: &[
            (0, 16, Any),
            (16, 1, Modifier),
            (17, 1, Modifier),
            (32, 8, Register),
            (40, 8, Register),
            (48, 8, Register),
            (56, 8, Register),
        ],
    },
    Format { name: "FLAT", id: 0xdc00_0000, opcode: (18, 7), slots: 128, is_long: true, fields: FLAT },
    Format { name: "SCRATCH", id: 0xdc01_0000, opcode: (18, 7), slots: 128, is_long: true, fields: FLAT },
    Format { name: "GLOBAL", id: 0xdc02_0000, opcode: (18, 7), slots: 128, is_long: true, fields: FLAT },
    Format {
        name: "MUBUF",
        id: 0xe000_0000,
        opcode: (18, 8),
        slots: 256,
        is_long: true,
        fields: &[
            (0, 12, Any),
            (12, 3, Modifier),
            (15, 3, Modifier),
            (32, 8, Register),
            (40, 8, Register),
            (48, 5, Any),
            (53, 3, Modifier),
            (56, 8, Source),
        ],
    },
    Format {
        name: "MTBUF",
        id: 0xe800_0000,
        opcode: (15, 4),
        slots: 16,
        is_long: true,
        fields: &[
            (0, 12, Any),
            (12, 3, Modifier),
            (19, 7, Any),
            (32, 8, Register),
            (40, 8, Register),
            (48, 5, Any),
            (53, 3, Modifier),
            (56, 8, Source),
        ],
    },
];

/// Literals and DPP dwords worth trying: inline patterns of each type, quad_perm, row operations, DPP8.
const SECOND_WORDS: [u64; 16] = [
    0,
    0xffff_fff0,
    0x3f80_0000,
    0x3ff0_0000,
    0x3c00,
    0x3e22_f983,
    0x3118,
    0x1234_5678,
    0xff00_e406,
    0x0a05_1103,
    0xf10c_4007,
    0x5326_5f05,
    0xff01_5801,
    0xc00d_6a02,
    0x0040_0000,
    0xff09_2104,
];

fn value(random: &mut Random, kind: Kind, width: u32) -> u64 {
    let any = random.next() & ((1 << width) - 1);
    let value = match (kind, random.below(8)) {
        (Modifier, 0..=5) => 0,
        (Any, 0) | (Register, 0..=1) | (Source, 0) => 0,
        (Register, 2..=3) => random.below(120),
        (Scalar, 0..=2) => random.pick(&[4, 8, 16, 20, 100]),
        (Scalar, 3..=4) => random.pick(&[0, 104, 105, 106, 107, 108, 122, 124, 125, 126, 127]),
        (Source, 1..=2) if width == 9 => 256 + random.below(256),
        (Source, 3..=4) => random.pick(&[2, 5, 105, 106, 124, 125, 126, 128, 129, 193, 208, 240, 242, 248]),
        (Source, 5) => random.pick(&[209, 233, 234, 235, 236, 237, 238, 239, 249, 250, 251, 252, 253, 254]),
        (Source, 6) => 255,
        _ => any,
    };
    value & ((1 << width) - 1)
}

fn case(random: &mut Random, format: &Format, slot: u64) -> [u32; 3] {
    let mut bits = format.id | slot << format.opcode.0;
    for &(lsb, width, kind) in format.fields {
        let field = value(random, kind, width);
        bits = bits & !(((1 << width) - 1) << lsb) | field << lsb;
    }
    // Many operations have fewer than three sources and no modifiers, and require those fields to be zero.
    if std::ptr::eq(format.fields, VECTOR_LONG) {
        let unused: u64 = random.pick(&[0, 0x1ff << 50, 0x3_ffff << 41, 0x1ff << 50]);
        let modifiers: u64 =
            random.pick(&[0, 0xf800_0000_0000_8700, 0xf800_0000_0000_ff00, 0x1800_0000_0000_0000]);
        bits &= !(unused | modifiers);
    }
    if format.name == "SCRATCH" || format.name == "GLOBAL" || format.name == "FLAT" {
        // Most accesses have no scalar base.
        if random.below(3) != 0 {
            bits = bits & !(0x7f << 48) | 124 << 48;
        }
    }
    let extra = |random: &mut Random| match random.below(4) {
        0 => random.word(),
        _ => random.pick(&SECOND_WORDS) as u32,
    };
    let second = if format.is_long { (bits >> 32) as u32 } else { extra(random) };
    [bits as u32, second, extra(random)]
}

/// `STASIS_ORACLE_SCALE=n` tries n times as many patterns.
fn scale() -> usize {
    std::env::var("STASIS_ORACLE_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

fn cases_of(name: &str, patterns: usize) -> Vec<[u32; 3]> {
    let mut random = Random(0x5741_5645);
    let mut cases = Vec::new();
    for format in FORMATS.iter().filter(|format| format.name == name) {
        assert_eq!(format.slots.next_power_of_two(), 1 << format.opcode.1, "{name}");
        for slot in 0..format.slots {
            let bits = format.id | slot << format.opcode.0;
            cases.push([bits as u32, 0, 0]);
            if name == "DS" {
                // The GDS-only operations.
                cases.push([bits as u32 | 1 << 17, 0, 0]);
            }
            cases.extend((0..patterns * scale()).map(|_| case(&mut random, format, slot)));
        }
    }
    cases
}

fn sweep(name: &str, encodings: &[(Fmt, Enc)], patterns: usize) {
    let report = compare(&cases_of(name, patterns), WaveSize::W32);
    println!("{name}: {} agree, {} refused by both", report.agreed, report.refused);
    assert_agrees(&report);
    // For every row both have decoded some word alike; agreeing on refusals is not enough.
    for row in rows() {
        for &(fmt, enc) in encodings.iter().filter(|&&(fmt, _)| row.has(EncodingFamily::Gfx11, fmt)) {
            let seen = report.per_op.get(&(enc, row.op)).copied().unwrap_or(0);
            let is_true16_only = matches!((row.op, enc), (Op::V_MOV_B16, Enc::Vop3) | (Op::V_SWAP_B16, _));
            assert!(seen > 0 || is_true16_only, "no valid pattern of {} as {fmt:?}", row.name);
        }
    }
}

macro_rules! sweeps {
    ($($test:ident $name:literal [$($fmt:ident $enc:ident),*] $patterns:literal;)*) => {
        $(#[test] fn $test() { sweep($name, &[$((Fmt::$fmt, Enc::$enc)),*], $patterns); })*
    };
}

sweeps! {
    sop2_slots_agree_with_llvm "SOP2" [Sop2 Sop2] 100;
    sopk_slots_agree_with_llvm "SOPK" [Sopk Sopk] 200;
    sop1_slots_agree_with_llvm "SOP1" [Sop1 Sop1] 50;
    sopc_slots_agree_with_llvm "SOPC" [Sopc Sopc] 50;
    sopp_slots_agree_with_llvm "SOPP" [Sopp Sopp] 100;
    smem_slots_agree_with_llvm "SMEM" [Smem Smem] 60;
    vop1_slots_agree_with_llvm "VOP1" [Vop1 Vop1] 100;
    vop2_slots_agree_with_llvm "VOP2" [Vop2 Vop2] 300;
    vopc_slots_agree_with_llvm "VOPC" [Vopc Vopc] 60;
    vop3_slots_agree_with_llvm "VOP3" [Vop3 Vop3, Vop3sd Vop3sd] 80;
    vop3p_slots_agree_with_llvm "VOP3P" [Vop3p Vop3p] 200;
    vinterp_slots_agree_with_llvm "VINTERP" [Vinterp Vinterp] 400;
    ds_slots_agree_with_llvm "DS" [Ds Ds] 100;
    flat_slots_agree_with_llvm "FLAT" [Flat Flat] 60;
    scratch_slots_agree_with_llvm "SCRATCH" [Scratch Scratch] 60;
    global_slots_agree_with_llvm "GLOBAL" [Global Global] 60;
    mubuf_slots_agree_with_llvm "MUBUF" [Mubuf Mubuf] 60;
    mtbuf_slots_agree_with_llvm "MTBUF" [Mtbuf Mtbuf] 300;
    vopd_slots_agree_with_llvm "VOPD" [DualX Vopd, DualY Vopd] 60;
}

/// Wave64: lane masks are pairs, matrices take half the registers, and there is no dual issue.
#[test]
fn wave64_slots_agree_with_llvm() {
    for (name, patterns) in
        [("VOP1", 20), ("VOP2", 60), ("VOPC", 20), ("VOP3", 30), ("VOP3P", 100), ("VOPD", 4)]
    {
        let report = compare(&cases_of(name, patterns), WaveSize::W64);
        println!("{name} in wave64: {} agree, {} refused by both", report.agreed, report.refused);
        assert_agrees(&report);
    }
}

/// Every 16-bit immediate of the operations whose immediates have named fields.
#[test]
fn named_immediates_agree_with_llvm() {
    // getreg, setreg, setreg_imm32; delay_alu, waitcnt_depctr, waitcnt, sendmsg, sendmsghalt, nop, branch, clause.
    let mut words: Vec<u32> = vec![0xb884_0000, 0xb904_0000, 0xb984_0000];
    words.extend([7, 8, 9, 54, 55, 0, 32, 5, 48, 11].map(|opcode| 0xbf80_0000 | opcode << 16));
    let every = |word: u32| (0..=0xffff).map(move |imm| [word | imm, 0x1234_5678, 0]);
    assert_agrees(&compare(&words.into_iter().flat_map(every).collect::<Vec<_>>(), WaveSize::W32));
    let swizzles: Vec<_> = (0..=0xffff).map(|imm| [0xd8d4_0000 | imm, 0x1000_0001, 0]).collect();
    assert_agrees(&compare(&swizzles, WaveSize::W32));
    let messages: Vec<_> = (0..=0x1ff).map(|imm| [0xbe80_4c00 | imm, 0, 0]).collect();
    assert_agrees(&compare(&messages, WaveSize::W32));
}

/// 16-bit registers with the half in their name: LLVM 19 has them with `+real-true16` for v_mov_b16 and the f16
/// arithmetic, in long forms with the half in op_sel only, which later versions put into the name too.
#[test]
fn named_halves_agree_with_llvm_true16() {
    let mut random = Random(0x5452_5545);
    let formats = FORMATS.iter().filter(|format| matches!(format.name, "VOP1" | "VOP2" | "VOP3"));
    let cases: Vec<[u32; 3]> = formats
        .flat_map(|format| (0..format.slots).map(move |slot| (format, slot)))
        .flat_map(|slot| [slot; 60])
        .map(|(format, slot)| case(&mut random, format, slot))
        .filter(|words| decode_strict(words, WaveSize::W32).is_ok())
        .collect();
    let blocks: Vec<Vec<u32>> =
        cases.iter().map(|words| words.iter().copied().chain([PAD; 2]).collect()).collect();
    let (mut agreed, mut high) = (0, 0);
    for (words, theirs) in cases.iter().zip(disassemble(&blocks, Some("--mattr=+real-true16"))) {
        let inst = decode_strict(words, WaveSize::W32).expect("filtered to be decodable");
        let Some((text, _)) = theirs.filter(|(text, _)| text.contains(".l") || text.contains(".h")) else {
            continue;
        };
        let is_long = inst.enc == Enc::Vop3;
        // The half is in op_sel, or (for sources that are no registers) nowhere.
        let text = text.split(" op_sel:").next().unwrap_or_default().to_owned();
        if is_long && (inst.clamp || inst.omod != 0 || inst.dpp.is_some()) {
            continue;
        }
        let ours = inst.text_with_halves(WaveSize::W32).to_string();
        high += usize::from(ours.contains(".h"));
        let ours = if is_long { ours.replace(".h", ".l") } else { ours };
        assert_eq!(ours, text, "{words:08x?}");
        agreed += 1;
    }
    println!("{agreed} of {} words have halves in LLVM's text, {high} of them high ones", cases.len());
    assert!(agreed > 500 && high > 150, "{agreed} {high}");
}

/// Names that LLVM 19 does not print: every 16-bit operand of every format, as today's assembler reads it.
#[test]
fn halves_of_every_format_are_named() {
    for (words, text) in [
        (&[0x6502_0581][..], "v_add_f16_e32 v1.h, v1.h, v2.l"),
        (&[0xd532_0805, 0x0002_0501], "v_add_f16_e64 v5.l, v1.h, v2.l"),
        (&[0xd648_5005, 0x040e_0501], "v_fma_f16 v5.h, v1.l, v2.h, v3.l"),
        (&[0xd705_0805, 0x0002_0501], "v_mul_lo_u16 v5.l, v1.h, v2.l"),
        (&[0xd65d_4005, 0x01aa_0501], "v_cndmask_b16 v5.h, v1.l, v2.l, vcc_lo"),
        (&[0xd711_0805, 0x0002_0501], "v_pack_b32_f16 v5, v1.h, v2.l"),
        (&[0xd659_0805, 0x040e_0501], "v_mad_u32_u16 v5, v1.h, v2.l, v3"),
        (&[0xd666_2005, 0x040e_0501], "v_dot2_f16_f16 v5.l, v1, v2, v3.h"),
        (&[0x7c04_0581], "v_cmp_eq_f16_e32 vcc_lo, v1.h, v2.l"),
        (&[0xd402_0805, 0x0002_0501], "v_cmp_eq_f16_e64 s5, v1.h, v2.l"),
        (&[0x7e0a_1781], "v_cvt_f32_f16_e32 v5, v1.h"),
        (&[0x7f0a_cd01], "v_swap_b16 v5.h, v1.l"),
        (&[0xcd02_082a, 0x047a_290a], "v_interp_p10_f16_f32 v42, v10.h, v20, v30.l wait_exp:0"),
        (&[0xcd03_482a, 0x047a_290a], "v_interp_p2_f16_f32 v42.h, v10.h, v20, v30 wait_exp:0"),
        (&[0xcc21_0005, 0x040e_0501], "v_fma_mixlo_f16 v5, v1, v2, v3"),
        (&[0xd65b_0805, 0x000c_0501], "v_permlane16_b32 v5, v1, s2, s3 op_sel:[1,0]"),
    ] {
        let inst = decode(words).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(inst.text_with_halves(WaveSize::W32).to_string(), text, "{words:08x?}");
    }
}
