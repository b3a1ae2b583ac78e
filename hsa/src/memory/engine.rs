// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that a GPU's copy engines do while the program goes on.
//!
//! ```text
//! poll dependencies | flush, invalidate | time stamp || copies || write back | time stamp | decrement | wake
//! ```
//!
//! INVARIANT: the completion signal is decremented once for each copy, by the engine, or by a thread where no engine reaches an
//! end: memory of the program's own that was not locked.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use queues::sdma::{self, Gcr, Generation, Packet, SdmaError};
use stasis::raw::{RawKind, RawOptions, RawQueue, transfer_prologue};
use stasis::{Condition, RawError, WaitMode};

use super::{Origin, address_of, pointer_to, status_of, transfer};
use crate::abi::declared::*;
use crate::abi::{ERROR, INVALID_ARGUMENT, INVALID_SIGNAL, OUT_OF_RESOURCES, Out, Outcome, export, slice};
use crate::instance::{Instance, instance};
use crate::pools::links::NO_ATOMICS_64;
use crate::signals::Signal;
use crate::signals::wait::wait_any;

/// Bytes of a ring.
const RING_BYTES: u32 = 1 << 20;
/// Dwords that are submitted together: few enough for any place of the ring, and a whole number of copies.
const TOGETHER: usize = 7 * 256;

/// Which way bytes go; each has a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    ToHost,
    Other,
}

/// A copy that is kept back.
#[derive(Debug)]
struct Kept {
    gpu: usize,
    way: Way,
    pieces: Vec<Piece>,
    order: Order,
}

/// What is left to be submitted of a copy that was kept back.
#[derive(Debug)]
struct Rest {
    queue: RawQueue,
    words: Vec<u32>,
    order: Order,
}

impl Rest {
    /// Submits as much as there is room for; whether that was all.
    fn submit(&mut self, instance: &Instance) -> bool {
        while !self.words.is_empty() {
            let some = chunks(&self.words)[0].len();
            match self.queue.submit(&self.words[..some]) {
                Ok(_) => drop(self.words.drain(..some)),
                Err(RawError::Full { .. }) => return false,
                Err(error) => {
                    tracing::warn!(target: "hsa", error = %stasis::explain(&error), "a copy that was kept back failed");
                    instance.signals.fail(&self.order.done);
                    return true;
                }
            }
        }
        true
    }
}

/// A GPU's queues of copy engines, each made when first needed.
#[derive(Debug, Default)]
pub struct Engines {
    queues: Mutex<HashMap<(usize, Way), RawQueue>>,
    /// Copies that came while queues settle, in their order.
    kept: Mutex<VecDeque<Kept>>,
    /// What is left of the one before them.
    rest: Mutex<Option<Rest>>,
    /// Whether there are any.
    keeps: AtomicBool,
    /// Copies that are being submitted.
    under_way: AtomicUsize,
}

/// A copy is being submitted while this lives.
struct UnderWay<'e>(&'e AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engines {
    /// All queues.
    pub fn all(&self) -> Vec<RawQueue> {
        self.queues.lock().values().cloned().collect()
    }

