// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory such as buffers are made of, and the copies that everything is compared with.
//!
//! INVARIANT: fresh memory has no pages yet; the first access to each costs a fault.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::ptr::{self, NonNull};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use stasis::image::Extent;

/// A mapping of its own.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    /// So many bytes without a page behind them.
    pub fn fresh(bytes: usize) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::SHARED) }?;
        Ok(Self { start: NonNull::new(start.cast()).context("memory at 0")?, bytes })
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our mapping, borrowed uniquely; extents of it are used only between borrows.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// It as so many buffers of one length.
    pub fn extents(&mut self, count: usize) -> Vec<Extent> {
        let each = self.bytes / count;
        let at = |n: usize| NonNull::from(&mut self.bytes()[n * each]);
        // SAFETY: parts of our mapping, which outlives every use of them in `image`.
        (0..count).map(at).map(|start| unsafe { Extent::new(start, each as u64) }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and no borrow is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Seconds of one thread's copy of `from` to `to`.
pub fn copy(from: &mut Memory, to: &mut Memory) -> f64 {
    let started = Instant::now();
    to.bytes().copy_from_slice(black_box(from.bytes()));
    black_box(to.bytes());
    started.elapsed().as_secs_f64()
}
