// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists what the table holds, and what LLVM has beyond it. The listing checks nothing; the sweeps do.

use std::collections::BTreeMap;

use softgpu_isa::{DecodeError, EncodingFamily, Fmt, WaveSize, decode_strict, info, rows};

use crate::llvm::{PAD, Random, disassemble};

const FORMATS: [Fmt; 21] = [
    Fmt::Sop1,
    Fmt::Sop2,
    Fmt::Sopk,
    Fmt::Sopc,
    Fmt::Sopp,
    Fmt::Smem,
    Fmt::Vop1,
    Fmt::Vop2,
    Fmt::Vop3,
    Fmt::Vop3sd,
    Fmt::Vop3p,
    Fmt::Vinterp,
    Fmt::Vopc,
    Fmt::DualX,
    Fmt::DualY,
    Fmt::Ds,
    Fmt::Flat,
    Fmt::Global,
    Fmt::Scratch,
    Fmt::Mubuf,
    Fmt::Mtbuf,
];

#[test]
fn table_is_indexed_by_op() {
    for (i, row) in rows().iter().enumerate() {
        assert_eq!(row.op as usize, i);
        assert_eq!(info(row.op).name, row.name);
        assert_eq!(row.name.to_uppercase(), format!("{:?}", row.op));
        assert!(FORMATS.iter().any(|&fmt| row.has(EncodingFamily::Gfx11, fmt)), "{} has no opcode", row.name);
        assert!(row.src.len() <= 4 && row.dst.len() <= 2, "{}", row.name);
    }
}

/// Prints the rows per format, and the mnemonics that LLVM's disassembler gives for random words that this crate does
/// not decode.
#[test]
fn coverage_listing() {
    println!("{} operations", rows().len());
    for fmt in FORMATS {
        let count = rows().iter().filter(|row| row.has(EncodingFamily::Gfx11, fmt)).count();
        println!("{fmt:?}: {count}");
    }
    let mut random = Random(0x434f_5645);
    let mut blocks = Vec::new();
    for opcode in 0..0x1_0000_u32 {
        let words = [opcode << 16 | random.word() & 0xffff, random.word(), PAD];
        if matches!(decode_strict(&words, WaveSize::W32), Err(DecodeError::Illegal { .. })) {
            blocks.push(words.to_vec());
        }
    }
    let mut unknown = BTreeMap::<String, usize>::new();
    for (text, _) in disassemble(&blocks, None).into_iter().flatten() {
        let mnemonic = text.split(' ').next().unwrap_or_default().replace("v_dual_", "v_");
        if !rows().iter().any(|row| mnemonic.starts_with(row.name)) {
            *unknown.entry(mnemonic).or_default() += 1;
        }
    }
    println!("mnemonics LLVM knows and the table does not:");
    for (mnemonic, count) in unknown {
        println!("  {mnemonic} ({count} words)");
    }
}
