// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues stopped in the middle of their kernels, and how they come to continue: in this process, whose driver state
//! was never given up, or in a copy of it, through the driver's own checkpoint (CRIU_OP).
//!
//! INVARIANT: nothing is destroyed here. The driver's state belongs to the process's memory and not to its open files
//! (`kfd_process.c`): queues, buffers and events outlive the closed device for as long as the process does.
//!
//! ```text
//!                this process                                   a copy of it
//!   park ── capture ── contents to the image ── let go ─┬─ files back, mappings back ── go on
//!                                                       └─ RESTORE, mappings, fill, RESUME ── go on
//! ```
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use kfd::blob::{Blob, BlobError};
use kfd::ioctl::RestoreDevice;
use kfd::sys::{kfd_criu_bo_bucket, kfd_criu_device_bucket};
use kfd::{Errno, File, GpuId, IoctlError, Kfd};
use stasis_protocol::Limit;
use stasis_protocol::gate::Closed;
use thiserror::Error;

use super::{CheckpointError, call_limit, device};
use crate::context::Context;
use crate::context::device::Device;
use crate::context::registry::state::{BoKey, BoKind, BoRole};
use crate::context::registry::{KernelBo, Registry};
use crate::image::Extent;
use crate::vmem;

/// First KFD interface whose CRIU_OP RESTORE gives back the queues of chips with a microengine scheduler (gfx11,
/// gfx12). An assumption: no kernel up to 7.3 (interface 1.23) can, since
/// `kfd_criu_restore_queue` (`kfd_process_queue_manager.c`) gives such a queue no write pointer buffer.
pub const MIN_KFD_MINOR_MES: u32 = 24;
/// Saved contents are whole pages.
const PAGE: u64 = 4096;

/// Why queues cannot be stopped in the middle of their kernels here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The process may not read its own driver state.
    #[error(
        "The driver shows its state of this process only with CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; give the process \
         one of them, or lock with Mode::Drain"
    )]
    NotPermitted,
    /// The kernel could not put the queues back.
    #[error(
        "KFD 1.{minor} cannot restore the queues of {target} (its scheduler runs on the GPU); it takes 1.{wanted}: lock \
         with Mode::Drain"
    )]
    Kernel {
        /// Minor number of the interface.
        minor: u32,
        /// The chip.
        target: &'static str,
        /// The first minor that can.
        wanted: u32,
    },
    /// Memory that is the process's own would have to be lent again, which no driver does for a copy.
    #[error(
        "{bo} is memory that the process had before: the driver cannot give it to a restored process's preempted waves; \
         release it, or lock with Mode::Drain"
    )]
    Userptr {
        /// Which buffer.
        bo: BoKey,
    },
    /// No driver gives a copy the memory that others have.
    #[error(
        "{bo} is memory that others may hold (exported or imported): the driver would give a restored process one of its \
         own; lock with Mode::Drain"
    )]
    Shared {
        /// Which buffer.
        bo: BoKey,
    },
    /// The driver refused for another reason.
    #[error("The driver does not show its state of this process")]
    Driver(#[source] IoctlError),
}

/// Why the driver's state of a process is not what its registry knows.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The driver's record cannot be read.
    #[error("The driver's record of the process cannot be read")]
    Blob(#[from] BlobError),
    /// A buffer is missing in it.
    #[error("The driver's record of the process has no buffer at {va:#x} (+{bytes:#x}), where {bo} is")]
    Buffer {
        /// The registry's name.
        bo: BoKey,
        /// Its address.
        va: u64,
        /// Its length.
        bytes: u64,
    },
    /// A GPU of the record is not here.
    #[error(
        "The waves were preempted on GPU {gpu_id:#x}, which is not here; only the same GPU can continue them"
    )]
    Gpu {
        /// The id.
        gpu_id: u32,
    },
}

/// The driver's state of a process, to be given to a copy of it.
#[derive(Debug)]
pub(crate) struct Captured {
    devices: Vec<kfd_criu_device_bucket>,
    bos: Vec<kfd_criu_bo_bucket>,
    objects: u32,
    private: Vec<u8>,
    /// The buffers whose bytes are in the image, and how many of each.
    contents: Vec<(BoKey, u64)>,
}

