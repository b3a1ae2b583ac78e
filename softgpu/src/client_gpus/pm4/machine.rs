// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a PM4 packet processor: registers, unfinished indirect buffers, and the unfinished dispatch.
//!
//! ```text
//!   ring (or AQL packet) ──INDIRECT_BUFFER──► frame 0 ──INDIRECT_BUFFER──► frame 1
//!                                                  └────── chain: the frame is replaced ──────┘
//! ```
//!
//! INVARIANT: every position is behind the last packet that began, and what such a packet left unfinished is a frame or
//! the job. So a machine that was stopped resumes by finishing these, innermost first.

use std::sync::Arc;

use nix::errno::Errno;
use queues::pm4::{IndirectBuffer, Pm4Error, packet_dwords};
use queues::save_area::WaveRecord;
use queues::words::count;
use softgpu_waves::{MemoryFault, Vm};

use super::registers::Registers;
use crate::client_gpus::core::{Core, Exit};
use crate::client_gpus::dispatch::{Job, Progress};
use crate::client_gpus::doorbell::Nap;
use crate::client_gpus::gpu::{Gpu, Wake};
use crate::client_gpus::mqd::{Reader, Writer};
use crate::client_gpus::xccs::DispatchWaves;
use crate::hardware::HwQueue;

/// The most indirect buffers inside each other.
pub(super) const DEPTH: usize = 2;

/// An unfinished indirect buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    address: u64,
    dwords: u32,
    /// Dword of the packet to execute next.
    next: u32,
}

impl Frame {
    /// Reads the packet at the position, without leaving the buffer.
    fn fetch(&self, vm: &Vm, words: &mut Vec<u32>) -> Result<(), Exit> {
        let address = self.address.wrapping_add(u64::from(self.next) * 4);
        // CAST: 20 bits.
        let available = (self.dwords - self.next) as usize;
        let wanted = packet_dwords(vm.read_u32(address)?)?;
        if wanted > available {
            return Err(Pm4Error::Truncated { wanted, available }.into());
        }
        append(vm, address, wanted, words)?;
        Ok(())
    }
}

/// Appends dwords from memory.
///
/// # Errors
/// The fault.
pub(super) fn append(vm: &Vm, address: u64, dwords: usize, words: &mut Vec<u32>) -> Result<(), MemoryFault> {
    let mut piece = [0_u8; 256];
    let (mut address, mut left) = (address, dwords * 4);
    while let Some(bytes) = piece.get_mut(..left.min(256)).filter(|bytes| !bytes.is_empty()) {
        vm.read_bytes(address, bytes)?;
        words.extend(bytes.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes));
        // CAST: at most 256.
        address = address.wrapping_add(bytes.len() as u64);
        left -= bytes.len();
    }
    Ok(())
}

/// How a stream continues after a packet that was executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Dwords to the next packet of the stream; 0 if the packet was not executed yet ([`Machine::advance`]).
    pub(super) dwords: u32,
    /// What is to be executed before it.
    pub(super) buffer: Option<IndirectBuffer>,
}

/// A PM4 packet processor without a ring.
#[derive(Debug, Default)]
pub(in crate::client_gpus) struct Machine {
    pub(super) registers: Registers,
    /// Innermost last.
    pub(super) frames: Vec<Frame>,
    pub(super) job: Option<Box<Job>>,
    /// Which XCC executes it, and whether others execute the same packets beside it.
    pub(super) xcc: u32,
    pub(super) shared: bool,
    /// Memory for one packet.
    words: Vec<u32>,
}

impl Machine {
    /// A machine that executes one indirect buffer.
    pub(in crate::client_gpus) fn indirect(address: u64, dwords: u32) -> Self {
        Self { frames: vec![Frame { address, dwords, next: 0 }], ..Self::default() }
    }

    /// The same machine as the part of an XCC, whose packets other XCCs execute too.
    pub(in crate::client_gpus) fn of_xcc(self, xcc: u32) -> Self {
        Self { xcc, shared: true, ..self }
    }

    /// Executes what is unfinished; returns when nothing is left.
    ///
    /// # Errors
    /// [`Exit::Left`] when the queue has to leave: the next call resumes. [`Exit::Raised`] when it halts.
    pub(in crate::client_gpus) fn run(&mut self, core: &Core) -> Result<(), Exit> {
        while !self.is_done() {
            self.advance(core)?;
        }
        Ok(())
    }

    /// Whether nothing is unfinished.
    pub(in crate::client_gpus) fn is_done(&self) -> bool {
        self.job.is_none() && self.frames.is_empty()
    }

    /// Whether a dispatch has begun and not ended.
    pub(in crate::client_gpus) fn is_in_dispatch(&self) -> bool {
        self.job.is_some()
    }

