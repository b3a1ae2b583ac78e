// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameter interpolation (VINTERP): a multiply-add whose first factor, and in the first pass whose addend, come from a
//! fixed lane of each group of four.
//!
//! INVARIANT: the fixed lane is read independently of EXEC, as in the ISA document's definitions, which do not mention
//! EXEC.

use softgpu_isa::Op;

use super::fp::{self, f16_to_f32};
use super::packed::fma_to_f16;
use super::shapes::{fetch, put, put16};
use super::soft::{self, Format};
use crate::env::Env;
use crate::level::Level;
use crate::step::{Flow, Handler, OUT_CLAMP, Step};
use crate::wave::{Lanes, Wave};

/// Lane of each four that holds the difference along i (first pass), and along j (second pass).
const ALONG: [usize; 2] = [1, 2];
/// The rounding direction of the RTZ operations.
const TOWARD_ZERO: u32 = 3;

/// Handlers of interpolations; all of them run at every level.
pub(super) fn table(_level: Level, op: Op) -> Option<Handler> {
    Some(match op {
        Op::V_INTERP_P10_F32 => interpolate::<false, false, false> as Handler,
        Op::V_INTERP_P2_F32 => interpolate::<true, false, false> as Handler,
        Op::V_INTERP_P10_F16_F32 => interpolate::<false, true, false> as Handler,
        Op::V_INTERP_P2_F16_F32 => interpolate::<true, true, false> as Handler,
        Op::V_INTERP_P10_RTZ_F16_F32 => interpolate::<false, true, true> as Handler,
        Op::V_INTERP_P2_RTZ_F16_F32 => interpolate::<true, true, true> as Handler,
        _ => return None,
    })
}

/// An f16 parameter as f32.
fn widened(x: u32, mode: u32) -> u32 {
    f16_to_f32(fp::flush_in_f16(x & 0xFFFF, mode)).to_bits()
}

/// `SECOND` adds the contribution of j to the first pass's result. With `HALF` the packed parameters, and the second
/// pass's result, are f16. `RTZ` rounds toward zero in every MODE.
fn interpolate<const SECOND: bool, const HALF: bool, const RTZ: bool>(
    w: &mut Wave,
    _: &mut Env<'_>,
    s: &Step,
) -> Flow {
    let m = w.mode;
    let narrow = HALF && SECOND;
    let mut env = if narrow { soft::Env::f16_64(m) } else { soft::Env::f32(m) };
    if RTZ {
        env.round = TOWARD_ZERO;
    }
    let clamp = s.out & OUT_CLAMP != 0;
    for half in 0..w.halves {
        let [a, b, c]: [Lanes; 3] = core::array::from_fn(|k| {
            let mut t = [0u32; 32];
            *fetch(w, &s.src[k], half, &mut t)
        });
        let r: Lanes = core::array::from_fn(|i| {
            let group = i & !3;
            let (x, y) = (a[group + ALONG[usize::from(SECOND)]], b[i]);
            let z = if SECOND { c[i] } else { c[group] };
            let x = if HALF { widened(x, m) } else { x };
            let z = if HALF && !SECOND { widened(z, m) } else { z };
            if narrow {
                let r = fma_to_f16(x, fp::flush_in_f32(y, m), fp::flush_in_f32(z, m), env);
                return fp::finish_f16(r, clamp, 0, m);
            }
            // An f16 denormal is normal in f32; an f32 denormal is flushed as MODE says.
            let r = soft::fma(Format::F32, x.into(), y.into(), z.into(), 0, env) as u32;
            fp::finish_f32(r, clamp, 0, m)
        });
        if narrow {
            put16(w, s, half, &r);
        } else {
            put(w, s.dst as usize, half, &r);
        }
    }
    Flow::Next
}
