// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory such as buffers are made of, and the copies that everything is compared with.
//!
//! INVARIANT: fresh memory has no pages yet; the first access to each costs a fault.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::time::Instant;

use anyhow::Result;
use kfd::transport::{ProtFlags, map_fixed};
use memmap2::{MmapMut, MmapOptions};
use nix::fcntl::SealFlag;
use stasis::image::Extent;

/// Where buffers of the runtime begin, if they are as long.
const ALIGN: usize = 2 << 20;

/// A mapping of its own.
#[derive(Debug)]
pub struct Memory {
    taken: MmapMut,
    within: Range<usize>,
}

impl Memory {
    /// So many bytes without a page behind them.
    pub fn fresh(bytes: usize) -> Result<Self> {
        let file = kfd::linux::memfd("memory", bytes.try_into()?, SealFlag::empty())?;
        let mut taken = MmapOptions::new().len(bytes + ALIGN).no_reserve_swap().map_anon()?;
        let start = taken.as_ptr().addr().next_multiple_of(ALIGN) - taken.as_ptr().addr();
        let within = start..start + bytes;
        let at = taken[within.clone()].as_mut_ptr();
        // SAFETY: a part of what was just mapped, of which there is no reference. Nothing else has the memfd, which ends here, so
        // only this mapping changes its bytes.
        unsafe { map_fixed(file.as_fd(), at, bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, 0) }?;
        Ok(Self { taken, within })
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.taken[self.within.clone()]
    }

    /// It as so many buffers of one length.
    pub fn extents(&mut self, count: usize) -> Vec<Extent<'static>> {
        let each = self.within.len() / count;
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