    /// Whether copies are being submitted.
    pub fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) != 0
    }

    /// Whether copies are kept back.
    pub fn keeps_back(&self) -> bool {
        self.keeps.load(Ordering::Acquire)
    }

    fn begin(&self) -> UnderWay<'_> {
        // ORDERING: before the look whether queues settle, which is after that flag is set.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(&self.under_way)
    }

    /// Keeps a copy back if it must not begin now: while queues settle, and behind others that are kept.
    fn keep(&self, instance: &Instance, kept: impl FnOnce() -> Kept) -> bool {
        if !instance.settling.is_on() && !self.keeps_back() {
            return false;
        }
        let mut all = self.kept.lock();
        if !instance.settling.is_on() && !self.keeps_back() {
            return false;
        }
        all.push_back(kept());
        self.keeps.store(true, Ordering::Release);
        true
    }

    /// Begins copies that were kept back, as many as there is room for; whether there were any. Only the thread that looks after
    /// queues calls it, which must not wait: packets that make room may be waiting for it.
    pub fn take_up(&self, instance: &Instance) -> bool {
        let mut begun = false;
        let mut rest = self.rest.lock();
        while self.keeps_back() && !instance.settling.is_on() {
            if rest.is_none() {
                let Some(next) = self.kept.lock().pop_front() else { break };
                *rest = self.first(instance, next);
                begun = true;
            }
            if let Some(rest) = &mut *rest
                && !rest.submit(instance)
            {
                return begun;
            }
            *rest = None;
            // Not before it is in the queue: later ones come behind it.
            let all = self.kept.lock();
            self.keeps.store(!all.is_empty(), Ordering::Release);
        }
        begun
    }

    /// What is to be submitted of a copy; `None` if it fails.
    fn first(&self, instance: &Instance, Kept { gpu, way, pieces, order }: Kept) -> Option<Rest> {
        let agent = instance.agents.gpus().find(|agent| agent.index() == gpu);
        let made = agent.ok_or(ERROR).and_then(|agent| {
            let queue = self.queue(agent, way)?;
            let words = words(agent, &pieces, &order).map_err(|_| ERROR)?;
            queue.completes(order.done.of_runtime());
            Ok(Rest { queue, words, order: order.clone() })
        });
        made.inspect_err(|status| {
            tracing::warn!(target: "hsa", %status, "a copy that was kept back failed");
            instance.signals.fail(&order.done);
        })
        .ok()
    }

    fn queue(&self, agent: &stasis::Agent, way: Way) -> Outcome<RawQueue> {
        let mut queues = self.queues.lock();
        let place = (agent.index(), way);
        if let Some(queue) = queues.get(&place).filter(|queue| queue.fault().is_none()) {
            return Ok(queue.clone());
        }
        let options = RawOptions {
            kind: RawKind::Sdma { engine: None },
            ring_bytes: RING_BYTES,
            ..RawOptions::default()
        };
        let queue = RawQueue::create(agent, options).map_err(|error| {
            tracing::warn!(target: "hsa", error = %stasis::explain(&error), "no queue of a copy engine");
            OUT_OF_RESOURCES
        })?;
        queues.insert(place, queue.clone());
        Ok(queue)
    }

    pub fn clear(&self) {
        *self.rest.lock() = None;
        let mut kept = self.kept.lock();
        kept.clear();
        self.keeps.store(false, Ordering::Release);
        drop(kept);
        self.queues.lock().clear();
    }
}

/// Bytes to be copied, by agents' addresses.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
}

/// What a copy waits for, and what it decrements.
#[derive(Clone, Debug)]
pub struct Order {
    pub after: Vec<Signal>,
    pub done: Signal,
}

/// The signals of a copy.
///
/// # Errors
/// [`INVALID_SIGNAL`], [`INVALID_ARGUMENT`] for a list that is null or empty where the other is not.
///
/// # Safety
/// The list is null or has that many handles.
pub unsafe fn order(
    instance: &Instance,
    count: u32,
    signals: *const hsa_signal_t,
    done: hsa_signal_t,
) -> Outcome<Order> {
    // SAFETY: by contract.
    let after = unsafe { signals_of(instance, count, signals) }?;
    Ok(Order { after, done: instance.signals.get(done.handle).ok_or(INVALID_SIGNAL)? })
}

