// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adding a checkpoint to a bucket.

use std::thread::sleep;
use std::time::Instant;

use super::collecting::Collection;
use super::objects::{Condition, Version};
use super::{AGAIN, Adding, Backend, BucketBackend, Kept, Owner, RESERVED};
use crate::backend::MARK_FILE;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::pack::PackName;

/// A checkpoint that is being added, whose name is reserved.
pub(super) struct BucketAdding<'b> {
    backend: &'b BucketBackend,
    name: String,
    /// The reservation, until it is given up or exchanged.
    reserved: Option<Version>,
}

impl<'b> BucketAdding<'b> {
    /// Reserves a name, at a time when nobody decides what is collected.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Adding`], [`StoreError::Collecting`], [`StoreError::Unconditional`], [`StoreError::Remote`].
    pub(super) fn begin(backend: &'b BucketBackend, name: &str) -> Result<Self, StoreError> {
        check_conditions(backend)?;
        let until = Instant::now() + backend.patience;
        loop {
            if let Some((Collection::Deciding(by), _)) = Collection::read(backend)? {
                if Instant::now() >= until {
                    return Err(StoreError::Collecting { store: backend.called(), by: by.called() });
                }
                sleep(AGAIN);
                continue;
            }
            let adding = Self::reserve(backend, name)?;
            if !matches!(Collection::read(backend)?, Some((Collection::Deciding(_), _))) {
                return Ok(adding);
            }
            // The decision waits for this reservation, which is given up.
        }
    }

    fn reserve(backend: &'b BucketBackend, name: &str) -> Result<Self, StoreError> {
        let key = BucketBackend::entry_key(name);
        let text = Owner::new()?.text(RESERVED);
        let version = loop {
            if let Some(version) = backend.objects.put(&key, &text, Condition::Absent)? {
                break version;
            }
            match backend.kept(name)? {
                Some((Kept::Free, free)) => {
                    if let Some(version) = backend.objects.put(&key, &text, Condition::Is(&free))? {
                        break version;
                    }
                }
                Some((kept, _)) => return Err(backend.taken(name, &kept)),
                None => {}
            }
        };
        Ok(Self { backend, name: name.to_owned(), reserved: Some(version) })
    }
}

/// Makes sure that the server looks at conditions, on which all of this depends. Not every one does.
fn check_conditions(backend: &BucketBackend) -> Result<(), StoreError> {
    // It is there, and if it is written it says the same. It is not the same bytes: those would look as if a first attempt had its effect.
    let Some(mut mark) = backend.mark()? else { return Ok(()) };
    match mark.last() {
        Some(b' ') => drop(mark.pop()),
        _ => mark.push(b' '),
    }
    let none = Version("\"00000000000000000000000000000000\"".to_owned());
    for condition in [Condition::Absent, Condition::Is(&none)] {
        if backend.objects.put(MARK_FILE, &mark, condition)?.is_some() {
            return Err(StoreError::Unconditional { store: backend.called() });
        }
    }
    Ok(())
}

impl Adding for BucketAdding<'_> {
    fn write(&self, pack: PackName, bytes: &[u8]) -> Result<(), StoreError> {
        self.backend.write_pack(pack, bytes)
    }

    fn commit(mut self: Box<Self>, entry: &[u8]) -> Result<(), StoreError> {
        let lost = || StoreError::Superseded { store: self.backend.called(), name: self.name.clone() };
        let reserved = self.reserved.as_ref().ok_or_else(lost)?;
        let key = BucketBackend::entry_key(&self.name);
        let committed = self.backend.objects.put(&key, entry, Condition::Is(reserved));
        if !matches!(committed, Ok(Some(_))) {
            // It may be there, and have been replaced by a collection since.
            let is_ours = matches!(self.backend.kept(&self.name), Ok(Some((Kept::Entry(there), _)))
                if Entry::identity(&there).is_some() && Entry::identity(&there) == Entry::identity(entry));
            if !is_ours {
                return committed?.map(drop).ok_or_else(lost);
            }
        }
        self.reserved = None;
        Ok(())
    }
}

impl Drop for BucketAdding<'_> {
    fn drop(&mut self) {
        let Some(reserved) = self.reserved.take() else { return };
        if let Err(error) = self.backend.free(&self.name, &reserved) {
            tracing::warn!(name = self.name, %error, "the name stays reserved until a collection abandons it");
        }
    }
}
