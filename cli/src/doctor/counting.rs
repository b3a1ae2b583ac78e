// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that runs for as long as a probe wants.

use anyhow::{Context, Result};
use stasis::{Arg, Kernel, Queue, Signal, TypedBuffer};

use super::bench::Gpu;

/// A kernel that counts until it is told to end.
#[derive(Debug)]
pub(super) struct Counting {
    words: TypedBuffer<u32>,
    done: Signal,
    /// A kernel that is dropped while it runs has the runtime ask its queue, by a packet with the barrier bit.
    _kernel: Kernel,
}

impl Counting {
    /// Starts it on a queue, beside what runs there.
    pub(super) fn start(gpu: &Gpu, queue: &Queue) -> Result<Self> {
        // The host must see the count while the kernel runs.
        let words = gpu.runtime.gtt().upload(&[0_u32; 64])?;
        words.buffer().allow(&gpu.agent)?;
        let kernel = gpu.kernel("until")?;
        let done = gpu.start(queue, &kernel, 1, &[Arg::Buffer(words.buffer())], false)?;
        Ok(Self { words, done, _kernel: kernel })
    }

    fn count(&self) -> Result<u32> {
        Ok(self.words.download()?[1])
    }

    /// Waits until it has counted on.
    pub(super) fn counts(&self, gpu: &Gpu, what: &str) -> Result<()> {
        let before = self.count()?;
        gpu.until(what, || Ok(self.count()? != before))
    }

    /// Tells it to end, and waits for that.
    pub(super) fn end(&self, gpu: &Gpu) -> Result<()> {
        self.words.write(0, &[1])?;
        self.done.wait_done(Some(gpu.patience)).context("A kernel that was told to end did not")
    }

    /// Whether, at its end, its registers held what it had counted.
    pub(super) fn is_whole(&self) -> Result<bool> {
        Ok(self.words.download()?[2] == 2)
    }
}
