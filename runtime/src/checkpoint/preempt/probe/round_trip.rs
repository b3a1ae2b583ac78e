// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue's way through the driver's checkpoint, in two processes that have nothing else in the driver.
//!
//! ```text
//!   first fork                                           second fork
//!   open, buffers, queue                                 open, RESTORE, mappings, fill, RESUME
//!   a barrier packet ── percentage 0 ── PROCESS_INFO,    percentage 100 ── another barrier packet
//!                       CHECKPOINT, UNPAUSE
//! ```
//!
//! The calls and their order are those of a preempted checkpoint and its restore. Each fork makes the calls for itself,
//! as a preempted process does: the driver asks for the capability, and for a tracer only if the process is another one.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytemuck::bytes_of;
use kfd::ioctl::{AllocMemory, CreateQueue, QueueKind, UpdateQueue};
use kfd::sys::{DOORBELL_SLICE_BYTES, doorbell_cookie};
use kfd::{Doorbell, Errno, IoctlError, ProtFlags, QueueId, Transport};
use queues::aql::{Barrier, FenceScope, PACKET_BYTES, Packet};
use queues::cwsr::CwsrGeometry;
use queues::hsa::{AmdQueue, AmdSignal, queue_properties, signal_kind};
use queues::save_area::SaveAreaHeader;
use queues::words::{count, size, words};
use serde::{Deserialize, Serialize};

use super::super::Captured;
use crate::context::agent::info::AgentInfo;
use crate::context::device::{Device, DeviceNode, flags};
use crate::context::error::{DeviceError, OpenError, explain};
use crate::context::memory::mapped::Mapped;
use crate::context::queue::live::{READ_INDEX, WRITE_INDEX};

const PAGE: u64 = 4096;
/// A ring of one page.
const RING_BYTES: u32 = 4096;
/// An empty slot (`HSA_PACKET_TYPE_INVALID`).
const INVALID: u32 = 1;
/// Save areas begin on huge pages, as others' do.
const HUGE: u64 = 2 << 20;
/// TIMEOUT: how long a queue may take for a packet that waits for nothing.
const PACKET: Duration = Duration::from_secs(5);

/// What the round trip was at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Making a process with a queue that works. A failure says nothing of RESTORE.
    Prepare,
    /// CRIU_OP PROCESS_INFO, CHECKPOINT or UNPAUSE.
    Checkpoint,
    /// CRIU_OP RESTORE.
    Restore,
    /// CRIU_OP RESUME, or the queue's return to the hardware.
    Resume,
    /// A packet of the restored queue.
    Packet,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prepare => "making a queue",
            Self::Checkpoint => "CRIU_OP CHECKPOINT of a queue",
            Self::Restore => "CRIU_OP RESTORE of a queue",
            Self::Resume => "CRIU_OP RESUME of a restored queue",
            Self::Packet => "a packet of the restored queue",
        })
    }
}

/// The round trip ended before its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub step: Step,
    /// The driver's errno; 0 if the failure has none.
    pub errno: i32,
    /// The failure in words.
    pub text: String,
}

impl Refusal {
    fn ioctl(step: Step) -> impl Fn(IoctlError) -> Self {
        // CAST: the discriminants are the errnos.
        move |error| Self { step, errno: error.errno as i32, text: explain(&error) }
    }

    fn device(step: Step, error: &DeviceError) -> Self {
        let errno = match error {
            DeviceError::Ioctl { source, .. } => source.errno as i32,
            DeviceError::Mmap { errno, .. } => *errno as i32,
            _ => 0,
        };
        Self { step, errno, text: explain(error) }
    }

    fn absent(step: Step, what: &'static str) -> Self {
        Self::device(step, &DeviceError::Absent { what })
    }

    fn of_open(step: Step) -> impl Fn(OpenError) -> Self {
        move |error| match &error {
            OpenError::Bringup(source) => Self::device(step, source),
            _ => Self { step, errno: 0, text: explain(&error) },
        }
    }
}

