// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues. What the program has of one is not what the hardware has: the program's descriptor, doorbell and ring are plain memory of the
//! process ([`area`]), and published packets are moved from there into the hardware's ring ([`forward`]).
//!
//! INVARIANT: the program's indices count its packets for ever, whatever hardware queue is under them; a packet is moved once, in the
//! order of the ring; and what a program stores while the device is locked, checkpointed or gone lies in the ring until it is back.
#![allow(unsafe_code)]

mod area;
mod faults;
mod forward;
mod indices;
mod options;
mod settle;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use queues::hsa::{AmdQueue, queue_properties};
use stasis::QueueError;
use stasis::raw::{RawKind, RawOptions, RawQueue};

use self::area::{Area, PLACES, Ring};
use self::forward::Forward;
pub use self::settle::{Settler, Settling};
use crate::abi::declared::*;
use crate::abi::{
    Data, ERROR, INVALID_ARGUMENT, INVALID_QUEUE, INVALID_SIGNAL, OUT_OF_RESOURCES, Out, Outcome, Status,
    export,
};
use crate::instance::{Instance, instance};
use crate::pools::Pool;

const INVALID_QUEUE_CREATION: Status = Status(HSA_STATUS_ERROR_INVALID_QUEUE_CREATION);
/// What an agent says of its queues.
pub const MAX_QUEUES: u32 = 128;
pub const MIN_PACKETS: u32 = stasis::MIN_PACKETS;
pub const MAX_PACKETS: u32 = stasis::MAX_PACKETS;
const PACKET: u32 = 64;

type ErrorCallback = unsafe extern "C" fn(hsa_status_t, *mut hsa_queue_t, *mut c_void);

/// A queue of the program's.
#[derive(Debug)]
pub struct Queue {
    place: usize,
    ring: Ring,
    /// The hardware's queue; `None` for one whose packets the program processes itself.
    hardware: Option<RawQueue>,
    /// Whose it is, by the agent's position.
    agent: usize,
    forward: Mutex<Forward>,
    /// Where moving stops; written under the lock of `forward`.
    end: AtomicU64,
    /// The index that its doorbell was rung with last.
    rung: AtomicU64,
    /// Whether there are packets that found no room.
    stalled: AtomicBool,
    inactive: AtomicBool,
    reported: AtomicBool,
    callback: Option<Callback>,
    /// The compute units that the program chose; none for all.
    cu_mask: Mutex<Vec<u32>>,
}

/// The program's function for a queue's errors.
#[derive(Clone, Copy, Debug)]
struct Callback {
    function: ErrorCallback,
    data: Data,
}

/// All queues of the program.
#[derive(Debug)]
pub struct Queues {
    area: Area,
    places: Box<[RwLock<Option<Arc<Queue>>>]>,
    /// Behind the last place that ever had a queue.
    used: AtomicUsize,
    made: AtomicU64,
    /// Tells the thread that looks after queues that there is something to do.
    watch: forward::Watch,
}

impl Queues {
    pub fn new() -> Outcome<Self> {
        Ok(Queues {
            area: Area::new()?,
            places: (0..PLACES).map(|_| RwLock::new(None)).collect(),
            used: AtomicUsize::new(0),
            made: AtomicU64::new(0),
            watch: forward::Watch::default(),
        })
    }

    /// The live queue of a place.
    fn at(&self, place: usize) -> Option<Arc<Queue>> {
        self.places.get(place)?.read().clone()
    }

    /// The live queue whose descriptor is at an address.
    fn find(&self, queue: *const hsa_queue_t) -> Option<Arc<Queue>> {
        self.at(self.area.place_of_queue(queue.addr())?)
    }

    /// The live queue of the program's pointer.
    ///
    /// # Errors
    /// [`INVALID_ARGUMENT`] for null, [`INVALID_QUEUE`].
    fn get(&self, queue: *const hsa_queue_t) -> Outcome<Arc<Queue>> {
        if queue.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        self.find(queue).ok_or(INVALID_QUEUE)
    }

    /// All live queues.
    fn all(&self) -> Vec<Arc<Queue>> {
        let used = self.used.load(Ordering::Acquire);
        self.places[..used].iter().filter_map(|place| place.read().clone()).collect()
    }

    /// Has the thread that looks after queues look once more.
    pub fn look_again(&self, instance: &'static Instance) -> Outcome {
        self.watch.start(instance)
    }

