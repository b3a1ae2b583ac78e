// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store: checkpoints by name, whose chunks are kept once.
//!
//! ```text
//!  mark           JSON: version; bytes of a chunk as a rule; with a key, what that key says of a fixed text
//!  entries        which chunks the index of a checkpoint is made of, and where all objects are
//!  packs          objects
//! ```
//! Where these are is the task of a [`Backend`]: a directory, or a bucket of S3.
//!
//! INVARIANT: packs are removed by [`Store::collect`] only, while nobody adds, and not before every entry was read.

mod add;
mod collect;
mod place;
mod read;
mod staging;

use serde::{Deserialize, Serialize};
use stasis::criu::Trust;

use crate::backend::bucket::BucketBackend;
use crate::backend::bucket::s3::S3;
use crate::backend::directory::DirectoryBackend;
use crate::backend::{Backend, MARK_FILE};
use crate::cut::Grain;
use crate::error::StoreError;
use crate::object::Codec;

pub use self::add::Added;
pub use self::collect::{CollectOptions, Collected};
pub use self::place::StorePlace;
pub use self::read::Kept;
pub(crate) use self::staging::abandoned;
pub use self::staging::{Staging, StagingKind};

/// The version that is written: objects in packs.
const VERSION: u32 = 2;
/// The version that has a file for each object.
const VERSION_1: u32 = 1;
/// Bytes of a chunk as a rule, unless others are asked for.
const CHUNK_BYTES: u32 = 64 << 10;
/// What a key is asked to say something of.
const ASKED: &[u8] = b"stasis-store";
/// Longest name of a checkpoint.
const MAX_NAME: usize = 128;

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    version: u32,
    /// Bytes of a chunk as a rule.
    chunk_bytes: u32,
    /// With a key: what it says of [`ASKED`], in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Mark {
    fn of(codec: &Codec, chunk_bytes: u32) -> Self {
        let said = |key: &crate::Key| blake3::Hash::from(key.answer(ASKED)).to_hex().to_string();
        Self { version: VERSION, chunk_bytes, key: codec.key.as_ref().map(said) }
    }

    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A store.
#[derive(Debug)]
pub struct Store {
    backend: Box<dyn Backend>,
    codec: Codec,
    chunk_bytes: u32,
    version: u32,
    /// Whether what is fetched is of somebody who is trusted.
    is_proven: bool,
}

impl Store {
    /// Makes a store in a directory that is empty or not there, or in a bucket that has none, or opens the one that is there. Directories
    /// are taken from `trust` only: objects are compared with the hashes of the index, and without a key only its owner proves that the
    /// index is right. A bucket has no owners: without a key nothing is fetched of it, unless everybody is trusted.
    ///
    /// Files are cut into `chunk_bytes` as a rule, a power of two from 1 KiB to 512 KiB: smaller chunks are found again more often, and
    /// the index is longer. A store that is there keeps the length that it was made with.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], also when another length is given than that of the store, [`StoreError::OtherKey`],
    /// [`StoreError::Manifest`], [`StoreError::Bucket`], [`StoreError::Io`], [`StoreError::Remote`].
    pub fn create(
        place: &StorePlace,
        codec: Codec,
        trust: Trust,
        chunk_bytes: Option<u32>,
    ) -> Result<Self, StoreError> {
        let wanted = chunk_bytes.unwrap_or(CHUNK_BYTES);
        let not_possible = |store: String, what| Err(StoreError::NotAStore { store, what });
        if !is_possible(wanted) {
            let what = format!("chunks of {wanted} bytes are not possible: a power of two, 1 to 512 KiB");
            return not_possible(place.to_string(), what);
        }
        let mark = Mark::of(&codec, wanted).text();
        let is_proven = is_proven(place, &codec, &trust);
        let backend: Box<dyn Backend> = match place {
            StorePlace::Directory(path) => Box::new(DirectoryBackend::create(path, trust, &mark)?),
            StorePlace::Bucket { bucket, prefix } => {
                let backend = open_bucket(bucket, prefix)?;
                if backend.mark()?.is_none() {
                    backend.make(&mark)?;
                }
                Box::new(backend)
            }
        };
        let store = Self { is_proven, ..Self::on(backend, codec)? };
        match chunk_bytes {
            Some(wanted) if wanted != store.chunk_bytes => {
                let found = store.chunk_bytes;
                let what = format!("its chunks have {found} bytes as a rule, and {wanted} were asked for");
                not_possible(store.place(), what)
            }
            _ => Ok(store),
        }
    }

