// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes images of a process that stands still: of all that it has, before its device is closed, or of its labelled buffers, after which
//! it runs on.
//!
//! INVARIANT: the device is as it was afterwards, whatever happens.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use stasis_protocol::gate::{Closed, Pass};
use stasis_protocol::{Activity, Limit, Mode};

use super::admit::{AgentIdentity, identities};
use super::calls::milliseconds;
use super::contents::{self, Contents, Movers};
use super::error::{CheckpointError, system};
use super::machine::CheckpointMachine;
use super::message::MAX_FILES;
use super::options::SaveOptions;
use super::preempt::Captured;
use super::report::CheckpointReport;
use super::snapshot::Metadata;
use super::{lazy, preempt};
use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::Lost;
use crate::context::queue::lost_agent;
use crate::context::registry::state::{AgentIndex, RegistryState};
use crate::context::registry::{Persist, Registry};
use crate::image::{Extent, IMAGE_FILE, Image, ImageWriter};
use crate::share::Participant;

/// An image in `directory` of a process with so many agents, upon the one in the directory `parent`. Its files are sent in one message with
/// the agents' render files.
pub(super) fn image_writer(
    directory: &Path,
    parent: Option<&Path>,
    agents: usize,
) -> Result<ImageWriter, CheckpointError> {
    let path = directory.join(IMAGE_FILE);
    let Some(parent) = parent else { return Ok(ImageWriter::create(&path)?) };
    let parent = Image::open(&parent.join(IMAGE_FILE))?;
    Ok(ImageWriter::create_upon(&path, &parent, MAX_FILES.saturating_sub(agents + 1))?)
}

/// The device, which the holder of the closed gate has not let go of.
pub(super) fn present<'p>(context: &'p Context, pass: &'p Pass<'_>) -> Result<&'p Arc<Device>, Lost> {
    let gone = Lost { what: "the device was closed under an open gate", source: None };
    context.device(pass).ok_or(gone)
}

/// The agents whose queues the driver would not run now. Not with the registry locked: after a fault it takes a queue to find out.
fn lost_agents(context: &Context, pass: &Pass<'_>) -> Vec<AgentIndex> {
    let is_lost = |info: &&Arc<AgentInfo>| lost_agent::check(context, pass, info).is_err();
    context.agents.iter().filter(is_lost).map(|info| info.index()).collect()
}

/// What an image is made of.
pub(super) struct Saved<'a> {
    pub agents: &'a [AgentIdentity],
    pub mode: Mode,
    pub participant: &'a Participant<'a>,
}

/// A finished image.
pub(super) struct Written {
    pub image_id: String,
    pub file: File,
    /// The files of earlier images that it has contents in.
    pub earlier: Vec<File>,
    /// The driver's state, if the queues were preempted.
    pub captured: Option<Captured>,
}

/// Writes the image of all that the process has, by `writer`.
pub(super) fn write_image(
    context: &Arc<Context>,
    closed: &Closed,
    writer: ImageWriter,
    saved: &Saved<'_>,
    limit: &Limit,
    report: &mut CheckpointReport,
) -> Result<Written, CheckpointError> {
    let pass = closed.pass();
    let on = present(context, &pass)?;
    let lost = lost_agents(context, &pass);
    let mut registry = context.registry.lock();
    let contents = match saved.mode {
        Mode::Preempt => preempt::contents(&registry, on, limit)?,
        Mode::Drain => contents::saved_buffers(&registry),
    };
    let writing =
        Writing { context, closed, registry: &mut registry, on, contents: &contents, lost: &lost, limit };
    let (writer, names) = writing.write(writer, saved.participant.extents(), report)?;
    let captured = match saved.mode {
        // After the engines: the driver's record has all queues of the process.
        Mode::Preempt => Some(preempt::capture(on, contents, limit)?),
        Mode::Drain => None,
    };
    let metadata = Metadata {
        preempted: captured.is_some(),
        sharing: saved.participant.has_record().then(|| saved.participant.record()),
        ..metadata(context, saved.agents.to_vec(), names, registry.save())?
    };
    let finished = writer.finish(&metadata)?;
    report.add_written(finished.stats);
    Ok(Written { image_id: metadata.image_id, file: finished.file, earlier: finished.earlier, captured })
}

