// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peer of everything that moves bytes: libc's memcpy by one thread between two anonymous buffers.
//!
//! INVARIANT: both buffers were written before the first copy, so no copy faults a page in.

use std::hint::black_box;
use std::time::Instant;

/// Bytes that tell where they belong.
pub fn pattern(bytes: usize, salt: u32) -> Vec<u8> {
    let word = |n: u32| n.wrapping_mul(2_654_435_761).wrapping_add(salt).to_le_bytes();
    // CAST: 64 MiB at most.
    (0..bytes as u32 / 4).flat_map(word).collect()
}

/// Two buffers of one size.
#[derive(Debug)]
pub struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Memcpy {
    /// Buffers of so many bytes, touched.
    pub fn new(bytes: usize) -> Self {
        Self { from: vec![1; bytes], to: vec![2; bytes] }
    }

    /// Copies so many times; seconds of one copy.
    pub fn seconds(&mut self, copies: u32) -> f64 {
        let started = Instant::now();
        for _ in 0..copies {
            self.to.copy_from_slice(black_box(&self.from));
            black_box(&mut self.to);
        }
        started.elapsed().as_secs_f64() / f64::from(copies)
    }
}
