// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store in a bucket.
//!
//! ```text
//!  PREFIX/stasis-store.json    what the store is
//!         packs/ab/ab...       by their names (32 hexadecimal digits)
//!         checkpoints/NAME     "STASISPE" and who adds it; then its entry; nothing, when it was removed
//!         collection           whether somebody collects: "idle", "deciding" or "removing", and who
//! ```
//!
//! There are no locks that end with their owners. A process that adds a checkpoint reserves its name first, and commits by exchanging
//! the reservation for the entry. A process that collects says so in `collection`. Each writes its own word first and reads
//! the other's then, so that at least one of two sees the other: whoever adds gives its reservation up while somebody is deciding,
//! whoever collects waits for reservations. When it is decided what is removed, others may add, since nobody can get to
//! what is removed: new entries have packs of old entries, or their own.
//!
//! INVARIANT: all of these are exchanged for a version that was read, and no two are alike (a random number). Therefore a process that was
//! taken for dead, and is not, cannot commit or decide. Objects with the names of checkpoints are not removed, which could not be made
//! to depend on a version everywhere, and would come too late for the next one of that name. No clock is read for any of this.

mod adding;
mod collecting;
#[cfg(test)]
pub(crate) mod memory;
pub(crate) mod objects;
pub(crate) mod s3;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use self::adding::BucketAdding;
use self::collecting::BucketCollecting;
use self::objects::{Condition, Listed, Objects, Version};
use super::{Adding, Backend, CHECKPOINTS, Collecting, MARK_FILE, MAX_MARK, PACKS};
use crate::entry::Entry;
use crate::error::{RemoteError, StoreError};
use crate::pack::PackName;
use crate::random::random;

/// The first bytes of a reservation.
const RESERVED: &[u8; 8] = b"STASISPE";
/// The key of what says whether somebody collects.
const COLLECTION: &str = "collection";
/// Longest reservation that is read, bytes.
const MAX_SMALL: u64 = 4096;
/// TIMEOUT: how long whoever adds waits for a decision, and whoever collects for additions.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often they look.
const AGAIN: Duration = Duration::from_millis(100);
/// How often an object is read again that somebody else has replaced.
const ROUNDS: usize = 100;
/// Connections, at least; a connection waits for a server most of the time.
const CONNECTIONS: usize = 8;

/// A process that has reserved a name, or collects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    host: String,
    pid: u32,
    /// Random: no two are alike.
    number: String,
}

impl Owner {
    fn new() -> Result<Self, StoreError> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let number = u128::from_be_bytes(random()?);
        Ok(Self { host: host.trim().to_owned(), pid: std::process::id(), number: format!("{number:032x}") })
    }

    /// What errors call it.
    fn called(&self) -> String {
        format!("process {} of {}", self.pid, self.host)
    }

    /// Behind a magic.
    fn text(&self, magic: &[u8; 8]) -> Vec<u8> {
        [magic, &serde_json::to_vec(self).unwrap_or_default()[..]].concat()
    }
}

/// What a name has.
#[derive(Clone, Debug)]
enum Kept {
    /// A checkpoint is being added.
    Reserved(String),
    /// Nothing any more.
    Free,
    Entry(Vec<u8>),
}

impl Kept {
    fn of(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() {
            return Self::Free;
        }
        match bytes.strip_prefix(RESERVED) {
            None => Self::Entry(bytes),
            Some(text) => Self::Reserved(
                serde_json::from_slice(text)
                    .map_or_else(|_| "somebody".to_owned(), |owner: Owner| owner.called()),
            ),
        }
    }
}

/// A store's bucket.
#[derive(Debug)]
pub(crate) struct BucketBackend {
    objects: Box<dyn Objects>,
    staging: PathBuf,
    patience: Duration,
}

impl BucketBackend {
    /// The store in a bucket, where there may be none yet; commands at work have their directories in `staging`.
    pub(crate) fn new(objects: Box<dyn Objects>, staging: PathBuf) -> Self {
        Self { objects, staging, patience: PATIENCE }
    }

    /// Says what the store is, unless somebody has.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub(crate) fn make(&self, mark: &[u8]) -> Result<(), StoreError> {
        self.objects.put(MARK_FILE, mark, Condition::Absent).map(drop)
    }

    fn entry_key(name: &str) -> String {
        format!("{CHECKPOINTS}/{name}")
    }

    fn pack_key(pack: PackName) -> String {
        let digits = pack.to_string();
        format!("{PACKS}/{}/{digits}", &digits[..2])
    }

    fn write_pack(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError> {
        self.objects.put(&Self::pack_key(pack), bytes, Condition::Always).map(drop)
    }

    /// The names that have something, each with what its list says.
    fn listed(&self) -> Result<Vec<(String, Listed)>, StoreError> {
        let prefix = Self::entry_key("");
        let named = |listed: Listed| Some((listed.key.strip_prefix(&prefix)?.to_owned(), listed));
        let listed = self.objects.list(&prefix)?.into_iter().filter_map(named);
        Ok(listed.filter(|(_, listed)| listed.bytes > 0).collect())
    }

    /// What a name has, and in which version.
    fn kept(&self, name: &str) -> Result<Option<(Kept, Version)>, StoreError> {
        let got = self.objects.get(&Self::entry_key(name), Entry::most())?;
        Ok(got.map(|(bytes, version)| (Kept::of(bytes), version)))
    }

    /// Removes what a name has, if it is still this version; whether it was.
    fn free(&self, name: &str, version: &Version) -> Result<bool, StoreError> {
        let freed = self.objects.put(&Self::entry_key(name), b"", Condition::Is(version))?;
        Ok(freed.is_some())
    }

    fn busy(&self, name: &str, by: &str) -> StoreError {
        StoreError::Adding { store: self.called(), name: name.to_owned(), by: by.to_owned() }
    }

    /// An object that is another one whenever it is to be replaced.
    fn restless(&self, key: &str) -> StoreError {
        let what = "it has another ETag whenever it is read".to_owned();
        StoreError::Remote {
            act: "replace",
            object: self.objects.called(key),
            source: RemoteError::Answer(what),
        }
    }

    /// Why a name cannot be had that is not free.
    fn taken(&self, name: &str, kept: &Kept) -> StoreError {
        match kept {
            Kept::Reserved(by) => self.busy(name, by),
            Kept::Entry(_) | Kept::Free => StoreError::Exists { store: self.called(), name: name.to_owned() },
        }
    }
}

