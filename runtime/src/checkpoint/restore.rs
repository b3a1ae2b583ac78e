// SPDX-License-Identifier: MIT OR Apache-2.0
//! CHECKPOINTED → LOCKED, step by step: image, admission, device, objects, bytes; and the way back down when one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use kfd::transport::render_node_path;
use stasis_protocol::gate::Closed;
use stasis_protocol::{Activity, Limit};

use super::admit::{AgentIdentity, Lazy, admit};
use super::calls::{disconnect, milliseconds};
use super::contents::{self, Contents as ObjectBytes, Movers};
use super::error::{CheckpointError, device, system};
use super::keeper::{Held, KeeperError, Kept};
use super::lazy::{self, NotLazy};
use super::machine::CheckpointMachine;
use super::options::RestoreOptions;
use super::preempt::Captured;
use super::report::RestoreReport;
use super::rescue::{Rescue, Stranded};
use super::snapshot::{Contents, Metadata, Snapshot};
use super::tear_down::{release_device, take_error};
use super::{driver_objects, preempt, rebuild};
use crate::context::Context;
use crate::context::device::hdp::HdpPage;
use crate::context::device::{Device, RenderFiles};
use crate::context::error::{DeviceError, OpenError, explain};
use crate::context::handover::try_put_device;
use crate::context::memory::window;
use crate::context::queue::code_caches::settle;
use crate::context::registry::Registry;
use crate::context::registry::state::BoKey;
use crate::image::{EarlierFile, IMAGE_FILE, Image};
use crate::linux::incarnation::Incarnation;
use crate::share::{self, RestoreParticipant};
use crate::vmem;

