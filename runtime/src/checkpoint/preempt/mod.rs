// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues stopped in the middle of their kernels, and how they come to continue: in this process, whose driver state
//! was never given up, or in a copy of it, through the driver's own checkpoint (CRIU_OP).
//!
//! INVARIANT: nothing is destroyed here. The driver's state belongs to the process's memory and not to its open files
//! (`kfd_process.c`): queues, buffers and events outlive the closed device for as long as the process does.
//!
//! ```text
//!                this process                                   a copy of it
//!   park ── contents to the image ── capture ── let go ─┬─ files back, mappings back ── resume
//!                                                       └─ RESTORE, mappings, fill, RESUME ── resume
//! ```

mod captured;
mod error;
mod probe;

use kfd::ioctl::WaveStateSizes;
use kfd::{Errno, IoctlError};
use stasis_protocol::Limit;
use stasis_protocol::gate::Closed;

pub(crate) use self::captured::Captured;
pub use self::error::{CaptureError, Unavailable};
pub use self::probe::{ForkError, LAST_KFD_MINOR_WITHOUT_MES, Step};
use super::calls::call_limit;
use super::contents::Contents;
use super::error::{CheckpointError, device};
use crate::context::Context;
use crate::context::device::Device;
use crate::context::device::svm::forget_unmapped;
use crate::context::error::QueueError;
use crate::context::queue::lost_agent;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoKind, BoRole};
use crate::vmem;

/// Saved contents are whole pages.
const PAGE: u64 = 4096;

/// Whether a driver could give the buffers of this process to a copy of it, and they to the copy's queues.
fn possible(registry: &Registry) -> Result<(), Unavailable> {
    let lent = registry.bos.iter().find(|(_, bo)| matches!(bo.state.kind, BoKind::Userptr { .. }));
    lent.map_or(Ok(()), |(bo, _)| Err(Unavailable::Userptr { bo }))?;
    let mut shared = registry.svm.clone();
    if let Err(error) = forget_unmapped(&mut shared) {
        tracing::debug!(target: "checkpoint", %error, "memory that is shared no more may count");
    }
    let range = shared.iter().find(|(_, state)| state.users().next().is_some());
    range.map_or(Ok(()), |(addresses, _)| Err(Unavailable::Svm { address: addresses.start }))?;
    let shared = registry.bos.iter().find(|(_, bo)| bo.state.sharing.is_some());
    shared.map_or(Ok(()), |(bo, _)| Err(Unavailable::Shared { bo }))
}

/// Whether the driver shows this process its own state. It takes all queues off the hardware for it, so it is asked when
/// they are off already.
fn permitted(on: &Device, limit: &Limit) -> Result<(), Unavailable> {
    // What was paused is let go, however long the device takes.
    let asked = call_limit(limit).hold(|| on.kfd().criu_process_info()).and_then(|_| on.kfd().criu_unpause());
    asked.map_err(|error| match error.errno {
        Errno::EACCES | Errno::EPERM => Unavailable::NotPermitted,
        _ => Unavailable::Driver(error),
    })
}

