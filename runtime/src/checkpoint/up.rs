// SPDX-License-Identifier: MIT OR Apache-2.0
//! CHECKPOINTED → LOCKED, step by step: image, admission, device, objects, bytes; and the way back down when one fails.

use std::sync::Arc;
use std::time::Instant;

use kfd::transport::render_node_path;

use super::admit::admit;
use super::down::{disconnect, keep, part_with, taken};
use super::incarnation::Incarnation;
use super::keeper::Keeper;
use super::parked::{Metadata, Parked};
use super::preempt::Captured;
use super::protocol::RestoreReport;
use super::{
    Activity, CheckpointError, IMAGE_FILE, RestoreOptions, device, evacuate, milliseconds, preempt, rebuild,
    system,
};
use crate::device::{Device, RenderFiles};
use crate::error::OpenError;
use crate::gate::Closed;
use crate::image::Image;
use crate::limit::Limit;
use crate::pool::window;
use crate::runtime::Inner;

pub(super) fn bring_back(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    parked: &mut Parked,
    options: &RestoreOptions,
    limit: &Limit,
) -> Result<RestoreReport, CheckpointError> {
    inner.session().now(Activity::Opening);
    let mut report = RestoreReport::default();
    let started = Instant::now();
    let path = options.directory.as_ref().map_or_else(|| parked.image.clone(), |d| d.join(IMAGE_FILE));
    let image = Image::open(&path)?;
    let metadata: Metadata = image.metadata()?;
    if metadata.image_id != parked.image_id {
        let (found, wanted) = (metadata.image_id, parked.image_id.clone());
        return Err(CheckpointError::OtherImage { path, found, wanted });
    }
    let same_process = Incarnation::current().map_err(system("identify the process"))? == parked.incarnation;
    admit(inner, parked, options.admission.as_ref(), same_process, limit)?;
    let device = open_device(inner, parked, same_process)?;
    report.open_ms = milliseconds(started);
    let from = Source { image: &image, same_process, limit };
    let made = match &parked.captured {
        Some(captured) => go_back_to(inner, closed, &device, captured, &from, &mut report),
        None => make_again(inner, closed, &device, &from, &mut report),
    };
    if let Err(error) = made {
        give_up(inner, closed, device, parked);
        return Err(error);
    }
    inner.put_device(closed, Arc::new(device)).map_err(taken)?;
    Ok(report)
}

/// Whether the buffers' addresses are still theirs.
pub(super) fn check_window(inner: &Inner) -> Result<(), CheckpointError> {
    let registry = inner.registry.lock();
    let in_driver = registry.bos.iter().filter(|(_, bo)| bo.kernel.is_some());
    let kept: Vec<_> = in_driver.map(|(_, bo)| bo.state.va..bo.state.va + bo.state.bytes).collect();
    let checked = window::check(registry.arena.window(), &kept);
    Ok(checked.map_err(system("read /proc/self/maps"))??)
}

/// Opens the device as the process that it now is; a failure leaves nothing open, and the keeper with its files.
fn open_device(
    inner: &Arc<Inner>,
    parked: &mut Parked,
    same_process: bool,
) -> Result<Device, CheckpointError> {
    let opened = match parked.keeper.take() {
        Some(keeper) if same_process => reopen(inner, parked, keeper),
        _ => open_afresh(inner, parked, same_process),
    };
    opened.inspect_err(|_| {
        if let Err(error) = disconnect(&*parked.transport) {
            tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
        }
    })
}

/// Opens it with the render files that this process's address spaces are tied to.
fn reopen(inner: &Arc<Inner>, parked: &mut Parked, keeper: Keeper) -> Result<Device, CheckpointError> {
    let act = "take the render files back from their keeper";
    let fds = keeper.fetch().map_err(system(act))?;
    let spare: Result<Vec<_>, _> = fds.iter().map(|fd| fd.try_clone()).collect();
    let minors = inner.agents.iter().map(|agent| agent.render_minor());
    let adopt = |(minor, fd)| parked.transport.adopt(&render_node_path(minor), fd);
    let files: Result<_, _> = minors.zip(fds).map(adopt).collect();
    let opened = files.map_err(OpenError::Transport).and_then(|files| {
        Device::open(Arc::clone(&parked.transport), &inner.agents, Some(RenderFiles { files }))
    });
    opened.map_err(|error| {
        // Without these very files the device is closed to this process for good (`ACQUIRE_VM`: EBUSY).
        match spare.and_then(Keeper::hold) {
            Ok(keeper) => parked.keeper = Some(keeper),
            Err(error) => tracing::error!(target: "checkpoint", %error, "the device of this process is lost"),
        }
        CheckpointError::Open(error)
    })
}