impl Backend for BucketBackend {
    fn called(&self) -> String {
        self.objects.called("")
    }

    fn entry_called(&self, name: &str) -> String {
        self.objects.called(&Self::entry_key(name))
    }

    fn mark(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.objects.get(MARK_FILE, MAX_MARK)?.map(|(bytes, _)| bytes))
    }

    fn replace_mark(&self, mark: &[u8]) -> Result<(), StoreError> {
        self.objects.put(MARK_FILE, mark, Condition::Always).map(drop)
    }

    fn names(&self) -> Result<Vec<String>, StoreError> {
        let mut listed = self.listed()?;
        listed.sort_by(|(_, one), (_, other)| (&other.written, &other.key).cmp(&(&one.written, &one.key)));
        Ok(listed.into_iter().map(|(name, _)| name).collect())
    }

    fn entry(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(match self.kept(name)? {
            Some((Kept::Entry(entry), _)) => Some(entry),
            _ => None,
        })
    }

    fn check_free(&self, name: &str) -> Result<(), StoreError> {
        match self.kept(name)? {
            None | Some((Kept::Free, _)) => Ok(()),
            Some((kept, _)) => Err(self.taken(name, &kept)),
        }
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let mut seen = None;
        for _ in 0..ROUNDS {
            match self.kept(name)? {
                Some((Kept::Entry(entry), version)) => {
                    let identity = Entry::identity(&entry);
                    // The one that was to be removed is gone, and this is another one of its name.
                    if *seen.get_or_insert(identity) != identity {
                        return Ok(true);
                    }
                    if self.free(name, &version)? {
                        return Ok(true);
                    }
                    // A collection has replaced it.
                    sleep(AGAIN);
                }
                Some((Kept::Reserved(_) | Kept::Free, _)) | None if seen.is_some() => return Ok(true),
                Some((Kept::Reserved(by), _)) => return Err(self.busy(name, &by)),
                Some((Kept::Free, _)) | None => return Ok(false),
            }
        }
        Err(self.restless(&Self::entry_key(name)))
    }

    fn read(&self, pack: PackName, offset: u64, bytes: u64) -> Result<Vec<u8>, StoreError> {
        let bad = |what| StoreError::Pack { pack: pack.to_string(), what };
        let read = self.objects.get_part(&Self::pack_key(pack), offset, bytes)?;
        let read = read.ok_or_else(|| bad("it is missing"))?;
        match read.len() as u64 == bytes {
            true => Ok(read),
            false => Err(bad("it is too short")),
        }
    }

    fn packs(&self) -> Result<Vec<(PackName, u64)>, StoreError> {
        let listed = self.objects.list(&format!("{PACKS}/"))?;
        let pack = |key: &str| PackName::parse(key.rsplit('/').next().unwrap_or(key));
        // What is not called like a pack is not the store's.
        let packs = listed.iter().filter_map(|listed| Some((pack(&listed.key)?, listed.bytes, &listed.key)));
        let own = packs.filter(|(pack, _, key)| Self::pack_key(*pack) == **key);
        Ok(own.map(|(pack, bytes, _)| (pack, bytes)).collect())
    }

    fn object(&self, _name: &[u8; 32], _most: u64) -> Result<Option<Vec<u8>>, StoreError> {
        // No version of buckets has them.
        Ok(None)
    }

    fn share(&self) -> Result<Option<Flock<File>>, StoreError> {
        // Whoever reads finds that a pack is missing, and reads the entry again.
        Ok(None)
    }

    fn add<'b>(&'b self, name: &str) -> Result<Box<dyn Adding + 'b>, StoreError> {
        Ok(Box::new(BucketAdding::begin(self, name)?))
    }

    fn collect<'b>(&'b self, abandon: bool) -> Result<Box<dyn Collecting + 'b>, StoreError> {
        Ok(Box::new(BucketCollecting::begin(self, abandon)?))
    }

    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        CONNECTIONS.div_ceil(cores)
    }

    fn is_read_back(&self) -> bool {
        false
    }

    fn staging(&self) -> &Path {
        &self.staging
    }
}
