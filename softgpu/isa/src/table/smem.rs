// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the scalar memory format; one row per semantic operation, column order as in [`super`].

macro_rules! smem_rows {
    ($next:ident $($rest:ident)* ; $($rows:tt)*) => { $next! { $($rest)* ; $($rows)*
S_LOAD_B32 [D B32] [R B64, OFF B32] {LOAD} Gfx11 {Smem 0x0};
S_LOAD_B64 [D B64] [R B64, OFF B32] {LOAD} Gfx11 {Smem 0x1};
S_LOAD_B128 [D B128] [R B64, OFF B32] {LOAD} Gfx11 {Smem 0x2};
S_LOAD_B256 [D B256] [R B64, OFF B32] {LOAD} Gfx11 {Smem 0x3};
S_LOAD_B512 [D B512] [R B64, OFF B32] {LOAD} Gfx11 {Smem 0x4};
S_BUFFER_LOAD_B32 [D B32] [R B128, OFF B32] {LOAD} Gfx11 {Smem 0x8};
S_BUFFER_LOAD_B64 [D B64] [R B128, OFF B32] {LOAD} Gfx11 {Smem 0x9};
S_BUFFER_LOAD_B128 [D B128] [R B128, OFF B32] {LOAD} Gfx11 {Smem 0xa};
S_BUFFER_LOAD_B256 [D B256] [R B128, OFF B32] {LOAD} Gfx11 {Smem 0xb};
S_BUFFER_LOAD_B512 [D B512] [R B128, OFF B32] {LOAD} Gfx11 {Smem 0xc};
S_GL1_INV [] [] {CACHE} Gfx11 {Smem 0x20};
S_DCACHE_INV [] [] {CACHE} Gfx11 {Smem 0x21};
S_ATC_PROBE [] [R B64, OFF B32, K B8] {HINT} Gfx11 {Smem 0x22};
S_ATC_PROBE_BUFFER [] [R B128, OFF B32, K B8] {HINT} Gfx11 {Smem 0x23};
    } };
}
pub(crate) use smem_rows;
