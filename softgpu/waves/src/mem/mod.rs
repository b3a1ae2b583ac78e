// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory handlers: scalar, global, flat, scratch, buffer and LDS.

mod access;
pub(crate) mod atomic;
mod buffer;
pub(crate) mod flags;
pub(crate) mod flat;
pub(crate) mod format;
pub(crate) mod global;
pub(crate) mod lds;
#[cfg(target_arch = "x86_64")]
mod lds_avx2;
mod pattern;
pub(crate) mod raw;
mod scalar;
mod stack;
pub(crate) mod typed;

use global::Space;
use softgpu_isa::Op;

use crate::level::{Level, leveled};
use crate::step::Handler;

macro_rules! transfers {
    ($name:ident, $module:ident, $space:expr;
     $($load:ident $(| $more:ident)* $load_bytes:literal $rows:literal $signed:literal;)* => $($store:ident $store_bytes:literal;)*) => {
        fn $name(level: Level, op: Op) -> Option<Handler> {
            let _ = level;
            Some(match op {
                $(Op::$load $(| Op::$more)* => leveled!(level, |w, e, s| $module::load::<$load_bytes, $rows, $signed, $load_bytes>(w, e, s, $space)),)*
                $(Op::$store => leveled!(level, |w, e, s| $module::store::<$store_bytes, $store_bytes>(w, e, s, $space)),)*
                _ => return None,
            })
        }
    };
}

transfers!(global_table, global, Space::Global;
    GLOBAL_LOAD_U8 | GLOBAL_LOAD_D16_U8 1 1 false;
    GLOBAL_LOAD_D16_HI_U8 1 1 false;
    GLOBAL_LOAD_I8 | GLOBAL_LOAD_D16_I8 1 1 true;
    GLOBAL_LOAD_D16_HI_I8 1 1 true;
    GLOBAL_LOAD_U16 | GLOBAL_LOAD_D16_B16 2 1 false;
    GLOBAL_LOAD_D16_HI_B16 2 1 false;
    GLOBAL_LOAD_I16 2 1 true;
    GLOBAL_LOAD_B32 4 1 false;
    GLOBAL_LOAD_B64 8 2 false;
    GLOBAL_LOAD_B96 12 3 false;
    GLOBAL_LOAD_B128 16 4 false;
    =>
    GLOBAL_STORE_B8 1;
    GLOBAL_STORE_D16_HI_B8 1;
    GLOBAL_STORE_B16 2;
    GLOBAL_STORE_D16_HI_B16 2;
    GLOBAL_STORE_B32 4;
    GLOBAL_STORE_B64 8;
    GLOBAL_STORE_B96 12;
    GLOBAL_STORE_B128 16;
);

transfers!(flat_table, global, Space::Flat;
    FLAT_LOAD_U8 | FLAT_LOAD_D16_U8 1 1 false;
    FLAT_LOAD_D16_HI_U8 1 1 false;
    FLAT_LOAD_I8 | FLAT_LOAD_D16_I8 1 1 true;
    FLAT_LOAD_D16_HI_I8 1 1 true;
    FLAT_LOAD_U16 | FLAT_LOAD_D16_B16 2 1 false;
    FLAT_LOAD_D16_HI_B16 2 1 false;
    FLAT_LOAD_I16 2 1 true;
    FLAT_LOAD_B32 4 1 false;
    FLAT_LOAD_B64 8 2 false;
    FLAT_LOAD_B96 12 3 false;
    FLAT_LOAD_B128 16 4 false;
    =>
    FLAT_STORE_B8 1;
    FLAT_STORE_D16_HI_B8 1;
    FLAT_STORE_B16 2;
    FLAT_STORE_D16_HI_B16 2;
    FLAT_STORE_B32 4;
    FLAT_STORE_B64 8;
    FLAT_STORE_B96 12;
    FLAT_STORE_B128 16;
);

transfers!(scratch_table, global, Space::Scratch;
    SCRATCH_LOAD_U8 | SCRATCH_LOAD_D16_U8 1 1 false;
    SCRATCH_LOAD_D16_HI_U8 1 1 false;
    SCRATCH_LOAD_I8 | SCRATCH_LOAD_D16_I8 1 1 true;
    SCRATCH_LOAD_D16_HI_I8 1 1 true;
    SCRATCH_LOAD_U16 | SCRATCH_LOAD_D16_B16 2 1 false;
    SCRATCH_LOAD_D16_HI_B16 2 1 false;
    SCRATCH_LOAD_I16 2 1 true;
    SCRATCH_LOAD_B32 4 1 false;
    SCRATCH_LOAD_B64 8 2 false;
    SCRATCH_LOAD_B96 12 3 false;
    SCRATCH_LOAD_B128 16 4 false;
    =>
    SCRATCH_STORE_B8 1;
    SCRATCH_STORE_D16_HI_B8 1;
    SCRATCH_STORE_B16 2;
    SCRATCH_STORE_D16_HI_B16 2;
    SCRATCH_STORE_B32 4;
    SCRATCH_STORE_B64 8;
    SCRATCH_STORE_B96 12;
    SCRATCH_STORE_B128 16;
);

