// SPDX-License-Identifier: MIT OR Apache-2.0
//! OpenBLAS on one thread: the native code for matrix multiplication (Debian's libopenblas0-pthread).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use anyhow::{Context, Result, ensure};
use libloading::{Library, Symbol};
use softgpu_kernels::Array;

const SONAME: &str = "libopenblas.so.0";
const ROW_MAJOR: c_int = 101;
const NO_TRANSPOSE: c_int = 111;

/// `cblas_sgemm`, with 32-bit integers as Debian builds it.
type Sgemm = unsafe extern "C" fn(
    order: c_int,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f32,
    a: *const f32,
    lda: c_int,
    b: *const f32,
    ldb: c_int,
    beta: f32,
    c: *mut f32,
    ldc: c_int,
);

/// The library.
#[derive(Debug)]
pub struct Blas {
    sgemm: Sgemm,
    /// Which of its kernels it runs.
    pub core: String,
}

impl Blas {
    /// Loads it, for one thread.
    pub fn load() -> Result<Self> {
        // SAFETY: a library of the system, whose initialisers make threads and read the CPU's features.
        let library = unsafe { Library::new(SONAME) };
        // Its threads would outlive it otherwise.
        let library: &'static Library =
            Box::leak(Box::new(library.with_context(|| format!("{SONAME} (package libopenblas0-pthread)"))?));
        // SAFETY: the three have had these types since OpenBLAS 0.2.
        unsafe {
            let set_threads: Symbol<'_, unsafe extern "C" fn(c_int)> =
                library.get(b"openblas_set_num_threads")?;
            set_threads(1);
            let core: Symbol<'_, unsafe extern "C" fn() -> *const c_char> =
                library.get(b"openblas_get_corename")?;
            let core = core();
            ensure!(!core.is_null(), "OpenBLAS has no name for this CPU");
            let core = CStr::from_ptr(core).to_string_lossy().into_owned();
            Ok(Self { sgemm: *library.get(b"cblas_sgemm")?, core })
        }
    }

    /// The third buffer is the product of the first two, n x n each.
    pub fn gemm(&self, n: u32, buffers: &[Array<u8>]) {
        let [a, b, c] = buffers else { return };
        let bytes = n as usize * n as usize * 4;
        assert!(buffers.iter().all(|buffer| buffer.bytes() == bytes), "INVARIANT: the matrices are n x n");
        let pointer =
            |buffer: &Array<u8>| std::ptr::with_exposed_provenance_mut::<f32>(buffer.address() as usize);
        // CAST: some hundreds.
        let side = n as c_int;
        // SAFETY: the buffers are this process's, borrowed here, and of that size.
        unsafe {
            (self.sgemm)(
                ROW_MAJOR,
                NO_TRANSPOSE,
                NO_TRANSPOSE,
                side,
                side,
                side,
                1.0,
                pointer(a),
                side,
                pointer(b),
                side,
                0.0,
                pointer(c),
                side,
            );
        }
    }
}
