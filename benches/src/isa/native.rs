// SPDX-License-Identifier: MIT OR Apache-2.0
//! Native code for the same jobs: native/isa.c, compiled for this machine by build.rs.
//!
//! INVARIANT: nothing of native/isa.c but [`isa_native_bits`] runs before [`check`] found that the CPU has what it was
//! compiled for; pointers are handed over only with buffers whose sizes a [`Case`] vouches for.
#![allow(unsafe_code)]

use std::ffi::c_void;

use anyhow::{Result, ensure};
use softgpu_kernels::Array;

use super::cases::Case;

/// A job: pointers to its buffers, and its size.
pub type Function = unsafe extern "C" fn(*const *mut c_void, u32);

macro_rules! jobs {
    ($($name:ident)*) => {
        unsafe extern "C" {
            $(
                /// As native/isa.c has it.
                pub fn $name(buffers: *const *mut c_void, size: u32);
            )*
        }
    };
}

jobs! {
    isa_gemm isa_gemm_lds16 isa_gemm_f16 isa_hash isa_mandelbrot isa_poly isa_axpy isa_copy isa_gelu isa_softmax isa_layernorm
}

unsafe extern "C" {
    safe fn isa_native_bits() -> u32;
    safe fn isa_peak_operations() -> u32;
    safe fn isa_peak(turns: u32, by: f32) -> f32;
    fn isa_halves(from: *const f32, to: *mut u16, count: u32);
}

/// The width of the vectors that the code was compiled with, in bits.
///
/// # Errors
/// This CPU lacks them: the benchmarks were compiled elsewhere.
pub fn check() -> Result<u32> {
    let bits = isa_native_bits();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let there = match bits {
            512 => has!("avx512f") && has!("avx512vl") && has!("avx512dq") && has!("avx512bw"),
            256 => has!("avx2") && has!("fma"),
            _ => true,
        };
        ensure!(
            there,
            "native/isa.c was compiled for {bits} bits on another CPU: touch benches/build.rs and build again"
        );
    }
    Ok(bits)
}

/// Does a case's job in `buffers`, which were made from the case's.
pub fn run(function: Function, case: &Case, buffers: &[Array<u8>]) {
    let pointers: Vec<*mut c_void> = buffers
        .iter()
        .map(|buffer| std::ptr::with_exposed_provenance_mut(buffer.address() as usize))
        .collect();
    let sizes = buffers.iter().map(|buffer| buffer.bytes());
    assert!(sizes.eq(case.buffers.iter().map(Vec::len)), "INVARIANT: the buffers are the case's");
    // SAFETY: the CPU was checked; the buffers are this process's, borrowed here, and as large as the case's size asks for.
    unsafe { function(pointers.as_ptr(), case.size) }
}

/// How often [`peak`] goes round: about a millisecond.
const TURNS: u32 = 20_000;

/// Nothing but fused multiplications and additions.
pub fn peak() {
    std::hint::black_box(isa_peak(TURNS, std::hint::black_box(0.5)));
}

/// The operations of [`peak`].
pub fn peak_amount() -> f64 {
    f64::from(TURNS) * f64::from(isa_peak_operations())
}

/// Numbers in f16.
pub fn halves(numbers: &[f32]) -> Vec<u16> {
    let mut halves = vec![0; numbers.len()];
    // SAFETY: both have so many elements. CAST: a few matrices.
    unsafe { isa_halves(numbers.as_ptr(), halves.as_mut_ptr(), numbers.len() as u32) }
    halves
}
