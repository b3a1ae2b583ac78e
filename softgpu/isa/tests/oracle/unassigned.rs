// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bits that the ISA document does not assign to an operation are ignored: for every row in every encoding, random
//! values there decode as zeros do. This file lists these bits, field by field, independently of the decoder.

use softgpu_isa::{Class, Enc, EncodingFamily, Flags, Fmt, Inst, Op, OpInfo, Ty, WaveSize};
use softgpu_isa::{decode_for, decode_strict, rows};

use crate::llvm::Random;

/// Bits `lsb..lsb + width`, if `unassigned`.
fn field(lsb: u32, width: u32, unassigned: bool) -> u64 {
    if unassigned { ((1 << width) - 1) << lsb } else { 0 }
}

/// Whether source `i` is a float, or may be one, as in moves.
fn is_float(row: &OpInfo, i: usize) -> bool {
    let is_exponent = row.op == Op::V_LDEXP_F16 && i == 1;
    let class = row.src.get(i).map(|slot| slot.class);
    matches!(class, Some(Class::XM | Class::XN)) && !is_exponent
}

fn is_half(row: &OpInfo, i: usize) -> bool {
    let slot = if i == 3 { row.dst.first() } else { row.src.get(i) };
    let is_permute = matches!(row.op, Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32) && i < 2;
    is_permute || slot.is_some_and(|slot| slot.ty.is_half())
}

fn long(row: &OpInfo, fmt: Fmt) -> u64 {
    let has_mask = fmt == Fmt::Vop3sd;
    let mut bits = field(0, 8, row.dst.is_empty())
        | field(15, 1, !row.any(Flags::CLAMP))
        | field(59, 2, !row.any(Flags::OMOD));
    for i in 0..3 {
        let at = i as u32;
        bits |= field(32 + 9 * at, 9, i >= row.src.len()) | field(61 + at, 1, !is_float(row, i));
        bits |= field(8 + at, 1, !has_mask && !is_float(row, i));
    }
    (0..4).fold(bits, |bits, i| bits | field(11 + i as u32, 1, !has_mask && !is_half(row, i)))
}

fn packed(row: &OpInfo) -> u64 {
    let slot = |i: usize| row.src.get(i);
    let is_matrix = slot(2).is_some_and(|slot| slot.ty == Ty::ACC);
    let is_mix = slot(0).is_some_and(|slot| slot.ty == Ty::MIX);
    let is_signed = row.name.ends_with("_iu8") || row.name.ends_with("_iu4");
    let is_float = is_mix || (row.name.contains("f16") && !is_signed);
    let mut bits = field(23, 1, true) | field(15, 1, !row.any(Flags::CLAMP));
    for i in 0..3 {
        let at = i as u32;
        let exists = slot(i).is_some();
        let is_half = slot(i).is_some_and(|slot| matches!(slot.ty, Ty::P16 | Ty::MIX));
        let picks_register = is_matrix && i == 2 && row.any(Flags::OP_SEL);
        bits |= field(32 + 9 * at, 9, !exists)
            | field(61 + at, 1, !(exists && is_float || is_signed && i < 2))
            | field(8 + at, 1, !(exists && is_float))
            | field(11 + at, 1, !(is_half || picks_register))
            | field(if i == 2 { 14 } else { 59 + at }, 1, !is_half);
    }
    bits
}

fn short(row: &OpInfo) -> u64 {
    field(17, 8, row.dst.is_empty()) | field(0, 9, row.src.is_empty())
}

/// Beside a DPP16 marker: neg and abs of each source.
fn lanes(row: &OpInfo) -> u64 {
    field(52, 2, !is_float(row, 0)) | field(54, 2, !is_float(row, 1))
}

fn has(row: &OpInfo, i: usize) -> bool {
    row.src.get(i).is_some_and(|slot| slot.class != Class::NONE)
}

fn memory(row: &OpInfo, fmt: Fmt) -> u64 {
    let is_load = row.any(Flags::LOAD);
    match fmt {
        Fmt::Smem => {
            let anything = !row.src.is_empty();
            let moves = !row.dst.is_empty() || has(row, 2);
            field(0, 6, !anything)
                | field(6, 7, !moves)
                | field(13, 2, !is_load)
                | field(15, 3, true)
                | field(32, 21, !anything)
                | field(53, 4, true)
                | field(57, 7, !anything)
        }
        Fmt::Ds => {
            let sources = (0..3).fold(0, |bits, i| bits | field(32 + 8 * i, 8, !has(row, i as usize)));
            sources
                | field(0, 16, row.op == Op::DS_NOP)
                | field(16, 1, true)
                | field(56, 8, row.dst.is_empty())
        }
        Fmt::Mubuf if row.src.is_empty() => field(0, 18, true) | field(32, 32, true),
        Fmt::Mubuf => {
            field(15, 3, true)
                | field(53, 1, !is_load || row.any(Flags::LDS))
                | field(40, 8, !has(row, 1) && row.dst.is_empty())
        }
        _ => {
            let address = field(32, 8, !has(row, 0));
            let data = field(40, 8, !has(row, 1)) | field(56, 8, row.dst.is_empty());
            let base = field(12, 1, fmt == Fmt::Flat) | field(48, 7, fmt == Fmt::Flat);
            address | data | base | field(55, 1, fmt != Fmt::Scratch)
        }
    }
}

