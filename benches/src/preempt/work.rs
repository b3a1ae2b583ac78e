// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is preempted: many kernels of known length, and one that does not end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stasis::{Arg, Buffer, Kernel, Queue, Signal};

use crate::gpu::Gpu;

/// TIMEOUT: for kernels that were told to stop.
const LOST: Option<Duration> = Some(Duration::from_secs(30));
/// Work-items of a wave.
const LANES: u32 = 32;
/// Work-items of a workgroup of [`Busy`].
const GROUP: u16 = 64;

fn zeroed(gpu: &Gpu, words: u32) -> Result<Buffer> {
    let buffer = gpu.runtime.gtt().alloc(u64::from(words) * 4)?;
    buffer.write(0, &vec![0; words as usize * 4])?;
    Ok(buffer)
}

fn words(buffer: &Buffer) -> Result<Vec<u32>> {
    let bytes = buffer.to_vec()?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

fn tell(stop: &Buffer, value: u32) -> Result<()> {
    Ok(stop.write(0, &value.to_le_bytes())?)
}

/// A kernel that takes a known time.
pub struct Busy<'a> {
    queue: &'a Queue,
    kernel: Kernel,
    ended: Buffer,
    stop: Buffer,
    done: Signal,
    turns: u32,
    each: Duration,
}

impl<'a> Busy<'a> {
    /// Its workgroups.
    pub const GROUPS: u32 = 64;
    /// Its waves.
    pub const WAVES: u32 = Self::GROUPS * GROUP as u32 / LANES;

    /// Finds how many turns take so long here.
    pub fn calibrate(gpu: &Gpu, queue: &'a Queue, wanted: Duration) -> Result<Self> {
        let mut busy = Self {
            queue,
            kernel: gpu.kernel("busy")?,
            ended: zeroed(gpu, 1)?,
            stop: zeroed(gpu, 1)?,
            done: Signal::new(&gpu.runtime, 0)?,
            turns: 16,
            each: Duration::ZERO,
        };
        // Each step is over more turns than the last, so that what a launch itself takes counts less.
        for _ in 0..4 {
            let took = busy.shortest()?;
            let factor = wanted.as_secs_f64() / took.as_secs_f64();
            // CAST: saturates, and is checked by the next step.
            busy.turns = (f64::from(busy.turns) * factor).clamp(1.0, 1e9) as u32;
        }
        busy.each = busy.shortest()?;
        tell(&busy.ended, 0)?;
        Ok(busy)
    }

    fn shortest(&self) -> Result<Duration> {
        let mut shortest = Duration::MAX;
        for _ in 0..5 {
            self.done.store(1)?;
            let started = Instant::now();
            self.dispatch(Some(&self.done))?;
            self.done.wait_done(LOST)?;
            shortest = shortest.min(started.elapsed());
        }
        Ok(shortest)
    }

    fn dispatch(&self, completion: Option<&Signal>) -> Result<()> {
        let arguments = [Arg::Buffer(&self.ended), Arg::Buffer(&self.stop), Arg::U32(self.turns)];
        let items = Self::GROUPS * u32::from(GROUP);
        let dispatch = self.queue.dispatch(&self.kernel).grid([items, 1, 1]).block([GROUP, 1, 1]);
        let dispatch = dispatch.args(&arguments);
        match completion {
            Some(signal) => dispatch.completion(signal).submit()?,
            None => dispatch.submit()?,
        };
        Ok(())
    }

    /// What one takes alone, the way there and back included.
    pub fn each(&self) -> Duration {
        self.each
    }

    /// Puts so many into the queue, one behind the other.
    pub fn submit(self, count: u32) -> Result<Queued<'a>> {
        for _ in 0..count {
            self.dispatch(None)?;
        }
        Ok(Queued { busy: self, count })
    }
}

/// Kernels of which some have run.
pub struct Queued<'a> {
    busy: Busy<'a>,
    count: u32,
}

impl Queued<'_> {
    fn ended(&self) -> Result<u32> {
        Ok(words(&self.busy.ended)?.iter().sum::<u32>())
    }

    /// Lets the rest end at once; how many have ended before. Every workgroup must have ended exactly once.
    pub fn finish(self) -> Result<u32> {
        let before = self.ended()? / Busy::GROUPS;
        ensure!(before + 1 < self.count, "{before} of {} kernels have ended: the queue ran dry", self.count);
        tell(&self.busy.stop, 1)?;
        self.busy.queue.wait_idle(LOST)?;
        let (ended, wanted) = (self.ended()?, self.count * Busy::GROUPS);
        ensure!(ended == wanted, "{ended} workgroups ended, not {wanted}");
        Ok(before)
    }
}

/// A kernel that counts until it is told to stop.
pub struct Endless<'a> {
    queue: &'a Queue,
    out: Buffer,
    stop: Buffer,
    items: u32,
}

impl<'a> Endless<'a> {
    /// Starts so many workgroups of so many items and waits until all their waves run.
    pub fn start(gpu: &Gpu, queue: &'a Queue, groups: u32, group: u16) -> Result<Self> {
        let items = groups * u32::from(group);
        let endless = Self { queue, out: zeroed(gpu, 3 * items)?, stop: zeroed(gpu, 1)?, items };
        let arguments = [
            Arg::Buffer(&endless.out),
            Arg::Buffer(&endless.stop),
            Arg::U32(items),
            Arg::U32(u32::from(group)),
        ];
        let kernel = gpu.kernel("endless")?;
        queue.dispatch(&kernel).grid([items, 1, 1]).block([group, 1, 1]).args(&arguments).submit()?;
        let started = Instant::now();
        while words(&endless.out)?.iter().take(items as usize).any(|&count| count == 0) {
            // TIMEOUT: each wave has a quantum before the next one's turn.
            ensure!(started.elapsed() < Duration::from_secs(30), "not all waves of the endless kernel run");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(endless)
    }

    /// Its waves.
    pub fn waves(&self) -> u32 {
        self.items / LANES
    }

    /// Ends it; every register must have gone on with its memory.
    pub fn finish(self) -> Result<()> {
        tell(&self.stop, 1)?;
        self.queue.wait_idle(LOST)?;
        let out = words(&self.out)?;
        let (counts, rest) = out.split_at(self.items as usize);
        let (kept, broken) = rest.split_at(self.items as usize);
        ensure!(counts == kept, "registers and memory ended apart");
        ensure!(broken.iter().all(|&wrong| wrong == 0), "memory was not what the registers knew");
        Ok(())
    }
}
