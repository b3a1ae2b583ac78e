// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory such as buffers are made of, and the copies that everything is compared with.
//!
//! INVARIANT: fresh memory has no pages yet; the first access to each costs a fault.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;

use anyhow::Result;
use memmap2::{MmapMut, MmapOptions};
use nix::fcntl::SealFlag;
use stasis::image::Extent;

/// A mapping of its own.
#[derive(Debug)]
pub struct Memory(MmapMut);

impl Memory {
    /// So many bytes without a page behind them.
    pub fn fresh(bytes: usize) -> Result<Self> {
        let file = kfd::linux::memfd("memory", bytes.try_into()?, SealFlag::empty())?;
        // SAFETY: nothing else has the memfd, which ends here, so only this mapping changes its bytes.
        Ok(Self(unsafe { MmapOptions::new().len(bytes).map_mut(&file) }?))
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// It as so many buffers of one length.
    pub fn extents(&mut self, count: usize) -> Vec<Extent<'static>> {
        let each = self.0.len() / count;
        let at = |n: usize| NonNull::from(&mut self.bytes()[n * each]);
        // SAFETY: parts of our mapping, which outlives every use of them in `image`.
        (0..count).map(at).map(|start| unsafe { Extent::new(start, each as u64) }).collect()
    }
}

/// Seconds of one thread's copy of `from` to `to`.
pub fn copy(from: &mut Memory, to: &mut Memory) -> f64 {
    let started = Instant::now();
    to.bytes().copy_from_slice(black_box(from.bytes()));
    black_box(to.bytes());
    started.elapsed().as_secs_f64()
}
