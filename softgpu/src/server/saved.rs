// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of an executor as a controller carries it from one softgpud to another: the driver's and the GPUs' states, and
//! the name of the client's gate.
//!
//! INVARIANT: what is decoded was encoded by this version, whole: a hash stands before it. Beyond that nothing of it is trusted.

use std::os::fd::{AsFd, OwnedFd};

use kfd::transport::gate::{GATE_BYTES, GateFile};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::client_gpus::GpusState;
use crate::driver::ProcessState;
use crate::persist::{Memories, Memory};

/// What a state begins with.
const MAGIC: [u8; 8] = *b"softstat";
/// The version of the encoding behind it.
const VERSION: u32 = 3;
/// Bytes of the head: magic, version, hash.
const HEAD: usize = 8 + 4 + 32;
/// How long a restored device waits for the order to go on, ms: a day. Its client is stopped meanwhile, or, where the device was
/// moved out of a tree that CRIU is to dump, CRIU is at work for as long as that takes.
pub(super) const RESTORE_LEASE_MS: u64 = 24 * 60 * 60 * 1000;

/// The state of an executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HostState {
    /// The devices, as a client must ask for them.
    pub(super) spec: String,
    pub(super) process: ProcessState,
    pub(super) gpus: GpusState,
    /// The name of the gate's memory.
    pub(super) gate: String,
}

/// Why a state cannot be used.
#[derive(Debug, Error)]
pub(super) enum StateError {
    /// It is none.
    #[error("It is no state of a softgpud")]
    Magic,
    /// Another softgpud wrote it.
    #[error("The state has version {found}; this softgpud reads version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It is not what was written.
    #[error("The state is damaged: it has another hash")]
    Hash,
    /// It cannot be encoded or decoded.
    #[error("The state cannot be encoded or decoded")]
    Codec(#[source] postcard::Error),
}

impl HostState {
    /// Its bytes.
    ///
    /// # Errors
    /// [`StateError::Codec`].
    pub(super) fn encode(&self) -> Result<Vec<u8>, StateError> {
        let body = postcard::to_stdvec(self).map_err(StateError::Codec)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(blake3::hash(&body).as_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// The state of these bytes.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (head, body) = bytes.split_at_checked(HEAD).ok_or(StateError::Magic)?;
        let (magic, rest) = head.split_at(8);
        let (version, hash) = rest.split_at(4);
        if magic != MAGIC {
            return Err(StateError::Magic);
        }
        let found = version.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        if found != VERSION {
            return Err(StateError::Version { found });
        }
        if blake3::hash(body).as_bytes() != hash {
            return Err(StateError::Hash);
        }
        postcard::from_bytes(body).map_err(StateError::Codec)
    }

    /// Name and size of each memory that it needs; some may be named twice.
    pub(super) fn memories(&self) -> impl Iterator<Item = (&str, u64)> {
        let gate = (self.gate.as_str(), GATE_BYTES as u64);
        self.process.memories().chain(self.gpus.memories()).chain([gate])
    }
}

/// A memory that a controller gave.
#[derive(Debug)]
pub(super) struct GivenMemory {
    /// The name that the state knows it by; the memfd may have another.
    pub(super) name: String,
    /// Whether the restored client has it: CRIU made it.
    pub(super) of_client: bool,
    pub(super) fd: OwnedFd,
}

/// What a descriptor of a memory shows.
#[derive(Debug)]
pub(super) struct Identity {
    name: String,
    device: u64,
    inode: u64,
}

/// The memories that were given, and, of those that the client has, what its descriptors show now.
pub(super) fn sort(given: Vec<GivenMemory>) -> Result<(Memories, Vec<Identity>), Errno> {
    let mut identities = Vec::new();
    let mut memories = Memories::new();
    for GivenMemory { name, of_client, fd } in given {
        let status = fstat(fd.as_fd())?;
        if of_client {
            identities.push(Identity { name: name.clone(), device: status.st_dev, inode: status.st_ino });
        }
        let bytes = u64::try_from(status.st_size).map_err(|_| Errno::EINVAL)?;
        memories.insert(Memory { name, bytes, fd });
    }
    Ok((memories, identities))
}

/// What the client's gate is told of its open files; `tokens` are names and numbers of all files.
pub(super) fn gate_files<'a>(
    tokens: impl Iterator<Item = (&'a str, u64)>,
    identities: &[Identity],
) -> Vec<GateFile> {
    let find = |(token, number): (&str, u64)| {
        let Identity { device, inode, .. } = *identities.iter().find(|identity| identity.name == token)?;
        Some(GateFile { number, device, inode })
    };
    tokens.filter_map(find).collect()
}
