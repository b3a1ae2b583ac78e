// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operands and modifiers of vector ALU instructions, and their meaning.

use softgpu_isa::{Class, Flags, Fmt, OpInfo, Slot, Ty};

use super::dpp::Dpp;
use super::encode::{LITERAL, VGPR0, Vector, opcode};
use super::exact::{self, F16, F64};
use super::lab::{Lab, VGPRS};
use crate::wave::{EXEC, VCC, Wave};

/// One operand of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Vgpr { register: usize, high: bool },
    Scalar(usize),
    Constant(u64),
    None,
}

/// One random instruction.
pub(super) struct Trial {
    pub fmt: Fmt,
    pub fields: Vector,
    pub dst: usize,
    /// The 16-bit result goes to the high half.
    pub high: bool,
    /// Mask destination, scalar index.
    pub mask: usize,
    pub places: [Place; 3],
    pub dpp: Option<Dpp>,
}

fn is_packed(row: &OpInfo) -> bool {
    opcode(row, Fmt::Vop3p).is_some()
}

/// One of the row's formats.
pub(super) fn choose_format(lab: &mut Lab, row: &OpInfo) -> Fmt {
    let formats: Vec<Fmt> = row.columns[0]
        .codes
        .iter()
        .map(|code| code.fmt)
        .filter(|fmt| !matches!(fmt, Fmt::DualX | Fmt::DualY))
        .collect();
    lab.r.pick(&formats)
}

/// Inline constants: code and the value it has as `ty`.
fn constant(lab: &mut Lab, ty: Ty, half_float: bool) -> (u32, u64) {
    const FLOATS: [f64; 8] = [0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0];
    if lab.r.one_in(2) {
        let n = lab.r.below(81) as i32 - 16;
        let code = if n >= 0 { 128 + n } else { 192 - n };
        let bits = if ty.dwords() == 2 { i64::from(n) as u64 } else { u64::from(n as u32) };
        return (code as u32, bits);
    }
    let k = lab.r.below(8);
    let bits = match ty {
        _ if half_float => exact::convert(F64, F16, FLOATS[k].to_bits(), exact::NEAREST),
        Ty::F16 | Ty::BF16 | Ty::B16 | Ty::U16 | Ty::I16 => {
            exact::convert(F64, F16, FLOATS[k].to_bits(), exact::NEAREST)
        }
        _ if ty.dwords() == 2 => FLOATS[k].to_bits(),
        _ => u64::from((FLOATS[k] as f32).to_bits()),
    };
    (240 + k as u32, bits)
}

/// Chooses source `i`.
pub(super) fn source(lab: &mut Lab, row: &OpInfo, w: &mut Wave, t: &mut Trial, i: usize, slot: Slot) {
    let short = matches!(t.fmt, Fmt::Vop1 | Fmt::Vop2 | Fmt::Vopc);
    let ty = slot.ty;
    let vector_only = slot.class == Class::V || (short && i == 1 && slot.class != Class::LIT);
    let half_float = match ty {
        Ty::P16 => row.any(Flags::PACKED_F16),
        Ty::MIX => t.fields.op_sel_hi >> i & 1 != 0,
        _ => false,
    };
    if slot.class == Class::M {
        // The short forms always use VCC.
        let index = if short { VCC } else { lab.r.pick(&[VCC, 40, 62]) };
        t.places[i] = Place::Scalar(index);
        t.fields.src[i] = if short { 0 } else { index as u32 };
        return;
    }
    let kind = if vector_only || slot.class == Class::LIT { 9 } else { lab.r.below(10) };
    if slot.class == Class::LIT || (kind == 0 && t.fields.literal.is_none()) {
        // All literals of an instruction are the same dword.
        let fresh = lab.r.value(if ty == Ty::F64 { Ty::F32 } else { ty }) as u32;
        let value = t.fields.literal.unwrap_or(fresh);
        t.fields.literal = Some(value);
        t.fields.src[i] = LITERAL;
        t.places[i] = Place::Constant(match ty {
            Ty::F64 => u64::from(value) << 32,
            Ty::I64 => value as i32 as i64 as u64,
            _ => u64::from(value),
        });
    } else if kind == 1 {
        let (code, bits) = constant(lab, ty, half_float);
        t.fields.src[i] = code;
        t.places[i] = Place::Constant(bits);
    } else if kind == 2 {
        let index = 2 * lab.r.below(20);
        let value = lab.r.value(ty);
        w.set_s64(index, value | if ty.dwords() == 1 { value << 32 } else { 0 });
        t.fields.src[i] = index as u32;
        t.places[i] = Place::Scalar(index);
    } else {
        let wide = usize::from(ty.dwords());
        let register = lab.r.below(VGPRS - wide);
        let high = short && ty.is_half() && lab.r.one_in(2);
        for lane in 0..w.lanes() {
            let value = lab.r.value(ty);
            w.set_vgpr(register, lane, value as u32);
            if wide > 1 {
                w.set_vgpr(register + 1, lane, (value >> 32) as u32);
            }
        }
        t.fields.src[i] = VGPR0 + register as u32 + if high { 128 } else { 0 };
        t.places[i] = Place::Vgpr { register, high };
    }
}

