// SPDX-License-Identifier: MIT OR Apache-2.0
//! The check of scalar operations: random scalars, constants and literals, one definition.

use softgpu_isa::{Class, Flags, Fmt, OpInfo, Slot};

use super::encode::{self, LITERAL};
use super::lab::Lab;
use crate::wave::{EXEC, M0, Wave};

/// The state that a definition may read beside its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalars {
    pub scc: bool,
    /// The destination's old value.
    pub old: u64,
    pub exec: u64,
    /// simm16, sign-extended.
    pub imm: i32,
}

/// What a scalar operation changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub value: Option<u64>,
    pub scc: Option<bool>,
    pub exec: Option<u64>,
}

/// A result that sets no SCC.
pub(crate) fn value(x: u64) -> Change {
    Change { value: Some(x), ..Change::default() }
}

/// A result and SCC.
pub(crate) fn with(x: u64, scc: bool) -> Change {
    Change { value: Some(x), scc: Some(scc), exec: None }
}

/// A condition.
pub(crate) fn test(scc: bool) -> Change {
    Change { scc: Some(scc), ..Change::default() }
}

pub(crate) type Definition = fn(&Scalars, [u64; 2]) -> Change;

/// A table of scalar definitions: `OP context (operand: type, ...) expression;`.
macro_rules! scalars {
    ($($op:ident $c:ident ($($arg:ident: $ty:ty),*) $e:expr;)*) => {
        &[$($crate::semantics::entry::Entry {
            op: softgpu_isa::Op::$op,
            check: $crate::semantics::entry::Check::Scalar(|$c, sources| {
                let _ = $c;
                #[allow(unused_mut, unused_variables)]
                let mut next = sources.into_iter();
                $(let $arg = next.next().unwrap_or(0) as $ty;)*
                $e
            }),
        }),*]
    };
}
pub(crate) use scalars;

fn register(lab: &mut Lab, wide: bool) -> usize {
    if wide { 2 * lab.r.below(52) } else { lab.r.pick(&[3, 17, 41, 64, 101, 105, 106, 107, 110, M0]) }
}

fn source(lab: &mut Lab, w: &mut Wave, slot: Slot, literal: &mut Option<u32>) -> (u32, u64) {
    let wide = slot.ty.dwords() == 2;
    match if slot.class == Class::R { 0 } else { lab.r.below(4) } {
        1 if literal.is_none() => {
            let x = lab.r.value(slot.ty) as u32;
            *literal = Some(x);
            let extended = if slot.ty == softgpu_isa::Ty::I64 { x as i32 as i64 as u64 } else { x.into() };
            (LITERAL, extended)
        }
        2 => {
            let n = lab.r.below(81) as i32 - 16;
            let code = if n >= 0 { 128 + n } else { 192 - n };
            (code as u32, if wide { i64::from(n) as u64 } else { u64::from(n as u32) })
        }
        _ => {
            let index = register(lab, wide);
            let x = lab.r.value(slot.ty);
            w.s[index] = x as u32;
            if wide {
                w.s[index + 1] = (x >> 32) as u32;
            }
            (index as u32, x)
        }
    }
}

fn read(w: &Wave, index: usize, wide: bool) -> u64 {
    if wide { w.s64(index) } else { w.s[index].into() }
}

/// Tries `definition` on random instructions of `row`.
pub(crate) fn check(lab: &mut Lab, row: &'static OpInfo, definition: Definition) {
    let sopk = row.columns[0].codes[0].fmt == Fmt::Sopk;
    for _ in 0..60 {
        let mut w = lab.any_wave();
        let wide = row.dst.first().is_some_and(|slot| slot.ty.dwords() == 2);
        let dst = register(lab, wide);
        let imm = lab.r.value(softgpu_isa::Ty::I16) as u16;
        let (mut codes, mut sources, mut literal) = ([0; 2], [0; 2], None);
        if !sopk {
            for (i, &slot) in row.src.iter().enumerate() {
                (codes[i], sources[i]) = source(lab, &mut w, slot, &mut literal);
            }
            // A later source may have overwritten an earlier one's register.
            for (i, &slot) in row.src.iter().enumerate() {
                if codes[i] < 128 {
                    sources[i] = read(&w, codes[i] as usize, slot.ty.dwords() == 2);
                }
            }
        } else if row.src.first().is_some_and(|slot| slot.class == Class::R) {
            if lab.r.one_in(2) {
                w.s[dst] = imm as i16 as u32;
            }
            sources[0] = w.s[dst].into();
        }
        let c =
            Scalars { scc: w.scc(), old: read(&w, dst, wide), exec: w.exec(), imm: i32::from(imm as i16) };
        let change = definition(&c, sources);
        let mut want = w.clone();
        if let Some(x) = change.value {
            want.s[dst] = x as u32;
            if wide {
                want.s[dst + 1] = (x >> 32) as u32;
            }
        }
        if let Some(exec) = change.exec {
            want.s[EXEC] = exec as u32;
            if row.name.ends_with("b64") {
                want.s[EXEC + 1] = (exec >> 32) as u32;
            }
        }
        if let Some(scc) = change.scc {
            want.scc = scc.into();
        }
        assert_eq!(change.scc.is_some(), row.any(Flags::WRITES_SCC), "{}: the table's WRITES_SCC", row.name);
        let has_destination = !row.dst.is_empty() || sopk;
        let mut words = encode::scalar(row, if has_destination { dst as u32 } else { 0 }, codes, imm.into());
        words.extend(literal);
        let mut got = w.clone();
        lab.run(&mut got, &words);
        let context = format!("{words:08x?} of {:#x} {:#x}, {c:x?}", sources[0], sources[1]);
        lab.same(&want, &got, &context);
    }
}
