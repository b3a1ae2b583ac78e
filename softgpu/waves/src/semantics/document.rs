// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values that the RDNA3 ISA document lists for transcendental functions, one row for each of its examples, and the
//! zeros of the other quadrants, which follow the same rule: a zero is positive, unless it is the sine of -0.

use softgpu_isa::{EncodingFamily, Fmt, Op, info};

use super::encode::{VGPR0, Vector};
use super::lab::Lab;
use crate::wave::mode;

/// An operation, its argument and its result.
pub(crate) struct Example {
    pub op: Op,
    pub argument: u32,
    pub result: u32,
}

macro_rules! examples {
    ($($op:ident $argument:literal $result:literal;)*) => {
        &[$(Example { op: Op::$op, argument: $argument, result: $result }),*]
    };
}

/// Denormals are kept and rounding is to nearest, as after a compiler's kernel has begun.
pub(crate) const EXAMPLES: &[Example] = examples! {
    V_EXP_F32 0xFF80_0000 0x0000_0000;
    V_EXP_F32 0x8000_0000 0x3F80_0000;
    V_EXP_F32 0x7F80_0000 0x7F80_0000;
    V_LOG_F32 0xFF80_0000 0xFFC0_0000;
    V_LOG_F32 0xBF80_0000 0xFFC0_0000;
    V_LOG_F32 0x8000_0000 0xFF80_0000;
    V_LOG_F32 0x0000_0000 0xFF80_0000;
    V_LOG_F32 0x3F80_0000 0x0000_0000;
    V_LOG_F32 0x7F80_0000 0x7F80_0000;
    V_RCP_F32 0xFF80_0000 0x8000_0000;
    V_RCP_F32 0xC000_0000 0xBF00_0000;
    V_RCP_F32 0x8000_0000 0xFF80_0000;
    V_RCP_F32 0x0000_0000 0x7F80_0000;
    V_RCP_F32 0x7F80_0000 0x0000_0000;
    V_RSQ_F32 0xFF80_0000 0xFFC0_0000;
    V_RSQ_F32 0x8000_0000 0xFF80_0000;
    V_RSQ_F32 0x0000_0000 0x7F80_0000;
    V_RSQ_F32 0x4080_0000 0x3F00_0000;
    V_RSQ_F32 0x7F80_0000 0x0000_0000;
    V_SQRT_F32 0xFF80_0000 0xFFC0_0000;
    V_SQRT_F32 0x8000_0000 0x8000_0000;
    V_SQRT_F32 0x0000_0000 0x0000_0000;
    V_SQRT_F32 0x4080_0000 0x4000_0000;
    V_SQRT_F32 0x7F80_0000 0x7F80_0000;
    V_SIN_F32 0xFF80_0000 0xFFC0_0000;
    V_SIN_F32 0xFF7F_FFFF 0x0000_0000;
    V_SIN_F32 0x8000_0000 0x8000_0000;
    V_SIN_F32 0x3E80_0000 0x3F80_0000;
    V_SIN_F32 0x7F80_0000 0xFFC0_0000;
    V_COS_F32 0xFF80_0000 0xFFC0_0000;
    V_COS_F32 0xFF7F_FFFF 0x3F80_0000;
    V_COS_F32 0x8000_0000 0x3F80_0000;
    V_COS_F32 0x3E80_0000 0x0000_0000;
    V_COS_F32 0x7F80_0000 0xFFC0_0000;
    V_RCP_F16 0xFC00 0x8000;
    V_RCP_F16 0xC000 0xB800;
    V_RCP_F16 0x8000 0xFC00;
    V_RCP_F16 0x0000 0x7C00;
    V_RCP_F16 0x7C00 0x0000;
    V_SQRT_F16 0xFC00 0xFE00;
    V_SQRT_F16 0x8000 0x8000;
    V_SQRT_F16 0x0000 0x0000;
    V_SQRT_F16 0x4400 0x4000;
    V_SQRT_F16 0x7C00 0x7C00;
    V_RSQ_F16 0xFC00 0xFE00;
    V_RSQ_F16 0x8000 0xFC00;
    V_RSQ_F16 0x0000 0x7C00;
    V_RSQ_F16 0x4400 0x3800;
    V_RSQ_F16 0x7C00 0x0000;
    V_LOG_F16 0xFC00 0xFE00;
    V_LOG_F16 0xBC00 0xFE00;
    V_LOG_F16 0x8000 0xFC00;
    V_LOG_F16 0x0000 0xFC00;
    V_LOG_F16 0x3C00 0x0000;
    V_LOG_F16 0x7C00 0x7C00;
    V_EXP_F16 0xFC00 0x0000;
    V_EXP_F16 0x8000 0x3C00;
    V_EXP_F16 0x7C00 0x7C00;
    V_SIN_F16 0xFC00 0xFE00;
    V_SIN_F16 0xFBFF 0x0000;
    V_SIN_F16 0x8000 0x8000;
    V_SIN_F16 0x3400 0x3C00;
    V_SIN_F16 0x7BFF 0x0000;
    V_SIN_F16 0x7C00 0xFE00;
    V_COS_F16 0xFC00 0xFE00;
    V_COS_F16 0xFBFF 0x3C00;
    V_COS_F16 0x8000 0x3C00;
    V_COS_F16 0x3400 0x0000;
    V_COS_F16 0x7BFF 0x3C00;
    V_COS_F16 0x7C00 0xFE00;
    V_COS_F32 0xBE80_0000 0x0000_0000;
    V_COS_F32 0x3F40_0000 0x0000_0000;
    V_SIN_F32 0x3F00_0000 0x0000_0000;
    V_SIN_F32 0xBF80_0000 0x0000_0000;
    V_COS_F16 0xBA00 0x0000;
    V_SIN_F16 0x3800 0x0000;
};

#[test]
fn interpreter_gives_the_documented_values() {
    let mut lab = Lab::new();
    for example in EXAMPLES {
        let row = info(example.op);
        let is_half = row.name.ends_with("_f16");
        lab.begin(row);
        // So often that every level and every format is tried.
        for trial in 0..16 {
            let mut w = lab.any_wave();
            w.mode = mode::FP_DEFAULT | (if trial % 4 == 0 { mode::IEEE } else { 0 });
            w.set_exec(u64::MAX);
            for lane in 0..w.lanes() {
                w.set_vgpr(3, lane, example.argument);
            }
            let fmt = if trial % 2 == 0 { Fmt::Vop1 } else { Fmt::Vop3 };
            assert!(row.has(EncodingFamily::Gfx11, fmt));
            let fields = Vector { dst: 5, src: [VGPR0 + 3, 0, 0], ..Vector::default() };
            lab.run(&mut w, &fields.encode(row, fmt));
            let got = if is_half { w.vgpr(5, 7) & 0xFFFF } else { w.vgpr(5, 7) };
            let (argument, want) = (example.argument, example.result);
            assert_eq!(got, want, "{}({argument:#x}) is {got:#x}, not {want:#x}", row.name);
        }
    }
}
