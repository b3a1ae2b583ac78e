// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of the vector formats.
//!
//! INVARIANT: the suffix says the encoding: `_e32`/`_e64` where an operation has both, `_dpp` and `_e64_dpp` for DPP.

use std::fmt;

use super::operand::{Constant, operand};
use super::{Halves, List};
use crate::info::{Class, EncodingFamily, Flags, Fmt, Slot, Ty};
use crate::inst::{Dpp, Enc, Inst, Operand, WaveSize};
use crate::table::{Op, OpInfo, info};

pub(super) fn vector(f: &mut fmt::Formatter<'_>, inst: &Inst, wave: WaveSize, halves: Halves) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    f.write_str(suffix(inst, row))?;
    let mut list = List::new();
    for (slot, value) in row.dst.iter().zip([inst.dst, inst.sdst]) {
        list.next(f)?;
        operand(f, value, slot.ty, width(slot, wave))?;
        f.write_str(half_suffix(inst, slot, value, 3, halves))?;
    }
    for (i, (slot, &value)) in row.src.iter().zip(&inst.src).enumerate() {
        list.next(f)?;
        let suffix = half_suffix(inst, slot, value, i, halves);
        source(f, inst, i, slot, value, wave, suffix)?;
    }
    match inst.enc {
        Enc::Vop3p => packed_modifiers(f, inst, row)?,
        Enc::Vop3 | Enc::Vop3sd => long_modifiers(f, inst, row, halves)?,
        Enc::Vinterp => {
            f.write_str(if inst.clamp { " clamp" } else { "" })?;
            long_modifiers(f, &Inst { clamp: false, ..*inst }, row, halves)?;
            write!(f, " wait_exp:{}", inst.imm)?;
        }
        _ => {}
    }
    match &inst.dpp {
        Some(dpp) => lanes(f, dpp),
        None => Ok(()),
    }
}

fn width(slot: &Slot, wave: WaveSize) -> u8 {
    slot.ty.dwords_in(wave)
}

fn suffix(inst: &Inst, row: &OpInfo) -> &'static str {
    let has = |fmt| row.has(EncodingFamily::Gfx11, fmt);
    let is_long = matches!(inst.enc, Enc::Vop3 | Enc::Vop3sd | Enc::Vop3p);
    match (is_long, inst.dpp.is_some()) {
        (true, true) => "_e64_dpp",
        (false, true) if inst.enc == Enc::Vopc => "",
        (false, true) => "_dpp",
        _ if row.src.is_empty() => "",
        (true, false) if has(Fmt::Vop1) || has(Fmt::Vop2) || has(Fmt::Vopc) => "_e64",
        (false, false) if has(Fmt::Vop3) || has(Fmt::Vop3sd) => "_e32",
        _ => "",
    }
}

/// The `.l` or `.h` of a 16-bit register. With implied halves it is printed where a short form names a high half, and
/// for v_mov_b16, where LLVM 19 always prints it (the long form selects the half with op_sel).
fn half_suffix(inst: &Inst, slot: &Slot, value: Operand, position: usize, halves: Halves) -> &'static str {
    let is_short = matches!(inst.enc, Enc::Vop1 | Enc::Vop2 | Enc::Vopc);
    let is_named = match halves {
        // v_fma_mixlo and v_fma_mixhi name whole registers.
        Halves::Named => inst.enc != Enc::Vop3p,
        Halves::Implied => {
            matches!(inst.op, Op::V_MOV_B16 | Op::V_SWAP_B16) || (is_short && inst.op_sel != 0)
        }
    };
    if !is_named || !slot.ty.is_half() || !matches!(value, Operand::Vgpr(_)) {
        return "";
    }
    let is_selected = is_short || halves == Halves::Named;
    if is_selected && inst.op_sel >> position & 1 != 0 { ".h" } else { ".l" }
}

fn source(
    f: &mut fmt::Formatter<'_>,
    inst: &Inst,
    i: usize,
    slot: &Slot,
    value: Operand,
    wave: WaveSize,
    suffix: &str,
) -> fmt::Result {
    let has_modifiers = inst.enc != Enc::Vop3p || slot.ty == Ty::MIX;
    let is_set = |mask: u8| has_modifiers && mask >> i & 1 != 0;
    let (neg, abs) = (is_set(inst.neg), is_set(inst.abs));
    let is_constant = matches!(value, Operand::Int(_) | Operand::Float(_) | Operand::Literal(_));
    let (open, close) = match (neg, abs) {
        (true, true) => ("-|", "|"),
        (false, true) => ("|", "|"),
        (true, false) if is_constant => ("neg(", ")"),
        (true, false) => ("-", ""),
        _ => ("", ""),
    };
    if let (Class::LIT, Operand::Literal(value)) = (slot.class, value) {
        return write!(f, "{value:#x}");
    }
    f.write_str(open)?;
    let constant = match inst.op {
        // The class mask is 16 bits wide, but prints as 32.
        Op::V_CMP_CLASS_F16 | Op::V_CMPX_CLASS_F16 if i == 1 => Constant::Of(Ty::B32),
        // LLVM gives a wave32 matrix operand's constant the 64-bit form, a wave64 one's the 32-bit form.
        _ if slot.ty == Ty::ACC && wave == WaveSize::W64 => Constant::Of(Ty::B32),
        _ => Constant::in_slot(info(inst.op), slot),
    };
    operand(f, value, constant, width(slot, wave))?;
    f.write_str(suffix)?;
    f.write_str(close)
}

