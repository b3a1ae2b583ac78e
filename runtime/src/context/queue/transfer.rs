// SPDX-License-Identifier: MIT OR Apache-2.0
//! An agent's copy engine at the service of one piece of work: a queue and buffers in system memory that nobody else knows.
//!
//! ```text
//! fetch   agent's memory --engine--> buffer --threads--> where its bytes go
//! store   where bytes come from --threads--> buffer --engine--> agent's memory
//! ```
//! While the engine fills one thread's buffer, the others use theirs.
//!
//! INVARIANT: nothing of it is registered, so no image has it; its addresses are the arena's, which has them back when it ends.
//! A buffer's word is 1 while a transfer of it is under way, and the engine's fence makes it 0.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kfd::Doorbell;
use parking_lot::{Condvar, Mutex};
use queues::ring::Ring;
use queues::sdma::{self, Generation, SdmaError};
use stasis_protocol::{Limit, Stopped};

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{AllocError, DeviceError, QueueError, TransferError};
use crate::context::memory::mapped::{Mapped, view};
use crate::context::memory::request::Request;
use crate::context::queue::create::doorbell_slice;
use crate::context::queue::live::{Full, QueueLive, QueueMemory};
use crate::context::queue::packets;
use crate::context::registry::state::{
    BoKey, BoRole, QueueBos, QueueKind, QueueNumbers, QueueState, SignalKey,
};
use crate::context::registry::{Bo, Queue, Registry, Table};

const KIND: QueueKind = QueueKind::Sdma { engine: None };
const RING_BYTES: u32 = 128 << 10;
const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: u64 = 8;
/// Dwords of a linear copy, and how many copies are submitted together: few enough for any place of the ring.
const COPY_DWORDS: usize = 7;
const TOGETHER: usize = 256;
/// TIMEOUT: a transfer of a chunk takes an engine a millisecond, behind those of all other workers.
const STALLED: Duration = Duration::from_secs(20);
/// TIMEOUT: how long to sleep between looks at a word.
const LOOK: Duration = Duration::from_micros(20);

/// Bytes that an engine copies: at `va` of the agent's memory, at `at` in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub va: u64,
    pub bytes: u64,
    pub at: u64,
}

/// An agent's engine.
#[derive(Debug)]
pub struct TransferEngine {
    agent: String,
    generation: Generation,
    live: QueueLive,
    bell: Doorbell,
    queue: Queue,
    bos: Table<Bo>,
    buffers: Mapped,
    buffer_bytes: u64,
    /// A word for each buffer.
    words: Mapped,
    free: FreeBuffers,
    limit: Limit,
}

/// The numbers of buffers that no worker has.
#[derive(Debug)]
pub struct FreeBuffers {
    numbers: Mutex<Vec<usize>>,
    freed: Condvar,
}

impl FreeBuffers {
    /// All of so many.
    pub fn new(count: usize) -> Self {
        Self { numbers: Mutex::new((0..count).collect()), freed: Condvar::new() }
    }

    /// Takes one; waits until there is one.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn take(&self, limit: &Limit) -> Result<usize, Stopped> {
        let mut numbers = self.numbers.lock();
        loop {
            if let Some(number) = numbers.pop() {
                return Ok(number);
            }
            limit.check()?;
            // TIMEOUT: another worker's transfer ends, or fails.
            self.freed.wait_for(&mut numbers, Duration::from_millis(100));
        }
    }

    /// Takes one back.
    pub fn put(&self, number: usize) {
        self.numbers.lock().push(number);
        self.freed.notify_one();
    }
}

/// What is made for an engine; unmade in reverse.
struct Parts<'p> {
    registry: &'p mut Registry,
    on: &'p Device,
    bos: Table<Bo>,
}