transfers!(buffer_table, buffer, ();
    BUFFER_LOAD_U8 | BUFFER_LOAD_D16_U8 1 1 false;
    BUFFER_LOAD_D16_HI_U8 1 1 false;
    BUFFER_LOAD_I8 | BUFFER_LOAD_D16_I8 1 1 true;
    BUFFER_LOAD_D16_HI_I8 1 1 true;
    BUFFER_LOAD_U16 | BUFFER_LOAD_D16_B16 2 1 false;
    BUFFER_LOAD_D16_HI_B16 2 1 false;
    BUFFER_LOAD_I16 2 1 true;
    BUFFER_LOAD_B32 4 1 false;
    BUFFER_LOAD_B64 8 2 false;
    BUFFER_LOAD_B96 12 3 false;
    BUFFER_LOAD_B128 16 4 false;
    =>
    BUFFER_STORE_B8 1;
    BUFFER_STORE_D16_HI_B8 1;
    BUFFER_STORE_B16 2;
    BUFFER_STORE_D16_HI_B16 2;
    BUFFER_STORE_B32 4;
    BUFFER_STORE_B64 8;
    BUFFER_STORE_B96 12;
    BUFFER_STORE_B128 16;
);

macro_rules! lds_ops {
    ($($op:ident $(| $more:ident)* => |$w:ident, $e:ident, $s:ident| $body:expr;)*) => {
        fn lds_table(level: Level, op: Op) -> Option<Handler> {
            let _ = level;
            Some(match op {
                $(Op::$op $(| Op::$more)* => leveled!(level, |$w, $e, $s| $body),)*
                Op::DS_PERMUTE_B32 => lds::permute as Handler,
                Op::DS_BPERMUTE_B32 => lds::bpermute as Handler,
                Op::DS_SWIZZLE_B32 => lds::swizzle as Handler,
                _ => return None,
            })
        }
    };
}

lds_ops! {
    DS_LOAD_U8 | DS_LOAD_U8_D16 | DS_LOAD_U8_D16_HI => |w, e, s| lds::load::<1, 1, false>(w, e, s);
    DS_LOAD_I8 | DS_LOAD_I8_D16 | DS_LOAD_I8_D16_HI => |w, e, s| lds::load::<1, 1, true>(w, e, s);
    DS_LOAD_U16 | DS_LOAD_U16_D16 | DS_LOAD_U16_D16_HI => |w, e, s| lds::load::<2, 1, false>(w, e, s);
    DS_LOAD_I16 => |w, e, s| lds::load::<2, 1, true>(w, e, s);
    DS_LOAD_B32 => |w, e, s| lds::load::<4, 1, false>(w, e, s);
    DS_LOAD_B64 => |w, e, s| lds::load::<8, 2, false>(w, e, s);
    DS_LOAD_B96 => |w, e, s| lds::load::<12, 3, false>(w, e, s);
    DS_LOAD_B128 => |w, e, s| lds::load::<16, 4, false>(w, e, s);
    DS_LOAD_2ADDR_B32 | DS_LOAD_2ADDR_STRIDE64_B32 => |w, e, s| lds::load2::<4, 1>(w, e, s);
    DS_LOAD_2ADDR_B64 | DS_LOAD_2ADDR_STRIDE64_B64 => |w, e, s| lds::load2::<8, 2>(w, e, s);
    DS_STORE_B8 | DS_STORE_B8_D16_HI => |w, e, s| lds::store::<1>(w, e, s);
    DS_STORE_B16 | DS_STORE_B16_D16_HI => |w, e, s| lds::store::<2>(w, e, s);
    DS_STORE_B32 => |w, e, s| lds::store::<4>(w, e, s);
    DS_STORE_B64 => |w, e, s| lds::store::<8>(w, e, s);
    DS_STORE_B96 => |w, e, s| lds::store::<12>(w, e, s);
    DS_STORE_B128 => |w, e, s| lds::store::<16>(w, e, s);
    DS_STORE_2ADDR_B32 | DS_STORE_2ADDR_STRIDE64_B32 => |w, e, s| lds::store2::<4>(w, e, s);
    DS_STORE_2ADDR_B64 | DS_STORE_2ADDR_STRIDE64_B64 => |w, e, s| lds::store2::<8>(w, e, s);
    DS_STOREXCHG_2ADDR_RTN_B32 | DS_STOREXCHG_2ADDR_STRIDE64_RTN_B32 => |w, e, s| lds::exchange2(w, e, s, false);
    DS_STOREXCHG_2ADDR_RTN_B64 | DS_STOREXCHG_2ADDR_STRIDE64_RTN_B64 => |w, e, s| lds::exchange2(w, e, s, true);
    DS_APPEND => |w, e, s| lds::append(w, e, s, false);
    DS_CONSUME => |w, e, s| lds::append(w, e, s, true);
    DS_CONDXCHG32_RTN_B64 => |w, e, s| stack::conditional_exchange(w, e, s);
    DS_BVH_STACK_RTN_B32 => |w, e, s| stack::bvh(w, e, s);
    DS_LOAD_ADDTID_B32 => |w, e, s| lds::addtid(w, e, s, false);
    DS_STORE_ADDTID_B32 => |w, e, s| lds::addtid(w, e, s, true);
}