/// Chooses modifiers that the format and the row allow.
pub(super) fn modifiers(lab: &mut Lab, row: &OpInfo, t: &mut Trial) {
    let f = &mut t.fields;
    let long = matches!(t.fmt, Fmt::Vop3 | Fmt::Vop3sd | Fmt::Vop3p);
    if !long {
        return;
    }
    let plain = lab.r.one_in(3);
    f.clamp = !plain && row.any(Flags::CLAMP) && lab.r.one_in(3);
    f.omod = if !plain && row.any(Flags::OMOD) && lab.r.one_in(4) { lab.r.next() & 3 } else { 0 };
    for (i, slot) in row.src.iter().enumerate().take(3) {
        let bit = |lab: &mut Lab| if plain { 0 } else { u32::from(lab.r.one_in(4)) << i };
        let signed_float = row.any(Flags::PACKED_F16 | Flags::PACKED_BF16) && is_packed(row);
        // The exponent is an integer, which has no sign bit of its own.
        let is_exponent = row.name == "v_ldexp_f16" && i == 1;
        match slot.class {
            _ if is_exponent => {}
            Class::XM => {
                f.neg |= bit(lab);
                f.abs |= if t.fmt == Fmt::Vop3 { bit(lab) } else { 0 };
            }
            Class::XN => f.neg |= bit(lab),
            _ if signed_float => {
                f.neg |= bit(lab);
                f.neg_hi |= if slot.ty == Ty::P16 { bit(lab) } else { 0 };
            }
            // Mixed precision: NEG_HI is abs. Dot products: NEG is "signed".
            _ if slot.ty == Ty::MIX => {
                f.neg |= bit(lab);
                f.neg_hi |= bit(lab);
            }
            _ if row.name.ends_with("iu8") || row.name.ends_with("iu4") => {
                f.neg |= if i < 2 { u32::from(lab.r.one_in(2)) << i } else { 0 };
            }
            _ => {}
        }
        let selects = match slot.ty {
            Ty::P16 | Ty::MIX => t.fmt == Fmt::Vop3p && row.any(Flags::OP_SEL),
            ty => t.fmt == Fmt::Vop3 && ty.is_half(),
        };
        if selects {
            f.op_sel |= bit(lab);
        }
    }
    if t.fmt == Fmt::Vop3p && row.any(Flags::OP_SEL) {
        let sources = (1 << row.src.len()) - 1;
        f.op_sel_hi = if plain { sources } else { lab.r.next() & sources };
    }
    let half_result = row.dst.first().is_some_and(|slot| slot.class == Class::V && slot.ty.is_half());
    if half_result && t.fmt == Fmt::Vop3 && !plain && lab.r.one_in(2) {
        f.op_sel |= 8;
        t.high = true;
    }
}