impl Parts<'_> {
    fn make(&mut self, request: Request) -> Result<BoKey, QueueError> {
        let failed = |source: AllocError| QueueError::Memory { what: "a copy engine's memory", source };
        let mut state = request.into_state();
        state.va = self.registry.arena.take(state.bytes).map_err(|error| failed(error.into()))?;
        let (va, bytes) = (state.va, state.bytes);
        let mut bo = Bo::new(state);
        if let Err(error) = self.on.create_bo(&mut bo) {
            self.registry.arena.give_back(va, bytes);
            return Err(failed(error.into()));
        }
        Ok(self.bos.insert(bo))
    }

    fn view(&self, key: BoKey) -> Result<Mapped, DeviceError> {
        let state = self.bos.get(key).map(|bo| &bo.state);
        let found = state.and_then(|state| view(state.va, state.bytes));
        found.ok_or(DeviceError::Absent { what: "a copy engine's memory" })
    }
}

/// Frees the memory of an engine that has no queue.
fn free(mut bos: Table<Bo>, registry: &mut Registry, on: &Device) -> Result<(), DeviceError> {
    let mut first = Ok(());
    for (_, bo) in bos.iter_mut() {
        match on.destroy_bo(bo) {
            Ok(()) => registry.arena.give_back(bo.state.va, bo.state.bytes),
            Err(error) => first = first.and(Err(error)),
        }
    }
    first
}

impl TransferEngine {
    /// Makes one with so many buffers of so many bytes, a multiple of 8; all its work ends with `limit`.
    ///
    /// # Errors
    /// [`QueueError`]; nothing is left of it then.
    pub fn new(
        context: &Context,
        registry: &mut Registry,
        on: &Device,
        info: &AgentInfo,
        (count, buffer_bytes): (usize, u64),
        limit: &Limit,
    ) -> Result<Self, QueueError> {
        let absent = || QueueError::from(DeviceError::Absent { what: "the packets of its copy engine" });
        let generation = Generation::of(info.target()).ok_or_else(absent)?;
        let agent = info.index();
        let slice = doorbell_slice(context, registry, on, agent)?;
        let mut parts = Parts { registry, on, bos: Table::default() };
        let made = (|| {
            let buffers = count as u64;
            let own = |role, bytes| Request::queue_memory(role, bytes, agent);
            let ring = parts.make(own(BoRole::Ring, RING_BYTES.into()))?;
            let page = parts.make(own(BoRole::QueuePage, PAGE_BYTES))?;
            let stage = parts.make(own(BoRole::Staging, buffers * (buffer_bytes + WORD_BYTES)))?;
            let state = QueueState {
                agent,
                kind: KIND,
                ring_bytes: RING_BYTES,
                priority: kfd::sys::KFD_MAX_QUEUE_PRIORITY,
                percentage: 100,
                suspended: false,
                cu_mask: Vec::new(),
                bos: QueueBos::new(ring, page),
                kernarg_slot_bytes: 0,
                scratch_lane_bytes: 0,
                // No signal reports its exceptions: the wait for a transfer reaches its limit instead.
                exceptions: SignalKey::from_raw(u32::MAX, u32::MAX),
                inactive: None,
                hostcall_doorbell: None,
                bias: 0,
                write_index: 0,
                waiting: Vec::new(),
                internal: true,
            };
            let memory = QueueMemory {
                ring: parts.view(ring)?,
                page: parts.view(page)?,
                kernargs: None,
                kernarg_slot: 0,
            };
            let stage = parts.view(stage)?;
            let end = buffers * buffer_bytes;
            let views = (stage.part(0, end), stage.part(end, buffers * WORD_BYTES));
            let units = u64::from(RING_BYTES) / KIND.unit_bytes();
            let ring = Ring::new(units).map_err(|_| absent())?;
            let live = QueueLive::new(&context.gate, info.target(), ring, memory, &state);
            live.prepare(0);
            let mut queue = Queue { state, numbers: QueueNumbers::default(), created: false, live: None };
            let doorbells = parts.registry.bos.get(slice).ok_or_else(absent)?;
            let bell = on.create_queue(&mut queue, &parts.bos, doorbells)?;
            Ok((live, views, queue, bell))
        })();
        let Parts { registry, bos, .. } = parts;
        let (live, (buffers, words), queue, bell) = match made {
            Ok(made) => made,
            Err(error) => {
                if let Err(error) = free(bos, registry, on) {
                    tracing::warn!(target: "queues", %error, "memory of a copy engine stays in the driver");
                }
                return Err(error);
            }
        };
        Ok(TransferEngine {
            agent: info.uuid().to_owned(),
            generation,
            live,
            bell,
            queue,
            bos,
            buffers,
            buffer_bytes,
            words,
            free: FreeBuffers::new(count),
            limit: limit.clone(),
        })
    }

