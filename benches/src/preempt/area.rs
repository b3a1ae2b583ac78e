// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a lock saved of a queue's waves.
//!
//! The runtime has the driver say it whenever it writes an image of preempted queues, and an image says where the area is.
//!
//! INVARIANT: the area stays where it is for the queue's whole life, checkpoints included.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result};
use queues::save_area::{HEADER_BYTES, SaveAreaHeader};
use stasis::checkpoint::{IMAGE_FILE, Metadata, Mode};
use stasis::image::Image;
use stasis::registry::state::BoRole;
use stasis::{Queue, QueueOptions};
use tempfile::TempDir;

use crate::checkpoint::Place;
use crate::gpu::Gpu;

/// TIMEOUT: for one lock.
const LOST: Duration = Duration::from_secs(10);
/// Checkpoints whose largest count is taken: one may come between two kernels.
const TRIES: u32 = 5;

/// A queue and its save area.
pub struct SaveArea {
    queue: Queue,
    va: u64,
    directory: TempDir,
}

impl SaveArea {
    /// Makes the process's one queue.
    pub fn of_a_new_queue(gpu: &Gpu) -> Result<Self> {
        let queue =
            Queue::create(&gpu.agent, QueueOptions { kernarg_slot_bytes: 64, ..QueueOptions::default() })?;
        let directory = Place::tmpfs()?.directory;
        let mut area = Self { queue, va: 0, directory };
        area.checkpoint(gpu, || Ok(()))?;
        let image = Image::open(&area.directory.path().join(IMAGE_FILE))?;
        let metadata: Metadata = image.metadata()?;
        let mut areas = metadata.registry.bos.entries.iter().filter(|(_, bo)| bo.role == BoRole::SaveArea);
        area.va = areas.next().context("The queue has no save area")?.1.va;
        Ok(area)
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn checkpoint<T>(&self, gpu: &Gpu, locked: impl FnOnce() -> Result<T>) -> Result<T> {
        gpu.runtime.lock(Mode::Preempt, LOST)?;
        gpu.runtime.checkpoint(self.directory.path())?;
        gpu.runtime.restore(None)?;
        let result = locked();
        gpu.runtime.unlock()?;
        result
    }

    /// Bytes of control stack and wave records that a lock saves now.
    pub fn saved(&self, gpu: &Gpu) -> Result<u64> {
        let mut most = 0;
        for _ in 0..TRIES {
            let bytes = self.checkpoint(gpu, || {
                let mut header = [0; HEADER_BYTES];
                // The process's own memory, which shared memory of the device is never borrowed from.
                File::open("/proc/self/mem")?.read_exact_at(&mut header, self.va)?;
                let state = SaveAreaHeader::from_bytes(&header).wave_state;
                Ok(u64::from(state.control_stack_size) + u64::from(state.wave_state_size))
            })?;
            most = most.max(bytes);
            std::thread::sleep(Duration::from_millis(3));
        }
        Ok(most)
    }
}
