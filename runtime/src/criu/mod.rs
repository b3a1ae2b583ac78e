// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime's side of CRIU: which program, how it is told what, and the directory that a frozen process lives in.
//!
//! CRIU takes a process that has closed its device ([`crate::checkpoint`]) like any other. Nothing here touches the
//! device.

mod commit;
mod directory;
mod error;
mod executable;
mod files;
mod hash;
mod hashed_json;
mod layout;
mod opened;
mod options;
mod program;
mod rpc;
mod sealer;
mod sessions;
mod stats;
mod word;

pub use self::commit::{CommitGate, SealAt, commit_error, commit_now, write_commit_script};
pub use self::directory::{
    ListedFile, Manifest, TreeMember, image_names, make_private, prepare, prepare_empty, retract, withdraw,
};
pub use self::error::{Difference, Differences, ManifestError};
pub use self::executable::{Executable, ExecutableError};
pub use self::files::{CheckedFiles, NO_PLUGINS, seal};
pub use self::layout::{
    CRIU_DIRECTORY, FOREIGN_LAYOUT, LAYOUT, MANIFEST_FILE, SEALED_LAYOUT, SESSION_DIRECTORY, TREE_LAYOUT,
};
pub use self::opened::{OpenDirectory, Trust, open_image};
pub use self::options::{CriuOptions, NetworkLock, has_terminal};
pub use self::program::{FLOOR, NotFound, Program, last_error};
pub use self::rpc::{Answer, RpcError, dump_self};
pub use self::sealer::Sealer;
pub use self::sessions::{SESSION_FILE, SessionIndex};
pub use self::stats::{DumpStats, StatsError};
pub use self::word::Word;
