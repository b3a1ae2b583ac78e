// SPDX-License-Identifier: MIT OR Apache-2.0
//! Typed buffer accesses: elements of every format, component selects, 16-bit data, loads into LDS.

use softgpu_isa::{Flags, Op, OpInfo};

use super::entry::{Check, Entry};
use super::exact::{self, F16, F32, F64, Format as Float, NEAREST};
use super::lab::Lab;
use super::memory::{World, active};
use super::place::{Access, Cell};
use crate::step::Flow;
use crate::wave::{M0, Wave};

macro_rules! entries {
    ($($check:ident: $($op:ident)*;)*) => {
        &[$($(Entry { op: Op::$op, check: Check::Own($check) }),*),*]
    };
}

pub(crate) const ENTRIES: &[Entry] = entries! {
    typed:
        BUFFER_LOAD_FORMAT_X BUFFER_LOAD_FORMAT_XY BUFFER_LOAD_FORMAT_XYZ BUFFER_LOAD_FORMAT_XYZW
        BUFFER_STORE_FORMAT_X BUFFER_STORE_FORMAT_XY BUFFER_STORE_FORMAT_XYZ BUFFER_STORE_FORMAT_XYZW
        BUFFER_LOAD_D16_FORMAT_X BUFFER_LOAD_D16_FORMAT_XY BUFFER_LOAD_D16_FORMAT_XYZ BUFFER_LOAD_D16_FORMAT_XYZW
        BUFFER_STORE_D16_FORMAT_X BUFFER_STORE_D16_FORMAT_XY BUFFER_STORE_D16_FORMAT_XYZ BUFFER_STORE_D16_FORMAT_XYZW
        BUFFER_LOAD_D16_HI_FORMAT_X BUFFER_STORE_D16_HI_FORMAT_X BUFFER_LOAD_LDS_FORMAT_X
        TBUFFER_LOAD_FORMAT_X TBUFFER_LOAD_FORMAT_XY TBUFFER_LOAD_FORMAT_XYZ TBUFFER_LOAD_FORMAT_XYZW
        TBUFFER_STORE_FORMAT_X TBUFFER_STORE_FORMAT_XY TBUFFER_STORE_FORMAT_XYZ TBUFFER_STORE_FORMAT_XYZW
        TBUFFER_LOAD_D16_FORMAT_X TBUFFER_LOAD_D16_FORMAT_XY TBUFFER_LOAD_D16_FORMAT_XYZ
        TBUFFER_LOAD_D16_FORMAT_XYZW TBUFFER_STORE_D16_FORMAT_X TBUFFER_STORE_D16_FORMAT_XY
        TBUFFER_STORE_D16_FORMAT_XYZ TBUFFER_STORE_D16_FORMAT_XYZW;
};

/// The formats of gfx11 by number, as the assembler names them: widths from the most significant field down, and the
/// type of the fields.
const NAMES: [&str; 64] = [
    "",
    "8_UNORM",
    "8_SNORM",
    "8_USCALED",
    "8_SSCALED",
    "8_UINT",
    "8_SINT",
    "16_UNORM",
    "16_SNORM",
    "16_USCALED",
    "16_SSCALED",
    "16_UINT",
    "16_SINT",
    "16_FLOAT",
    "8_8_UNORM",
    "8_8_SNORM",
    "8_8_USCALED",
    "8_8_SSCALED",
    "8_8_UINT",
    "8_8_SINT",
    "32_UINT",
    "32_SINT",
    "32_FLOAT",
    "16_16_UNORM",
    "16_16_SNORM",
    "16_16_USCALED",
    "16_16_SSCALED",
    "16_16_UINT",
    "16_16_SINT",
    "16_16_FLOAT",
    "10_11_11_FLOAT",
    "11_11_10_FLOAT",
    "10_10_10_2_UNORM",
    "10_10_10_2_SNORM",
    "10_10_10_2_UINT",
    "10_10_10_2_SINT",
    "2_10_10_10_UNORM",
    "2_10_10_10_SNORM",
    "2_10_10_10_USCALED",
    "2_10_10_10_SSCALED",
    "2_10_10_10_UINT",
    "2_10_10_10_SINT",
    "8_8_8_8_UNORM",
    "8_8_8_8_SNORM",
    "8_8_8_8_USCALED",
    "8_8_8_8_SSCALED",
    "8_8_8_8_UINT",
    "8_8_8_8_SINT",
    "32_32_UINT",
    "32_32_SINT",
    "32_32_FLOAT",
    "16_16_16_16_UNORM",
    "16_16_16_16_SNORM",
    "16_16_16_16_USCALED",
    "16_16_16_16_SSCALED",
    "16_16_16_16_UINT",
    "16_16_16_16_SINT",
    "16_16_16_16_FLOAT",
    "32_32_32_UINT",
    "32_32_32_SINT",
    "32_32_32_FLOAT",
    "32_32_32_32_UINT",
    "32_32_32_32_SINT",
    "32_32_32_32_FLOAT",
];