/// Whether this kernel could give preempted queues to a copy of this process, and they to it.
fn possible(registry: &Registry, on: &Device) -> Result<(), Unavailable> {
    let minor = on.interface_minor();
    let mes = on.nodes().iter().map(|node| node.info.target()).find(|target| target.mes);
    if let Some(target) = mes.filter(|_| minor < MIN_KFD_MINOR_MES) {
        return Err(Unavailable::Kernel { minor, target: target.name, wanted: MIN_KFD_MINOR_MES });
    }
    let lent = registry.bos.iter().find(|(_, bo)| matches!(bo.state.kind, BoKind::Userptr { .. }));
    lent.map_or(Ok(()), |(bo, _)| Err(Unavailable::Userptr { bo }))?;
    let shared = registry.bos.iter().find(|(_, bo)| bo.state.sharing.is_some());
    shared.map_or(Ok(()), |(bo, _)| Err(Unavailable::Shared { bo }))
}

/// Whether the driver shows this process its own state. It takes all queues off the hardware for it, so it is asked when
/// they are off already.
fn permitted(on: &Device, limit: &Limit) -> Result<(), Unavailable> {
    // What was paused is let go, however long the device takes.
    let asked = call_limit(limit).hold(|| on.kfd().criu_process_info()).and_then(|_| on.kfd().criu_unpause());
    asked.map_err(|error| match error.errno {
        Errno::ACCESS | Errno::PERM => Unavailable::NotPermitted,
        _ => Unavailable::Driver(error),
    })
}

/// Whether [`park`] would do, and the most bytes [`contents`] could come to. The driver's own permission is foretold, not
/// asked for: asking takes the queues off the hardware.
///
/// # Errors
/// [`CheckpointError::Preempt`], [`CheckpointError::Hidden`].
pub(super) fn outlook(registry: &Registry, on: &Device) -> Result<u64, CheckpointError> {
    possible(registry, on).map_err(CheckpointError::Preempt)?;
    if !has_capability() {
        return Err(CheckpointError::Preempt(Unavailable::NotPermitted));
    }
    let mut bytes = 0;
    for (bo, entry) in registry.bos.iter() {
        let state = &entry.state;
        let driver = matches!(state.role, BoRole::EventPage | BoRole::Doorbell);
        match state.kind {
            _ if driver => {}
            BoKind::Userptr { .. } | BoKind::Doorbell | BoKind::Imported | BoKind::Reserved => {}
            BoKind::Vram | BoKind::Gtt if state.cpu_mapped => bytes += state.bytes,
            BoKind::Vram | BoKind::Gtt if state.role == BoRole::Eop => {}
            BoKind::Vram | BoKind::Gtt => return Err(CheckpointError::Hidden { bo }),
        }
    }
    Ok(bytes)
}

/// CAP_SYS_ADMIN (21) or CAP_CHECKPOINT_RESTORE (40), effective.
fn has_capability() -> bool {
    const WANTED: u64 = 1 << 21 | 1 << 40;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & WANTED != 0)
}

/// Takes every queue off the hardware, wherever its waves are. When the limit is over, no further queue is asked for;
/// those that are off already go back on, however long the device takes.
///
/// # Errors
/// [`CheckpointError::Preempt`], [`CheckpointError::Device`]; the queues are on the hardware as before.
pub(super) fn park(context: &Context, closed: &Closed, limit: &Limit) -> Result<(), CheckpointError> {
    let pass = closed.pass();
    let Some(on) = context.device(&pass) else { return Ok(()) };
    let mut registry = context.registry.lock();
    possible(&registry, on).map_err(CheckpointError::Preempt)?;
    let parked = {
        let Registry { queues, bos, .. } = &mut *registry;
        let ours = queues.iter_mut().filter(|(_, queue)| queue.created && !queue.state.parked);
        let mut park = ours.map(|(_, queue)| call_limit(limit).hold(|| on.park_queue(queue, bos)));
        park.find(Result::is_err).unwrap_or(Ok(()))
    };
    let parked = parked.map_err(device("to preempt a queue"));
    let parked = parked.and_then(|()| permitted(on, limit).map_err(CheckpointError::Preempt));
    if parked.is_err()
        && let Err(error) = go_on(&mut registry, on)
    {
        tracing::error!(target: "checkpoint", %error, "a queue stays off the hardware");
    }
    parked
}

/// Puts the parked queues back on the hardware; those that failed stay off.
///
/// # Errors
/// [`CheckpointError::Device`] for the first that the driver refuses; the others are back.
pub(super) fn go_on(registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
    let Registry { queues, bos, .. } = registry;
    let failed = |queue: &crate::context::registry::Queue| {
        queue.live.as_ref().is_some_and(|live| live.fault().is_some())
    };
    let mut first = Ok(());
    for (_, queue) in queues.iter_mut().filter(|(_, queue)| queue.created && queue.state.parked) {
        if failed(queue) {
            continue;
        }
        let resumed = on.resume_queue(queue, bos).map_err(device("to put a queue back on the hardware"));
        first = first.and(resumed);
    }
    first
}