pub(super) fn restore(
    context: &Arc<Context>,
    closed: &mut Closed,
    snapshot: &mut Snapshot,
    options: &RestoreOptions,
    limit: &Limit,
) -> Result<RestoreReport, CheckpointError> {
    CheckpointMachine::of(context).now(Activity::Opening);
    let same_process =
        Incarnation::current().map_err(system("identify the process"))? == snapshot.incarnation;
    if !same_process {
        snapshot.copy_of = Some(snapshot.image_id.clone());
        // A copy's were another process's.
        snapshot.kept = Kept::Nowhere;
    }
    CheckpointMachine::of(context).set_copy_of(snapshot.copy_of.clone());
    let held = match snapshot.kept.fetch() {
        Ok(Some(held)) => Some(held),
        fetched => match Held::of(&options.files, context.agents.len()).filter(|_| same_process) {
            Some(held) => Some(held),
            None => fetched?,
        },
    };
    let report = restore_steps(context, closed, snapshot, held.as_ref(), options, limit);
    match (report, held) {
        (Ok(report), _) => {
            std::mem::take(&mut snapshot.kept).release();
            Ok(report)
        }
        (Err(CheckpointError::Open(source)), held) if same_process && is_taken(&source) => {
            Err(strand(snapshot, held.is_some(), source))
        }
        // Without these very files the device is closed to this process for good (`ACQUIRE_VM`: EBUSY).
        (Err(error), Some(held)) if snapshot.kept.is_empty() => {
            snapshot.kept = Kept::secure(held);
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Whether the driver has this process's address spaces already, tied to other render files.
fn is_taken(error: &OpenError) -> bool {
    match error {
        OpenError::Known => true,
        OpenError::Bringup(DeviceError::Ioctl { source, .. }) => {
            (source.ioctl, source.errno) == ("ACQUIRE_VM", kfd::Errno::EBUSY)
        }
        _ => false,
    }
}

/// The files that the driver wants are not to be had; those that were tried are others.
fn strand(snapshot: &mut Snapshot, were_tried: bool, source: OpenError) -> CheckpointError {
    if were_tried {
        std::mem::replace(&mut snapshot.kept, Kept::Lost(KeeperError::Others)).release();
    }
    let lost = match &snapshot.kept {
        Kept::Lost(error) => error.to_string(),
        Kept::Nowhere | Kept::Here(_) | Kept::WithKeepers(_) => "they were never kept".to_owned(),
    };
    CheckpointError::Stranded(Box::new(Stranded { lost, rescue: Rescue::of(&snapshot.directory), source }))
}

/// The steps; `held` is what the keepers of a process that lives on have.
fn restore_steps(
    context: &Arc<Context>,
    closed: &mut Closed,
    snapshot: &mut Snapshot,
    held: Option<&Held>,
    options: &RestoreOptions,
    limit: &Limit,
) -> Result<RestoreReport, CheckpointError> {
    let mut report = RestoreReport::default();
    let started = Instant::now();
    let (image, names) = open_image(snapshot, held, options)?;
    let image = Arc::new(image);
    let directory = match (&snapshot.contents, &options.directory) {
        (Contents::Memory(_), _) => None,
        (Contents::File(_), Some(directory)) => Some(directory.clone()),
        (Contents::File(path), None) => path.parent().map(Path::to_owned),
    };
    let lazy = admit(context, snapshot, options.admission.as_ref(), held.is_some(), limit)?;
    let (device, same_process) = open_device(context, closed, snapshot, held)?;
    report.open_ms = milliseconds(started);
    context.clocks.go_on(&device);
    let from = Source { image: &image, names: &names, directory: directory.as_deref(), same_process, limit };
    let later = match (&snapshot.captured, lazy) {
        (_, Lazy::Off) => Ok(BTreeSet::new()),
        (Some(_), _) => Err(NotLazy::Preempted),
        (None, _) => lazy::choose(context, &context.registry.lock()),
    };
    report.not_lazy = later.as_ref().err().map(ToString::to_string);
    let later = later.unwrap_or_default();
    let made = match &snapshot.captured {
        Some(captured) => reattach_preempted(context, closed, &device, captured, &from, &mut report),
        None => rebuild_drained(context, closed, &device, snapshot, &from, &later, &mut report),
    };
    let made = made.and_then(|participant| {
        if !later.is_empty() {
            lazy::begin(context, &later, &image, &names)?;
            report.lazy_bytes = context.arriving.left_bytes();
        }
        Ok(participant)
    });
    let participant = match made {
        Ok(participant) => participant,
        Err(error) => {
            undo_restore(context, closed, device, snapshot, same_process, held);
            return Err(error);
        }
    };
    match try_put_device(context, closed, device) {
        Ok(()) => {
            context.set_transport_name(snapshot.transport.name());
            context.lost_agents.reopened(same_process);
            context.code_caches.mark_all_stale(&context.registry.lock());
            if snapshot.captured.is_none() {
                invalidate_code(context, closed);
            }
            share::keep_coordinator(context, participant.and_then(RestoreParticipant::finish));
            if lazy == Lazy::Background && context.arriving.is_active() {
                lazy::start_threads(context);
            }
            Ok(report)
        }
        Err((device, error)) => {
            context.arriving.clear();
            if let Some(device) = device {
                undo_restore(context, closed, *device, snapshot, same_process, held);
            }
            Err(take_error(error))
        }
    }
}

/// Has the agents forget what they may have fetched from the addresses of loaded code before the restore wrote it. Where
/// queues were preempted their waves run again already, or the driver holds all queues: there the next load or the next
/// queue does it.
fn invalidate_code(context: &Context, closed: &mut Closed) {
    let pass = closed.pass();
    for info in &context.agents {
        if let Err(error) = settle(context, &pass, info) {
            // The next load or queue tries again. What is there to forget is rare: the restore stands.
            let error = explain(&error);
            tracing::warn!(target: "checkpoint", error, "an agent's instruction caches were not invalidated");
        }
    }
}

/// Opens the image, whose extents' names are told beside it: where it is said to be now, else from the keepers or from
/// memory, else where it was written.
fn open_image(
    snapshot: &Snapshot,
    held: Option<&Held>,
    options: &RestoreOptions,
) -> Result<(Image, Vec<String>), CheckpointError> {
    let act = "take up the image";
    let (image, path) = match (
        &snapshot.contents,
        held.map(|held| &held.image).filter(|files| !files.is_empty()),
        &options.directory,
    ) {
        (Contents::Memory(file), ..) => {
            let label = PathBuf::from("the image in memory");
            (Image::of_file(file.try_clone().map_err(system(act))?, &label)?, label)
        }
        (Contents::File(_), _, Some(directory)) => {
            let path = directory.join(IMAGE_FILE);
            (Image::open(&path)?, path)
        }
        (Contents::File(path), Some(files), None) => {
            // Opened anew: a duplicate would share the flags that reading it sets.
            let open = |n: usize| match files.get(n) {
                Some(file) => File::open(format!("/proc/self/fd/{}", file.as_raw_fd())),
                None => Err(std::io::ErrorKind::NotFound.into()),
            };
            let file = open(0).map_err(system(act))?;
            // A list that was cut short, for want of descriptors, is no reason: the files are beside the image.
            let earlier = |n: usize, earlier: &EarlierFile| {
                open(n + 1).or_else(|_| File::open(path.with_file_name(&earlier.name)))
            };
            (Image::of_files(file, path, earlier)?, path.clone())
        }
        (Contents::File(path), None, None) => (Image::open(path)?, path.clone()),
    };
    let metadata: Metadata = image.metadata()?;
    if metadata.image_id != snapshot.image_id {
        let (found, wanted) = (metadata.image_id, snapshot.image_id.clone());
        return Err(CheckpointError::OtherImage { path, found, wanted });
    }
    Ok((image, metadata.extents))
}

/// Whether the buffers' addresses are still theirs.
pub(super) fn check_window(context: &Context) -> Result<(), CheckpointError> {
    let registry = context.registry.lock();
    let in_driver = registry.bos.iter().filter(|(_, bo)| bo.kernel.is_some());
    let in_driver = in_driver.map(|(_, bo)| bo.state.va..bo.state.va + bo.state.bytes);
    let kept: Vec<_> = in_driver.chain(registry.maps.on_cpu()).collect();
    let checked = window::check(registry.arena.window(), &kept);
    Ok(checked.map_err(system("read /proc/self/maps"))??)
}

/// Opens the device as the process that it now is, and says whether it is still known there; a failure leaves nothing
/// open.
fn open_device(
    context: &Arc<Context>,
    closed: &mut Closed,
    snapshot: &mut Snapshot,
    held: Option<&Held>,
) -> Result<(Device, bool), CheckpointError> {
    let opened = match held.map(|held| reopen(context, snapshot, held)) {
        Some(Err(error)) if is_another_device(&error) => {
            tracing::warn!(target: "checkpoint", %error, "the device was restarted, everything is made anew");
            let device = open_afresh(context, snapshot);
            device
                .inspect(|_| driver_objects::forget_all(&mut context.registry.lock(), closed))
                .map(|device| (device, false))
        }
        Some(opened) => opened.map(|device| (device, true)),
        None => open_afresh(context, snapshot).map(|device| (device, false)),
    };
    opened.inspect_err(|_| {
        if let Err(error) = disconnect(&*snapshot.transport) {
            tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
        }
    })
}

/// Whether a device answers that does not know this process's open files: the software device died meanwhile, and
/// another one was started. (The kernel's never is.)
fn is_another_device(error: &CheckpointError) -> bool {
    use kfd::OpenError::Refused;
    matches!(error, CheckpointError::Open(OpenError::Transport(Refused { errno: kfd::Errno::EBADF, .. })))
}

/// Opens it with the render files that this process's address spaces are tied to.
fn reopen(context: &Arc<Context>, snapshot: &Snapshot, held: &Held) -> Result<Device, CheckpointError> {
    let duplicates: Result<Vec<_>, _> = held.renders.iter().map(OwnedFd::try_clone).collect();
    let minors = context.agents.iter().map(|agent| agent.render_minor());
    let adopt = |(minor, fd)| snapshot.transport.adopt(&render_node_path(minor), fd);
    let files: Result<_, _> =
        minors.zip(duplicates.map_err(system("use the render files"))?).map(adopt).collect();
    let files = files.map_err(|error| CheckpointError::Open(OpenError::Transport(error)))?;
    Device::open(Arc::clone(&snapshot.transport), &context.agents, Some(RenderFiles { files }))
        .map_err(CheckpointError::Open)
}

/// Opens it as a process that it has not seen.
fn open_afresh(context: &Arc<Context>, snapshot: &mut Snapshot) -> Result<Device, CheckpointError> {
    let transport = Arc::clone(&snapshot.transport);
    let is_lost = matches!(snapshot.kept, Kept::Lost(_));
    let device = match &mut snapshot.captured {
        // Without its files it may still be the process that the driver knows.
        Some(_) if is_lost && Device::knows_us(&*transport).map_err(CheckpointError::Open)? => {
            Err(OpenError::Known)
        }
        Some(captured) => Device::restore(transport, &context.agents, |kfd, files| {
            captured.put(kfd, |gpu| files.get(&gpu).cloned())
        }),
        None => Device::open(transport, &context.agents, None),
    };
    let device = device.map_err(CheckpointError::Open)?;
    // The kernel's handles were another process's.
    let mut registry = context.registry.lock();
    for (_, bo) in registry.bos.iter_mut() {
        bo.kernel = None;
    }
    registry.forget_mappings();
    Ok(device)
}

/// Where a device's state comes from.
struct Source<'a> {
    image: &'a Image,
    /// The names of its extents.
    names: &'a [String],
    /// Where it lies; none for one in memory.
    directory: Option<&'a Path>,
    /// This process lives on; it is no restored copy.
    same_process: bool,
    limit: &'a Limit,
}

fn rebuild_drained(
    context: &Arc<Context>,
    closed: &mut Closed,
    on: &Device,
    snapshot: &Snapshot,
    from: &Source<'_>,
    later: &BTreeSet<BoKey>,
    report: &mut RestoreReport,
) -> Result<Option<RestoreParticipant>, CheckpointError> {
    let started = Instant::now();
    CheckpointMachine::of(context).now(Activity::Rebuilding);
    let mut registry = context.registry.lock();
    for (key, bo) in registry.bos.iter_mut() {
        if bo.kernel.is_some() {
            // What an undone restore could not destroy.
            on.map_awaited(bo).map_err(device("to map a buffer to its agents"))?;
        }
        bo.is_awaited = later.contains(&key);
    }
    let hidden = context.guard.hide(&mut registry);
    if let Err(error) = &hidden {
        tracing::warn!(target: "checkpoint", %error, "threads may see memory before it is filled");
    }
    rebuild::buffers(&mut registry, on)?;
    rebuild::events(&mut registry, on, from.same_process)?;
    report.rebuild_ms = milliseconds(started);
    let started = Instant::now();
    CheckpointMachine::of(context).now(Activity::Filling);
    let saved = contents::saved_buffers(&registry);
    let keys: ObjectBytes = saved.iter().filter(|(key, _)| !later.contains(key)).copied().collect();
    let serves = |agent| !from.same_process || context.lost_agents.lost(agent).is_none();
    let movers = Movers::new(context, closed, &mut registry, on, &keys, serves, from.limit)?;
    report.engine_bytes += movers.engine_bytes(&registry, &keys);
    let mut now = movers.extents(&registry, &keys).into_iter();
    let plain: Vec<_> =
        saved.iter().map(|(key, _)| if later.contains(key) { None } else { now.next() }).collect();
    // New memory of a driver is cleared (VRAM_CLEARED, zeroed system pages).
    let homes: Vec<String> = snapshot.agents.iter().map(AgentIdentity::uuid).collect();
    let shared = share::Source {
        image: from.image,
        directory: from.directory,
        names: from.names,
        homes: &homes,
        plain: &plain,
    };
    let shared = share::restore(&mut registry, on, &snapshot.sharing, &shared, from.limit);
    drop(plain);
    let ended = movers.end(&mut registry, on);
    let (filled, participant) = shared?;
    ended?;
    registry.bos.iter_mut().try_for_each(|(_, bo)| on.show(bo)).map_err(device("to show a buffer again"))?;
    context.guard.forget_hidden(&mut registry);
    // Not hidden, a thread may have stored something since it was filled.
    if hidden.is_ok() && know_filled(context, &registry, on, &keys, from) {
        contents::let_go(&registry, &keys, from.limit);
    }
    on.make_svm(&mut registry.svm).map_err(device("to give agents access to shared memory again"))?;
    vmem::rebuild(&mut registry, on).map_err(device("to map a part of a range again"))?;
    report.add_read(filled);
    report.fill_ms = milliseconds(started);
    let started = Instant::now();
    rebuild::queues(&mut registry, on, closed)?;
    report.rebuild_ms += milliseconds(started);
    Ok(participant)
}

/// Notes that the buffers hold what the image says: nobody has written to them since they were filled. Whether it is told what is written.
fn know_filled(
    context: &Context,
    registry: &Registry,
    on: &Device,
    filled: &ObjectBytes,
    from: &Source<'_>,
) -> bool {
    let machine = CheckpointMachine::of(context);
    if !machine.known.look(registry, on) {
        return false;
    }
    let bytes: BTreeMap<String, u64> = filled.iter().map(|(key, bytes)| (key.to_string(), *bytes)).collect();
    // An extent of somebody else has no chunk that anybody asks for.
    let extents = from.names.iter().map(|name| bytes.get(name).copied().unwrap_or(0));
    let mut chunks: BTreeMap<&String, _> = from.names.iter().zip(from.image.known(extents)).collect();
    let chunks = filled.iter().map(|(key, _)| chunks.remove(&key.to_string()).unwrap_or_default());
    machine.known.learn(filled.iter().copied(), chunks);
    true
}

/// Goes back to what is in the driver: this process's own, or a copy's that was just put there.
fn reattach_preempted(
    context: &Arc<Context>,
    closed: &mut Closed,
    on: &Device,
    captured: &Captured,
    from: &Source<'_>,
    report: &mut RestoreReport,
) -> Result<Option<RestoreParticipant>, CheckpointError> {
    let started = Instant::now();
    CheckpointMachine::of(context).now(Activity::Rebuilding);
    let mut registry = context.registry.lock();
    if !from.same_process {
        captured.adopt(&mut registry)?;
    }
    preempt::reattach(&mut registry, on)?;
    report.rebuild_ms = milliseconds(started);
    if !from.same_process {
        CheckpointMachine::of(context).now(Activity::Filling);
        let started = Instant::now();
        // The driver runs no queue before it is told that all is there.
        let movers =
            Movers::new(context, closed, &mut registry, on, &captured.contents, |_| false, from.limit)?;
        let extents = movers.extents(&registry, &captured.contents);
        report.add_read(from.image.fill(&extents, true, from.limit)?);
        report.fill_ms = milliseconds(started);
    }
    let started = Instant::now();
    preempt::reattach_doorbells(&mut registry, on, closed)?;
    rebuild::trap_handlers(&mut registry, on)?;
    if !from.same_process {
        // The restored waves go on at once, and look at what was just filled.
        let registers = on.hdp_pages().map_err(device("the registers of the host data path"))?;
        registers.iter().flatten().for_each(HdpPage::flush);
        on.resume_restored().map_err(device("to let restored queues run"))?;
    }
    report.rebuild_ms += milliseconds(started);
    Ok(None)
}

/// Undoes a restore that failed half way: the process is as it was before it, and the restore can be tried again.
fn undo_restore(
    context: &Arc<Context>,
    closed: &mut Closed,
    from: Device,
    snapshot: &mut Snapshot,
    is_known: bool,
    held: Option<&Held>,
) {
    let preempted = snapshot.captured.is_some();
    let (undone, renders, transport) = release_device(context, from, closed, preempted);
    CheckpointMachine::of(context).known.forget();
    context.guard.forget_hidden(&mut context.registry.lock());
    if let Err(error) = undone {
        tracing::warn!(target: "checkpoint", %error, "a failed restore was not undone completely");
    }
    if let Err(error) = share::replace_with_placeholders() {
        tracing::error!(target: "checkpoint", %error, "a DMABuf of a failed restore stays open");
    }
    if !is_known {
        // From now on this process's address spaces are tied to these files.
        let files = held.map_or(&[][..], |held| &held.image);
        // All or none: without one of them the image is not whole.
        let image = files.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>().unwrap_or_default();
        match duplicates(renders) {
            Ok(renders) => {
                let held = Held { renders, image };
                std::mem::replace(&mut snapshot.kept, Kept::secure(held)).release();
            }
            Err(error) => tracing::error!(target: "checkpoint", %error, "the device of this process is lost"),
        }
    }
    match Incarnation::current() {
        Ok(incarnation) => snapshot.incarnation = incarnation,
        Err(error) => tracing::error!(target: "checkpoint", %error, "the process cannot be identified"),
    }
    if let Err(error) = disconnect(&*transport) {
        tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
    }
}

/// The files of a device that is closed. Each is closed before the next is duplicated, so that one free descriptor is
/// enough.
fn duplicates(renders: RenderFiles) -> std::io::Result<Vec<OwnedFd>> {
    renders.files.into_iter().map(|file| file.as_fd().try_clone_to_owned()).collect()
}
