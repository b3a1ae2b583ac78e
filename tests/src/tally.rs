// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that does not end by itself, and checks that its registers match its memory.

use stasis::{Arg, Buffer, Kernel, Signal};

use crate::gpu::{Gpu, SOON, faults_object, values};
use crate::worker::wait_until;

/// Work-items of a [`Tally`].
pub const ITEMS: u32 = 128;

/// A kernel that counts and was not stopped yet.
#[derive(Debug)]
pub struct Tally<'a> {
    gpu: &'a Gpu,
    /// Keeps its executable loaded: an error needs the kernel's name.
    _kernel: Kernel,
    /// The counts, then the registers' values at the end, then the mismatches.
    pub out: Buffer,
    stop: Buffer,
    done: Signal,
}

impl<'a> Tally<'a> {
    /// Starts it and waits until every work-item counts.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(gpu: &'a Gpu) -> Self {
        let executable =
            stasis::Executable::load(&gpu.agent, faults_object(gpu.agent.name())).expect("the device works");
        let kernel = executable.kernel("tally").expect("the device works");
        let out = gpu.buffer(&vec![0u32; 3 * ITEMS as usize]);
        let (stop, done) = (gpu.buffer(&[0u32]), Signal::new(&gpu.runtime, 1).expect("the device works"));
        gpu.queue
            .dispatch(&kernel)
            .grid([ITEMS, 1, 1])
            .block([64, 1, 1])
            .args(&[Arg::Buffer(&out), Arg::Buffer(&stop), Arg::U32(ITEMS)])
            .completion(&done)
            .submit()
            .expect("the device works");
        let tally = Self { gpu, _kernel: kernel, out, stop, done };
        tally.wait_for_more();
        tally
    }

    /// Every work-item's count now.
    #[must_use]
    pub fn counts(&self) -> Vec<u32> {
        values::<u32>(&self.out)[..ITEMS as usize].to_vec()
    }

    /// Waits until every work-item has counted on.
    ///
    /// # Panics
    /// When they stand still.
    pub fn wait_for_more(&self) {
        let before = self.counts();
        wait_until("every item counts", || self.counts().iter().zip(&before).all(|(now, old)| now > old));
    }

    /// Ends it, and checks that every register matched its memory.
    ///
    /// # Panics
    /// When one has not.
    pub fn finish(self) {
        self.stop.write(0, &1u32.to_le_bytes()).expect("the device works");
        self.done.wait_done(SOON).expect("the device works");
        let words = values::<u32>(&self.out);
        let (counts, rest) = words.split_at(ITEMS as usize);
        let (kept, broken) = rest.split_at(ITEMS as usize);
        assert_eq!(counts, kept, "registers and memory");
        assert!(broken.iter().all(|&wrong| wrong == 0), "{broken:?}");
        self.gpu.queue.wait_idle(SOON).expect("the device works");
    }
}
