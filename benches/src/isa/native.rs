// SPDX-License-Identifier: MIT OR Apache-2.0
//! Native code for the same jobs: native/isa.c, compiled for both widths of vectors by build.rs.
//!
//! INVARIANT: nothing of native/isa.c runs before [`check`] found that the level in use, which this CPU has, is one it was
//! compiled for; pointers are handed over only with buffers whose sizes a [`Case`] vouches for.
#![allow(unsafe_code)]

use std::ffi::c_void;

use anyhow::{Result, bail};
use softgpu_kernels::Array;
use softgpu_waves::Level;

use super::cases::Case;

/// A job: pointers to its buffers, and its size.
type Function = unsafe extern "C" fn(*const *mut c_void, u32);

/// A job for each width of vectors.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    narrow: Function,
    wide: Function,
}

macro_rules! jobs {
    ($($job:ident: $narrow:ident $wide:ident;)*) => {
        unsafe extern "C" {
            $(
                fn $narrow(buffers: *const *mut c_void, size: u32);
                fn $wide(buffers: *const *mut c_void, size: u32);
            )*
        }
        $(
            /// As native/isa.c has it.
            pub const $job: Job = Job { narrow: $narrow, wide: $wide };
        )*
    };
}

jobs! {
    GEMM: isa_gemm_256 isa_gemm_512;
    GEMM_LDS16: isa_gemm_lds16_256 isa_gemm_lds16_512;
    GEMM_F16: isa_gemm_f16_256 isa_gemm_f16_512;
    HASH: isa_hash_256 isa_hash_512;
    MANDELBROT: isa_mandelbrot_256 isa_mandelbrot_512;
    POLY: isa_poly_256 isa_poly_512;
    AXPY: isa_axpy_256 isa_axpy_512;
    COPY: isa_copy_256 isa_copy_512;
    GELU: isa_gelu_256 isa_gelu_512;
    SOFTMAX: isa_softmax_256 isa_softmax_512;
    LAYERNORM: isa_layernorm_256 isa_layernorm_512;
}

unsafe extern "C" {
    safe fn isa_peak_operations_256() -> u32;
    safe fn isa_peak_operations_512() -> u32;
    fn isa_peak_256(turns: u32, by: f32) -> f32;
    fn isa_peak_512(turns: u32, by: f32) -> f32;
    fn isa_halves_256(from: *const f32, to: *mut u16, count: u32);
}

/// The width of the vectors of the code that runs, in bits: the same as waves are executed with.
///
/// # Errors
/// The level in use has none of them.
pub fn check() -> Result<u32> {
    match Level::current() {
        Level::Avx512 => Ok(512),
        Level::Avx2 => Ok(256),
        Level::Baseline => {
            bail!(
                "native/isa.c is compiled for AVX2 and for AVX-512; this CPU has neither, or SOFTGPU_CPU forbids them"
            )
        }
    }
}

fn is_wide() -> bool {
    Level::current() == Level::Avx512
}

/// Does a case's job in `buffers`, which were made from the case's.
pub fn run(job: Job, case: &Case, buffers: &[Array<u8>]) {
    let pointers: Vec<*mut c_void> = buffers
        .iter()
        .map(|buffer| std::ptr::with_exposed_provenance_mut(buffer.address() as usize))
        .collect();
    let sizes = buffers.iter().map(|buffer| buffer.bytes());
    assert!(sizes.eq(case.buffers.iter().map(Vec::len)), "INVARIANT: the buffers are the case's");
    let function = if is_wide() { job.wide } else { job.narrow };
    // SAFETY: the CPU was checked; the buffers are this process's, borrowed here, and as large as the case's size asks for.
    unsafe { function(pointers.as_ptr(), case.size) }
}

/// How often [`peak`] goes round: about a millisecond.
const TURNS: u32 = 20_000;

/// Nothing but fused multiplications and additions.
pub fn peak() {
    let by = std::hint::black_box(0.5);
    // SAFETY: the CPU was checked.
    std::hint::black_box(unsafe {
        if is_wide() { isa_peak_512(TURNS, by) } else { isa_peak_256(TURNS, by) }
    });
}

/// The operations of [`peak`].
pub fn peak_amount() -> f64 {
    let operations = if is_wide() { isa_peak_operations_512() } else { isa_peak_operations_256() };
    f64::from(TURNS) * f64::from(operations)
}

/// Numbers in f16.
pub fn halves(numbers: &[f32]) -> Vec<u16> {
    let mut halves = vec![0; numbers.len()];
    // SAFETY: both have so many elements. CAST: a few matrices.
    unsafe { isa_halves_256(numbers.as_ptr(), halves.as_mut_ptr(), numbers.len() as u32) }
    halves
}
