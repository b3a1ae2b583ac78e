// SPDX-License-Identifier: MIT OR Apache-2.0
//! v_trig_preop_f64: the 53 bits of 2/pi that matter for reducing an argument of a given exponent.
//!
//! INVARIANT: exact; the bits come from a table of 2/pi and are only shifted.

use super::soft::{self, Env, Format};

/// The first 1201 bits of the fraction of 2/pi, from the most significant on; the rest is zero.
const TWO_OVER_PI: [u64; 19] = [
    0xA2F9_836E_4E44_1529,
    0xFC27_57D1_F534_DDC0,
    0xDB62_9599_3C43_9041,
    0xFE51_63AB_DEBB_C561,
    0xB724_6E3A_424D_D2E0,
    0x0649_2EEA_09D1_921C,
    0xFE1D_EB1C_B129_A73E,
    0xE882_35F5_2EBB_4484,
    0xE99C_7026_B45F_7E41,
    0x3991_D639_8353_39F4,
    0x9C84_5F8B_BDF9_283B,
    0x1FF8_97FF_DE05_980F,
    0xEF2F_118B_5A0A_6D1F,
    0x6D36_7ECF_27CB_09B7,
    0x4F46_3F66_9E5F_EA2D,
    0x7527_BAC7_EBE5_F17B,
    0x3D07_39F7_8A52_92EA,
    0x6BFB_5FB1_1F8D_5D08,
    0x5603_3046_FC7B_0000,
];

/// 53 bits of 2/pi after the first `skip`.
fn bits(skip: usize) -> u64 {
    let word = |k: usize| TWO_OVER_PI.get(k).copied().unwrap_or(0);
    let (at, by) = (skip / 64, skip % 64);
    let pair = u128::from(word(at)) << 64 | u128::from(word(at + 1));
    (pair << by >> 75) as u64
}

/// The `segment`-th 53 bits of 2/pi for the argument `x`, as an f64 of their weight; large arguments skip the bits that
/// only contribute whole turns.
pub(crate) fn preop(x: u64, segment: u32) -> u64 {
    const KEEP: Env = Env { round: 0, flush_in: false, flush_out: false };
    let exponent = (x >> 52 & 0x7FF) as i32;
    let skip = (segment & 31) as i32 * 53 + (exponent - 1077).max(0);
    // Arguments this large are scaled down by the reduction that uses the result.
    let scale = -53 - skip + if exponent >= 1968 { 128 } else { 0 };
    let whole = soft::from_integer(Format::F64, bits(skip as usize) as i64, KEEP);
    soft::ldexp(Format::F64, whole, scale, KEEP)
}