/// The word of `row` in `fmt` with all other fields zero, its unassigned bits, and where its other fields lie.
fn encoding(row: &OpInfo, fmt: Fmt, opcode: u64) -> Option<(u64, u64)> {
    let memory = |id: u64, lsb: u32| Some((id | opcode << lsb, memory(row, fmt)));
    match fmt {
        Fmt::Sop1 => {
            let unused = field(16, 7, row.dst.is_empty()) | field(0, 8, row.src.is_empty());
            Some((0xbe80_0000 | opcode << 8, unused))
        }
        Fmt::Sopk => {
            let is_source = row.src.first().is_some_and(|slot| slot.class == Class::R);
            Some((0xb000_0000 | opcode << 23, field(16, 7, row.dst.is_empty() && !is_source)))
        }
        Fmt::Sopp => Some((0xbf80_0000 | opcode << 16, field(0, 16, row.src.is_empty()))),
        Fmt::Vop1 => Some((0x7e00_0000 | opcode << 9, short(row))),
        Fmt::Vop3 | Fmt::Vop3sd => Some((0xd400_0000 | opcode << 16, long(row, fmt))),
        Fmt::Vop3p => Some((0xcc00_0000 | opcode << 16, packed(row))),
        Fmt::Vinterp => {
            let halves = (0..4).fold(0, |bits, i| bits | field(11 + i as u32, 1, !is_half(row, i)));
            Some((
                0xcd00_0000 | opcode << 16 | 0x0402_0100 << 32,
                halves | field(23, 1, true) | field(59, 2, true),
            ))
        }
        Fmt::DualX => {
            // The other half is a multiplication, which uses its fields.
            let second = field(9, 8, row.op == Op::V_MOV_B32);
            Some((0xc800_0000 | 3 << 17 | opcode << 22, second))
        }
        Fmt::DualY => Some((0xc800_0000 | 3 << 22 | opcode << 17, field(41, 8, row.op == Op::V_MOV_B32))),
        Fmt::Smem => memory(0xf400_0000, 18),
        Fmt::Ds => memory(0xd800_0000 | field(17, 1, row.any(Flags::GDS_ONLY)), 18),
        Fmt::Flat => memory(0xdc00_0000, 18),
        Fmt::Scratch => memory(0xdc01_0000, 18),
        Fmt::Global => memory(0xdc02_0000, 18),
        Fmt::Mubuf => memory(0xe000_0000, 18),
        _ => None,
    }
}

const FORMATS: [Fmt; 15] = [
    Fmt::Sop1,
    Fmt::Sopk,
    Fmt::Sopp,
    Fmt::Vop1,
    Fmt::Vop3,
    Fmt::Vop3sd,
    Fmt::Vop3p,
    Fmt::Vinterp,
    Fmt::DualX,
    Fmt::DualY,
    Fmt::Smem,
    Fmt::Ds,
    Fmt::Flat,
    Fmt::Scratch,
    Fmt::Global,
];

fn decoded(bits: u64, third: u32) -> Option<Inst> {
    decode_for(&[bits as u32, (bits >> 32) as u32, third], WaveSize::W32).ok()
}

/// Some values for the assigned fields that `row` decodes with.
fn operands(random: &mut Random, id: u64, opcode_bits: u64, third: u32) -> Option<u64> {
    (0..200).find_map(|_| {
        let any = match random.below(3) {
            0 => random.next(),
            // Vector registers below v128 in every source field, so that halves and tuples fit.
            1 => random.next() & 0x1f3e_7c1f_1f7f_001f | 0x0402_0100_0000_0100,
            _ => random.next() & 0x007c_1f1f_0000_001f,
        };
        let bits = id | any & !opcode_bits;
        decoded(bits, third).map(|_| bits)
    })
}