/// Whether [`suspend_queues`] would do, and the most bytes [`contents`] could come to. The driver's own permission is
/// foretold, not asked for: asking takes the queues off the hardware. Whether the kernel restores queues is said as far as
/// it is known: the first lock tries it ([`probe`]).
///
/// # Errors
/// [`CheckpointError::Preempt`], [`CheckpointError::Hidden`].
pub(super) fn predict(registry: &Registry, on: &Device) -> Result<u64, CheckpointError> {
    probe::recall(on).and_then(|()| possible(registry)).map_err(CheckpointError::Preempt)?;
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
pub(super) fn suspend_queues(
    context: &Context,
    closed: &Closed,
    limit: &Limit,
) -> Result<(), CheckpointError> {
    let pass = closed.pass();
    let Some(on) = context.device(&pass) else { return Ok(()) };
    // A fault took the queues off, wherever their waves were: that is nothing a copy could go on with.
    for info in &context.agents {
        if let Err(QueueError::AgentLost(lost)) = lost_agent::check(context, &pass, info) {
            return Err(CheckpointError::Preempt(Unavailable::AgentLost(lost)));
        }
    }
    // Before the registry is locked: it may take a while.
    probe::make_sure(on, limit).map_err(CheckpointError::Preempt)?;
    let mut registry = context.registry.lock();
    possible(&registry).map_err(CheckpointError::Preempt)?;
    let suspended = {
        let Registry { queues, bos, .. } = &mut *registry;
        let ours = queues.iter_mut().filter(|(_, queue)| queue.created && !queue.state.suspended);
        let mut results = ours.map(|(_, queue)| call_limit(limit).hold(|| on.suspend_queue(queue, bos)));
        results.find(Result::is_err).unwrap_or(Ok(()))
    };
    let suspended = suspended.map_err(device("to preempt a queue"));
    let suspended = suspended.and_then(|()| permitted(on, limit).map_err(CheckpointError::Preempt));
    if suspended.is_err()
        && let Err(error) = resume_queues(&mut registry, on)
    {
        tracing::error!(target: "checkpoint", %error, "a queue stays off the hardware");
    }
    suspended
}

/// Puts the suspended queues back on the hardware; those that failed stay off.
///
/// # Errors
/// [`CheckpointError::Device`] for the first that the driver refuses; the others are back.
pub(super) fn resume_queues(registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
    let Registry { queues, bos, .. } = registry;
    let failed = |queue: &crate::context::registry::Queue| {
        queue.live.as_ref().is_some_and(|live| live.fault().is_some())
    };
    let mut first = Ok(());
    for (_, queue) in queues.iter_mut().filter(|(_, queue)| queue.created && queue.state.suspended) {
        if failed(queue) {
            continue;
        }
        let resumed = on.resume_queue(queue, bos).map_err(device("to put a queue back on the hardware"));
        first = first.and(resumed);
    }
    first
}

/// Takes the driver's state of this process, whose queues are suspended, and of whose memory `contents` is in the image.
///
/// # Errors
/// [`CheckpointError::Device`].
pub(super) fn capture(on: &Device, contents: Contents, limit: &Limit) -> Result<Captured, CheckpointError> {
    let ioctl = |source: IoctlError| CheckpointError::Device {
        what: "its state of the process",
        source: crate::context::device::ioctl("the driver's checkpoint")(source),
    };
    let info = call_limit(limit).hold(|| on.kfd().criu_process_info()).map_err(ioctl)?;
    let taken = call_limit(limit).hold(|| on.kfd().criu_checkpoint(&info));
    // Snapshot queues stay off the hardware by their percentage.
    let unpaused = on.kfd().criu_unpause();
    let taken = taken.map_err(ioctl)?;
    unpaused.map_err(ioctl)?;
    // The descriptors of the buffers' memory end here: the bytes go through our own mappings.
    let kfd::ioctl::Checkpoint { devices, bos, objects, private, dmabufs: _ } = taken;
    Ok(Captured { devices, bos, objects, private, contents })
}

/// What of memory a preempted process needs: beside what a drained one does, everything that its packets and waves are
/// in the middle of.
///
/// # Errors
/// [`CheckpointError::Hidden`], [`CheckpointError::Device`].
pub(super) fn contents(registry: &Registry, on: &Device, limit: &Limit) -> Result<Contents, CheckpointError> {
    call_limit(limit).hold(|| contents_of(registry, on))
}

fn contents_of(registry: &Registry, on: &Device) -> Result<Contents, CheckpointError> {
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
    let used = used_bytes(geometry.control_stack_bytes, sizes);
    let bytes = registry.bos.get(area).map_or(used, |bo| bo.state.bytes);
    Ok(used.next_multiple_of(PAGE).min(bytes))
}

/// Bytes from the start of an area that hold something. A dispatch between its waves has words in the control stack and no record.
fn used_bytes(control_stack_bytes: u32, sizes: WaveStateSizes) -> u64 {
    match (sizes.control_stack_bytes, sizes.wave_state_bytes) {
        (0, 0) => PAGE,
        (_, records) => u64::from(control_stack_bytes) + u64::from(records),
    }
}

/// Takes mappings and doorbells away; in the driver everything stays.
///
/// # Errors
/// [`CheckpointError::Device`]; some mappings are gone then.
pub(super) fn detach(
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
pub(super) fn reattach(registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
    registry.bos.iter().try_for_each(|(_, bo)| on.map_cpu(bo).map_err(device("to map a buffer again")))?;
    // In a copy on the agents too: the driver's checkpoint knows nothing of them.
    vmem::rebuild(registry, on).map_err(device("to map a part of a range again"))
}

/// Gives the queues their doorbells again; they continue where their descriptors say.
///
/// # Errors
/// [`CheckpointError::Device`].
pub(super) fn reattach_doorbells(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_without_a_record_are_saved_too() {
        let sizes =
            |control_stack_bytes, wave_state_bytes| WaveStateSizes { control_stack_bytes, wave_state_bytes };
        assert_eq!(used_bytes(0xa000, sizes(0, 0)), PAGE);
        assert_eq!(used_bytes(0xa000, sizes(12, 0)), 0xa000);
        assert_eq!(used_bytes(0xa000, sizes(40, 5000)), 0xa000 + 5000);
    }
}