/// Writes an image of the labelled buffers of a drained process.
pub(super) fn write_labelled(
    context: &Arc<Context>,
    closed: &Closed,
    directory: &Path,
    options: &SaveOptions,
    limit: &Limit,
) -> Result<CheckpointReport, CheckpointError> {
    let started = Instant::now();
    let pass = closed.pass();
    let on = present(context, &pass)?;
    let agents = identities(context, Some(on));
    CheckpointMachine::of(context).now(Activity::Writing);
    lazy::bring_rest(context, &pass, "save", limit)?;
    let lost = lost_agents(context, &pass);
    let mut registry = context.registry.lock();
    let labelled = registry.bos.iter().filter(|(_, bo)| bo.state.label.is_some());
    let contents: Contents = labelled.map(|(key, bo)| (key, bo.state.bytes)).collect();
    if contents.is_empty() {
        return Err(CheckpointError::Unlabelled);
    }
    let mut report = CheckpointReport::default();
    let writing =
        Writing { context, closed, registry: &mut registry, on, contents: &contents, lost: &lost, limit };
    let writer = image_writer(directory, options.parent.as_deref(), context.agents.len())?;
    let (writer, names) = writing.write(writer, std::iter::empty(), &mut report)?;
    let metadata = metadata(context, agents, names, registry.save())?;
    report.add_written(writer.finish(&metadata)?.stats);
    report.write_ms = milliseconds(started);
    Ok(report)
}

/// Objects whose bytes are brought into an image.
struct Writing<'a> {
    context: &'a Context,
    closed: &'a Closed,
    registry: &'a mut Registry,
    on: &'a Device,
    contents: &'a Contents,
    lost: &'a [AgentIndex],
    limit: &'a Limit,
}

impl Writing<'_> {
    /// Brings them, and extents of other names after them; the names of all in their order.
    fn write<'e>(
        self,
        writer: ImageWriter,
        more: impl Iterator<Item = (String, Extent<'e>)>,
        report: &mut CheckpointReport,
    ) -> Result<(ImageWriter, Vec<String>), CheckpointError> {
        let Self { context, closed, registry, on, contents, lost, limit } = self;
        let known = &CheckpointMachine::of(context).known;
        known.look(registry, on);
        let mut writer = writer.knowing(known.of(contents.iter().copied()));
        let mut names: Vec<String> = contents.iter().map(|(key, _)| key.to_string()).collect();
        let serves = |agent| !lost.contains(&agent);
        let movers = Movers::new(context, closed, registry, on, contents, serves, limit)?;
        let mut extents = movers.extents(registry, contents);
        for (name, extent) in more {
            names.push(name);
            extents.push(extent);
        }
        let written = writer.write_contents(&extents, limit);
        if written.is_ok() {
            known.learn(contents.iter().copied(), writer.written(&extents));
        }
        drop(extents);
        report.engine_bytes += movers.engine_bytes(registry, contents);
        let ended = movers.end(registry, on);
        written?;
        ended?;
        Ok((writer, names))
    }
}

/// What an image of this process, with extents of these names, says of itself.
fn metadata(
    context: &Context,
    agents: Vec<AgentIdentity>,
    extents: Vec<String>,
    registry: RegistryState,
) -> Result<Metadata, CheckpointError> {
    let random = kfd::linux::random().map_err(|errno| system("draw an image id")(errno.into()))?;
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed();
    Ok(Metadata {
        image_id: format!("{:032x}", u128::from_ne_bytes(random)),
        written_unix_ms: since_1970.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        pid: nix::unistd::getpid().as_raw(),
        transport: context.transport_name().to_string(),
        agents,
        preempted: false,
        sharing: None,
        extents,
        registry,
    })
}