#[test]
fn unassigned_bits_decide_nothing() {
    let mut random = Random(0x554e_5553);
    let mut checked = 0;
    for fmt in FORMATS.into_iter().chain([Fmt::Mubuf]) {
        for row in rows() {
            let Some(opcode) = row.opcode(EncodingFamily::Gfx11, fmt) else { continue };
            let (id, unassigned) = encoding(row, fmt, u64::from(opcode)).expect("the format is listed");
            if unassigned == 0 {
                continue;
            }
            let fixed = match fmt {
                Fmt::Sop1 => 0xff80_ff00,
                Fmt::Sopk => 0xff80_0000,
                Fmt::Sopp => 0xffff_0000,
                Fmt::Vop1 => 0xfe01_fe00,
                Fmt::Vop3p | Fmt::Vinterp => 0xff7f_0000,
                Fmt::DualX | Fmt::DualY => 0xfffe_0000,
                Fmt::Ds => 0xffff_0000 & !(1 << 16),
                Fmt::Smem => 0xfffc_0000,
                Fmt::Mubuf => 0xfffc_0000,
                _ => 0xffff_0000,
            };
            for _ in 0..40 {
                let third = random.word();
                let Some(bits) = operands(&mut random, id, fixed, third) else {
                    panic!("no operands suit {} as {fmt:?}", row.name);
                };
                let plain = decoded(bits & !unassigned | id, third);
                let garbage = bits & !unassigned | id | random.next() & unassigned;
                assert_eq!(decoded(garbage, third), plain, "{} as {fmt:?}: {garbage:#018x}", row.name);
                assert!(plain.is_some(), "{} as {fmt:?}", row.name);
                checked += 1;
            }
        }
    }
    println!("{checked} words with garbage in their unassigned bits");
    assert!(checked > 20_000);
}

/// Compilers differ in what they write into the field of a source that an operation has not: LLVM 19 wrote 0, later ones write
/// the inline constant 0.
#[test]
fn field_of_a_missing_source_may_hold_every_code() {
    let mut random = Random(0x534f_5552);
    let mut checked = 0;
    for fmt in [Fmt::Vop3, Fmt::Vop3sd, Fmt::Vop3p] {
        for row in rows().iter().filter(|row| row.src.len() < 3) {
            let Some(opcode) = row.opcode(EncodingFamily::Gfx11, fmt) else { continue };
            let (id, unassigned) = encoding(row, fmt, u64::from(opcode)).expect("the format is listed");
            let fixed = if fmt == Fmt::Vop3p { 0xff7f_0000 } else { 0xffff_0000 };
            let bits = operands(&mut random, id, fixed, 0).expect("some operands suit") & !unassigned | id;
            let plain = decoded(bits, 0);
            assert!(plain.is_some(), "{} as {fmt:?}", row.name);
            for lsb in (row.src.len()..3).map(|source| 32 + 9 * source) {
                for code in 0..512 {
                    let word = bits | code << lsb;
                    assert_eq!(decoded(word, 0), plain, "{} as {fmt:?}: {word:#018x}", row.name);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 200_000, "{checked}");
}

#[test]
fn lanes_modify_floats_only() {
    let mut random = Random(0x4450_5031);
    let mut checked = 0;
    for fmt in [Fmt::Vop1, Fmt::Vop2, Fmt::Vopc] {
        for row in rows().iter().filter(|row| row.any(Flags::DPP) && row.has(EncodingFamily::Gfx11, fmt)) {
            let opcode = u64::from(row.opcode(EncodingFamily::Gfx11, fmt).unwrap_or_default());
            let id = match fmt {
                Fmt::Vop1 => 0x7e00_0000 | opcode << 9,
                Fmt::Vop2 => opcode << 25,
                _ => 0x7c00_0000 | opcode << 17,
            };
            // Registers v1 and v2, row_ror:1, then garbage for neg and abs.
            let plain = id | 0xfa | 0xff01_2101_0000_0000;
            for _ in 0..16 {
                let garbage = plain | random.next() & lanes(row);
                assert_eq!(decoded(garbage, 0), decoded(plain, 0), "{} as {fmt:?}", row.name);
                assert!(decoded(plain, 0).is_some(), "{} as {fmt:?}", row.name);
                checked += 1;
            }
        }
    }
    assert!(checked > 1_000, "{checked}");
}

/// What LLVM 19 decodes, the lenient decoder decodes too, with the same operands and length.
#[test]
fn whatever_llvm_decodes_is_executed() {
    let mut random = Random(0x5354_5249);
    let mut checked = 0;
    for _ in 0..400_000 {
        let words =
            [random.word() | [0, 0xc000_0000][random.below(2) as usize], random.word(), random.word()];
        for wave in [WaveSize::W32, WaveSize::W64] {
            if let Ok(strict) = decode_strict(&words, wave) {
                let inst = decode_for(&words, wave).expect("the strict decoder has it");
                let operands = |inst: &Inst| {
                    (inst.op, inst.enc, inst.size, inst.dst, inst.sdst, inst.src, inst.dpp, inst.second)
                };
                assert_eq!(operands(&inst), operands(&strict), "{words:08x?}");
                assert_eq!(inst.neg & !strict.neg | inst.abs & !strict.abs, 0, "{words:08x?}");
                checked += usize::from(inst.enc != Enc::Sopp);
            }
        }
    }
    assert!(checked > 100_000, "{checked}");
}
