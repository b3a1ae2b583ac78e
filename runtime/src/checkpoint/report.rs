// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a checkpoint and a restore moved, and how long their phases took.

use serde::{Deserialize, Serialize};

use super::secret::TermsSecret;
use crate::image::{ReadStats, WriteStats};

/// What a checkpoint moved and how long its phases took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// Time to close the gate and stop the queues, milliseconds.
    pub lock_ms: f64,
    /// Time to write the contents, milliseconds.
    pub write_ms: f64,
    /// Time to take down and close the device and to audit, milliseconds.
    pub close_ms: f64,
    /// Buffers' bytes.
    pub content_bytes: u64,
    /// Bytes stored (zeros cost nothing).
    pub stored_bytes: u64,
    /// Bytes that the parent has, which were not stored again. Older agents tell 0.
    #[serde(default)]
    pub unchanged_bytes: u64,
    /// Bytes of the buffers that were not read, since nobody has written them since they were known.
    #[serde(default)]
    pub unread_bytes: u64,
    /// Length of the image files.
    pub image_bytes: u64,
    /// Buffers' bytes that copy engines moved: those that the CPU does not see, or reads slowly. Older agents tell 0.
    #[serde(default)]
    pub engine_bytes: u64,
    /// What only the process and its manifest know. Older agents have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<TermsSecret>,
}

impl CheckpointReport {
    pub(super) fn add_written(&mut self, stats: WriteStats) {
        self.content_bytes += stats.content_bytes;
        self.stored_bytes += stats.stored_bytes;
        self.unchanged_bytes += stats.unchanged_bytes;
        self.unread_bytes += stats.unread_bytes;
        self.image_bytes += stats.file_bytes;
    }
}

/// What a restore moved and how long its phases took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// Time to reopen the device and admit its agents, milliseconds.
    pub open_ms: f64,
    /// Time to recreate buffers, events and queues, milliseconds.
    pub rebuild_ms: f64,
    /// Time to read the contents back, milliseconds.
    pub fill_ms: f64,
    /// Buffers' bytes.
    pub content_bytes: u64,
    /// Bytes read from the images.
    pub read_bytes: u64,
    /// Buffers' bytes that copy engines moved. Older agents tell 0.
    #[serde(default)]
    pub engine_bytes: u64,
    /// Buffers' bytes that come while the process runs already ([`super::Admission::lazy`]).
    #[serde(default)]
    pub lazy_bytes: u64,
    /// Why none do, although that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_lazy: Option<String>,
}

impl RestoreReport {
    pub(super) fn add_read(&mut self, stats: ReadStats) {
        self.content_bytes += stats.content_bytes;
        self.read_bytes += stats.read_bytes;
    }
}