/// The driver's record of the first fork, and what its memory held.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Dumped {
    devices: Vec<u8>,
    bos: Vec<u8>,
    objects: u32,
    private: Vec<u8>,
    queue: u32,
    doorbell_byte: u32,
    /// Address and bytes.
    contents: Vec<(u64, Vec<u8>)>,
}

/// Where the queue's memory is: addresses that are free in this process, and so in its forks.
#[derive(Clone, Copy, Debug)]
struct Places {
    ring: u64,
    page: u64,
    signal: u64,
    doorbells: u64,
    eop: u64,
    save_area: u64,
}

impl Places {
    fn from(base: u64, geometry: &CwsrGeometry) -> Self {
        let doorbells = base + 16 * PAGE;
        let eop = base + HUGE;
        let save_area = eop + u64::from(geometry.eop_bytes).next_multiple_of(HUGE);
        Self { ring: base, page: base + 4 * PAGE, signal: base + 8 * PAGE, doorbells, eop, save_area }
    }
}

/// What both forks try it on.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub transport: &'a Arc<dyn Transport>,
    pub agents: &'a [Arc<AgentInfo>],
    /// The agent in `agents` whose queue it is.
    pub at: usize,
    /// The first of addresses that are reserved in this process.
    pub base: u64,
}

impl Subject<'_> {
    fn node<'d>(&self, device: &'d Device, step: Step) -> Result<&'d DeviceNode, Refusal> {
        device.nodes().get(self.at).ok_or_else(|| Refusal::absent(step, "the agent"))
    }

    /// The first fork: makes a process with a queue, and takes the driver's record of it.
    pub fn dump(&self) -> Result<Dumped, Refusal> {
        const STEP: Step = Step::Prepare;
        let ioctl = Refusal::ioctl(STEP);
        let device =
            Device::open(Arc::clone(self.transport), self.agents, None).map_err(Refusal::of_open(STEP))?;
        let (kfd, node) = (device.kfd(), self.node(&device, STEP)?);
        let geometry = node.info.geometry();
        let places = Places::from(self.base, geometry);
        let gtt = [
            (places.ring, u64::from(RING_BYTES)),
            (places.page, PAGE),
            (places.signal, PAGE),
            (places.save_area, geometry.total_bytes),
        ];
        for (va, bytes) in gtt {
            let offset = allocate(&device, node, va, bytes, flags::QUEUE).map_err(&ioctl)?;
            map(node, va, bytes, offset, STEP)?;
        }
        let eop_bytes = u64::from(geometry.eop_bytes);
        if eop_bytes > 0 {
            allocate(&device, node, places.eop, eop_bytes, flags::VRAM_HIDDEN | flags::EXECUTABLE)
                .map_err(&ioctl)?;
        }
        prepare(node, &places, STEP)?;
        let created = kfd
            .create_queue(&CreateQueue {
                gpu: node.gpu,
                kind: QueueKind::ComputeAql,
                ring: places.ring,
                ring_bytes: RING_BYTES,
                write_pointer: places.page + WRITE_INDEX,
                read_pointer: places.page + READ_INDEX,
                eop: if eop_bytes > 0 { places.eop } else { 0 },
                eop_bytes,
                save_area: places.save_area,
                save_bytes: geometry.save_bytes,
                control_stack_bytes: geometry.control_stack_bytes,
                percentage: 100,
                priority: PRIORITY,
            })
            .map_err(&ioctl)?;
        let doorbell = doorbell(&device, node, &places, created.doorbell_byte(), STEP)?;
        submit(&places, &doorbell, 0, STEP)?;
        kfd.update_queue(&share(created.id, &places, 0)).map_err(&ioctl)?;

        let ioctl = Refusal::ioctl(Step::Checkpoint);
        let info = kfd.criu_process_info().map_err(&ioctl)?;
        let taken = kfd.criu_checkpoint(&info).map_err(&ioctl)?;
        kfd.criu_unpause().map_err(&ioctl)?;
        // Nothing was under way: of the save area only the header has a meaning.
        let kept = gtt.iter().map(|&(va, bytes)| Ok((va, bytes_at(va, bytes.min(PAGE), STEP)?)));
        Ok(Dumped {
            devices: bytemuck::cast_slice(&taken.devices).to_vec(),
            bos: bytemuck::cast_slice(&taken.bos).to_vec(),
            objects: taken.objects,
            private: taken.private,
            queue: created.id.0,
            doorbell_byte: created.doorbell_byte(),
            contents: kept.collect::<Result<_, Refusal>>()?,
        })
    }

    /// The second fork: has the driver make that process again, and its queue take a packet.
    pub fn restore(&self, dumped: &Dumped) -> Result<(), Refusal> {
        let mut captured = Captured {
            devices: records(&dumped.devices),
            bos: records(&dumped.bos),
            objects: dumped.objects,
            private: dumped.private.clone(),
            contents: Vec::new(),
        };
        // What fails before RESTORE says nothing of it.
        let mut step = Step::Prepare;
        let device = Device::restore(Arc::clone(self.transport), self.agents, |kfd, files| {
            step = Step::Restore;
            captured.put(kfd, |gpu| files.get(&gpu).cloned())?;
            step = Step::Resume;
            Ok(())
        });
        let device = device.map_err(|error| Refusal::of_open(step)(error))?;
        let node = self.node(&device, Step::Resume)?;
        let places = Places::from(self.base, node.info.geometry());
        for (va, bytes) in &dumped.contents {
            let bucket = captured.bos.iter().find(|bucket| bucket.addr == *va);
            let bucket = bucket.ok_or_else(|| Refusal::absent(Step::Restore, "a buffer of the record"))?;
            map(node, *va, bucket.size, bucket.restored_offset, Step::Restore)?;
            view(*va, bucket.size, Step::Restore)?.write(0, bytes);
        }
        let doorbell = doorbell(&device, node, &places, dumped.doorbell_byte, Step::Resume)?;
        device.resume_restored().map_err(|error| Refusal::device(Step::Resume, &error))?;
        let back = share(QueueId(dumped.queue), &places, 100);
        device.kfd().update_queue(&back).map_err(Refusal::ioctl(Step::Resume))?;
        submit(&places, &doorbell, 1, Step::Packet)
    }
}

