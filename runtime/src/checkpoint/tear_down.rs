// SPDX-License-Identifier: MIT OR Apache-2.0
//! LOCKED → CHECKPOINTED, step by step: the image, then everything out of the driver, then the audit.
//!
//! INVARIANT: until the image is complete nothing of the device is touched; from then on every failure hands back what
//! [`super::restore::restore`] needs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kfd::Transport;
use stasis_protocol::gate::Closed;
use stasis_protocol::{Activity, Limit, Mode};

use super::admit::identities;
use super::calls::{RECLAIM, call_limit, disconnect, milliseconds};
use super::error::{CheckpointError, system};
use super::keeper::{Held, Keepers, Kept};
use super::machine::CheckpointMachine;
use super::report::CheckpointReport;
use super::secret::TermsSecret;
use super::snapshot::{Contents, Snapshot};
use super::writing::{Saved, Written, image_writer, present, write_image};
use super::{audit, drain, driver_objects, lazy, preempt};
use crate::context::Context;
use crate::context::device::{Device, RenderFiles};
use crate::context::error::explain;
use crate::context::handover::{TakeError, take_device, try_put_device};
use crate::image::{IMAGE_FILE, ImageWriter};
use crate::linux::incarnation::Incarnation;
use crate::share::{Participant, SessionOrder, end_rendezvous, replace_with_placeholders};

/// Where a checkpoint goes.
pub(super) struct Destination<'a> {
    pub directory: &'a Path,
    /// The contents stay in the process's memory; the directory is left alone.
    pub self_contained: bool,
    /// The processes that are checkpointed with this one.
    pub session: Option<&'a SessionOrder>,
    /// The directory of an earlier image.
    pub parent: Option<&'a Path>,
}

impl Destination<'_> {
    fn path(&self) -> PathBuf {
        self.directory.join(IMAGE_FILE)
    }

    /// An image of a process with so many agents.
    fn writer(&self, agents: usize) -> Result<ImageWriter, CheckpointError> {
        match (self.self_contained, self.parent) {
            (true, Some(_)) => Err(CheckpointError::ParentOfContained),
            (true, None) => Ok(ImageWriter::in_memory()?),
            (false, parent) => image_writer(self.directory, parent, agents),
        }
    }
}

/// How far a failed tear-down had come.
pub(super) type Down = stasis_protocol::TearDownError<Box<Snapshot>, Box<CheckpointError>>;

pub(super) fn take_error(error: TakeError) -> CheckpointError {
    match error {
        TakeError::Device(source) => CheckpointError::Device { what: "to let go of the device", source },
        TakeError::Thread(source) => CheckpointError::System { act: "start the event thread", source },
        TakeError::Busy { .. } | TakeError::Gone => CheckpointError::Busy { waited: RECLAIM },
    }
}

/// Takes everything out of the driver, or with preempted queues only this process's hold on it, and closes the device;
/// whether all went is told beside what is left of it.
pub(super) fn release_device(
    context: &Context,
    device: Device,
    closed: &mut Closed,
    preempted: bool,
) -> (Result<(), CheckpointError>, RenderFiles, Arc<dyn Transport>) {
    if preempted {
        let gone = preempt::detach(&mut context.registry.lock(), &device, closed);
        let (renders, transport) = device.leave();
        return (gone, renders, transport);
    }
    let mut registry = context.registry.lock();
    let gone = driver_objects::destroy_all(&mut registry, &device, closed);
    if gone.is_err() {
        driver_objects::detach_doorbells(&registry, &device, closed);
        drop(registry);
        // Exception reporting stays on: while a queue is left in the driver, the next device could not begin it again
        // (`kfd_ioctl_runtime_enable`: EEXIST).
        let (renders, transport) = device.leave();
        return (gone, renders, transport);
    }
    drop(registry);
    let (renders, transport, disabled) = device.close();
    if let Err(source) = disabled {
        tracing::warn!(target: "checkpoint", error = %source, "exception reporting was not ended");
    }
    (gone, renders, transport)
}