/// The bits of source `i` in `lane` after its modifiers.
pub(super) fn operand(w: &Wave, row: &OpInfo, t: &Trial, i: usize, slot: Slot, lane: usize) -> u64 {
    let f = &t.fields;
    let (x, high) = match t.places[i] {
        Place::Vgpr { register, high } => {
            // A lane without a DPP source reads 0.
            let from = match t.dpp.filter(|_| i == 0) {
                Some(dpp) => dpp.source(w, lane),
                None => Some(lane),
            };
            let read = |register: usize| from.map_or(0, |from| w.vgpr(register, from));
            let hi = if slot.ty.dwords() == 2 { read(register + 1) } else { 0 };
            (u64::from(read(register)) | u64::from(hi) << 32, high)
        }
        Place::Scalar(index) if slot.class == Class::M => {
            let mask = u64::from(w.s[index]) | u64::from(w.s[index + 1]) << 32;
            return mask >> lane & 1;
        }
        Place::Scalar(index) if slot.ty.dwords() == 2 => (w.s64(index), false),
        Place::Scalar(index) => (w.s[index].into(), false),
        Place::Constant(x) => (x, false),
        Place::None => (0, false),
    };
    let bit = |field: u32| field >> i & 1 != 0;
    let signs = |x: u64, abs: bool, neg: bool, at: u32| (x & !(u64::from(abs) << at)) ^ u64::from(neg) << at;
    // Selects and all operands with modifiers have sign modifiers.
    let float_signs = matches!(slot.class, Class::XM | Class::XN);
    match slot.ty {
        Ty::P16 if t.fmt == Fmt::Vop3p => {
            let pick = |from_high: bool| if from_high { x >> 16 } else { x } & 0xFFFF;
            let (lo, hi) = if row.any(Flags::OP_SEL) {
                (pick(bit(f.op_sel)), pick(bit(f.op_sel_hi)))
            } else {
                (pick(false), pick(true))
            };
            signs(lo, false, bit(f.neg), 15) | signs(hi, false, bit(f.neg_hi), 15) << 16
        }
        Ty::P16 => x,
        Ty::MIX if bit(f.op_sel_hi) => {
            let half = if bit(f.op_sel) { x >> 16 } else { x } & 0xFFFF;
            signs(half, bit(f.neg_hi), bit(f.neg), 15)
        }
        Ty::MIX => signs(x, bit(f.neg_hi), bit(f.neg), 31),
        ty if ty.is_half() => {
            let half = if high || bit(f.op_sel) { x >> 16 } else { x } & 0xFFFF;
            if float_signs { signs(half, bit(f.abs), bit(f.neg), 15) } else { half }
        }
        Ty::F64 => signs(x, bit(f.abs), bit(f.neg), 63),
        Ty::F32 if t.fmt == Fmt::Vop3p => signs(x, false, bit(f.neg), 31),
        _ if float_signs && slot.ty.dwords() == 1 => signs(x, bit(f.abs), bit(f.neg), 31),
        _ => x,
    }
}

/// Whether source 0 of the trial may come from other lanes.
pub(super) fn takes_dpp(row: &OpInfo, t: &Trial) -> bool {
    let short = matches!(t.fmt, Fmt::Vop1 | Fmt::Vop2 | Fmt::Vopc);
    let vector = |place: &Place| matches!(place, Place::Vgpr { high: false, .. } | Place::None);
    let sources = row.src.iter().zip(&t.places);
    row.any(if short { Flags::DPP } else { Flags::DPP64 })
        && t.fields.literal.is_none()
        && matches!(t.places[0], Place::Vgpr { .. })
        && row.src[0].ty.dwords() == 1
        && !(short && row.src[0].ty.is_half())
        && sources.into_iter().all(|(slot, place)| slot.class == Class::M || vector(place))
}

/// Chooses the destinations; often a source is one.
pub(super) fn destination(lab: &mut Lab, row: &OpInfo, w: &Wave, t: &mut Trial) {
    let short = matches!(t.fmt, Fmt::Vop1 | Fmt::Vop2 | Fmt::Vopc);
    let Some(slot) = row.dst.first() else {
        t.mask = EXEC;
        return;
    };
    let mask = if short { VCC } else { lab.r.pick(&[VCC, 50, 72]) };
    if slot.class == Class::V {
        let same = t
            .places
            .iter()
            .find_map(|p| if let Place::Vgpr { register, .. } = p { Some(*register) } else { None });
        let free = lab.r.below(VGPRS - usize::from(slot.ty.dwords()));
        t.dst = same.filter(|_| lab.r.one_in(3)).unwrap_or(free).min(VGPRS - usize::from(slot.ty.dwords()));
        let half = slot.ty.is_half();
        t.high |= (short && half && lab.r.one_in(2)) || row.name == "v_fma_mixhi_f16";
        t.fields.dst = t.dst as u32 + if short && t.high { 128 } else { 0 };
        t.mask = mask;
        t.fields.sdst = mask as u32;
    } else {
        t.mask = mask;
        t.fields.dst = mask as u32;
    }
    let _ = w;
}
