// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copying the contents while the process runs: an image of what they were, upon which a checkpoint then writes no more than has
//! changed since.
//!
//! Nothing of this counts: chunks are found by the hashes of what was written, and the checkpoint hashes every byte of the process
//! when it stands still, unless nobody has written it since ([`super::known`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stasis_protocol::{Failed, Limit, Stopped};

use super::calls::milliseconds;
use super::contents::Running;
use super::error::{CheckpointError, system};
use super::lazy;
use super::machine::CheckpointMachine;
use super::options::DEFAULT_DEADLINE;
use super::writing::image_writer;
use crate::context::Context;
use crate::context::device::Device;
use crate::context::error::explain;
use crate::image::{IMAGE_FILE, WriteStats, is_earlier_name};

/// A last round that copies less is not worth another one.
const FEW_BYTES: u64 = 16 << 20;

/// How contents are copied while the process runs.
#[derive(Clone, Debug)]
pub struct PreCopyOptions {
    /// How long it may take; then it ends with the round before, or in the first one with nothing. [`DEFAULT_DEADLINE`] by default.
    pub deadline: Duration,
    /// How often the contents are copied at most, each time what has changed since the last. Three by default; 0 counts as 1.
    pub rounds: u32,
    /// The directory of an earlier image, as in [`super::CheckpointOptions::parent`].
    pub parent: Option<PathBuf>,
}

impl Default for PreCopyOptions {
    fn default() -> Self {
        Self { deadline: DEFAULT_DEADLINE, rounds: 3, parent: None }
    }
}

/// What was copied while the process ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreCopyReport {
    /// How long it took, milliseconds.
    pub pre_copy_ms: f64,
    /// Bytes that were written, by round.
    pub rounds: Vec<u64>,
    /// Bytes of the buffers that were looked at.
    pub content_bytes: u64,
    /// Bytes of buffers that cannot be copied fast while the process runs; the checkpoint reads them.
    pub left_bytes: u64,
    /// Whether the process changed its buffers about as fast as they were copied: more rounds would not have helped.
    pub outpaced: bool,
    /// Why the last round came to nothing, if it did; those before it count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// What such an image says of itself: it is no checkpoint.
#[derive(Serialize)]
struct Metadata {
    pre_copied: bool,
}

/// RUNNING, and stays so: writes [`IMAGE_FILE`] into `directory`.
pub(super) fn pre_copy(
    context: &Arc<Context>,
    directory: &Path,
    options: &PreCopyOptions,
) -> Result<PreCopyReport, CheckpointError> {
    let copied =
        CheckpointMachine::of(context).machine.while_running("pre-copy", options.deadline, |limit| {
            let work = || copy(context, directory, options, limit);
            // A thread cannot get its priority back, and those that it starts have its own.
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("stasis-pre-copy".to_owned());
                let thread = thread.spawn_scoped(scope, work).map_err(system("start a thread for copies"))?;
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .map_err(Box::new)
        });
    copied.map_err(|failed: Failed<Box<CheckpointError>>| CheckpointError::from(failed))
}

fn copy(
    context: &Arc<Context>,
    directory: &Path,
    options: &PreCopyOptions,
    limit: &Limit,
) -> Result<PreCopyReport, CheckpointError> {
    let started = Instant::now();
    let pass = context.gate.enter()?;
    let on = context.device_or_lost(&pass)?;
    lazy::bring_rest(context, &pass, "pre-copy", limit)?;
    let running = Running::new(context, &pass, on, limit)?;
    // Not with the registry locked, for which others would wait as long as somebody wants the core.
    if !running.has_engines()
        && let Err(error) = kfd::linux::be_idle()
    {
        tracing::debug!(target: "checkpoint", %error, "copies are made at the threads' usual priority");
    }
    let mut report = PreCopyReport { left_bytes: running.left_bytes, ..PreCopyReport::default() };
    let copied = rounds(context, &running, on, directory, options, limit, &mut report);
    let ended = running.end(on);
    if let Err(error) = copied.and(ended) {
        if !report.rounds.is_empty() {
            remove(directory);
        }
        return Err(error);
    }
    report.pre_copy_ms = milliseconds(started);
    Ok(report)
}

fn rounds(
    context: &Context,
    running: &Running<'_>,
    on: &Device,
    directory: &Path,
    options: &PreCopyOptions,
    limit: &Limit,
    report: &mut PreCopyReport,
) -> Result<(), CheckpointError> {
    let machine = CheckpointMachine::of(context);
    let known = &machine.known;
    let extents = running.extents();
    for round in 1..=options.rounds.max(1) {
        let copy = || -> Result<WriteStats, CheckpointError> {
            let before = if round == 1 { options.parent.as_deref() } else { Some(directory) };
            // Before anything is read.
            running.use_views(known.look(&context.registry.lock(), on));
            let writer = image_writer(directory, before, context.agents.len())?;
            let mut writer = writer.knowing(known.of(running.objects()));
            writer.write_contents(&extents, limit)?;
            known.learn(running.objects(), running.known(writer.written(&extents)));
            Ok(writer.finish(&Metadata { pre_copied: true })?.stats)
        };
        let stats = match copy() {
            Ok(stats) => stats,
            // What there is of the rounds before is as good as it was, unless nobody wants it any more.
            Err(error) if round > 1 && !matches!(limit.check(), Err(Stopped::Cancelled { .. })) => {
                report.ended = Some(explain(&error));
                break;
            }
            Err(error) => return Err(error),
        };
        let last = report.rounds.last().copied();
        report.rounds.push(stats.stored_bytes);
        report.content_bytes = stats.content_bytes;
        if stats.stored_bytes <= FEW_BYTES {
            break;
        }
        // Another round would find as much again.
        report.outpaced = last.is_some_and(|last| stats.stored_bytes > last / 2);
        if report.outpaced {
            break;
        }
    }
    Ok(())
}

/// Removes what a pre-copy has left in its directory.
fn remove(directory: &Path) {
    let is_ours = |name: &str| name == IMAGE_FILE || is_earlier_name(IMAGE_FILE, name);
    let removed = std::fs::read_dir(directory).and_then(|entries| {
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(is_ours) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    });
    if let Err(error) = removed {
        tracing::warn!(target: "checkpoint", path = %directory.display(), %error, "an image of before stays");
    }
}