/// The signals of a list.
///
/// # Errors
/// As for [`order`].
///
/// # Safety
/// The list is null or has that many handles.
pub unsafe fn signals_of(
    instance: &Instance,
    count: u32,
    signals: *const hsa_signal_t,
) -> Outcome<Vec<Signal>> {
    if signals.is_null() != (count == 0) {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract.
    let signals = unsafe { slice(signals, count as usize) }?;
    signals.iter().map(|signal| instance.signals.get(signal.handle).ok_or(INVALID_SIGNAL)).collect()
}

/// The GPU that is to move bytes between two agents; `None` if both are processors of the host.
pub fn mover(
    instance: &Instance,
    to: hsa_agent_t,
    from: hsa_agent_t,
) -> Outcome<Option<(&stasis::Agent, Way)>> {
    let (to, from) = (instance.agents.get(to)?, instance.agents.get(from)?);
    Ok(match (to.gpu(), from.gpu()) {
        (Err(_), Ok(from)) => Some((from, Way::ToHost)),
        (Ok(_), Ok(from)) => Some((from, Way::Other)),
        (Ok(to), Err(_)) => Some((to, Way::Other)),
        (Err(_), Err(_)) => None,
    })
}

/// An end as agents address it; `None` for memory of the program's own that no agent reaches.
fn agent_address(
    instance: &Instance,
    mover: &stasis::Agent,
    address: u64,
    bytes: u64,
) -> Outcome<Option<u64>> {
    let Some((block, offset)) = instance.memory.reach(address, bytes) else {
        // A block that is too short is an error; none is the program's own memory.
        return if instance.memory.find(address).is_some() { Err(INVALID_ARGUMENT) } else { Ok(None) };
    };
    let is_of_others = matches!(block.origin, Origin::Imported | Origin::Attached);
    if is_of_others || block.owner(instance).is_some_and(|owner| owner != mover.index()) {
        block.buffer()?.allow(mover).map_err(status_of)?;
    }
    Ok(Some(block.base() + offset))
}

/// What a copy engine is told for copies behind signals.
fn words(agent: &stasis::Agent, pieces: &[Piece], order: &Order) -> Result<Vec<u32>, SdmaError> {
    let (target, mut words) = (agent.target(), Vec::new());
    let Some(generation) = Generation::of(target) else { return Ok(words) };
    let values: Vec<u64> = order.after.iter().map(|signal| signal.slot().value_address()).collect();
    words.extend(transfer_prologue(target, generation, &values)?);
    order.done.set_copied_by(agent.index());
    let done = order.done.slot();
    Packet::Timestamp { address: done.start_address() }.encode(generation, &mut words)?;
    for piece in pieces {
        sdma::copy(&mut words, generation, piece.to, piece.from, piece.bytes)?;
    }
    if generation.has_gcr() {
        Packet::Gcr(Gcr::write_back()).encode(generation, &mut words)?;
    }
    Packet::Timestamp { address: done.end_address() }.encode(generation, &mut words)?;
    let value = done.value_address();
    if agent.links().any(|link| link.node_to == 0 && link.flags & NO_ATOMICS_64 != 0) {
        // Without atomics over the link, nobody else decrements the signal meanwhile (as in AMD's runtime).
        let after = done.value().load(Ordering::Relaxed).wrapping_sub(1).cast_unsigned();
        let mtype = generation.uncached_mtype();
        for (half, value_half) in [(4, (after >> 32) as u32), (0, (after & 0xffff_ffff) as u32)] {
            let fence = sdma::Fence { address: value + half, value: value_half, mtype };
            Packet::Fence(fence).encode(generation, &mut words)?;
        }
    } else {
        sdma::signal_decrement(value).encode(generation, &mut words)?;
    }
    if let Some((mailbox, event)) = done.mailbox() {
        for packet in sdma::interrupt(generation, mailbox, event) {
            packet.encode(generation, &mut words)?;
        }
    }
    Ok(words)
}

/// Submits, waiting for room.
fn submit(queue: &RawQueue, words: &[u32], order: &Order) -> Outcome {
    queue.completes(order.done.of_runtime());
    for some in chunks(words) {
        loop {
            match queue.submit(some) {
                Ok(_) => break,
                // TIMEOUT: room comes with the next copy that ends, or the queue fails.
                Err(RawError::Full { .. }) => std::thread::sleep(Duration::from_micros(50)),
                Err(error) => {
                    tracing::warn!(target: "hsa", error = %stasis::explain(&error), "a copy was not submitted");
                    return Err(ERROR);
                }
            }
        }
    }
    Ok(())
}

/// Parts of whole packets.
fn chunks(words: &[u32]) -> Vec<&[u32]> {
    if words.len() <= TOGETHER {
        return vec![words];
    }
    // Packets are read to find their ends, by any generation: their lengths are the same.
    let (mut parts, mut begin, mut end) = (Vec::new(), 0, 0);
    while end < words.len() {
        let length =
            sdma::decode(&words[end..], Generation::V6).map_or(words.len() - end, |(_, dwords)| dwords);
        if end > begin && end + length - begin > TOGETHER {
            parts.push(&words[begin..end]);
            begin = end;
        }
        end += length;
    }
    parts.push(&words[begin..]);
    parts
}

/// Calls `then` once all these signals are 0, in a thread of this name.
pub fn behind(
    instance: &'static Instance,
    name: &str,
    after: Vec<Signal>,
    then: impl FnOnce() + Send + 'static,
) -> Outcome {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        for signal in after {
            wait_any(instance, &[(signal, Condition::Equal(0))], None, WaitMode::Auto);
        }
        then();
    });
    spawned.map(drop).map_err(|_| OUT_OF_RESOURCES)
}

/// Waits for the signals of an order, and completes it after `work`, or says that it has failed; in a thread.
fn in_thread(
    instance: &'static Instance,
    Order { after, done }: Order,
    work: impl FnOnce() -> Outcome + Send + 'static,
) -> Outcome {
    behind(instance, "stasis-hsa-copy", after, move || match work() {
        Ok(()) => instance.signals.complete(&done),
        Err(status) => {
            tracing::warn!(target: "hsa", %status, "a copy by a thread failed");
            instance.signals.fail(&done);
        }
    })
}

