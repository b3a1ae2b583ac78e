// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bucket in memory, whose requests can be stopped and can fail.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::objects::{Condition, Listed, Objects, Version};
use crate::error::{RemoteError, StoreError};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// It has no effect, and fails.
    Lost,
    /// It has its effect, and fails.
    Unanswered,
}

type Decide = dyn Fn(&str, &str) -> Fate + Send + Sync;

#[derive(Default)]
pub(crate) struct Contents {
    /// By key: the bytes, and when they were written.
    pub(crate) objects: BTreeMap<String, (Vec<u8>, u64)>,
    clock: u64,
    pub(crate) ignores_conditions: bool,
}

/// A bucket as one process sees it.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) contents: Arc<Mutex<Contents>>,
    /// Asked for each request: its kind and its key.
    decide: Arc<Decide>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { contents: Arc::default(), decide: Arc::new(|_, _| Fate::Done) }
    }

    /// The same bucket, for a process whose requests fare as `decide` says.
    pub(crate) fn seen(&self, decide: impl Fn(&str, &str) -> Fate + Send + Sync + 'static) -> Self {
        Self { contents: Arc::clone(&self.contents), decide: Arc::new(decide) }
    }

    fn request<T>(
        &self,
        kind: &str,
        key: &str,
        act: impl FnOnce(&mut Contents) -> T,
    ) -> Result<T, StoreError> {
        let fate = (self.decide)(kind, key);
        let lost = || StoreError::Remote {
            act: "reach",
            object: key.to_owned(),
            source: RemoteError::Connection(io::ErrorKind::ConnectionReset.into()),
        };
        if fate == Fate::Lost {
            return Err(lost());
        }
        let done = act(&mut self.contents.lock().unwrap_or_else(PoisonError::into_inner));
        if fate == Fate::Done { Ok(done) } else { Err(lost()) }
    }
}

fn version(bytes: &[u8]) -> Version {
    // As S3 does: of the bytes, not of the moment.
    Version(blake3::hash(bytes).to_hex().to_string())
}

impl Objects for Memory {
    fn called(&self, key: &str) -> String {
        format!("memory:{key}")
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        self.request("get", key, |contents| {
            let (bytes, _) = contents.objects.get(key)?;
            assert!(bytes.len() as u64 <= most);
            Some((bytes.clone(), version(bytes)))
        })
    }

    fn get_part(&self, key: &str, offset: u64, bytes: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.request("part", key, |contents| {
            let (all, _) = contents.objects.get(key)?;
            let from = (offset as usize).min(all.len());
            Some(all[from..(from + bytes as usize).min(all.len())].to_vec())
        })
    }

    fn put(&self, key: &str, bytes: &[u8], when: Condition<'_>) -> Result<Option<Version>, StoreError> {
        self.request("put", key, |contents| {
            let kept = contents.objects.get(key).map(|(bytes, _)| version(bytes));
            let is_met = match when {
                Condition::Always => true,
                Condition::Absent => kept.is_none(),
                Condition::Is(version) => kept.as_ref() == Some(version),
            };
            if !is_met && !contents.ignores_conditions {
                return None;
            }
            contents.clock += 1;
            contents.objects.insert(key.to_owned(), (bytes.to_vec(), contents.clock));
            Some(version(bytes))
        })
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.request("delete", key, |contents| drop(contents.objects.remove(key)))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, StoreError> {
        self.request("list", prefix, |contents| {
            let objects = contents.objects.iter().filter(|(key, _)| key.starts_with(prefix));
            let listed = |(key, (bytes, written)): (&String, &(Vec<u8>, u64))| Listed {
                key: key.clone(),
                bytes: bytes.len() as u64,
                written: format!("{written:020}"),
            };
            objects.map(listed).collect()
        })
    }
}
