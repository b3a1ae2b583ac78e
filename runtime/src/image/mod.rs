// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checkpoint image: one file holding the registry's state and every buffer's bytes.
//!
//! An image exists completely or not at all: it is written under a temporary name, synced, and renamed. Nothing in it
//! is trusted: [`Image::open`] checks magic, version, lengths and hashes of everything but the bulk before it returns,
//! and every chunk of the bulk is checked against its own BLAKE3 when it is read. An image that was made upon a parent has
//! unchanged chunks in the parent's files, which have second names beside it. `docs/image-format.md` draws it.

mod ahead;
mod engine;
mod extent;
mod format;
mod host;
mod known;
mod own;
mod parent;
mod place;
mod reader;
mod sink;
mod table;
mod worker;
mod writer;

pub(crate) use parent::is_earlier_name;

pub use engine::{ContentEngine, EngineBuffer, EngineError, Piece};
pub use extent::{AgentRange, Extent};
pub use format::{Chunk, EarlierFile, ImageError, MAJOR, MINOR};
pub use host::HostRange;
pub use known::KnownChunk;
pub use own::own_chunks;
pub use reader::{Image, ReadStats};
pub(crate) use worker::most_workers;
pub use worker::{ChunkBuffer, for_each, memory_is_ample};
pub use writer::{Finished, ImageWriter, WriteStats};

pub use stasis_protocol::{Limit, Stopped};

/// Name of the runtime's image in a checkpoint directory.
pub const IMAGE_FILE: &str = "runtime-0.img";
/// Bytes handled at a time by one worker; also the granularity of zero detection and of hashes.
pub const CHUNK_BYTES: u64 = 2 << 20;

#[cfg(test)]
mod tests;
