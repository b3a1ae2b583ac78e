// SPDX-License-Identifier: MIT OR Apache-2.0
//! Typed buffer loads and stores, and buffer loads into LDS.
//!
//! INVARIANT: as untyped buffer accesses: lanes out of range read 0 and write nothing, lanes in range are checked. The
//! format and the component selects are the resource's for MUBUF; MTBUF has its format in the instruction and no
//! component selects (the step's `sdst` is then a format number below [`FROM_RESOURCE`]).
#![allow(unsafe_code)]

use super::buffer::addresses;
use super::flags::FLAG_TFE;
use super::format::Format;
use super::global::{FLAG_D16, FLAG_D16_HI};
use super::raw;
use crate::env::Env;
use crate::exception::AccessKind;
use crate::step::{Flow, Handler, Step, stop};
use crate::valu::fp;
use crate::vm::MemoryFault;
use crate::wave::{M0, Wave};
use softgpu_isa::{Flags, Op, info};

/// A number that stands for the resource's format.
pub(crate) const FROM_RESOURCE: u16 = 128;

/// Handlers of typed operations and of loads into LDS.
pub(crate) fn table(op: Op) -> Option<Handler> {
    let row = info(op);
    if row.any(Flags::LDS) {
        return Some(match op {
            Op::BUFFER_LOAD_LDS_U8 => to_lds::<1, false> as Handler,
            Op::BUFFER_LOAD_LDS_I8 => to_lds::<1, true> as Handler,
            Op::BUFFER_LOAD_LDS_U16 => to_lds::<2, false> as Handler,
            Op::BUFFER_LOAD_LDS_I16 => to_lds::<2, true> as Handler,
            Op::BUFFER_LOAD_LDS_B32 => to_lds::<4, false> as Handler,
            Op::BUFFER_LOAD_LDS_FORMAT_X => format_to_lds as Handler,
            _ => return None,
        });
    }
    if !row.any(Flags::FORMAT) {
        return None;
    }
    let components = row.name.rsplit('_').next().map_or(0, str::len);
    let store = row.any(Flags::STORE);
    Some(match (components, store) {
        (1, false) => load::<1> as Handler,
        (2, false) => load::<2> as Handler,
        (3, false) => load::<3> as Handler,
        (4, false) => load::<4> as Handler,
        (1, true) => store_components::<1> as Handler,
        (2, true) => store_components::<2> as Handler,
        (3, true) => store_components::<3> as Handler,
        (4, true) => store_components::<4> as Handler,
        _ => return None,
    })
}

/// The format of an access, and which component each of X, Y, Z, W is taken from (0 and 1 are constants, 4.. are X..).
fn format_of(w: &Wave, s: &Step) -> (Option<Format>, [u32; 4]) {
    if s.sdst < FROM_RESOURCE {
        return (Format::from_number(u32::from(s.sdst)), [4, 5, 6, 7]);
    }
    let word = w.s[s.src[2].index as usize + 3];
    (Format::from_number(word >> 12 & 0x3F), core::array::from_fn(|k| word >> (3 * k) & 7))
}

fn read_element(env: &mut Env<'_>, address: u64, bytes: usize) -> Result<u128, MemoryFault> {
    if !env.allows(address, address.wrapping_add(bytes as u64), AccessKind::Read) {
        return Err(env.fault(address, bytes as u64, AccessKind::Read));
    }
    let mut element = [0u8; 16];
    // SAFETY: `allows` said that these bytes are readable; `env` holds the map's lock.
    unsafe { raw::read(address, &mut element[..bytes]) };
    Ok(u128::from_le_bytes(element))
}

/// Components of one lane's element in the form that the instruction defines.
fn selected(format: Format, select: [u32; 4], element: u128) -> [u32; 4] {
    let found = format.unpack(element);
    select.map(|by| match by {
        1 => format.one(),
        4..=7 => found[by as usize - 4],
        _ => 0,
    })
}

/// As the 16 bits of a D16 instruction.
fn narrow(format: Option<Format>, x: u32) -> u32 {
    if format.is_none_or(Format::is_integer) { x & 0xFFFF } else { fp::f32_to_f16(f32::from_bits(x)) }
}

