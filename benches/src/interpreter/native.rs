// SPDX-License-Identifier: MIT OR Apache-2.0
//! The jobs as plain loops that the compiler vectorises, for the best instruction set this CPU has.
//!
//! INVARIANT: the version for an instruction set is called only after the CPU was found to have it.
#![allow(unsafe_code)]

/// A function with one body, compiled for the base, AVX2 and AVX-512.
macro_rules! leveled {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*) $body:block) => {
        $(#[$doc])*
        pub fn $name($($argument: $kind),*) {
            #[inline(always)]
            fn body($($argument: $kind),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $kind),*) {
                    body($($argument),*);
                }
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
                fn avx512($($argument: $kind),*) {
                    body($($argument),*);
                }
                use std::arch::is_x86_feature_detected as has;
                if has!("avx512f") && has!("avx512vl") && has!("avx512dq") && has!("fma") {
                    // SAFETY: the CPU has the features.
                    return unsafe { avx512($($argument),*) };
                }
                if has!("avx2") && has!("fma") {
                    // SAFETY: the CPU has the features.
                    return unsafe { avx2($($argument),*) };
                }
            }
            body($($argument),*);
        }
    };
}

leveled! {
    /// y += a * x.
    axpy(x: &[f32], y: &mut [f32], a: f32) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = a.mul_add(*x, *y);
        }
    }
}

leveled! {
    /// Five-point stencil on square cells, the edge left alone.
    stencil(from: &[f32], to: &mut [f32], side: usize) {
        for row in 1..side - 1 {
            let line = |row: usize| &from[row * side..(row + 1) * side];
            let (above, here, below) = (line(row - 1), line(row), line(row + 1));
            let to = &mut to[row * side..(row + 1) * side];
            for x in 1..side - 1 {
                let around = (here[x - 1] + here[x + 1]) + (above[x] + below[x]);
                to[x] = 0.125f32.mul_add(around, 0.5 * here[x]);
            }
        }
    }
}

leveled! {
    /// c = a * b for square matrices: four rows of c at a time, in pieces of 64 columns that stay in registers.
    gemm(a: &[f32], b: &[f32], c: &mut [f32], n: usize) {
        const WIDE: usize = 64;
        const HIGH: usize = 4;
        for row in (0..n).step_by(HIGH) {
            for column in (0..n).step_by(WIDE) {
                let mut sums = [[0f32; WIDE]; HIGH];
                for k in 0..n {
                    let b: &[f32; WIDE] = match b[k * n + column..].first_chunk() {
                        Some(b) => b,
                        None => return,
                    };
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let a = a[(row + r) * n + k];
                        for (sum, b) in sums.iter_mut().zip(b) {
                            *sum = a.mul_add(*b, *sum);
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    c[(row + r) * n + column..][..WIDE].copy_from_slice(sums);
                }
            }
        }
    }
}

leveled! {
    /// x = 0.999 * x + 0.25, so many times.
    turn(x: &mut [f32], turns: u32) {
        for x in x.iter_mut() {
            for _ in 0..turns {
                *x = x.mul_add(0.999, 0.25);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_with_a_permutation_permutes_rows() {
        let n = 64;
        let b: Vec<f32> = (0..n * n).map(|v| v as f32).collect();
        let mut a = vec![0.0; n * n];
        for row in 0..n {
            a[row * n + (row + 1) % n] = 1.0;
        }
        let mut c = vec![0.0; n * n];
        gemm(&a, &b, &mut c, n);
        assert_eq!(c[..n], b[n..2 * n]);
        assert_eq!(c[(n - 1) * n..], b[..n]);
    }
}