/// Takes the driver's state of this process, whose queues are parked.
///
/// # Errors
/// [`CheckpointError::Hidden`], [`CheckpointError::Device`].
pub(super) fn capture(registry: &Registry, on: &Device, limit: &Limit) -> Result<Captured, CheckpointError> {
    let contents = call_limit(limit).hold(|| contents(registry, on))?;
    let ioctl = |source: IoctlError| CheckpointError::Device {
        what: "its state of the process",
        source: crate::context::device::ioctl("the driver's checkpoint")(source),
    };
    let info = call_limit(limit).hold(|| on.kfd().criu_process_info()).map_err(ioctl)?;
    let taken = call_limit(limit).hold(|| on.kfd().criu_checkpoint(&info));
    // Parked queues stay off the hardware by their percentage.
    let unpaused = on.kfd().criu_unpause();
    let taken = taken.map_err(ioctl)?;
    unpaused.map_err(ioctl)?;
    // The descriptors of the buffers' memory end here: the bytes go through our own mappings.
    let kfd::ioctl::Checkpoint { devices, bos, objects, private, dmabufs: _ } = taken;
    Ok(Captured { devices, bos, objects, private, contents })
}

/// What of memory a preempted process needs: beside what a drained one does, everything that its packets and waves are
/// in the middle of.
fn contents(registry: &Registry, on: &Device) -> Result<Vec<(BoKey, u64)>, CheckpointError> {
    let mut contents = Vec::new();
    for (key, bo) in registry.bos.iter() {
        let state = &bo.state;
        let bytes = match state.role {
            BoRole::EventPage | BoRole::Doorbell => continue,
            BoRole::SaveArea => used_save_area(registry, on, key)?,
            _ => state.bytes,
        };
        match state.kind {
            // A userptr's bytes are the process's own memory: CRIU has them.
            BoKind::Userptr { .. } | BoKind::Doorbell | BoKind::Imported | BoKind::Reserved => {}
            BoKind::Vram | BoKind::Gtt if state.cpu_mapped => contents.push((key, bytes)),
            // Nothing is in flight behind a preempted queue's end of pipe.
            BoKind::Vram | BoKind::Gtt if state.role == BoRole::Eop => {}
            BoKind::Vram | BoKind::Gtt => return Err(CheckpointError::Hidden { bo: key }),
        }
    }
    Ok(contents)
}

/// Bytes from the start of a save area that hold something: all of it is 46 MB on a large chip.
fn used_save_area(registry: &Registry, on: &Device, area: BoKey) -> Result<u64, CheckpointError> {
    let owner = registry.queues.iter().find(|(_, queue)| queue.state.bos.save_area == Some(area));
    let Some((_, queue)) = owner.filter(|(_, queue)| queue.created) else { return Ok(PAGE) };
    let geometry =
        on.node(queue.state.agent).map_err(device("the place of a queue's waves"))?.info.geometry();
    let sizes = on.wave_state(queue, &registry.bos).map_err(device("the place of a queue's waves"))?;
    let used = match sizes.wave_state_bytes {
        0 => PAGE,
        records => u64::from(geometry.control_stack_bytes) + u64::from(records),
    };
    let bytes = registry.bos.get(area).map_or(used, |bo| bo.state.bytes);
    Ok(used.next_multiple_of(PAGE).min(bytes))
}

impl Captured {
    /// Names of the buffers in the image.
    pub(super) fn keys(&self) -> impl Iterator<Item = BoKey> {
        self.contents.iter().map(|(key, _)| *key)
    }