struct Format {
    /// Widths of X, Y, Z, W.
    widths: Vec<usize>,
    kind: &'static str,
}

fn format(n: u32) -> Option<Format> {
    let name = NAMES.get(n as usize).filter(|name| !name.is_empty())?;
    let (widths, kind) = name.rsplit_once('_').expect("a kind");
    Some(Format { widths: widths.rsplit('_').map(|w| w.parse().expect("a width")).collect(), kind })
}

impl Format {
    fn bytes(&self) -> usize {
        self.widths.iter().sum::<usize>() / 8
    }
    fn integers(&self) -> bool {
        matches!(self.kind, "UINT" | "SINT")
    }
    fn one(&self) -> u64 {
        if self.integers() { 1 } else { exact::one(F32) }
    }
}

/// Unsigned floats of 10 and 11 bits.
fn short(width: usize) -> Float {
    Float { fraction: width as u32 - 5, exponent: 5 }
}

fn f32_of(x: f64) -> u64 {
    exact::convert(F64, F32, x.to_bits(), NEAREST)
}

/// A component from its bits.
fn component(f: &Format, width: usize, x: u64) -> u64 {
    let signed = if x >> (width - 1) != 0 { x as i64 - (1 << width) } else { x as i64 };
    let most = ((1u64 << width) - 1) as f64;
    let half = ((1u64 << (width - 1)) - 1) as f64;
    match (f.kind, width) {
        ("UINT", _) => x,
        ("SINT", _) => signed as u32 as u64,
        ("USCALED", _) => f32_of(x as f64),
        ("SSCALED", _) => f32_of(signed as f64),
        ("UNORM", _) => f32_of(x as f64 / most),
        ("SNORM", _) => f32_of((signed as f64 / half).max(-1.0)),
        (_, 32) => x,
        (_, 16) => exact::convert(F16, F32, x, NEAREST),
        _ => exact::convert(short(width), F32, x, NEAREST),
    }
}

/// The bits of a component.
fn bits(f: &Format, width: usize, x: u64) -> u64 {
    let v = f64::from(f32::from_bits(x as u32));
    let all = (1u64 << width) - 1;
    let (least, most) = (-(1i64 << (width - 1)), (1i64 << (width - 1)) - 1);
    let scaled = |v: f64, by: f64| if v.is_nan() { 0 } else { (v * by).round_ties_even() as i64 };
    all & match (f.kind, width) {
        ("UINT", _) => x.min(all),
        ("SINT", _) => i64::from(x as i32).clamp(least, most) as u64,
        ("USCALED", _) => (v as u64).min(all),
        ("SSCALED", _) => (v as i64).clamp(least, most) as u64,
        ("UNORM", _) => scaled(v.clamp(0.0, 1.0), all as f64) as u64,
        ("SNORM", _) => scaled(v.clamp(-1.0, 1.0), most as f64) as u64,
        (_, 32) => x,
        (_, 16) => exact::convert(F32, F16, x, NEAREST),
        _ if v.is_nan() => short(width).infinity() | short(width).quiet(),
        // These floats have no sign.
        _ if v <= 0.0 => 0,
        _ => exact::convert(F32, short(width), x, NEAREST),
    }
}

/// X, Y, Z, W of an element.
fn components(f: &Format, element: &[u8]) -> [u64; 4] {
    let bit = |k: usize| u64::from(element[k / 8] >> (k % 8) & 1);
    let mut at = 0;
    let mut found = [0, 0, 0, f.one()];
    for (k, &width) in f.widths.iter().enumerate() {
        let x = (0..width).fold(0, |x, j| x | bit(at + j) << j);
        found[k] = component(f, width, x);
        at += width;
    }
    found
}

fn element(f: &Format, components: [u64; 4]) -> Vec<u8> {
    let mut bytes = vec![0u8; f.bytes()];
    let mut at = 0;
    for (k, &width) in f.widths.iter().enumerate() {
        let x = bits(f, width, components[k]);
        for j in 0..width {
            bytes[(at + j) / 8] |= ((x >> j & 1) as u8) << ((at + j) % 8);
        }
        at += width;
    }
    bytes
}

fn half_of(f: Option<&Format>, x: u64) -> u32 {
    if f.is_some_and(|f| !f.integers()) {
        exact::convert(F32, F16, x, NEAREST) as u32
    } else {
        x as u32 & 0xFFFF
    }
}

fn loaded(f: Option<&Format>, select: [u32; 4], world: &World, cells: &[Cell]) -> [u64; 4] {
    let Some(f) = f.filter(|_| !cells.contains(&Cell::Nowhere)) else { return [0; 4] };
    let bytes: Vec<u8> = cells.iter().map(|&cell| world.read(cell)).collect();
    let found = components(f, &bytes);
    select.map(|by| match by {
        1 => f.one(),
        4.. => found[by as usize - 4],
        _ => 0,
    })
}