/// The structs whose bytes these are.
fn records<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The middle of the queues' priorities.
const PRIORITY: u32 = 7;

fn share(id: QueueId, places: &Places, percentage: u32) -> UpdateQueue {
    UpdateQueue { id, ring: places.ring, ring_bytes: RING_BYTES, percentage, priority: PRIORITY }
}

/// Allocates memory and maps it on the GPU; answers its offset in the render file.
fn allocate(device: &Device, node: &DeviceNode, va: u64, bytes: u64, flags: u32) -> Result<u64, IoctlError> {
    let what = AllocMemory { gpu: node.gpu, va, bytes, flags, user_address: 0 };
    let made = device.kfd().alloc_memory(&what)?;
    device.kfd().map_memory(made.handle, &[node.gpu])?;
    Ok(made.mmap_offset)
}

fn map(node: &DeviceNode, va: u64, bytes: u64, offset: u64, step: Step) -> Result<(), Refusal> {
    let at = std::ptr::with_exposed_provenance_mut::<u8>(size(va));
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the addresses are in the range that was reserved for this round trip, and nothing else is there.
    unsafe { node.render.mmap_fixed(at, size(bytes), access, offset) }.map_err(|errno| {
        let path = node.render.path().to_owned();
        Refusal::device(step, &DeviceError::Mmap { path, va, bytes, offset, errno })
    })
}

fn view(va: u64, bytes: u64, step: Step) -> Result<Mapped, Refusal> {
    // SAFETY: `map` has mapped it, and it stays mapped until this process ends.
    unsafe { Mapped::new(va, bytes) }.ok_or_else(|| Refusal::absent(step, "a queue's memory"))
}