fn open_afresh(
    inner: &Arc<Inner>,
    parked: &mut Parked,
    same_process: bool,
) -> Result<Device, CheckpointError> {
    if !same_process {
        // The kernel's handles were another process's.
        for (_, bo) in inner.registry.lock().bos.iter_mut() {
            bo.kernel = None;
        }
        if let Some(captured) = &mut parked.captured {
            return Device::restore(Arc::clone(&parked.transport), &inner.agents, captured)
                .map_err(CheckpointError::Open);
        }
    }
    Device::open(Arc::clone(&parked.transport), &inner.agents, None).map_err(CheckpointError::Open)
}

/// Where a device's state comes from.
struct Source<'a> {
    image: &'a Image,
    /// This process lives on; it is no restored copy.
    same_process: bool,
    limit: &'a Limit,
}

fn make_again(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    on: &Device,
    from: &Source<'_>,
    report: &mut RestoreReport,
) -> Result<(), CheckpointError> {
    let started = Instant::now();
    inner.session().now(Activity::Rebuilding);
    let mut registry = inner.registry.lock();
    rebuild::buffers(&mut registry, on)?;
    rebuild::events(&mut registry, on, from.same_process)?;
    report.rebuild_ms = milliseconds(started);
    let started = Instant::now();
    inner.session().now(Activity::Filling);
    let keys = evacuate::saved(&registry)?;
    // New memory of a driver is cleared (VRAM_CLEARED, zeroed system pages).
    report.add_read(from.image.fill(&evacuate::extents(&registry, &keys), true, from.limit)?);
    report.fill_ms = milliseconds(started);
    let started = Instant::now();
    rebuild::queues(&mut registry, on, closed)?;
    report.rebuild_ms += milliseconds(started);
    Ok(())
}

/// Goes back to what is in the driver: this process's own, or a copy's that was just put there.
fn go_back_to(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    on: &Device,
    captured: &Captured,
    from: &Source<'_>,
    report: &mut RestoreReport,
) -> Result<(), CheckpointError> {
    let started = Instant::now();
    inner.session().now(Activity::Rebuilding);
    let mut registry = inner.registry.lock();
    if !from.same_process {
        captured.adopt(&mut registry)?;
    }
    preempt::take_back(&mut registry, on)?;
    report.rebuild_ms = milliseconds(started);
    if !from.same_process {
        inner.session().now(Activity::Filling);
        let started = Instant::now();
        report.add_read(from.image.fill(&captured.extents(&registry), true, from.limit)?);
        report.fill_ms = milliseconds(started);
    }
    let started = Instant::now();
    preempt::ring_again(&mut registry, on, closed)?;
    if !from.same_process {
        on.resume_restored().map_err(device("to let restored queues run"))?;
    }
    report.rebuild_ms += milliseconds(started);
    Ok(())
}

/// Undoes a restore that failed half way: the process is as it was before it, and the restore can be tried again.
fn give_up(inner: &Arc<Inner>, closed: &mut Closed, from: Device, parked: &mut Parked) {
    let preempted = parked.captured.is_some();
    let (undone, renders, transport) = part_with(inner, from, closed, preempted);
    if let Err(error) = undone {
        tracing::warn!(target: "checkpoint", %error, "a failed restore was not undone completely");
    }
    match keep(renders) {
        Ok(keeper) => parked.keeper = Some(keeper),
        Err(error) => tracing::error!(target: "checkpoint", %error, "the device of this process is lost"),
    }
    match Incarnation::current() {
        Ok(incarnation) => parked.incarnation = incarnation,
        Err(error) => tracing::error!(target: "checkpoint", %error, "the process cannot be identified"),
    }
    if let Err(error) = disconnect(&*transport) {
        tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
    }
}
