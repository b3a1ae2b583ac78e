// SPDX-License-Identifier: MIT OR Apache-2.0
//! The secret that a checkpoint draws, from which the names of sockets with the terms of its restores follow.

use std::io;

use kfd::linux::random;
use serde::{Deserialize, Serialize};

/// How many names follow from a secret: each restore needs one that no other user has seen and taken.
pub(super) const NAMES: u32 = 64;

/// What only a checkpointed process and the manifest of its checkpoint know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TermsSecret(String);

impl TermsSecret {
    /// Draws one.
    pub(super) fn draw() -> io::Result<Self> {
        Ok(Self(format!("{:032x}", u128::from_ne_bytes(random()?))))
    }

    /// The names, of which each restore takes one that no other user has seen.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        let name = |number: u32| {
            let mut hasher = blake3::Hasher::new_derive_key("stasis 2026-11 names of terms of a restore");
            hasher.update(self.0.as_bytes()).update(&number.to_le_bytes());
            format!("stasis-terms.{}", hasher.finalize().to_hex())
        };
        (0..NAMES).map(name)
    }
}
