// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys that clients need.

/// Keys that clients may have; without any, no client needs one.
///
/// INVARIANT: only hashes are kept. They are compared in constant time, and always all of them.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<blake3::Hash>);

impl Keys {
    /// These keys.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        Self(keys.into_iter().map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// Whether no client needs a key.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, key: &[u8]) -> bool {
        let hash = blake3::hash(key);
        // `Hash` compares in constant time; `|` compares all of them.
        self.0.iter().fold(false, |found, one| found | (*one == hash))
    }
}