    /// The words by which the program flushes the host data path of a GPU.
    pub fn hdp_words(&self, gpu: usize) -> [*mut u32; 2] {
        self.area.flush_words(gpu)
    }

    /// Whether a handle is that of a doorbell's signal; if so, the published packets of its queue are moved.
    #[inline]
    pub fn ring(&self, handle: u64, index: u64) -> bool {
        let Some(place) = self.area.place_of_doorbell(handle) else { return false };
        if let Some(queue) = self.places[place].read().as_deref() {
            queue.rung.store(index, Ordering::Relaxed);
            self.forward(queue);
        }
        true
    }

    /// The index that a doorbell was rung with last; `None` for a handle that is none's.
    pub fn rung(&self, handle: u64) -> Option<u64> {
        let queue = self.at(self.area.place_of_doorbell(handle)?)?;
        Some(queue.rung.load(Ordering::Relaxed))
    }

    /// Puts a queue into a free place; its descriptor's address.
    fn add(&self, make: impl FnOnce(usize) -> Queue) -> Outcome<(Arc<Queue>, *mut hsa_queue_t)> {
        for (place, entry) in self.places.iter().enumerate() {
            let Some(mut entry) = entry.try_write().filter(|entry| entry.is_none()) else { continue };
            let queue = Arc::new(make(place));
            *entry = Some(Arc::clone(&queue));
            self.used.fetch_max(place + 1, Ordering::AcqRel);
            return Ok((queue, std::ptr::with_exposed_provenance_mut(self.area.queue(place))));
        }
        Err(OUT_OF_RESOURCES)
    }

    /// Ends the queue of a place. When it returns nobody moves its packets, and the place is free.
    /// False if there is none.
    fn end(&self, place: usize) -> bool {
        let mut entry = self.places[place].write();
        let Some(ended) = entry.take() else { return false };
        ended.inactive.store(true, Ordering::Relaxed);
        ended.reported.store(true, Ordering::Relaxed);
        // A thread that moves packets at the moment is done after this; a later one sees that the queue is inactive.
        drop(ended.forward.lock());
        // Before the place is another's.
        self.area.write(place, &bytemuck::Zeroable::zeroed(), false);
        // Before the hardware's queue is torn down, which takes its time.
        drop(entry);
        true
    }

    fn remove(&self, queue: *const hsa_queue_t) -> Outcome {
        if queue.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let place = self.area.place_of_queue(queue.addr()).ok_or(INVALID_QUEUE)?;
        if self.end(place) { Ok(()) } else { Err(INVALID_QUEUE) }
    }

    /// Destroys all.
    pub fn clear(&self) {
        for place in 0..self.used.load(Ordering::Acquire) {
            self.end(place);
        }
    }
}

/// What is to be made.
struct Wanted {
    packets: u32,
    type_: hsa_queue_type32_t,
    features: u32,
    agent: usize,
    hardware: Option<RawQueue>,
    callback: Option<Callback>,
    /// The signal of the doorbell, if it is the program's own.
    doorbell: Option<hsa_signal_t>,
}

fn make(instance: &'static Instance, wanted: Wanted) -> Outcome<*mut hsa_queue_t> {
    let queues = &instance.queues;
    let ring = Ring::new(wanted.packets)?;
    let id = queues.made.fetch_add(1, Ordering::Relaxed);
    let (queue, pointer) = queues.add(|place| {
        let doorbell =
            wanted.doorbell.map_or_else(|| queues.area.doorbell_handle(place), |signal| signal.handle);
        let descriptor = AmdQueue {
            queue_type: wanted.type_,
            features: wanted.features,
            base_address: ring.address(),
            doorbell_signal: doorbell,
            size: wanted.packets,
            id,
            read_dispatch_id_field_base_byte_offset: queues::words::count(std::mem::offset_of!(
                AmdQueue,
                read_dispatch_id
            )),
            queue_properties: queue_properties::IS_PTR64,
            ..bytemuck::Zeroable::zeroed()
        };
        queues.area.write(place, &descriptor, wanted.doorbell.is_none());
        Queue {
            place,
            ring,
            hardware: wanted.hardware,
            agent: wanted.agent,
            forward: Mutex::default(),
            end: AtomicU64::new(u64::MAX),
            rung: AtomicU64::new(u64::MAX),
            stalled: AtomicBool::new(false),
            inactive: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            callback: wanted.callback,
            cu_mask: Mutex::default(),
        }
    })?;
    if queue.hardware.is_some() {
        queues.watch.start(instance)?;
        queue.stop(&instance.settling);
    }
    Ok(pointer)
}

