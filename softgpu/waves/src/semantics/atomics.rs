// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics of every address space: the new value in memory, and the returned old value.

use softgpu_isa::{Op, OpInfo};

use super::entry::{Check, Entry};
use super::exact::{self, F32, F64, Format, NEAREST};
use super::float32::extreme;
use super::lab::Lab;
use super::memory::{World, active};
use super::place::Access;
use crate::step::Flow;
use crate::wave::Wave;

/// `a == b` as floats.
fn equal(f: Format, a: u64, b: u64) -> bool {
    !f.is_nan(a) && !f.is_nan(b) && (a == b || (f.is_zero(a) && f.is_zero(b)))
}

/// The new value in memory: `old` is the old value, `data` and `other` are the instruction's.
fn after(base: &str, ty: &str, old: u64, data: u64, other: u64) -> u64 {
    let wide = ty.ends_with("64");
    let mask = if wide { u64::MAX } else { u32::MAX.into() };
    let float = if wide { F64 } else { F32 };
    let signed = |x: u64| if wide { x as i64 } else { i64::from(x as i32) };
    let is_float = ty.starts_with('f');
    let is_signed = ty.starts_with('i');
    mask & match base {
        "swap" | "storexchg" => data,
        "cmpswap" | "cmpstore" if is_float => {
            if equal(float, old, other) {
                data
            } else {
                old
            }
        }
        "cmpswap" | "cmpstore" => {
            if old == other {
                data
            } else {
                old
            }
        }
        "add" if is_float => exact::add(float, old, data, NEAREST),
        "add" => old.wrapping_add(data),
        "sub" => old.wrapping_sub(data),
        "rsub" => data.wrapping_sub(old),
        "csub" => old.saturating_sub(data),
        // As the vector ALU in IEEE mode.
        "min" if is_float => extreme(float, true, old, data, false),
        "max" if is_float => extreme(float, true, old, data, true),
        "min" if is_signed => signed(old).min(signed(data)) as u64,
        "max" if is_signed => signed(old).max(signed(data)) as u64,
        "min" => old.min(data),
        "max" => old.max(data),
        "and" => old & data,
        "or" => old | data,
        "xor" => old ^ data,
        "inc" => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        "dec" => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        "mskor" => old & !data | other,
        "wrap" => {
            if old >= data {
                old - data
            } else {
                old.wrapping_add(other)
            }
        }
        _ => panic!("no such atomic: {base}"),
    }
}

fn number(w: &Wave, register: usize, lane: usize, wide: bool) -> u64 {
    let low = u64::from(w.vgpr(register, lane));
    if wide { low | u64::from(w.vgpr(register + 1, lane)) << 32 } else { low }
}

pub(crate) fn atomic(lab: &mut Lab, row: &'static OpInfo) {
    let ds = row.name.strip_prefix("ds_");
    let name = ds.map_or_else(
        || row.name.split_once("_atomic_").expect("an atomic").1.to_owned(),
        |name| name.replace("_rtn", "").replace("_2addr", "").replace("_stride64", ""),
    );
    let (base, ty) = name.rsplit_once('_').expect("a type");
    let wide = ty.ends_with("64");
    let bytes = if wide { 8 } else { 4 };
    let dwords = bytes / 4;
    for _ in 0..30 {
        let mut w = lab.any_wave();
        lab.fill();
        let access = Access::random(lab, &mut w, row, bytes, true);
        // Numbers of the operation's type; compare values often equal the value in memory.
        for register in (access.data..access.data + 4).chain(access.data2..access.data2 + 2).step_by(dwords) {
            for lane in 0..w.lanes() {
                let value = lab
                    .r
                    .value(row.src.iter().rev().find(|s| s.class == softgpu_isa::Class::V).expect("data").ty);
                w.set_vgpr(register, lane, value as u32);
                if wide {
                    w.set_vgpr(register + 1, lane, (value >> 32) as u32);
                }
            }
        }
        let mut world = World::of(lab);
        let compare = if ds.is_some() { access.data2 } else { access.data + dwords };
        for lane in (0..w.lanes()).filter(|lane| lane % 2 == 0) {
            let there = world.number(&access.cells[lane]);
            w.set_vgpr(compare, lane, there as u32);
            if wide {
                w.set_vgpr(compare + 1, lane, (there >> 32) as u32);
            }
        }
        let mut want = w.clone();
        for lane in active(&w) {
            let sets = [&access.cells, &access.second];
            for (set, cells) in sets.into_iter().enumerate().filter(|(_, cells)| !cells.is_empty()) {
                let cells = &cells[lane];
                let data = number(&w, if set == 0 { access.data } else { access.data2 }, lane, wide);
                let old = world.number(cells);
                world.put(cells, after(base, ty, old, data, number(&w, compare, lane, wide)));
                if access.returns {
                    want.set_vgpr(access.dst + set * dwords, lane, old as u32);
                    if wide {
                        want.set_vgpr(access.dst + set * dwords + 1, lane, (old >> 32) as u32);
                    }
                }
            }
        }
        let context = format!("{:08x?} returns {}", access.words, access.returns);
        let mut got = w;
        assert_eq!(lab.run(&mut got, &access.words), Flow::Next, "{}: {:?}", row.name, got.cause);
        lab.same(&want, &got, &context);
        world.same(lab, row, &context);
    }
}

