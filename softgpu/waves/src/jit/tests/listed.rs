// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that generated code must do inline at both widths, and their results for all pairs of special values.

use softgpu_isa::{EncodingFamily, Fmt, Op, info};

use super::random::{self, Random};
use super::{Place, compare_from, generates_code, hunt, steps};
use crate::jit::floats::Floats;
use crate::jit::lane;
use crate::step::{Kind, Step};
use crate::valu::fp::f16_to_f32;
use crate::wave::{Wave, mode};

#[test]
fn listed_operations_agree() {
    if !generates_code() {
        return;
    }
    hunt(0x0BAD_CAFE, 1, 2, INLINE);
    hunt(0x0DDB_A115, 24, 3, INLINE);
}

/// Operations that are inline at both widths, without the commonest.
pub(super) const INLINE: &[Op] = {
    use Op::*;
    &[
        V_CVT_F32_U32,
        V_PACK_B32_F16,
        V_FMA_MIX_F32,
        V_FMA_MIXLO_F16,
        V_FMA_MIXHI_F16,
        V_MIN_F32,
        V_MAX_F32,
        V_CNDMASK_B32,
        V_ADD_CO_U32,
        V_SUB_CO_U32,
        V_SUBREV_CO_U32,
        V_ADD_CO_CI_U32,
        V_SUB_CO_CI_U32,
        V_SUBREV_CO_CI_U32,
        V_LSHLREV_B64,
        V_MAD_U64_U32,
        V_MUL_HI_U32,
        V_ALIGNBIT_B32,
        V_CMP_LT_F32,
        V_CMP_NLG_F32,
        V_CMP_LT_I32,
        V_CMP_EQ_I32,
        V_CMP_LE_I32,
        V_CMP_GT_I32,
        V_CMP_NE_I32,
        V_CMP_GE_I32,
        V_CMP_LT_U32,
        V_CMP_EQ_U32,
        V_CMP_LE_U32,
        V_CMP_GT_U32,
        V_CMP_NE_U32,
        V_CMP_GE_U32,
        V_CMP_LT_I64,
        V_CMP_EQ_I64,
        V_CMP_LE_I64,
        V_CMP_GT_I64,
        V_CMP_NE_I64,
        V_CMP_GE_I64,
        V_CMP_LT_U64,
        V_CMP_EQ_U64,
        V_CMP_LE_U64,
        V_CMP_GT_U64,
        V_CMP_NE_U64,
        V_CMP_GE_U64,
        V_CMPX_GT_U64,
        V_CMPX_LE_U32,
        V_CMPX_NE_I32,
        V_CVT_I32_F32,
        V_CVT_FLOOR_I32_F32,
        V_CVT_U32_F32,
        V_CVT_F32_F16,
        V_CVT_F16_F32,
        V_CVT_F16_U16,
        V_CVT_F16_I16,
        V_CVT_PK_RTZ_F16_F32,
        V_CVT_PK_U16_U32,
        V_CVT_PK_I16_I32,
        V_CVT_I32_I16,
        V_CVT_U32_U16,
        V_CVT_F32_UBYTE0,
        V_CVT_F32_UBYTE1,
        V_CVT_F32_UBYTE2,
        V_CVT_F32_UBYTE3,
        V_CVT_OFF_F32_I4,
        V_RCP_F32,
        V_RCP_IFLAG_F32,
        V_RSQ_F32,
        V_EXP_F32,
        V_LOG_F32,
        V_SIN_F32,
        V_COS_F32,
        V_SQRT_F32,
        V_FRACT_F32,
        V_LDEXP_F32,
        V_FREXP_MANT_F32,
        V_FREXP_EXP_I32_F32,
        V_DIV_SCALE_F32,
        V_DIV_FMAS_F32,
        V_DIV_FIXUP_F32,
        V_MIN3_F32,
        V_MAX3_F32,
        V_MED3_F32,
        V_MAXMIN_F32,
        V_MINMAX_F32,
        V_MUL_HI_I32,
        V_MUL_I32_I24,
        V_MAD_I32_I24,
        V_BFE_I32,
        V_BFM_B32,
        V_ALIGNBYTE_B32,
        V_LSHRREV_B64,
        V_ASHRREV_I64,
        V_BCNT_U32_B32,
        V_MBCNT_LO_U32_B32,
        V_MBCNT_HI_U32_B32,
        V_PERM_B32,
        V_XNOR_B32,
        V_MIN3_I32,
        V_MAX3_I32,
        V_MED3_I32,
        V_MIN3_U32,
        V_MAX3_U32,
        V_MED3_U32,
        V_MAXMIN_I32,
        V_MINMAX_I32,
        V_MAXMIN_U32,
        V_MINMAX_U32,
    ]
};

#[test]
fn listed_operations_are_inline() {
    let floats = Floats::of(mode::FP_DEFAULT | mode::IEEE);
    let mut r = Random(0x5EED_5EED);
    for &op in INLINE {
        let some = (0..2000).any(|_| {
            let words = random::instruction(&mut r, Some(op));
            matches!(&steps(&words)[..], [s] if lane::emitter(s, floats).is_some())
        });
        assert!(some, "{op:?} is left to its handler");
    }
}