/// Loads `N` components per lane.
fn load<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let (format, select) = format_of(w, s);
    let bytes = format.map_or(1, Format::bytes);
    let short = s.flags & (FLAG_D16 | FLAG_D16_HI) != 0;
    let rows = if short { N.div_ceil(2) } else { N };
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        let valid = addresses(w, s, half, bytes as u64, &mut a);
        let mask = w.exec_half(half);
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let mut components = [0u32; 4];
            if let (Some(format), true) = (format, valid >> i & 1 != 0) {
                match read_element(env, a[i], bytes) {
                    Ok(element) => components = selected(format, select, element),
                    Err(fault) => return stop(w, fault),
                }
            }
            for k in 0..rows {
                let lane = &mut w.v[s.dst as usize + k * w.halves + half].0[i];
                *lane = if !short {
                    components[k]
                } else if s.flags & FLAG_D16_HI != 0 {
                    *lane & 0xFFFF | narrow(format, components[0]) << 16
                } else {
                    let low = narrow(format, components[2 * k]);
                    let kept = *lane & 0xFFFF_0000;
                    let high = if 2 * k + 1 < N { narrow(format, components[2 * k + 1]) << 16 } else { kept };
                    low | high
                };
            }
            if s.flags & FLAG_TFE != 0 {
                w.v[s.dst as usize + rows * w.halves + half].0[i] = 0;
            }
        }
    }
    Flow::Next
}

/// Component `k` of lane `i` of a store's data.
fn data(w: &Wave, s: &Step, format: Format, half: usize, i: usize, k: usize) -> u32 {
    let register = |k: usize| w.v[s.dst as usize + k * w.halves + half].0[i];
    let x = match s.flags & (FLAG_D16 | FLAG_D16_HI) {
        0 => return register(k),
        FLAG_D16 => register(k / 2) >> (16 * (k % 2)) & 0xFFFF,
        _ => register(0) >> 16,
    };
    match format.is_integer() {
        false => fp::f16_to_f32(x).to_bits(),
        true if format.number == super::format::Number::Sint => x as u16 as i16 as u32,
        true => x,
    }
}

/// Stores `N` components per lane; components of the format that are not given are 0.
fn store_components<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let (format, select) = format_of(w, s);
    // A resource without a format is not bound: nothing is stored.
    let Some(format) = format else { return Flow::Next };
    let bytes = format.bytes();
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        let valid = addresses(w, s, half, bytes as u64, &mut a);
        for i in (0..32).filter(|i| valid >> i & 1 != 0) {
            let components = core::array::from_fn(|c| {
                let from = select.iter().position(|&by| by == 4 + c as u32);
                from.filter(|&k| k < N).map_or(0, |k| data(w, s, format, half, i, k))
            });
            let element = format.pack(components).to_le_bytes();
            if !env.allows(a[i], a[i].wrapping_add(bytes as u64), AccessKind::Write) {
                let fault = env.fault(a[i], bytes as u64, AccessKind::Write);
                return stop(w, fault);
            }
            // SAFETY: `allows` said that these bytes are writable; `env` holds the map's lock.
            unsafe { raw::write(a[i], &element[..bytes]) };
        }
    }
    Flow::Next
}

/// One dword per active lane to LDS at M0 + offset + 4 * lane.
fn lanes_to_lds(
    w: &mut Wave,
    env: &mut Env<'_>,
    s: &Step,
    bytes: usize,
    convert: impl Fn(u128) -> u32,
) -> Flow {
    let base = (w.s[M0] & 0xFFFF).wrapping_add(s.imm as u32);
    for half in 0..w.halves {
        let mut a = [0u64; 32];
        let valid = addresses(w, s, half, bytes as u64, &mut a);
        let mask = w.exec_half(half);
        for i in (0..32).filter(|i| mask >> i & 1 != 0) {
            let mut value = 0;
            if valid >> i & 1 != 0 {
                match read_element(env, a[i], bytes) {
                    Ok(element) => value = convert(element),
                    Err(fault) => return stop(w, fault),
                }
            }
            let at = base.wrapping_add(4 * (half * 32 + i) as u32);
            for (j, byte) in value.to_le_bytes().into_iter().enumerate() {
                super::lds::write_byte(w, env, at.wrapping_add(j as u32), byte);
            }
        }
    }
    Flow::Next
}

fn to_lds<const B: usize, const S: bool>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    lanes_to_lds(w, env, s, B, |element| match (B, S) {
        (1, true) => element as i8 as u32,
        (2, true) => element as i16 as u32,
        _ => element as u32,
    })
}

fn format_to_lds(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let (format, select) = format_of(w, s);
    let bytes = format.map_or(1, Format::bytes);
    lanes_to_lds(w, env, s, bytes, |element| format.map_or(0, |f| selected(f, select, element)[0]))
}