macro_rules! entries {
    ($($op:ident)*) => {
        &[$(Entry { op: Op::$op, check: Check::Own(atomic) }),*]
    };
}

pub(crate) const ENTRIES: &[Entry] = entries! {
    GLOBAL_ATOMIC_SWAP_B32 GLOBAL_ATOMIC_CMPSWAP_B32 GLOBAL_ATOMIC_ADD_U32 GLOBAL_ATOMIC_SUB_U32
    GLOBAL_ATOMIC_CSUB_U32 GLOBAL_ATOMIC_MIN_I32 GLOBAL_ATOMIC_MIN_U32 GLOBAL_ATOMIC_MAX_I32 GLOBAL_ATOMIC_MAX_U32
    GLOBAL_ATOMIC_AND_B32 GLOBAL_ATOMIC_OR_B32 GLOBAL_ATOMIC_XOR_B32 GLOBAL_ATOMIC_INC_U32 GLOBAL_ATOMIC_DEC_U32
    GLOBAL_ATOMIC_SWAP_B64 GLOBAL_ATOMIC_CMPSWAP_B64 GLOBAL_ATOMIC_ADD_U64 GLOBAL_ATOMIC_SUB_U64
    GLOBAL_ATOMIC_MIN_I64 GLOBAL_ATOMIC_MIN_U64 GLOBAL_ATOMIC_MAX_I64 GLOBAL_ATOMIC_MAX_U64 GLOBAL_ATOMIC_AND_B64
    GLOBAL_ATOMIC_OR_B64 GLOBAL_ATOMIC_XOR_B64 GLOBAL_ATOMIC_INC_U64 GLOBAL_ATOMIC_DEC_U64 GLOBAL_ATOMIC_CMPSWAP_F32
    GLOBAL_ATOMIC_MIN_F32 GLOBAL_ATOMIC_MAX_F32 GLOBAL_ATOMIC_ADD_F32 FLAT_ATOMIC_SWAP_B32 FLAT_ATOMIC_CMPSWAP_B32
    FLAT_ATOMIC_ADD_U32 FLAT_ATOMIC_SUB_U32 FLAT_ATOMIC_MIN_I32 FLAT_ATOMIC_MIN_U32 FLAT_ATOMIC_MAX_I32
    FLAT_ATOMIC_MAX_U32 FLAT_ATOMIC_AND_B32 FLAT_ATOMIC_OR_B32 FLAT_ATOMIC_XOR_B32 FLAT_ATOMIC_INC_U32
    FLAT_ATOMIC_DEC_U32 FLAT_ATOMIC_SWAP_B64 FLAT_ATOMIC_CMPSWAP_B64 FLAT_ATOMIC_ADD_U64 FLAT_ATOMIC_SUB_U64
    FLAT_ATOMIC_MIN_I64 FLAT_ATOMIC_MIN_U64 FLAT_ATOMIC_MAX_I64 FLAT_ATOMIC_MAX_U64 FLAT_ATOMIC_AND_B64
    FLAT_ATOMIC_OR_B64 FLAT_ATOMIC_XOR_B64 FLAT_ATOMIC_INC_U64 FLAT_ATOMIC_DEC_U64 FLAT_ATOMIC_CMPSWAP_F32
    FLAT_ATOMIC_MIN_F32 FLAT_ATOMIC_MAX_F32 FLAT_ATOMIC_ADD_F32 BUFFER_ATOMIC_SWAP_B32 BUFFER_ATOMIC_CMPSWAP_B32
    BUFFER_ATOMIC_ADD_U32 BUFFER_ATOMIC_SUB_U32 BUFFER_ATOMIC_CSUB_U32 BUFFER_ATOMIC_MIN_I32 BUFFER_ATOMIC_MIN_U32
    BUFFER_ATOMIC_MAX_I32 BUFFER_ATOMIC_MAX_U32 BUFFER_ATOMIC_AND_B32 BUFFER_ATOMIC_OR_B32 BUFFER_ATOMIC_XOR_B32
    BUFFER_ATOMIC_INC_U32 BUFFER_ATOMIC_DEC_U32 BUFFER_ATOMIC_SWAP_B64 BUFFER_ATOMIC_CMPSWAP_B64
    BUFFER_ATOMIC_ADD_U64 BUFFER_ATOMIC_SUB_U64 BUFFER_ATOMIC_MIN_I64 BUFFER_ATOMIC_MIN_U64 BUFFER_ATOMIC_MAX_I64
    BUFFER_ATOMIC_MAX_U64 BUFFER_ATOMIC_AND_B64 BUFFER_ATOMIC_OR_B64 BUFFER_ATOMIC_XOR_B64 BUFFER_ATOMIC_INC_U64
    BUFFER_ATOMIC_DEC_U64 BUFFER_ATOMIC_CMPSWAP_F32 BUFFER_ATOMIC_MIN_F32 BUFFER_ATOMIC_MAX_F32
    BUFFER_ATOMIC_ADD_F32 DS_ADD_U32 DS_SUB_U32 DS_RSUB_U32 DS_INC_U32 DS_DEC_U32 DS_MIN_I32 DS_MAX_I32 DS_MIN_U32
    DS_MAX_U32 DS_AND_B32 DS_OR_B32 DS_XOR_B32 DS_MSKOR_B32 DS_CMPSTORE_B32 DS_CMPSTORE_F32 DS_MIN_F32 DS_MAX_F32
    DS_ADD_F32 DS_ADD_RTN_U32 DS_SUB_RTN_U32 DS_RSUB_RTN_U32 DS_INC_RTN_U32 DS_DEC_RTN_U32 DS_MIN_RTN_I32
    DS_MAX_RTN_I32 DS_MIN_RTN_U32 DS_MAX_RTN_U32 DS_AND_RTN_B32 DS_OR_RTN_B32 DS_XOR_RTN_B32 DS_MSKOR_RTN_B32
    DS_STOREXCHG_RTN_B32 DS_STOREXCHG_2ADDR_RTN_B32 DS_STOREXCHG_2ADDR_STRIDE64_RTN_B32 DS_CMPSTORE_RTN_B32
    DS_CMPSTORE_RTN_F32 DS_MIN_RTN_F32 DS_MAX_RTN_F32 DS_WRAP_RTN_B32 DS_ADD_U64 DS_SUB_U64 DS_RSUB_U64 DS_INC_U64
    DS_DEC_U64 DS_MIN_I64 DS_MAX_I64 DS_MIN_U64 DS_MAX_U64 DS_AND_B64 DS_OR_B64 DS_XOR_B64 DS_MSKOR_B64
    DS_CMPSTORE_B64 DS_CMPSTORE_F64 DS_MIN_F64 DS_MAX_F64 DS_ADD_RTN_U64 DS_SUB_RTN_U64 DS_RSUB_RTN_U64
    DS_INC_RTN_U64 DS_DEC_RTN_U64 DS_MIN_RTN_I64 DS_MAX_RTN_I64 DS_MIN_RTN_U64 DS_MAX_RTN_U64 DS_AND_RTN_B64
    DS_OR_RTN_B64 DS_XOR_RTN_B64 DS_MSKOR_RTN_B64 DS_STOREXCHG_RTN_B64 DS_STOREXCHG_2ADDR_RTN_B64
    DS_STOREXCHG_2ADDR_STRIDE64_RTN_B64 DS_CMPSTORE_RTN_B64 DS_CMPSTORE_RTN_F64 DS_MIN_RTN_F64 DS_MAX_RTN_F64
    DS_ADD_RTN_F32
};