    /// Their host mappings, for the image.
    pub(super) fn extents(&self, registry: &Registry) -> Vec<Extent> {
        let extent = |&(key, bytes): &(BoKey, u64)| {
            let state = &registry.bos.get(key)?.state;
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(state.va as usize))?;
            // SAFETY: the entry is CPU-mapped at `va` (`contents` has seen to it, or `take_back` just mapped it) for at
            // least `bytes`, the gate is closed so that nobody frees it, and the queues are off the hardware.
            Some(unsafe { Extent::new(start, bytes) })
        };
        self.contents.iter().filter_map(extent).collect()
    }

    /// Whether every GPU of the record is among `here`.
    ///
    /// # Errors
    /// [`CaptureError::Gpu`].
    pub(super) fn check_gpus(&self, here: &[GpuId]) -> Result<(), CaptureError> {
        let absent =
            self.devices.iter().map(|device| device.actual_gpu_id).find(|id| !here.contains(&GpuId(*id)));
        absent.map_or(Ok(()), |gpu_id| Err(CaptureError::Gpu { gpu_id }))
    }

    /// Gives the state to this process, which has nothing in the driver yet. `render` is a fresh render file of each GPU.
    ///
    /// # Errors
    /// [`IoctlError`]; this process cannot be restored any more then, another copy can.
    pub(crate) fn put(
        &mut self,
        kfd: &Kfd,
        render: impl Fn(GpuId) -> Option<Arc<dyn File>>,
    ) -> Result<(), IoctlError> {
        let files: Vec<_> = self
            .devices
            .iter()
            .filter_map(|bucket| Some((bucket, render(GpuId(bucket.actual_gpu_id))?)))
            .collect();
        let devices: Vec<_> = files
            .iter()
            .map(|(bucket, file)| RestoreDevice {
                user_gpu_id: bucket.user_gpu_id,
                actual_gpu_id: bucket.actual_gpu_id,
                render_node: file.as_fd(),
            })
            .collect();
        kfd.criu_restore(&devices, &mut self.bos, self.objects, &self.private).map(drop)
    }

    /// Tells the registry what the driver has after [`Captured::put`].
    ///
    /// # Errors
    /// [`CaptureError`].
    pub(super) fn adopt(&self, registry: &mut Registry) -> Result<(), CaptureError> {
        // CAST: counts that were u32 when the driver gave them.
        let blob = Blob::parse(&self.private, self.devices.len() as u32, self.bos.len() as u32)?;
        for (key, bo) in registry.bos.iter_mut() {
            let state = &bo.state;
            if matches!(state.kind, BoKind::Doorbell | BoKind::Reserved) {
                continue;
            }
            let found = self.bos.iter().zip(&blob.bos).find(|(bucket, _)| bucket.addr == state.va);
            let (bucket, entry) =
                found.ok_or(CaptureError::Buffer { bo: key, va: state.va, bytes: state.bytes })?;
            let handle = entry.handle(GpuId(bucket.gpu_id));
            bo.kernel = Some(KernelBo { handle: handle.0, mmap_offset: bucket.restored_offset });
        }
        registry.events.iter_mut().for_each(|(_, event)| event.created = true);
        registry.queues.iter_mut().for_each(|(_, queue)| queue.created = true);
        Ok(())
    }
}

/// Takes mappings and doorbells away; in the driver everything stays.
///
/// # Errors
/// [`CheckpointError::Device`]; some mappings are gone then.
pub(super) fn let_go(
    registry: &mut Registry,
    on: &Device,
    closed: &mut Closed,
) -> Result<(), CheckpointError> {
    let Registry { bos, queues, maps, .. } = registry;
    for (_, queue) in queues.iter_mut() {
        if let Some(live) = &queue.live {
            live.detach(closed);
        }
    }
    // On the agents they stay, as the render files do.
    let hide = |(_, entry)| on.hide_from_cpu(entry).map_err(device("to unmap a part of a range"));
    maps.iter_mut().try_for_each(hide)?;
    bos.iter().try_for_each(|(_, bo)| on.unmap_cpu(bo).map_err(device("to unmap a buffer")))
}

/// Maps everything again that the driver has, at its addresses, and gives the queues their doorbells.
///
/// # Errors
/// [`CheckpointError::Device`].
pub(super) fn take_back(registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
    registry.bos.iter().try_for_each(|(_, bo)| on.map_cpu(bo).map_err(device("to map a buffer again")))?;
    // In a copy on the agents too: the driver's checkpoint knows nothing of them.
    vmem::rebuild(registry, on).map_err(device("to map a part of a range again"))
}

/// Gives the queues their doorbells again; they continue where their descriptors say.
///
/// # Errors
/// [`CheckpointError::Device`].
pub(super) fn ring_again(
    registry: &mut Registry,
    on: &Device,
    closed: &mut Closed,
) -> Result<(), CheckpointError> {
    for (_, queue) in registry.queues.iter().filter(|(_, queue)| queue.created) {
        let Some(live) = &queue.live else { continue };
        let slice =
            registry.fixtures.doorbells.get(&queue.state.agent).and_then(|key| registry.bos.get(*key));
        let absent = crate::context::error::DeviceError::Absent { what: "the doorbells" };
        let slice = slice.ok_or(absent).map_err(device("to map the doorbells again"))?;
        let doorbell = on.doorbell_of(queue, slice).map_err(device("to map the doorbells again"))?;
        live.reattach(closed, doorbell);
    }
    Ok(())
}
