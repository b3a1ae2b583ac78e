// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints as chunks that are named by their hashes: kept once in a store, or sent over a stream.
//!
//! ```text
//!  Checkpoint  --cut-->  ChunkIndex + chunks  --Codec-->  objects  --->  packs of a Store, or a stream
//!  Assembly    <--------------------------------------------------------
//! ```
//!
//! A checkpoint directory is cut into chunks ([`Checkpoint`]), whose [`ChunkIndex`] says how its files are made of them. The
//! [`Codec`] makes objects of chunks: compressed, sealed with a key, or neither. A [`Store`], in a directory or a bucket, keeps each
//! object once, however many checkpoints have its chunk; the streams of [`Sender`] and [`Receiver`] carry the same objects. An
//! [`Assembly`] makes a directory of them again, which gets its name when all of it is there and right. `docs/store.md`
//! has the formats.
#![deny(missing_docs, unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]

mod assembly;
mod backend;
mod checkpoint;
mod cut;
mod entry;
mod error;
#[cfg(test)]
mod fixture;
mod index;
mod key;
mod object;
mod pack;
mod random;
mod store;
mod stream;

pub use self::assembly::Assembly;
pub use self::checkpoint::Checkpoint;
pub use self::cut::Grain;
#[doc(hidden)]
pub use self::entry::read_any as read_any_entry;
pub use self::error::{RemoteError, StoreError};
pub use self::index::{ChunkIndex, ChunkName, IndexedFile, MAX_CHUNK_BYTES, Part};
pub use self::key::Key;
pub use self::object::{Codec, Compression};
pub use self::store::{Added, CollectOptions, Collected, Kept, Staging, StagingKind, Store, StorePlace};
pub use self::stream::{Address, Channel, Connection, Listener, Received, Receiver, Sender, Sent, Stage};

/// Hears of bytes that are done, of the bytes that there are in all.
pub type Progress<'p> = &'p (dyn Fn(u64, u64) + Sync);