/// Copies by a GPU's copy engine, behind the signals of an order; by a thread without one, and where it does not reach.
pub fn copy(
    instance: &'static Instance,
    by: Option<(&stasis::Agent, Way)>,
    pieces: &[Piece],
    order: Order,
) -> Outcome {
    if let Some((agent, way)) = by {
        let addressed = |piece: &Piece| {
            let to = agent_address(instance, agent, piece.to, piece.bytes)?;
            let from = agent_address(instance, agent, piece.from, piece.bytes)?;
            Ok(to.zip(from).map(|(to, from)| Piece { to, from, ..*piece }))
        };
        let all = pieces.iter().map(addressed).collect::<Outcome<Option<Vec<Piece>>>>()?;
        if let (Some(all), Some(_)) = (all, Generation::of(agent.target())) {
            let engines = &instance.memory.engines;
            let _under_way = engines.begin();
            let kept = || Kept { gpu: agent.index(), way, pieces: all.clone(), order: order.clone() };
            if engines.keep(instance, kept) {
                return instance.queues.look_again(instance);
            }
            let queue = engines.queue(agent, way)?;
            let words = words(agent, &all, &order).map_err(|_| INVALID_ARGUMENT)?;
            return submit(&queue, &words, &order);
        }
    }
    let pieces = pieces.to_vec();
    in_thread(instance, order, move || {
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|Piece { to, from, bytes }| {
            transfer::copy(instance, pointer_to(to), pointer_to(from), queues::words::size(bytes))
        })
    })
}

/// All of a copy of the program's.
///
/// # Errors
/// [`INVALID_ARGUMENT`] for null and for more bytes than an address space has.
pub fn whole(dst: *mut c_void, src: *const c_void, size: usize) -> Outcome<Piece> {
    if dst.is_null() || src.is_null() || isize::try_from(size).is_err() {
        return Err(INVALID_ARGUMENT);
    }
    Ok(Piece { to: address_of(dst), from: address_of(src), bytes: size as u64 })
}

/// Checks an order for a copy between agents, and carries it out.
///
/// # Safety
/// As for [`order`].
unsafe fn ordered(
    (dst, dst_agent): (*mut c_void, hsa_agent_t),
    (src, src_agent): (*const c_void, hsa_agent_t),
    size: usize,
    (count, signals): (u32, *const hsa_signal_t),
    done: hsa_signal_t,
    engine: Option<hsa_amd_sdma_engine_id_t>,
) -> Outcome {
    let instance = instance()?;
    let piece = whole(dst, src, size)?;
    instance.agents.get(dst_agent)?;
    instance.agents.get(src_agent)?;
    if engine.is_some_and(|engine| !engine.is_power_of_two()) {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract.
    let order = unsafe { order(instance, count, signals, done) }?;
    if size == 0 { Ok(()) } else { copy(instance, mover(instance, dst_agent, src_agent)?, &[piece], order) }
}

export! {
    /// Copies, and decrements a signal when that is done.
    fn hsa_amd_memory_async_copy(
        dst: *mut c_void,
        dst_agent: hsa_agent_t,
        src: *const c_void,
        src_agent: hsa_agent_t,
        size: usize,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
    ) {
        let (to, from, after) = ((dst, dst_agent), (src, src_agent), (num_dep_signals, dep_signals));
        // SAFETY: the caller's, by the header.
        unsafe { ordered(to, from, size, after, completion_signal, None) }
    }

    /// The same by a copy engine that the program chooses; which of them is the driver's choice here.
    fn hsa_amd_memory_async_copy_on_engine(
        dst: *mut c_void,
        dst_agent: hsa_agent_t,
        src: *const c_void,
        src_agent: hsa_agent_t,
        size: usize,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
        engine_id: hsa_amd_sdma_engine_id_t,
        _force_copy_on_sdma: bool,
    ) {
        let (to, from, after) = ((dst, dst_agent), (src, src_agent), (num_dep_signals, dep_signals));
        // SAFETY: the caller's, by the header.
        unsafe { ordered(to, from, size, after, completion_signal, Some(engine_id)) }
    }

    /// Which copy engines are free: all that there are.
    fn hsa_amd_memory_copy_engine_status(
        dst_agent: hsa_agent_t,
        src_agent: hsa_agent_t,
        engine_ids_mask: *mut u32,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { put_engines(dst_agent, src_agent, engine_ids_mask) }
    }

    /// Which copy engines suit best: all that there are.
    fn hsa_amd_memory_get_preferred_copy_engine(
        dst_agent: hsa_agent_t,
        src_agent: hsa_agent_t,
        recommended_ids_mask: *mut u32,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { put_engines(dst_agent, src_agent, recommended_ids_mask) }
    }
}

/// Puts a bit for each copy engine of the GPU that moves bytes between two agents.
///
/// # Safety
/// `mask` is null or the program's.
unsafe fn put_engines(to: hsa_agent_t, from: hsa_agent_t, mask: *mut u32) -> Outcome {
    let instance = instance()?;
    // SAFETY: by contract.
    let out = unsafe { Out::new(mask) }?;
    let (agent, _) = mover(instance, to, from)?.ok_or(INVALID_ARGUMENT)?;
    let count = agent.node().properties.num_sdma_engines.min(16);
    if count == 0 {
        return Err(OUT_OF_RESOURCES);
    }
    out.put((1 << count) - 1);
    Ok(())
}