/// The status for a hardware queue that was not made.
fn status_of(error: QueueError) -> Status {
    tracing::debug!(target: "hsa", error = %stasis::explain(&error), "a queue was not made");
    match error {
        QueueError::RingBytes { .. } | QueueError::Priority { .. } | QueueError::CuMask(_) => {
            INVALID_ARGUMENT
        }
        QueueError::Stale { .. } => INVALID_QUEUE,
        QueueError::Lost(_) | QueueError::AgentLost(_) => ERROR,
        _ => OUT_OF_RESOURCES,
    }
}

/// Makes a queue of a GPU.
fn create(
    instance: &'static Instance,
    agent: hsa_agent_t,
    size: u32,
    type_: hsa_queue_type32_t,
    callback: Option<Callback>,
) -> Outcome<*mut hsa_queue_t> {
    let known = [HSA_QUEUE_TYPE_MULTI, HSA_QUEUE_TYPE_SINGLE, HSA_QUEUE_TYPE_COOPERATIVE];
    if !size.is_power_of_two() || !known.contains(&type_) {
        return Err(INVALID_ARGUMENT);
    }
    let gpu = instance.agents.gpu(agent).map_err(|_| INVALID_QUEUE_CREATION)?;
    if size > MAX_PACKETS {
        return Err(OUT_OF_RESOURCES);
    }
    if size < MIN_PACKETS {
        return Err(INVALID_ARGUMENT);
    }
    let options = RawOptions { kind: RawKind::Aql, ring_bytes: size * PACKET, ..RawOptions::default() };
    let hardware = RawQueue::create(gpu, options).map_err(status_of)?;
    let wanted = Wanted {
        packets: size,
        type_,
        features: HSA_QUEUE_FEATURE_KERNEL_DISPATCH,
        agent: instance.agents.index(agent)?,
        hardware: Some(hardware),
        callback,
        doorbell: None,
    };
    make(instance, wanted)
}

export! {
    /// Makes a queue of an agent.
    fn hsa_queue_create(
        agent: hsa_agent_t,
        size: u32,
        type_: hsa_queue_type32_t,
        callback: Option<ErrorCallback>,
        data: *mut c_void,
        _private_segment_size: u32,
        _group_segment_size: u32,
        queue: *mut *mut hsa_queue_t,
    ) {
        let instance = instance()?;
        instance.agents.get(agent)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(queue) }?;
        out.put(create(instance, agent, size, type_, callback.map(|function| Callback { function, data: Data(data) }))?);
        Ok(())
    }

    /// Makes a queue whose packets the program processes itself.
    fn hsa_soft_queue_create(
        region: hsa_region_t,
        size: u32,
        type_: hsa_queue_type32_t,
        features: u32,
        doorbell_signal: hsa_signal_t,
        queue: *mut *mut hsa_queue_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(queue) }?;
        let all = HSA_QUEUE_FEATURE_KERNEL_DISPATCH | HSA_QUEUE_FEATURE_AGENT_DISPATCH;
        let known = [HSA_QUEUE_TYPE_MULTI, HSA_QUEUE_TYPE_SINGLE];
        if !size.is_power_of_two()
            || size > MAX_PACKETS
            || !known.contains(&type_)
            || features == 0
            || features & !all != 0
        {
            return Err(INVALID_ARGUMENT);
        }
        let pool = Pool::of_region(instance, region)?;
        instance.signals.slot(doorbell_signal.handle).ok_or(INVALID_SIGNAL)?;
        let wanted = Wanted {
            packets: size,
            type_,
            features,
            agent: pool.agent,
            hardware: None,
            callback: None,
            doorbell: Some(doorbell_signal),
        };
        out.put(make(instance, wanted)?);
        Ok(())
    }

    /// Destroys a queue; packets in it are not processed.
    fn hsa_queue_destroy(queue: *mut hsa_queue_t) {
        instance()?.queues.remove(queue)
    }

    /// Has a queue process no more packets.
    fn hsa_queue_inactivate(queue: *mut hsa_queue_t) {
        let queue = instance()?.queues.get(queue)?;
        queue.inactive.store(true, Ordering::Release);
        Ok(())
    }
}
