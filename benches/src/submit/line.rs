// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue whose processor can be held at a barrier, and the loops that submit to it; and the bare loop beside them.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use queues::aql::RawPacket;
use stasis::{Arg, Buffer, CommandList, Dispatch, Kernel, Queue, QueueOptions, Signal, SubmitError};

use crate::gpu::Gpu;

/// TIMEOUT: for what a queue of empty kernels has left.
const DRAIN: Duration = Duration::from_secs(30);
/// Packets of a batch and of a list.
pub const TOGETHER: u32 = 50;
/// The argument of the second kernel that is replaced in a list.
const FACTOR: usize = 2;

/// The queue with what is submitted to it.
#[derive(Debug)]
pub struct Line {
    queue: Queue,
    empty: Kernel,
    axpy: Kernel,
    x: Buffer,
    y: Buffer,
    gate: Signal,
    done: Signal,
    empty_list: CommandList,
    axpy_list: CommandList,
    gpu: Gpu,
}

impl Line {
    /// A queue of so many packets on a device just opened.
    pub fn open(packets: u32) -> Result<Self> {
        let gpu = Gpu::open()?;
        let options = QueueOptions { packets, kernarg_slot_bytes: 64, ..QueueOptions::default() };
        let queue = Queue::create(&gpu.agent, options)?;
        let mut line = Self {
            empty: gpu.kernel("empty")?,
            axpy: gpu.kernel("axpy")?,
            x: gpu.agent.vram().alloc(4096)?,
            y: gpu.agent.vram().alloc(4096)?,
            gate: Signal::new(&gpu.runtime, 0)?,
            done: Signal::new(&gpu.runtime, 0)?,
            empty_list: CommandList::new(&queue),
            axpy_list: CommandList::new(&queue),
            queue,
            gpu,
        };
        line.record()?;
        Ok(line)
    }

    /// Fills the two lists.
    fn record(&mut self) -> Result<()> {
        let (mut empty, mut axpy) = (CommandList::new(&self.queue), CommandList::new(&self.queue));
        for _ in 0..TOGETHER {
            empty.dispatch(self.empty_dispatch())?;
            axpy.dispatch(self.axpy_dispatch(&self.axpy_arguments()))?;
        }
        (self.empty_list, self.axpy_list) = (empty, axpy);
        Ok(())
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Stops the processor at a barrier.
    pub fn hold(&self) -> Result<()> {
        self.gate.store(1)?;
        self.queue.barrier(&[&self.gate], None)?;
        Ok(())
    }

    /// Lets it go on, and waits until it has nothing left.
    pub fn release(&self) -> Result<()> {
        self.gate.store(0)?;
        Ok(self.queue.wait_idle(Some(DRAIN))?)
    }

    /// Submits empty kernels; a full queue is spun on.
    pub fn submit_empty(&self, count: u32) -> Result<()> {
        for _ in 0..count {
            insist(|| self.empty_dispatch().submit())?;
        }
        Ok(())
    }

    /// The same as batches, whose dispatches are made anew every time.
    pub fn submit_empty_batch(&self, count: u32) -> Result<()> {
        let mut dispatches = Vec::with_capacity(TOGETHER as usize);
        for _ in 0..count / TOGETHER {
            dispatches.clear();
            dispatches.extend((0..TOGETHER).map(|_| self.empty_dispatch()));
            insist(|| self.queue.submit_batch(&dispatches))?;
        }
        Ok(())
    }

    /// The same as a list.
    pub fn submit_empty_list(&self, count: u32) -> Result<()> {
        for _ in 0..count / TOGETHER {
            insist(|| self.empty_list.submit())?;
        }
        Ok(())
    }

    /// Submits kernels with two buffers, two numbers and a completion signal.
    pub fn submit_axpy(&self, count: u32) -> Result<()> {
        let arguments = self.axpy_arguments();
        for _ in 0..count {
            let dispatch = self.axpy_dispatch(&arguments);
            insist(|| dispatch.clone().submit())?;
        }
        Ok(())
    }

    /// The same as batches, whose dispatches are made anew every time.
    pub fn submit_axpy_batch(&self, count: u32) -> Result<()> {
        let arguments = self.axpy_arguments();
        let mut dispatches = Vec::with_capacity(TOGETHER as usize);
        for _ in 0..count / TOGETHER {
            dispatches.clear();
            dispatches.extend((0..TOGETHER).map(|_| self.axpy_dispatch(&arguments)));
            insist(|| self.queue.submit_batch(&dispatches))?;
        }
        Ok(())
    }

    /// The same as a list of which one argument of every packet is replaced before every submission.
    pub fn submit_axpy_list(&mut self, count: u32) -> Result<()> {
        for round in 0..count / TOGETHER {
            for packet in 0..TOGETHER as usize {
                self.axpy_list.set_arg(packet, FACTOR, Arg::F32(round as f32))?;
            }
            insist(|| self.axpy_list.submit())?;
        }
        Ok(())
    }

    fn empty_dispatch(&self) -> Dispatch<'_> {
        self.queue.dispatch(&self.empty).grid([32, 1, 1]).block([32, 1, 1])
    }

    fn axpy_arguments(&self) -> [Arg<'_>; 4] {
        [Arg::Buffer(&self.x), Arg::Buffer(&self.y), Arg::F32(0.5), Arg::U32(32)]
    }

    fn axpy_dispatch<'a>(&'a self, arguments: &'a [Arg<'a>]) -> Dispatch<'a> {
        let dispatch = self.queue.dispatch(&self.axpy).grid([32, 1, 1]).block([32, 1, 1]);
        dispatch.args(arguments).completion(&self.done)
    }
}

/// Submits until the queue is not full.
fn insist<T>(submit: impl Fn() -> Result<T, SubmitError>) -> Result<T, SubmitError> {
    loop {
        match submit() {
            Err(SubmitError::WouldBlock { .. }) => spin_loop(),
            other => return other,
        }
    }
}

/// A ring and a doorbell that nobody reads.
#[derive(Debug)]
pub struct Bare {
    ring: Vec<RawPacket>,
    bell: AtomicU64,
}

impl Bare {
    /// A ring of so many packets, a power of two, in memory that was touched.
    pub fn new(packets: u32) -> Self {
        Self { ring: vec![[1; 16]; packets as usize], bell: AtomicU64::new(0) }
    }

    /// Copies a packet into the next slot and stores its index, again and again.
    pub fn submit(&mut self, count: u32) {
        let packet: &RawPacket = black_box(&[2; 16]);
        let Self { ring, bell } = black_box(self);
        let mask = ring.len() - 1;
        let first = bell.load(Ordering::Relaxed);
        for index in first..first + u64::from(count) {
            // CAST: u64 and usize are the same here.
            ring[index as usize & mask] = *packet;
            // ORDERING: as a doorbell is rung.
            bell.store(index, Ordering::Release);
        }
    }
}