    /// Takes it out of the driver.
    ///
    /// # Errors
    /// [`DeviceError`]; its memory stays where the engine may still touch it.
    pub fn end(mut self, registry: &mut Registry, on: &Device) -> Result<(), DeviceError> {
        on.destroy_queue(&mut self.queue)?;
        free(self.bos, registry, on)
    }

    /// Submits copies (to, from, bytes), and waits for them.
    fn transfer(
        &self,
        number: usize,
        copies: impl Iterator<Item = (u64, u64, u64)>,
    ) -> Result<(), TransferError> {
        let packets = |source: SdmaError| TransferError::Packets { agent: self.agent.clone(), source };
        let (mut words, mut bytes) = (Vec::new(), 0);
        for (to, from, length) in copies {
            bytes += length;
            sdma::copy(&mut words, self.generation, to, from, length).map_err(packets)?;
        }
        let word = number as u64 * WORD_BYTES;
        self.words.store(word, 1, Ordering::Release);
        let target = self.live.target();
        let before = packets::transfer_prologue(target, self.generation, &[]).map_err(packets)?;
        let after = packets::completion(KIND, target, self.words.va() + word, None);
        let started = Instant::now();
        self.submit(&before, bytes, started)?;
        for some in words.chunks(COPY_DWORDS * TOGETHER) {
            self.submit(some, bytes, started)?;
        }
        self.submit(&after, bytes, started)?;
        // ORDERING: Acquire: the fence is behind the copies, whose bytes are read next.
        while self.words.load(word, Ordering::Acquire) != 0 {
            self.pause(bytes, started)?;
        }
        Ok(())
    }

    fn submit(&self, words: &[u32], bytes: u64, started: Instant) -> Result<(), TransferError> {
        loop {
            let written = {
                let producer = self.live.produce();
                self.live.write_words_by(&self.bell, &producer, words)
            };
            match written {
                Ok(_) => return Ok(()),
                Err(Full::Now { .. } | Full::Ever { .. }) => self.pause(bytes, started)?,
            }
        }
    }

    /// Waits a little for the engine.
    fn pause(&self, bytes: u64, started: Instant) -> Result<(), TransferError> {
        self.limit.check()?;
        let waited = started.elapsed();
        if waited >= STALLED {
            return Err(TransferError::Stalled { agent: self.agent.clone(), bytes, waited });
        }
        std::thread::sleep(LOOK);
        Ok(())
    }

    /// The GPU's address of a buffer's byte.
    fn place(&self, number: usize, at: u64) -> u64 {
        self.buffers.va() + number as u64 * self.buffer_bytes + at
    }

    /// The bytes of a buffer.
    pub fn buffer(&self, number: usize) -> Mapped {
        self.buffers.part(number as u64 * self.buffer_bytes, self.buffer_bytes)
    }

    /// Takes a buffer; waits until one is free.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn take(&self) -> Result<usize, Stopped> {
        self.free.take(&self.limit)
    }

    /// Takes a buffer back.
    pub fn put(&self, number: usize) {
        self.free.put(number);
    }

    /// Copies the agent's memory to a buffer that was taken; returns when it is there.
    ///
    /// # Errors
    /// [`TransferError`]; the buffer's bytes mean nothing then.
    pub fn fetch(
        &self,
        number: usize,
        transfers: impl Iterator<Item = Transfer>,
    ) -> Result<(), TransferError> {
        self.transfer(number, transfers.map(|one| (self.place(number, one.at), one.va, one.bytes)))
    }

    /// Copies a buffer that was taken to the agent's memory; returns when it is there.
    ///
    /// # Errors
    /// [`TransferError`]; a part may be there then.
    pub fn store(
        &self,
        number: usize,
        transfers: impl Iterator<Item = Transfer>,
    ) -> Result<(), TransferError> {
        self.transfer(number, transfers.map(|one| (one.va, self.place(number, one.at), one.bytes)))
    }
}
