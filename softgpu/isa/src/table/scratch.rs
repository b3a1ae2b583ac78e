// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the scratch memory format; one row per semantic operation, column order as in [`super`].

macro_rules! scratch_rows {
    ($next:ident $($rest:ident)* ; $($rows:tt)*) => { $next! { $($rest)* ; $($rows)*
SCRATCH_LOAD_U8 [V U8] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x10};
SCRATCH_LOAD_I8 [V I8] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x11};
SCRATCH_LOAD_U16 [V U16] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x12};
SCRATCH_LOAD_I16 [V I16] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x13};
SCRATCH_LOAD_B32 [V B32] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x14};
SCRATCH_LOAD_B64 [V B64] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x15};
SCRATCH_LOAD_B96 [V B96] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x16};
SCRATCH_LOAD_B128 [V B128] [V B32, NONE B32, R B32] {LOAD} Gfx11 {Scratch 0x17};
SCRATCH_STORE_B8 [] [V B32, V B8, R B32] {STORE} Gfx11 {Scratch 0x18};
SCRATCH_STORE_B16 [] [V B32, V B16, R B32] {STORE} Gfx11 {Scratch 0x19};
SCRATCH_STORE_B32 [] [V B32, V B32, R B32] {STORE} Gfx11 {Scratch 0x1a};
SCRATCH_STORE_B64 [] [V B32, V B64, R B32] {STORE} Gfx11 {Scratch 0x1b};
SCRATCH_STORE_B96 [] [V B32, V B96, R B32] {STORE} Gfx11 {Scratch 0x1c};
SCRATCH_STORE_B128 [] [V B32, V B128, R B32] {STORE} Gfx11 {Scratch 0x1d};
SCRATCH_LOAD_D16_U8 [V U8] [V B32, NONE B32, R B32] {LOAD READS_DST} Gfx11 {Scratch 0x1e};
SCRATCH_LOAD_D16_I8 [V I8] [V B32, NONE B32, R B32] {LOAD READS_DST} Gfx11 {Scratch 0x1f};
SCRATCH_LOAD_D16_B16 [V B16] [V B32, NONE B32, R B32] {LOAD READS_DST} Gfx11 {Scratch 0x20};
SCRATCH_LOAD_D16_HI_U8 [V U8] [V B32, NONE B32, R B32] {LOAD READS_DST} Gfx11 {Scratch 0x21};
SCRATCH_LOAD_D16_HI_I8 [V I8] [V B32, NONE B32, R B32] {LOAD READS_DST} Gfx11 {Scratch 0x22};
SCRATCH_LOAD_D16_HI_B16 [V B16] [V B32, NONE B32, R B32] {LOAD READS_DST} Gfx11 {Scratch 0x23};
SCRATCH_STORE_D16_HI_B8 [] [V B32, V B8, R B32] {STORE} Gfx11 {Scratch 0x24};
SCRATCH_STORE_D16_HI_B16 [] [V B32, V B16, R B32] {STORE} Gfx11 {Scratch 0x25};
    } };
}
pub(crate) use scratch_rows;