fn bits(f: &mut fmt::Formatter<'_>, name: &str, positions: &[u8]) -> fmt::Result {
    write!(f, " {name}:[")?;
    for (i, bit) in positions.iter().enumerate() {
        let separator = if i == 0 { "" } else { "," };
        write!(f, "{separator}{bit}")?;
    }
    f.write_str("]")
}

fn source_bits(f: &mut fmt::Formatter<'_>, name: &str, mask: u8, sources: usize) -> fmt::Result {
    let positions: [u8; 4] = std::array::from_fn(|i| mask >> i & 1);
    bits(f, name, &positions[..sources])
}

fn long_modifiers(f: &mut fmt::Formatter<'_>, inst: &Inst, row: &OpInfo, halves: Halves) -> fmt::Result {
    let is_permute = matches!(inst.op, Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32);
    // The names of the registers say which half.
    let is_said = halves == Halves::Named && !is_permute;
    if inst.op_sel != 0 && row.any(Flags::OP_SEL) && !is_said {
        if is_permute {
            return source_bits(f, "op_sel", inst.op_sel, 2);
        }
        let mut positions: [u8; 4] = std::array::from_fn(|i| inst.op_sel >> i & 1);
        // The accumulator of v_fmac_f16 counts as a source.
        let tied = usize::from(inst.op == Op::V_FMAC_F16);
        let sources = tied + row.src.iter().filter(|slot| slot.class != Class::M).count();
        positions[sources] = inst.op_sel >> 3 & 1;
        bits(f, "op_sel", &positions[..=sources])?;
    }
    if inst.clamp {
        f.write_str(" clamp")?;
    }
    f.write_str(["", " mul:2", " mul:4", " div:2"][usize::from(inst.omod & 3)])
}

fn packed_modifiers(f: &mut fmt::Formatter<'_>, inst: &Inst, row: &OpInfo) -> fmt::Result {
    let sources = row.src.len();
    // CAST: at most 3 sources.
    let all = (1u8 << sources) - 1;
    let is_mix = row.src.iter().any(|slot| slot.ty == Ty::MIX);
    let default_hi = if is_mix { 0 } else { all };
    if inst.op_sel != 0 {
        source_bits(f, "op_sel", inst.op_sel, sources)?;
    }
    if row.any(Flags::OP_SEL) && inst.op_sel_hi != default_hi {
        source_bits(f, "op_sel_hi", inst.op_sel_hi, sources)?;
    }
    if is_mix {
        return f.write_str(if inst.clamp { " clamp" } else { "" });
    }
    if inst.neg != 0 {
        source_bits(f, "neg_lo", inst.neg, sources)?;
    }
    if inst.neg_hi != 0 {
        source_bits(f, "neg_hi", inst.neg_hi, sources)?;
    }
    if inst.clamp { f.write_str(" clamp") } else { Ok(()) }
}

fn lanes(f: &mut fmt::Formatter<'_>, dpp: &Dpp) -> fmt::Result {
    let &Dpp::Dpp16 { ctrl, row_mask, bank_mask, bound_ctrl, fi } = dpp else {
        let Dpp::Dpp8 { sel, fi } = dpp else { return Ok(()) };
        bits(f, "dpp8", sel)?;
        return f.write_str(if *fi { " fi:1" } else { "" });
    };
    let low = ctrl & 15;
    match ctrl {
        0..=0xff => {
            // CAST: masked to two bits.
            let quad: [u8; 4] = std::array::from_fn(|lane| (ctrl >> (2 * lane) & 3) as u8);
            bits(f, "quad_perm", &quad)?;
        }
        0x101..=0x10f => write!(f, " row_shl:{low}")?,
        0x111..=0x11f => write!(f, " row_shr:{low}")?,
        0x121..=0x12f => write!(f, " row_ror:{low}")?,
        0x140 => f.write_str(" row_mirror")?,
        0x141 => f.write_str(" row_half_mirror")?,
        0x150..=0x15f => write!(f, " row_share:{low}")?,
        _ => write!(f, " row_xmask:{low}")?,
    }
    write!(f, " row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}")?;
    f.write_str(if bound_ctrl { " bound_ctrl:1" } else { "" })?;
    f.write_str(if fi { " fi:1" } else { "" })
}

pub(super) fn dual(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    // Beside a mandatory literal, LLVM prints every literal as 32 bits.
    let ops = [Some(inst.op), inst.second.map(|second| second.op)];
    let plain = ops.into_iter().flatten().any(|op| info(op).src.iter().any(|slot| slot.class == Class::LIT));
    half(f, inst.op, inst.dst, &inst.src, plain)?;
    match &inst.second {
        Some(second) => {
            f.write_str(" :: ")?;
            half(f, second.op, second.dst, &second.src, plain)
        }
        None => Ok(()),
    }
}

fn half(f: &mut fmt::Formatter<'_>, op: Op, dst: Operand, src: &[Operand], plain: bool) -> fmt::Result {
    let row = info(op);
    f.write_str("v_dual_")?;
    f.write_str(row.name.strip_prefix("v_").unwrap_or(row.name))?;
    f.write_str(" ")?;
    operand(f, dst, Ty::F32, 1)?;
    for (slot, &value) in row.src.iter().zip(src).filter(|(slot, _)| slot.class != Class::M) {
        f.write_str(", ")?;
        match (slot.class, value) {
            (Class::LIT, Operand::Literal(value)) => write!(f, "{value:#x}")?,
            _ if plain => operand(f, value, Ty::B32, 1)?,
            _ => operand(f, value, Constant::in_slot(row, slot), 1)?,
        }
    }
    Ok(())
}
