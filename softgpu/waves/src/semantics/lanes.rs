// SPDX-License-Identifier: MIT OR Apache-2.0
//! The check of lane-wise operations: random operands of every kind with random modifiers, one definition per lane.

use softgpu_isa::{Class, Flags, OpInfo, Ty};

use super::dpp::Dpp;
use super::encode::Vector;
use super::exact::{self, F16, F32, F64, Format, Mode};
use super::lab::Lab;
use super::operands::{Place, Trial, choose_format, destination, modifiers, operand, source, takes_dpp};
use crate::wave::{VCC, Wave, mode};

/// The state that a definition may read beside its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub mode: u32,
    pub clamp: bool,
    pub lane: usize,
    /// NEG bits (dot products: signed operands) and OP_SEL_HI bits (mixed precision: f16 operands).
    pub neg: u32,
    pub op_sel_hi: u32,
    pub vcc: u64,
}

impl Lane {
    /// f32 rounding and flushing.
    pub(crate) fn f32(&self) -> Mode {
        let m = self.mode;
        Mode { round: m & 3, flush_in: m >> 4 & 1 == 0, flush_out: m >> 5 & 1 == 0 }
    }
    /// f16 and f64 rounding and flushing.
    pub(crate) fn wide(&self) -> Mode {
        let m = self.mode;
        Mode { round: m >> 2 & 3, flush_in: m >> 6 & 1 == 0, flush_out: m >> 7 & 1 == 0 }
    }
    pub(crate) fn ieee(&self) -> bool {
        self.mode & mode::IEEE != 0
    }
}

/// One lane's result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Out {
    /// Bits of the destination, and a bit for the mask.
    Bits(u64, bool),
    /// An f32 or f16 within one unit in the last place of this value.
    Near(f64),
}

/// The result of one lane for its sources (after modifiers) as bits.
pub(crate) type Definition = fn(&Lane, [u64; 3]) -> Out;

/// A value of a definition: taken from an operand's bits, given as a result's.
pub(crate) trait Value {
    fn of(bits: u64) -> Self;
    fn out(self) -> Out;
}

macro_rules! values {
    ($($ty:ty)*) => {
        $(impl Value for $ty {
            fn of(bits: u64) -> Self {
                bits as $ty
            }
            fn out(self) -> Out {
                Out::Bits(self as i128 as u64, false)
            }
        })*
    };
}
values!(u8 u16 u32 u64 i16 i32 i64);

impl Value for bool {
    fn of(bits: u64) -> Self {
        bits != 0
    }
    fn out(self) -> Out {
        Out::Bits(0, self)
    }
}
impl Value for f32 {
    fn of(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }
    fn out(self) -> Out {
        Out::Bits(self.to_bits().into(), false)
    }
}
impl Value for f64 {
    fn of(bits: u64) -> Self {
        f64::from_bits(bits)
    }
    fn out(self) -> Out {
        Out::Bits(self.to_bits(), false)
    }
}
impl<T: Value> Value for (T, bool) {
    fn of(bits: u64) -> Self {
        (T::of(bits), false)
    }
    fn out(self) -> Out {
        match self.0.out() {
            Out::Bits(x, _) => Out::Bits(x, self.1),
            near => near,
        }
    }
}
impl Value for Out {
    fn of(bits: u64) -> Self {
        Out::Bits(bits, false)
    }
    fn out(self) -> Out {
        self
    }
}

/// A table of lane-wise definitions: `OP context (operand: type, ...) expression;`.
macro_rules! lanes {
    ($($op:ident $c:ident ($($arg:ident: $ty:ty),*) $e:expr;)*) => {
        &[$($crate::semantics::entry::Entry {
            op: softgpu_isa::Op::$op,
            check: $crate::semantics::entry::Check::Lanes(|$c, sources| {
                let _ = $c;
                let mut next = sources.into_iter();
                $(let $arg = <$ty as $crate::semantics::lanes::Value>::of(next.next().unwrap_or(0));)*
                $crate::semantics::lanes::Value::out($e)
            }),
        }),*]
    };
}
pub(crate) use lanes;

/// The float format of a type.
pub(crate) fn format(ty: Ty) -> Option<Format> {
    match ty {
        Ty::F32 => Some(F32),
        Ty::F16 => Some(F16),
        Ty::F64 => Some(F64),
        _ => None,
    }
}

/// Output modifier, clamp and flushing of a float result, by definition.
pub(crate) fn finished(f: Format, x: u64, clamp: bool, omod: u32, mode_bits: u32) -> u64 {
    let keeps = if f == F32 { mode_bits >> 5 & 1 } else { mode_bits >> 7 & 1 } != 0;
    let factor = [0, 1, 2, -1][omod as usize];
    let mut x = x;
    if omod != 0 && mode_bits & mode::IEEE == 0 && !keeps {
        x = exact::ldexp(f, x, factor, exact::NEAREST);
    }
    if clamp {
        x = if f.is_nan(x) {
            if mode_bits & mode::DX10_CLAMP != 0 { 0 } else { x }
        } else if x & f.sign() != 0 {
            0
        } else {
            x.min(exact::one(f))
        };
    }
    if keeps { x } else { f.flush(x) }
}