#[cfg(target_arch = "x86_64")]
fn lds_fast(level: Level, op: Op) -> Option<Handler> {
    if level < Level::Avx2 {
        return None;
    }
    Some(match op {
        Op::DS_LOAD_B32 => lds_avx2::load::<4, 1> as Handler,
        Op::DS_LOAD_B64 => lds_avx2::load::<8, 2> as Handler,
        Op::DS_LOAD_B96 => lds_avx2::load::<12, 3> as Handler,
        Op::DS_LOAD_B128 => lds_avx2::load::<16, 4> as Handler,
        Op::DS_LOAD_2ADDR_B32 | Op::DS_LOAD_2ADDR_STRIDE64_B32 => lds_avx2::load2::<4, 1> as Handler,
        Op::DS_LOAD_2ADDR_B64 | Op::DS_LOAD_2ADDR_STRIDE64_B64 => lds_avx2::load2::<8, 2> as Handler,
        _ => return None,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn lds_fast(_: Level, _: Op) -> Option<Handler> {
    None
}

fn global_addtid(op: Op) -> Option<Handler> {
    Some(match op {
        Op::GLOBAL_LOAD_ADDTID_B32 => global::load_addtid as Handler,
        Op::GLOBAL_STORE_ADDTID_B32 => global::store_addtid as Handler,
        _ => return None,
    })
}

/// The operation of an atomic's mnemonic, without the prefix and `_rtn`.
pub(crate) fn atomic_of(name: &str) -> Option<(atomic::Atomic, bool)> {
    if let Some(rest) = name.strip_prefix("ds_") {
        return atomic::Atomic::from_name(&rest.replace("_rtn", ""));
    }
    let (_, rest) = name.split_once("_atomic_")?;
    atomic::Atomic::from_name(rest)
}

/// The handler of an atomic by its mnemonic.
fn atomic_handler(name: &str) -> Option<Handler> {
    let (_, wide) = atomic_of(name)?;
    let level = Level::Baseline;
    Some(match (name.split('_').next()?, wide) {
        ("global", false) => leveled!(level, |w, e, s| global::atomic(w, e, s, false, false)),
        ("global", true) => leveled!(level, |w, e, s| global::atomic(w, e, s, true, false)),
        ("flat", false) => leveled!(level, |w, e, s| global::atomic(w, e, s, false, true)),
        ("flat", true) => leveled!(level, |w, e, s| global::atomic(w, e, s, true, true)),
        ("buffer", false) => leveled!(level, |w, e, s| buffer::atomic(w, e, s, false)),
        ("buffer", true) => leveled!(level, |w, e, s| buffer::atomic(w, e, s, true)),
        ("ds", false) => leveled!(level, |w, e, s| lds::atomic(w, e, s, false)),
        ("ds", true) => leveled!(level, |w, e, s| lds::atomic(w, e, s, true)),
        _ => return None,
    })
}

/// The handler of a memory operation at `level`.
pub(crate) fn handler(level: Level, op: Op) -> Option<Handler> {
    scalar::table(op)
        .or_else(|| global_table(level, op))
        .or_else(|| flat_table(level, op))
        .or_else(|| scratch_table(level, op))
        .or_else(|| buffer_table(level, op))
        .or_else(|| typed::table(op))
        .or_else(|| global_addtid(op))
        .or_else(|| lds_fast(level, op))
        .or_else(|| lds_table(level, op))
        .or_else(|| atomic_handler(softgpu_isa::info(op).name))
}
