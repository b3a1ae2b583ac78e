// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collecting what no checkpoint of a bucket has.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stasis::image::{Limit, for_each};

use super::objects::{Condition, Version};
use super::{AGAIN, Backend, BucketBackend, COLLECTION, Collecting, Kept, MAX_SMALL, Owner, ROUNDS};
use crate::backend::Swept;
use crate::entry::Entry;
use crate::error::{RemoteError, StoreError};
use crate::pack::PackName;

/// What a bucket says of collections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Collection {
    /// Nobody collects; who did last.
    Idle(Owner),
    /// Somebody reads entries: nobody may add.
    Deciding(Owner),
    /// Somebody removes what no entry has.
    Removing(Owner),
}

impl Collection {
    /// It, and its version, if anybody has ever collected.
    ///
    /// # Errors
    /// [`StoreError::Remote`], [`StoreError::NotAStore`].
    pub(super) fn read(backend: &BucketBackend) -> Result<Option<(Self, Version)>, StoreError> {
        let Some((text, version)) = backend.objects.get(COLLECTION, MAX_SMALL)? else { return Ok(None) };
        match serde_json::from_slice(&text) {
            Ok(collection) => Ok(Some((collection, version))),
            Err(error) => Err(StoreError::NotAStore {
                store: backend.called(),
                what: format!("its {COLLECTION}: {error}"),
            }),
        }
    }

    fn write(&self, backend: &BucketBackend, when: Condition<'_>) -> Result<Option<Version>, StoreError> {
        backend.objects.put(COLLECTION, &serde_json::to_vec(self).unwrap_or_default(), when)
    }
}

/// A collection of a bucket.
pub(super) struct BucketCollecting<'b> {
    backend: &'b BucketBackend,
    owner: Owner,
    /// What the bucket says of collections while it is this one; `None` when somebody has taken it over.
    version: Option<Version>,
    /// Whether an entry may still be replaced by somebody who does not collect any more: then the next collection has to know it.
    is_unsettled: AtomicBool,
}

impl<'b> BucketCollecting<'b> {
    /// Begins when nobody else collects, and when all reservations are over.
    ///
    /// # Errors
    /// [`StoreError::Collecting`], [`StoreError::Adding`], [`StoreError::Remote`], [`StoreError::NotAStore`].
    pub(super) fn begin(backend: &'b BucketBackend, abandon: bool) -> Result<Self, StoreError> {
        let until = Instant::now() + backend.patience;
        let owner = Owner::new()?;
        let deciding = Collection::Deciding(owner.clone());
        let is_taken_over;
        let version = loop {
            let before = Collection::read(backend)?;
            let written = match &before {
                None => deciding.write(backend, Condition::Absent)?,
                Some((Collection::Deciding(by) | Collection::Removing(by), _)) if !abandon => {
                    if Instant::now() >= until {
                        return Err(StoreError::Collecting { store: backend.called(), by: by.called() });
                    }
                    None
                }
                Some((_, version)) => deciding.write(backend, Condition::Is(version))?,
            };
            match written {
                Some(version) => {
                    is_taken_over = matches!(before, Some((Collection::Deciding(_), _)));
                    break version;
                }
                None => sleep(AGAIN),
            }
        };
        let is_unsettled = AtomicBool::new(is_taken_over);
        let collecting = Self { backend, owner, version: Some(version), is_unsettled };
        while let Some((name, by)) = collecting.end_reservations(abandon)? {
            if Instant::now() >= until {
                return Err(backend.busy(&name, &by));
            }
            sleep(AGAIN);
        }
        if is_taken_over {
            collecting.renumber()?;
            collecting.is_unsettled.store(false, Ordering::Relaxed);
        }
        Ok(collecting)
    }

