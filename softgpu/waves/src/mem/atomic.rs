// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of atomics, the same for global, LDS and buffer forms.
//!
//! INVARIANT: lanes act in lane order; each lane is one host atomic operation on global memory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::raw;
use crate::valu::{fp, nan};

/// The operation of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Atomic {
    Swap,
    CmpSwap,
    Add,
    Sub,
    Rsub,
    CSub,
    MinI,
    MinU,
    MaxI,
    MaxU,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    MskOr,
    Wrap,
    FAdd,
    FMin,
    FMax,
    FCmpSwap,
}

const ALL: [Atomic; 21] = [
    Atomic::Swap,
    Atomic::CmpSwap,
    Atomic::Add,
    Atomic::Sub,
    Atomic::Rsub,
    Atomic::CSub,
    Atomic::MinI,
    Atomic::MinU,
    Atomic::MaxI,
    Atomic::MaxU,
    Atomic::And,
    Atomic::Or,
    Atomic::Xor,
    Atomic::Inc,
    Atomic::Dec,
    Atomic::MskOr,
    Atomic::Wrap,
    Atomic::FAdd,
    Atomic::FMin,
    Atomic::FMax,
    Atomic::FCmpSwap,
];

/// What an atomic makes of the old value, for one width.
macro_rules! apply {
    ($name:ident, $bits:literal, $word:ident, $signed:ident, $float:ident, $add:ident, $min:ident, $max:ident) => {
        #[doc = concat!("The new ", $bits, "-bit value. `other` is the compare value, mask or wrap limit of operations that have one.")]
        #[inline(always)]
        pub(crate) fn $name(self, old: $word, data: $word, other: $word) -> $word {
            let f = $float::from_bits;
            match self {
                Atomic::Swap => data,
                Atomic::CmpSwap => {
                    if old == other {
                        data
                    } else {
                        old
                    }
                }
                Atomic::Add => old.wrapping_add(data),
                Atomic::Sub => old.wrapping_sub(data),
                Atomic::Rsub => data.wrapping_sub(old),
                Atomic::CSub => old.saturating_sub(data),
                Atomic::MinI => (old as $signed).min(data as $signed) as $word,
                Atomic::MinU => old.min(data),
                Atomic::MaxI => (old as $signed).max(data as $signed) as $word,
                Atomic::MaxU => old.max(data),
                Atomic::And => old & data,
                Atomic::Or => old | data,
                Atomic::Xor => old ^ data,
                Atomic::Inc => {
                    if old >= data {
                        0
                    } else {
                        old + 1
                    }
                }
                Atomic::Dec => {
                    if old == 0 || old > data {
                        data
                    } else {
                        old - 1
                    }
                }
                Atomic::MskOr => old & !data | other,
                Atomic::Wrap => {
                    if old >= data {
                        old - data
                    } else {
                        old.wrapping_add(other)
                    }
                }
                Atomic::FAdd => nan::$add(old, data),
                Atomic::FMin => fp::$min(old, data, true),
                Atomic::FMax => fp::$max(old, data, true),
                Atomic::FCmpSwap => {
                    if f(old) == f(other) {
                        data
                    } else {
                        old
                    }
                }
            }
        }
    };
}

impl Atomic {
    /// The operation with number `n`, as stored in a step.
    #[inline(always)]
    pub(crate) fn from_number(n: u16) -> Atomic {
        ALL.get(n as usize).copied().unwrap_or(Atomic::Swap)
    }

    /// The operation and whether it is 64 bits wide, from the mnemonic after its prefix, such as `add_u32`.
    pub(crate) fn from_name(name: &str) -> Option<(Atomic, bool)> {
        let (base, ty) = name.rsplit_once('_')?;
        let wide = ty.ends_with("64");
        let float = ty.starts_with('f');
        let signed = ty.starts_with('i');
        let op = match base {
            "swap" | "storexchg" => Atomic::Swap,
            "cmpswap" | "cmpstore" if float => Atomic::FCmpSwap,
            "cmpswap" | "cmpstore" => Atomic::CmpSwap,
            "add" if float => Atomic::FAdd,
            "add" => Atomic::Add,
            "sub" => Atomic::Sub,
            "rsub" => Atomic::Rsub,
            "csub" => Atomic::CSub,
            "min" if float => Atomic::FMin,
            "max" if float => Atomic::FMax,
            "min" if signed => Atomic::MinI,
            "min" => Atomic::MinU,
            "max" if signed => Atomic::MaxI,
            "max" => Atomic::MaxU,
            "and" => Atomic::And,
            "or" => Atomic::Or,
            "xor" => Atomic::Xor,
            "inc" => Atomic::Inc,
            "dec" => Atomic::Dec,
            "mskor" => Atomic::MskOr,
            "wrap" => Atomic::Wrap,
            _ => return None,
        };
        Some((op, wide))
    }

    apply!(apply32, "32", u32, i32, f32, add32, min_f32, max_f32);
    apply!(apply64, "64", u64, i64, f64, add64, min_f64, max_f64);

    /// Does the operation on shared memory. Returns the old value, or `None` if the address is misaligned.
    ///
    /// # Safety
    /// Four bytes at `address` are mapped writable for the call.
    pub(crate) unsafe fn global32(self, address: u64, data: u32, other: u32) -> Option<u32> {
        let exchange = |a: &AtomicU32| {
            if self == Atomic::Add {
                return a.fetch_add(data, Ordering::SeqCst);
            }
            let mut old = a.load(Ordering::Relaxed);
            loop {
                let new = self.apply32(old, data, other);
                match a.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => return old,
                    Err(now) => old = now,
                }
            }
        };
        // SAFETY: the caller says that four bytes are writable, and pages that are writable are readable on x86-64.
        unsafe { raw::with_atomic_u32(address, exchange) }
    }

    /// As `global32` for 64 bits.
    ///
    /// # Safety
    /// Eight bytes at `address` are mapped writable for the call.
    pub(crate) unsafe fn global64(self, address: u64, data: u64, other: u64) -> Option<u64> {
        let exchange = |a: &AtomicU64| {
            let mut old = a.load(Ordering::Relaxed);
            loop {
                let new = self.apply64(old, data, other);
                match a.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => return old,
                    Err(now) => old = now,
                }
            }
        };
        // SAFETY: the caller says that eight bytes are writable, and pages that are writable are readable on x86-64.
        unsafe { raw::with_atomic_u64(address, exchange) }
    }
}