pub(super) fn tear_down(
    context: &Arc<Context>,
    closed: &mut Closed,
    mode: Mode,
    into: &Destination<'_>,
    limit: &Limit,
    report: &mut CheckpointReport,
) -> Result<Snapshot, Down> {
    let started = Instant::now();
    end_rendezvous(context);
    let agents = identities(context, context.device(&closed.pass()).map(AsRef::as_ref));
    CheckpointMachine::of(context).now(Activity::Writing);
    lazy::bring_rest(context, &closed.pass(), "checkpoint", limit).map_err(Down::untouched)?;
    if let Some(on) = context.device(&closed.pass()) {
        call_limit(limit).hold(|| context.clocks.pause(on, &context.registry.lock()));
    }
    let mut participant = prepare(context, closed, into, limit).map_err(Down::untouched)?;
    let saved = Saved { agents: &agents, mode, participant: &participant };
    let written = into
        .writer(context.agents.len())
        .and_then(|writer| write_image(context, closed, writer, &saved, limit, report))
        .map_err(Down::untouched)?;
    let Written { image_id, file: image, earlier, captured } = written;
    let (contents, image) = match into.self_contained {
        true => (Contents::Memory(image), Vec::new()),
        false => {
            let files = std::iter::once(image).chain(earlier).map(OwnedFd::from);
            (Contents::File(into.path()), files.collect())
        }
    };
    report.write_ms = milliseconds(started);
    let started = Instant::now();
    CheckpointMachine::of(context).now(Activity::Closing);
    let incarnation =
        Incarnation::current().map_err(system("identify the process")).map_err(Down::untouched)?;
    let secret =
        TermsSecret::draw().map_err(system("draw a secret of the checkpoint")).map_err(Down::untouched)?;
    report.secret = Some(secret.clone());
    let device = call_limit(limit)
        .hold(|| take_device(context, closed, limit.deadline(RECLAIM)))
        .map_err(|error| Down::untouched(take_error(error)))?;
    if let Err(error) = participant.commit(limit) {
        return_device(context, closed, device);
        return Err(Down::untouched(CheckpointError::from(error)));
    }
    let sharing = participant.record();
    drop(participant);
    let held = match duplicate(&device, image) {
        Ok(held) => held,
        Err(error) => {
            return_device(context, closed, device);
            return Err(Down::untouched(error));
        }
    };
    let transport = Arc::clone(device.transport());
    let preempted = captured.is_some();
    let mut snapshot = Box::new(Snapshot {
        contents,
        image_id,
        directory: into.directory.to_owned(),
        incarnation,
        kept: Kept::Nowhere,
        transport,
        agents,
        sharing,
        secret,
        copy_of: CheckpointMachine::of(context).set_copy_of(None),
        terms: None,
        captured,
    });
    drain::save_indices(&mut context.registry.lock());
    let (destroyed, renders, transport) = release_device(context, device, closed, preempted);
    // Of memory that is mapped no longer: the kernel would go through all of it.
    CheckpointMachine::of(context).known.forget();
    drop(renders);
    let replaced = replace_with_placeholders().map_err(system("replace DMABufs by placeholders"));
    match Keepers::hold(&held) {
        Ok(keepers) => snapshot.kept = Kept::WithKeepers(keepers),
        Err(error) => {
            snapshot.kept = Kept::Here(held);
            return Err(Down::torn_down(CheckpointError::from(error), snapshot));
        }
    }
    drop(held);
    if let Err(error) = replaced {
        return Err(Down::torn_down(error, snapshot));
    }
    if let Err(error) = destroyed.and_then(|()| disconnect(&*transport)) {
        return Err(Down::torn_down(error, snapshot));
    }
    match audit::audit() {
        Err(error) => return Err(Down::torn_down(system("read /proc/self")(error), snapshot)),
        Ok(culprits) if !culprits.is_empty() => {
            return Err(Down::torn_down(CheckpointError::Audit { culprits }, snapshot));
        }
        Ok(_) => {}
    }
    report.close_ms = milliseconds(started);
    Ok(*snapshot)
}

/// Meets the other processes of the session, if there is anything to share or somebody to wait for.
fn prepare<'a>(
    context: &Context,
    closed: &Closed,
    into: &Destination<'a>,
    limit: &Limit,
) -> Result<Participant<'a>, CheckpointError> {
    if into.self_contained && into.session.is_some_and(|session| session.members.len() > 1) {
        return Err(CheckpointError::NotContained);
    }
    let pass = closed.pass();
    let on = present(context, &pass)?;
    let prepared = Participant::prepare(context, &context.registry.lock(), on, into.session, limit);
    prepared.map_err(CheckpointError::from).inspect_err(|error| {
        if let Some(session) = into.session {
            session.abort(&explain(error));
        }
    })
}

/// The render files of an open device once more, with the image's files.
fn duplicate(device: &Device, image: Vec<OwnedFd>) -> Result<Held, CheckpointError> {
    let files = device.nodes().iter().map(|node| node.render.as_fd().try_clone_to_owned());
    let renders = files.collect::<Result<_, _>>().map_err(system("duplicate the render files"))?;
    Ok(Held { renders, image })
}

/// Gives the calls a device back that was taken from them and not touched.
fn return_device(context: &Arc<Context>, closed: &mut Closed, device: Device) {
    let (mut device, until) = (device, Instant::now() + RECLAIM);
    loop {
        device = match try_put_device(context, closed, device) {
            Ok(()) => return,
            Err((Some(device), _)) if Instant::now() < until => *device,
            Err((_, error)) => {
                return tracing::error!(target: "checkpoint", %error, "the device did not come back");
            }
        };
        // TIMEOUT: the event thread, whose place was free a moment ago, cannot be started.
        std::thread::sleep(Duration::from_millis(5));
    }
}