    /// Gives all entries other versions: the process that this collection was taken over from cannot replace one any more.
    fn renumber(&self) -> Result<(), StoreError> {
        for name in self.backend.names()? {
            let key = BucketBackend::entry_key(&name);
            let mut rounds = 0;
            let is_settled = || -> Result<bool, StoreError> {
                let Some((Kept::Entry(entry), version)) = self.backend.kept(&name)? else { return Ok(true) };
                let Some(entry) = Entry::renumbered(&entry)? else { return Ok(true) };
                Ok(self.backend.objects.put(&key, &entry, Condition::Is(&version))?.is_some())
            };
            // It has just been replaced otherwise, or removed.
            while !is_settled()? {
                rounds += 1;
                if rounds == ROUNDS {
                    return Err(self.backend.restless(&key));
                }
                sleep(AGAIN);
            }
        }
        Ok(())
    }

    /// Looks for reservations, and ends those that are abandoned; returns one that is not over.
    fn end_reservations(&self, abandon: bool) -> Result<Option<(String, String)>, StoreError> {
        // What is longer is an entry.
        for (name, listed) in
            self.backend.listed()?.into_iter().filter(|(_, listed)| listed.bytes <= MAX_SMALL)
        {
            // Objects of that kind are never removed.
            let gone = || StoreError::Remote {
                act: "read",
                object: self.backend.objects.called(&listed.key),
                source: RemoteError::Answer("it is listed, and not there".to_owned()),
            };
            let (kept, version) = self.backend.kept(&name)?.ok_or_else(gone)?;
            match kept {
                Kept::Entry(_) => {}
                Kept::Reserved(_) if abandon => {
                    // It is committed, or over, if this is another version now.
                    self.backend.free(&name, &version)?;
                }
                Kept::Reserved(by) => return Ok(Some((name, by))),
                Kept::Free => {}
            }
        }
        Ok(None)
    }

    /// Says what this collection does, if it is still the only one.
    fn turn_to(&mut self, collection: &Collection) -> Result<(), StoreError> {
        let version = self.version.take().ok_or_else(|| self.lost())?;
        let written = collection.write(self.backend, Condition::Is(&version))?;
        self.version = Some(written.ok_or_else(|| self.lost())?);
        Ok(())
    }

    fn lost(&self) -> StoreError {
        StoreError::Superseded { store: self.backend.called(), name: COLLECTION.to_owned() }
    }
}

impl Collecting for BucketCollecting<'_> {
    fn confirm(&self) -> Result<(), StoreError> {
        let now = Collection::read(self.backend)?.map(|(_, version)| version);
        match now.is_some() && now == self.version {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError> {
        self.backend.write_pack(pack, bytes)
    }

    fn replace(&self, name: &str, from: &[u8], to: &[u8]) -> Result<bool, StoreError> {
        let key = BucketBackend::entry_key(name);
        let Some((bytes, version)) = self.backend.objects.get(&key, Entry::most())? else { return Ok(false) };
        if bytes != from {
            return Ok(false);
        }
        let replaced = self.backend.objects.put(&key, to, Condition::Is(&version));
        if replaced.is_err() {
            // It may be on its way.
            self.is_unsettled.store(true, Ordering::Relaxed);
        }
        Ok(replaced?.is_some())
    }

    fn remove(&mut self, packs: &[PackName]) -> Result<(), StoreError> {
        // From here on others may add, and somebody else may collect: all of these are in no entry, and will be in none.
        self.turn_to(&Collection::Removing(self.owner.clone()))?;
        for_each(packs.len(), self.backend.threads(), &Limit::none(), |n, _| {
            self.backend.objects.delete(&BucketBackend::pack_key(packs[n]))
        })
    }

    fn sweep(self: Box<Self>, _wanted: &HashSet<[u8; 32]>) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        swept.remove_abandoned(self.backend.staging())?;
        Ok(swept)
    }
}

impl Drop for BucketCollecting<'_> {
    fn drop(&mut self) {
        if self.version.is_none() {
            return;
        }
        if self.is_unsettled.load(Ordering::Relaxed) {
            tracing::warn!(
                "the next collection has to abandon this one, and makes sure that nothing of it is on its way"
            );
            return;
        }
        let idle = Collection::Idle(self.owner.clone());
        if let Err(error) = self.turn_to(&idle) {
            tracing::warn!(%error, "the next collection has to abandon this one");
        }
    }
}