    /// Executes a packet of what is unfinished, or ends a part of it. Answers whether anything happened: a machine that shares
    /// its packets does not wait, since what it would wait for may be another one's to do.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub(in crate::client_gpus) fn advance(&mut self, core: &Core) -> Result<bool, Exit> {
        if core.must_leave() {
            return Err(Exit::Left);
        }
        match self.job.take() {
            Some(job) => self.run_job(core, job).map(|()| true),
            None => self.run_frame(core),
        }
    }

    fn run_job(&mut self, core: &Core, mut job: Box<Job>) -> Result<(), Exit> {
        let gpu = &core.gpu;
        job.begin(gpu, &core.control, Some(Arc::new(Wake(Arc::clone(gpu)))))?;
        let mut nap = Nap::default();
        let over = |job: &Job| core.must_leave() || job.is_over();
        while !over(&job) {
            gpu.doorbells.park_beside_waves(&mut nap, || over(&job));
        }
        let progress = job.end(gpu)?;
        // A dispatch that did not last may have rung, too.
        gpu.doorbells.notice();
        match progress {
            Progress::Completed => {
                core.gpu.waiters.wake();
                Ok(())
            }
            Progress::Paused => {
                self.job = Some(job);
                Err(Exit::Left)
            }
            Progress::Aborted => Err(Exit::Left),
        }
    }

    /// Executes a packet of the innermost buffer, or ends the buffer.
    fn run_frame(&mut self, core: &Core) -> Result<bool, Exit> {
        let Some(frame) = self.frames.last().copied() else { return Ok(true) };
        if frame.next >= frame.dwords {
            self.frames.pop();
            return Ok(true);
        }
        let step = self.execute_from(core, |words| frame.fetch(&core.gpu.vm, words).map(|()| true))?;
        let Some(step) = step.filter(|step| step.dwords > 0) else { return Ok(false) };
        if let Some(frame) = self.frames.last_mut() {
            frame.next = frame.next.saturating_add(step.dwords).min(frame.dwords);
        }
        self.enter(&step);
        Ok(true)
    }

    /// Executes the packet that `fetch` gets; `None` if it says that there is none.
    ///
    /// # Errors
    /// As [`Machine::run`]; the packet has had no effect then.
    pub(super) fn execute_from(
        &mut self,
        core: &Core,
        fetch: impl FnOnce(&mut Vec<u32>) -> Result<bool, Exit>,
    ) -> Result<Option<Step>, Exit> {
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        let result = match fetch(&mut words) {
            Ok(true) => self.execute(core, &words).map(Some),
            Ok(false) => Ok(None),
            Err(exit) => Err(exit),
        };
        self.words = words;
        result
    }

    /// Goes into the buffer that a step found, if it found one. The stream's position is behind the packet by now.
    pub(super) fn enter(&mut self, step: &Step) {
        let Some(IndirectBuffer { address, dwords, chain, .. }) = step.buffer else { return };
        if chain {
            self.frames.pop();
        }
        self.frames.push(Frame { address, dwords, next: 0 });
    }

    /// The waves of the interrupted dispatch.
    pub(in crate::client_gpus) fn waves(&self) -> DispatchWaves<'_> {
        self.job.as_ref().map_or_else(Vec::new, |job| job.waves())
    }

    /// `COMPUTE_PGM_RSRC1` of the dispatch that has running waves.
    pub(in crate::client_gpus) fn preempted_rsrc1(&self) -> Option<u32> {
        self.job.as_ref().and_then(|job| job.preempted_rsrc1())
    }

    /// Writes everything but the waves.
    pub(in crate::client_gpus) fn store(&self, writer: &mut Writer) {
        self.registers.store(writer);
        // CAST: at most `DEPTH`.
        writer.put(count(self.frames.len()));
        for frame in &self.frames {
            writer.put64(frame.address);
            writer.put(frame.dwords);
            writer.put(frame.next);
        }
        writer.put(u32::from(self.job.is_some()));
        if let Some(job) = &self.job {
            job.store(writer);
        }
    }

    /// Reads what [`Machine::store`] wrote.
    ///
    /// # Errors
    /// `EINVAL` when no machine can have this state.
    pub(in crate::client_gpus) fn load(
        reader: &mut Reader<'_>,
        gpu: &Gpu,
        config: &HwQueue,
        waves: Vec<WaveRecord>,
    ) -> Result<Self, Errno> {
        let registers = Registers::load(reader);
        let count = usize::try_from(reader.take()).ok().filter(|&count| count <= DEPTH);
        let frame = |_| {
            let frame = Frame { address: reader.take64(), dwords: reader.take(), next: reader.take() };
            if frame.next <= frame.dwords { Ok(frame) } else { Err(Errno::EINVAL) }
        };
        let frames = (0..count.ok_or(Errno::EINVAL)?).map(frame).collect::<Result<_, _>>()?;
        let job = match reader.take() {
            0 if waves.is_empty() => None,
            1 => Some(Box::new(Job::load(reader, gpu, config, waves)?)),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self { registers, frames, job, ..Self::default() })
    }
}
