// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a bucket can do.
//!
//! INVARIANT: whoever reads, or lists, sees all that was written before, and a condition is looked at and the object written in one act.
//! S3 promises both.

use std::fmt;

use crate::error::StoreError;

/// Which of the objects that a key has had: an entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(pub(crate) String);

/// When an object is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition<'v> {
    /// In any case.
    Always,
    /// When there is none with this key.
    Absent,
    /// When it is this one.
    Is(&'v Version),
}

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) bytes: u64,
    /// When it was written, as a text that sorts.
    pub(crate) written: String,
}

/// A bucket, or the part of it whose keys begin alike.
pub(crate) trait Objects: fmt::Debug + Send + Sync {
    /// What users call an object.
    fn called(&self, key: &str) -> String;

    /// The object, of at most `most` bytes, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    fn get(&self, key: &str, most: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError>;

    /// So many bytes of the object from `offset` on, or less if it is shorter.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    fn get_part(&self, key: &str, offset: u64, bytes: u64) -> Result<Option<Vec<u8>>, StoreError>;

    /// Writes an object; `None` if the condition was not met.
    ///
    /// # Errors
    /// [`StoreError::Remote`]; it may have been written then.
    fn put(&self, key: &str, bytes: &[u8], when: Condition<'_>) -> Result<Option<Version>, StoreError>;

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// The objects whose keys begin with `prefix`.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    fn list(&self, prefix: &str) -> Result<Vec<Listed>, StoreError>;
}