fn bytes_at(va: u64, bytes: u64, step: Step) -> Result<Vec<u8>, Refusal> {
    let memory = view(va, bytes, step)?;
    Ok((0..bytes / 8).flat_map(|word| memory.load(word * 8, Ordering::Acquire).to_ne_bytes()).collect())
}

/// Writes what the queue's memory holds before the driver hears of it.
fn prepare(node: &DeviceNode, places: &Places, step: Step) -> Result<(), Refusal> {
    let ring = view(places.ring, u64::from(RING_BYTES), step)?;
    let packet = PACKET_BYTES as u64;
    for slot in 0..u64::from(RING_BYTES) / packet {
        ring.store32(slot * packet, INVALID, Ordering::Relaxed);
    }
    let queue = AmdQueue {
        features: 1,
        base_address: places.ring,
        size: RING_BYTES / count(PACKET_BYTES),
        group_segment_aperture_base_hi: node.lds_aperture_hi,
        private_segment_aperture_base_hi: node.scratch_aperture_hi,
        read_dispatch_id_field_base_byte_offset: words(READ_INDEX)[0],
        queue_properties: queue_properties::IS_PTR64,
        ..AmdQueue::default()
    };
    view(places.page, PAGE, step)?.write(0, bytes_of(&queue));
    let geometry = node.info.geometry();
    if let Some(header) = SaveAreaHeader::initial(geometry, 0, 0, 0) {
        view(places.save_area, geometry.total_bytes, step)?.write(0, &header.to_bytes());
    }
    Ok(())
}

fn doorbell(
    device: &Device,
    node: &DeviceNode,
    places: &Places,
    byte: u32,
    step: Step,
) -> Result<Doorbell, Refusal> {
    let (file, offset) = (device.kfd().file(), doorbell_cookie(node.gpu.0));
    let at = std::ptr::with_exposed_provenance_mut::<u8>(size(places.doorbells));
    // SAFETY: as in `map`; the slice stays mapped until this process ends.
    let slice = unsafe { file.map_doorbells(at, DOORBELL_SLICE_BYTES, offset) }.map_err(|errno| {
        let (path, bytes) = (file.path().to_owned(), DOORBELL_SLICE_BYTES as u64);
        Refusal::device(step, &DeviceError::Mmap { path, va: places.doorbells, bytes, offset, errno })
    })?;
    Ok(slice.doorbell(byte))
}

/// Submits a barrier packet at `index` and waits for its completion.
fn submit(places: &Places, doorbell: &Doorbell, index: u64, step: Step) -> Result<(), Refusal> {
    let signal = view(places.signal, PAGE, step)?;
    let pending = AmdSignal { kind: signal_kind::USER, value: 1, ..AmdSignal::default() };
    signal.write(0, bytes_of(&pending));
    let barrier = Barrier { completion_signal: places.signal, ..Barrier::noop() };
    let packet = Packet::BarrierAnd(barrier.with_fences(FenceScope::System)).encode();
    let slot = view(places.ring, u64::from(RING_BYTES), step)?
        .part(index * PACKET_BYTES as u64, PACKET_BYTES as u64);
    for (word, &value) in packet.iter().enumerate().skip(1) {
        slot.store32(word as u64 * 4, value, Ordering::Relaxed);
    }
    view(places.page, PAGE, step)?.store(WRITE_INDEX, index + 1, Ordering::Release);
    // ORDERING: the packet belongs to the processor from this store on.
    slot.store32(0, packet[0], Ordering::Release);
    doorbell.ring(index);
    let deadline = Instant::now() + PACKET;
    while signal.load(VALUE, Ordering::Acquire) != 0 {
        if Instant::now() >= deadline {
            let text = format!("A barrier packet was not completed within {} s", PACKET.as_secs());
            return Err(Refusal { step, errno: Errno::ETIMEDOUT as i32, text });
        }
        // TIMEOUT: the queue needs microseconds.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

const VALUE: u64 = std::mem::offset_of!(AmdSignal, value) as u64;