fn near(f: Format, got: u64, want: f64) -> bool {
    let value = f64::from_bits(exact::convert(f, F64, got, exact::NEAREST));
    let rounded = exact::convert(F64, f, want.to_bits(), exact::NEAREST);
    let least = 2f64.powi(if f == F32 { -126 } else { -14 });
    let unit = (value.abs().max(least)) * 2f64.powi(-(f.fraction as i32));
    got == rounded || (value - want).abs() <= unit
}

/// Tries `definition` on random instructions of `row`.
pub(crate) fn check(lab: &mut Lab, row: &'static OpInfo, definition: Definition) {
    for _ in 0..100 {
        let mut w = lab.any_wave();
        let fmt = choose_format(lab, row);
        let mut t = Trial {
            fmt,
            fields: Vector::default(),
            dst: 0,
            high: false,
            mask: VCC,
            places: [Place::None; 3],
            dpp: None,
        };
        modifiers(lab, row, &mut t);
        for (i, &slot) in row.src.iter().enumerate().take(3) {
            source(lab, row, &mut w, &mut t, i, slot);
        }
        if lab.r.one_in(4) && takes_dpp(row, &t) {
            t.dpp = Some(Dpp::random(lab));
        }
        trial(lab, row, definition, w, t);
    }
}

fn trial(lab: &mut Lab, row: &'static OpInfo, definition: Definition, w: Wave, mut t: Trial) {
    destination(lab, row, &w, &mut t);
    let mut want = w.clone();
    let mut masks = 0u64;
    let slot = row.dst.first().filter(|slot| slot.class == Class::V).copied();
    let mut approximate = Vec::new();
    let vcc = u64::from(w.s[VCC]) | u64::from(w.s[VCC + 1]) << 32;
    let enabled = |lane: usize| t.dpp.is_none_or(|dpp| dpp.enables(&w, lane));
    for lane in (0..w.lanes()).filter(|&lane| w.exec() >> lane & 1 != 0 && enabled(lane)) {
        let mut sources = [0; 3];
        for (i, &slot) in row.src.iter().enumerate().take(3) {
            sources[i] = operand(&w, row, &t, i, slot, lane);
        }
        let old = w.vgpr(t.dst, lane);
        if row.any(Flags::READS_DST) && row.src.len() == 2 {
            let narrow = slot.is_some_and(|slot| slot.ty.is_half());
            sources[2] = u64::from(if narrow && t.high { old >> 16 } else { old });
            if narrow {
                sources[2] &= 0xFFFF;
            }
        }
        let f = &t.fields;
        let c = Lane { mode: w.mode, clamp: f.clamp, lane, neg: f.neg, op_sel_hi: f.op_sel_hi, vcc };
        let (bits, mask) = match definition(&c, sources) {
            Out::Bits(x, mask) => (x, mask),
            Out::Near(x) => {
                approximate.push((lane, x));
                continue;
            }
        };
        masks |= u64::from(mask) << lane;
        let Some(slot) = slot else { continue };
        let bits = format(slot.ty).map_or(bits, |format| finished(format, bits, f.clamp, f.omod, w.mode));
        let merged = if slot.ty.is_half() || row.name.starts_with("v_fma_mix") && row.name.ends_with("f16") {
            if t.high { old & 0xFFFF | (bits as u32) << 16 } else { old & 0xFFFF_0000 | bits as u32 & 0xFFFF }
        } else {
            bits as u32
        };
        want.set_vgpr(t.dst, lane, merged);
        if slot.ty.dwords() == 2 {
            want.set_vgpr(t.dst + 1, lane, (bits >> 32) as u32);
        }
    }
    let writes_mask = slot.is_none() || row.dst.len() > 1;
    if writes_mask {
        want.s[t.mask] = masks as u32;
        if w.halves == 2 {
            want.s[t.mask + 1] = (masks >> 32) as u32;
        }
    }
    let words = match t.dpp {
        Some(dpp) => dpp.encode(t.fields, row, t.fmt),
        None => t.fields.encode(row, t.fmt),
    };
    let mut got = w.clone();
    lab.run(&mut got, &words);
    let inputs = |lane: usize| {
        let mut text = String::new();
        for (i, &slot) in row.src.iter().enumerate().take(3) {
            text += &format!(" {:#x}", operand(&w, row, &t, i, slot, lane));
        }
        text
    };
    for (lane, value) in approximate {
        let slot = slot.expect("a vector result");
        let format = format(slot.ty).expect("a float result");
        let result = got.vgpr(t.dst, lane);
        let bits = if slot.ty.is_half() && t.high { result >> 16 } else { result };
        let bits = u64::from(if slot.ty.is_half() { bits & 0xFFFF } else { bits });
        let close = near(format, bits, value);
        // Output modifiers are checked where results are exact.
        let plain = !t.fields.clamp && t.fields.omod == 0 && w.f32_default() && w.f16_64_default();
        assert!(close || !plain, "{}: {bits:#x} for {value} of{}", row.name, inputs(lane));
        want.set_vgpr(t.dst, lane, result);
    }
    let first = (0..w.lanes()).find(|&lane| {
        got.vgpr(t.dst, lane) != want.vgpr(t.dst, lane)
            || got.vgpr(t.dst + 1, lane) != want.vgpr(t.dst + 1, lane)
    });
    let operands = first.map(|lane| format!("lane {lane} of{}", inputs(lane))).unwrap_or_default();
    let context = format!("{words:08x?} {operands} MODE {:#x} {:?} {:?}", w.mode, t.fields, t.dpp);
    lab.same(&want, &got, &context);
}
