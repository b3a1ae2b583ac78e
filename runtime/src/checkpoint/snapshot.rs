// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process remembers of its device while it has none: in the image, and in its own memory.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use kfd::Transport;
use serde::{Deserialize, Serialize};

use super::admit::{Admission, AgentIdentity};
use super::keeper::Kept;
use super::preempt::Captured;
use super::secret::TermsSecret;
use crate::context::registry::state::RegistryState;
use crate::linux::incarnation::Incarnation;
use crate::share::SharedState;

/// The metadata of an image.
#[derive(Debug, Serialize, Deserialize)]
pub struct Metadata {
    /// Ties the image to the memory of the process that wrote it.
    pub image_id: String,
    /// When it was written, milliseconds since 1970.
    pub written_unix_ms: u64,
    /// The process.
    pub pid: i32,
    /// The name of the transport it used: `kfd`, `soft:gfx1100`.
    pub transport: String,
    /// Its agents, in its order.
    pub agents: Vec<AgentIdentity>,
    /// Whether queues were stopped in the middle of their kernels; then the extents hold their waves too.
    #[serde(default)]
    pub preempted: bool,
    /// What others may hold of its memory. Since format 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharedState>,
    /// Keys of the buffers whose bytes are the image's extents, in order, as the registry prints them; then names of
    /// shared memory.
    pub extents: Vec<String>,
    /// Everything registered.
    pub registry: RegistryState,
}

/// Where the bytes of the buffers are.
#[derive(Debug)]
pub(super) enum Contents {
    /// In an image file, which was written here.
    File(PathBuf),
    /// In an image of the process's own memory.
    Memory(File),
}

/// What is kept in memory while the device is gone.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) contents: Contents,
    pub(super) image_id: String,
    /// Where the checkpoint that this belongs to was written.
    pub(super) directory: PathBuf,
    pub(super) incarnation: Incarnation,
    /// Where its render files are; a copy's are of no use to it.
    pub(super) kept: Kept,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) agents: Vec<AgentIdentity>,
    /// What others may hold of its memory.
    pub(super) sharing: SharedState,
    /// Names the place where a controller holds the terms of a restore ready.
    pub(super) secret: TermsSecret,
    /// The image that this process, if it is a restored copy, came from.
    pub(super) copy_of: Option<String>,
    /// On what terms a controller wanted this copy restored: they stand until it says otherwise.
    pub(super) terms: Option<Admission>,
    /// With preempted queues: they are still in the driver, and this is for a copy that has to make them.
    pub(super) captured: Option<Captured>,
}
