// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and versions of what lies in a checkpoint directory.

/// Name of the manifest in a checkpoint directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name before the commit.
pub(super) const PENDING_FILE: &str = "manifest.pending";
/// Sub-directory with CRIU's images.
pub const CRIU_DIRECTORY: &str = "criu";
/// Sub-directory where the processes of a session meet.
pub const SESSION_DIRECTORY: &str = "session";
/// Version of the layout of a directory with one runtime, the root's, whose manifest lists no files.
pub const LAYOUT: u32 = 1;
/// The same of a directory whose runtimes have directories of their own: older programs would bring back the root alone.
pub const TREE_LAYOUT: u32 = 2;
/// Version of the layout of either, whose manifest lists all files with their hashes and ends with its own: older
/// programs would check none of that.
pub const SEALED_LAYOUT: u32 = 3;
/// Version of the layout of a directory with programs that know nothing of checkpoints, whose device softgpud has: older
/// programs would look for a runtime in them. Its manifest lists all files, too.
pub const FOREIGN_LAYOUT: u32 = 4;
/// Longest manifest or session index that is read, bytes.
pub(super) const MAX_BYTES: u64 = 16 << 20;
/// The first process that can be restored: 1 is the init of its namespace, and exists.
pub(super) const FIRST_PID: i32 = 2;
/// The gate's name among CRIU's images.
pub(super) const GATE: &str = "gate";
/// What a script makes before it waits.
pub(super) const PREPARED: &str = "prepared";
