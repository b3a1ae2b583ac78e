// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the parameter interpolation format; one row per semantic operation, column order as in [`super`].

macro_rules! vinterp_rows {
    ($next:ident $($rest:ident)* ; $($rows:tt)*) => { $next! { $($rest)* ; $($rows)*
V_INTERP_P10_F32 [V F32] [V F32, V F32, V F32] {CLAMP READS_MODE} Gfx11 {Vinterp 0x0};
V_INTERP_P2_F32 [V F32] [V F32, V F32, V F32] {CLAMP READS_MODE} Gfx11 {Vinterp 0x1};
V_INTERP_P10_F16_F32 [V F32] [V F16, V F32, V F16] {CLAMP OP_SEL READS_MODE} Gfx11 {Vinterp 0x2};
V_INTERP_P2_F16_F32 [V F16] [V F16, V F32, V F32] {CLAMP OP_SEL READS_MODE} Gfx11 {Vinterp 0x3};
V_INTERP_P10_RTZ_F16_F32 [V F32] [V F16, V F32, V F16] {CLAMP OP_SEL READS_MODE} Gfx11 {Vinterp 0x4};
V_INTERP_P2_RTZ_F16_F32 [V F16] [V F16, V F32, V F32] {CLAMP OP_SEL READS_MODE} Gfx11 {Vinterp 0x5};
    } };
}
pub(crate) use vinterp_rows;