    /// Opens a store that checkpoints are taken from.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::OtherKey`], [`StoreError::Manifest`] when it is not of `trust`,
    /// [`StoreError::Bucket`], [`StoreError::Io`], [`StoreError::Remote`].
    pub fn open(place: &StorePlace, codec: Codec, trust: Trust) -> Result<Self, StoreError> {
        let is_proven = is_proven(place, &codec, &trust);
        let backend: Box<dyn Backend> = match place {
            StorePlace::Directory(path) => Box::new(DirectoryBackend::open(path, trust)?),
            StorePlace::Bucket { bucket, prefix } => Box::new(open_bucket(bucket, prefix)?),
        };
        Ok(Self { is_proven, ..Self::on(backend, codec)? })
    }

    /// The store that a backend has.
    fn on(backend: Box<dyn Backend>, codec: Codec) -> Result<Self, StoreError> {
        let bad = |what: String| StoreError::NotAStore { store: backend.called(), what };
        let text = backend.mark()?.ok_or_else(|| bad(format!("it has no {MARK_FILE}")))?;
        let mark: Mark =
            serde_json::from_slice(&text).map_err(|error| bad(format!("its {MARK_FILE}: {error}")))?;
        if !(VERSION_1..=VERSION).contains(&mark.version) {
            return Err(bad(format!(
                "its version is {}, and {VERSION_1} to {VERSION} are read",
                mark.version
            )));
        }
        if !is_possible(mark.chunk_bytes) {
            return Err(bad(format!("chunks of {} bytes are not possible", mark.chunk_bytes)));
        }
        match (&mark.key, &Mark::of(&codec, mark.chunk_bytes).key) {
            (Some(kept), Some(ours)) if kept != ours => {
                return Err(StoreError::OtherKey("The store was made with another key"));
            }
            (Some(_), None) => {
                return Err(StoreError::OtherKey("The store was made with a key: give its --key-file"));
            }
            (None, Some(_)) => {
                return Err(StoreError::OtherKey("The store was made without a key: leave --key-file out"));
            }
            _ => {}
        }
        Ok(Self { backend, codec, chunk_bytes: mark.chunk_bytes, version: mark.version, is_proven: true })
    }

    /// How checkpoints are cut that are added.
    #[must_use]
    pub fn grain(&self) -> Grain {
        Grain::Bytes(self.chunk_bytes)
    }

    /// Where it is, as users call it.
    #[must_use]
    pub fn place(&self) -> String {
        self.backend.called()
    }

    /// Where a checkpoint of this name is.
    #[must_use]
    pub fn place_of(&self, name: &str) -> String {
        self.backend.entry_called(name)
    }

    fn no_such(&self, name: &str) -> StoreError {
        let known = match self.names() {
            Ok(names) if !names.is_empty() => names.join(", "),
            _ => "none".to_owned(),
        };
        StoreError::Missing { store: self.place(), name: name.to_owned(), known }
    }
}

/// The part of a bucket whose keys begin so, where there may be no store yet.
fn open_bucket(bucket: &str, prefix: &str) -> Result<BucketBackend, StoreError> {
    Ok(BucketBackend::new(Box::new(S3::open(bucket, prefix)?), staging::of_buckets()?))
}

/// Whether what is fetched is of somebody who is trusted: a directory's owner is looked at.
fn is_proven(place: &StorePlace, codec: &Codec, trust: &Trust) -> bool {
    matches!(place, StorePlace::Directory(_)) || codec.key.is_some() || *trust == Trust::Anyone
}

/// Whether chunks can have so many bytes as a rule.
fn is_possible(chunk_bytes: u32) -> bool {
    (1 << 10..=512 << 10).contains(&chunk_bytes) && chunk_bytes.is_power_of_two()
}

/// Whether a checkpoint can have this name: no path, nothing hidden, nothing that a shell would take for something else.
fn check_name(name: &str) -> Result<(), StoreError> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric();
    let is_inside = |byte: u8| is_word(byte) || b"._-".contains(&byte);
    let bytes = name.as_bytes();
    let fits = (1..=MAX_NAME).contains(&bytes.len()) && bytes.iter().all(|byte| is_inside(*byte));
    match fits && bytes.first().is_some_and(|byte| is_word(*byte)) {
        true => Ok(()),
        false => Err(StoreError::Name { name: name.to_owned() }),
    }
}

#[cfg(test)]
pub(crate) mod tests;