/// Zeros, denormals, the ends of ranges of f32, f16 and integers, infinities, NaNs of both kinds.
const SPECIAL: [u32; 40] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007F_FFFF,
    0x807F_FFFF,
    0x0080_0000,
    0x8080_0000,
    0x0100_0000,
    0x3F80_0000,
    0xBF80_0000,
    0x3F00_0000,
    0xBF00_0001,
    0x3F7F_FFFF,
    0x3FC0_0000,
    0x7F00_0000,
    0x7E80_0001,
    0x7F7F_FFFF,
    0xFF7F_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_1234,
    0xFFC0_0001,
    0x7F80_0001,
    0xFFBF_FFFF,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    0x4EFF_FFFF,
    0x4F00_0000,
    0xCF00_0000,
    0x4F7F_FFFF,
    0x4F80_0000,
    0x477F_F000,
    0x477F_EFFF,
    0x3300_0000,
    0x3880_0000,
    0x3C00_BC00,
    0x7C01_7E01,
    0x8000_7FFF,
    31,
];

/// Words of `op` whose sources are different VGPRs without modifiers, and their step.
fn of_registers(r: &mut Random, op: Op) -> Option<(Vec<u32>, Step)> {
    (0..400).find_map(|_| {
        let words = random::instruction(r, Some(op));
        let [step] = steps(&words).try_into().ok()?;
        let n = softgpu_isa::info(op).src.len().min(3);
        let sources = &step.src[..n];
        let plain = sources.iter().all(|s| matches!(s.kind, Kind::Vgpr | Kind::Scalar));
        let vectors: Vec<u16> = sources.iter().filter(|s| s.kind == Kind::Vgpr).map(|s| s.index).collect();
        let apart = (1..vectors.len()).all(|k| !vectors[..k].contains(&vectors[k]));
        (plain && apart && vectors.len() >= n.min(2)).then_some((words, step))
    })
}

fn all_pairs(place: &Place, r: &mut Random, op: Op) {
    let Some((mut words, step)) = of_registers(r, op) else { return };
    words.push(random::END);
    let count = SPECIAL.len();
    for first in (0..count * count).step_by(64) {
        let mut start = special(r, 64, place.at);
        // Two rows for each VGPR.
        let rows = |index: u16| 2 * index as usize;
        for lane in 0..64 {
            let pair = (first + lane) % (count * count);
            for (src, value) in step.src.iter().zip([pair / count, pair % count]) {
                if src.kind == Kind::Vgpr {
                    start.v[rows(src.index) + lane / 32].0[lane % 32] = SPECIAL[value];
                }
            }
        }
        if let Err(text) = compare_from(place, &words, start, r.next()) {
            panic!("{text}");
        }
    }
}

/// A wave whose VGPRs have special values only.
fn special(r: &mut Random, lanes: usize, at: u64) -> Wave {
    let mut w = super::wave(r, lanes, at);
    for x in w.v.iter_mut().flat_map(|row| &mut row.0) {
        *x = SPECIAL[r.below(SPECIAL.len() as u64) as usize];
    }
    w.mode = w.mode & !0xFF | mode::FP_DEFAULT;
    if !r.chance(6) {
        w.mode |= mode::IEEE;
    }
    w
}

#[test]
fn listed_operations_agree_on_special_values() {
    if !generates_code() {
        return;
    }
    let (place, mut r) = (Place::new(), Random(0x05EC_1A15));
    for &op in INLINE {
        all_pairs(&place, &mut r, op);
        // Any form, and three sources.
        for _ in 0..60 {
            let mut words = random::instruction(&mut r, Some(op));
            words.extend([random::END]);
            let lanes = if r.chance(2) { 64 } else { 32 };
            let start = special(&mut r, lanes, place.at);
            if let Err(text) = compare_from(&place, &words, start, r.next()) {
                panic!("{text}");
            }
        }
    }
}

/// Sums that differ from a value halfway between two f16 by as little as an f32 or less: rounding them twice is wrong.
#[test]
fn mixed_sums_next_to_halfway_agree() {
    if !generates_code() {
        return;
    }
    let (place, mut r) = (Place::new(), Random(0x0A1F_0A1F));
    for n in 0..400 {
        let op = if n % 2 == 0 { Op::V_FMA_MIXLO_F16 } else { Op::V_FMA_MIXHI_F16 };
        let code = info(op).opcode(EncodingFamily::Gfx11, Fmt::Vop3p).expect("an opcode");
        // v5 = v3 * v4 + v6, all of f32.
        let words =
            [0xCC00_0005 | u32::from(code) << 16, 0x0400_0000 | 0x103 | 0x104 << 9 | 6 << 18, random::END];
        let mut w = Wave::new(32, random::VGPRS as usize);
        w.mode = mode::FP_DEFAULT;
        w.set_exec(u64::MAX);
        w.pc = place.at;
        for lane in 0..32 {
            let h = r.below(0x7BFF) as u32;
            let halfway = (f16_to_f32(h) + f16_to_f32(h + 1)) / 2.0;
            let sign = |r: &mut Random| if r.chance(2) { 1.0 } else { -1.0 };
            w.v[6].0[lane] = (halfway * sign(&mut r)).to_bits();
            w.v[3].0[lane] = (2f32.powi(-(r.below(70) as i32)) * sign(&mut r)).to_bits();
            w.v[4].0[lane] = (2f32.powi(-(r.below(70) as i32)) * sign(&mut r)).to_bits();
            w.v[5].0[lane] = r.bits();
        }
        if let Err(text) = compare_from(&place, &words, w, r.next()) {
            panic!("{text}");
        }
    }
}