/// Data component `k` of a store.
fn given(f: &Format, w: &Wave, data: usize, lane: usize, k: usize, d16: bool, high: bool) -> u64 {
    if !d16 {
        return w.vgpr(data + k, lane).into();
    }
    let by = if high { 16 } else { 16 * (k % 2) };
    let x = u64::from(w.vgpr(data + k / 2, lane) >> by & 0xFFFF);
    match f.kind {
        "UINT" => x,
        "SINT" => i64::from(x as u16 as i16) as u32 as u64,
        _ => exact::convert(F16, F32, x, NEAREST),
    }
}

fn to_lds(row: &OpInfo) -> bool {
    row.any(Flags::LDS)
}

pub(crate) fn typed(lab: &mut Lab, row: &'static OpInfo) {
    let of_instruction = row.name.starts_with("tbuffer");
    let n = row.name.rsplit_once('_').expect("components").1.len();
    let (d16, high) = (row.name.contains("d16"), row.name.contains("d16_hi"));
    for trial in 0..136u32 {
        let mut w = lab.any_wave();
        lab.fill();
        // Numbers of which about half are in range.
        for register in 8..12 {
            for lane in 0..w.lanes() {
                let ty = if d16 {
                    softgpu_isa::Ty::F16
                } else {
                    lab.r.pick(&[softgpu_isa::Ty::F32, softgpu_isa::Ty::I32])
                };
                let x = lab.r.value(ty) as u32;
                w.set_vgpr(register, lane, x);
            }
        }
        let number = trial % 68;
        let selects: [u32; 4] = match trial % 3 {
            0 => [4, 5, 6, 7],
            1 => [6, 5, 4, 1],
            _ => [0; 4].map(|_: i32| lab.r.pick(&[0, 1, 4, 5, 6, 7])),
        };
        let resource = if number < 64 { number } else { 0 };
        w.s[51] = selects.iter().enumerate().fold(0, |x, (k, by)| x | by << (3 * k)) | resource << 12;
        w.s[M0] = lab.r.next() & 0xFFFF_0FFC;
        let number = if of_instruction { number } else { resource };
        let f = format(number);
        let len = f.as_ref().map_or(1, Format::bytes);
        let mut access = Access::random(lab, &mut w, row, len, false);
        if of_instruction {
            access.words[0] = access.words[0] & !(0x7F << 19) | number << 19;
        }
        let select = if of_instruction { [4, 5, 6, 7] } else { selects };
        let mut world = World::of(lab);
        let mut want = w.clone();
        let imm = access.words[0] & 0xFFF;
        for lane in active(&w) {
            let cells = &access.cells[lane];
            if row.any(Flags::STORE) {
                let Some(f) = f.as_ref().filter(|_| !cells.contains(&Cell::Nowhere)) else { continue };
                let parts = [0, 1, 2, 3].map(|c| {
                    let from = select.iter().position(|&by| by == 4 + c);
                    from.filter(|&k| k < n).map_or(0, |k| given(f, &w, access.data, lane, k, d16, high))
                });
                for (&cell, byte) in cells.iter().zip(element(f, parts)) {
                    world.write(cell, byte);
                }
                continue;
            }
            let parts = loaded(f.as_ref(), select, &world, cells);
            if to_lds(row) {
                let at = (w.s[M0] & 0xFFFF) as usize + imm as usize + 4 * lane;
                for (j, byte) in (parts[0] as u32).to_le_bytes().into_iter().enumerate() {
                    let inside = at + j < super::lab::LDS as usize;
                    world.write(if inside { Cell::Lds(at + j) } else { Cell::Nowhere }, byte);
                }
                continue;
            }
            let registers = if d16 { n.div_ceil(2) } else { n };
            for k in 0..registers {
                let old = w.vgpr(access.dst + k, lane);
                let halves = |k: usize| if k < n { Some(half_of(f.as_ref(), parts[k])) } else { None };
                let value = match (d16, high) {
                    (false, _) => parts[k] as u32,
                    (true, true) => old & 0xFFFF | half_of(f.as_ref(), parts[0]) << 16,
                    (true, false) => {
                        let low = halves(2 * k).unwrap_or(0);
                        low | halves(2 * k + 1).map_or(old & 0xFFFF_0000, |x| x << 16)
                    }
                };
                want.set_vgpr(access.dst + k, lane, value);
            }
            if access.tfe {
                want.set_vgpr(access.dst + registers, lane, 0);
            }
        }
        let context = format!(
            "{:08x?} format {number} {:?} selects {select:?}",
            access.words,
            NAMES.get(number as usize)
        );
        let mut got = w;
        assert_eq!(lab.run(&mut got, &access.words), Flow::Next, "{}: {:?}", row.name, got.cause);
        lab.same(&want, &got, &context);
        world.same(lab, row, &context);
    }
}
