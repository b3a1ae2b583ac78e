// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a checkpoint was not stored, sent or brought back.

use std::io;
use std::path::{Path, PathBuf};

use stasis::criu::ManifestError;
use stasis::image::{ImageError, Stopped};
use thiserror::Error;

/// Why a checkpoint was not stored, sent or brought back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("Cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The directory is not a complete checkpoint, or its files are not as they were written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// An image of a runtime is not as it was written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The manifest does not list the files.
    #[error(
        "The manifest of {} does not list its files (layout {layout}), so that a copy could not be known to be right: \
         checkpoint again by `stasis checkpoint`", directory.display()
    )]
    NotListed {
        /// The checkpoint.
        directory: PathBuf,
        /// The layout of its manifest.
        layout: u32,
    },
    /// Bytes are not those that their hash says.
    #[error("{} is not as it was written: {found} bytes at offset {offset} have another hash", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// How many.
        found: u64,
    },
    /// An object is not what was kept or sent.
    #[error("The object of chunk {chunk} is damaged: {what}")]
    Object {
        /// The first digits of its hash.
        chunk: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A pack is not what was kept.
    #[error("The pack {pack} is damaged: {what}")]
    Pack {
        /// Its name.
        pack: String,
        /// What is wrong.
        what: &'static str,
    },
    /// An index is not one, or impossible.
    #[error("The chunk index is damaged: {what}")]
    Index {
        /// What is wrong with it.
        what: String,
    },
    /// The checkpoint is larger than an index can say.
    #[error(
        "The checkpoint has {bytes} bytes, for which its index has {index}, more than are read: keep its directory, or use a store with longer chunks"
    )]
    TooLarge {
        /// Bytes of its files.
        bytes: u64,
        /// Bytes of the index.
        index: u64,
    },
    /// The disk is too small.
    #[error("{} needs {wanted} bytes, and {free} are free there", directory.display())]
    NoRoom {
        /// Where the checkpoint was to go.
        directory: PathBuf,
        /// What it needs.
        wanted: u64,
        /// What there is.
        free: u64,
    },
    /// The directory beside the checkpoint's is somebody else's.
    #[error("{} is not what an attempt to receive or fetch has left ({what}): move it away, or give another directory", directory.display())]
    NotPartial {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The key file holds no key.
    #[error(
        "{} holds no key: it has to be a file of its owner alone (0600) with 32 bytes or 64 hexadecimal digits, and {what}",
        path.display()
    )]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The other side, or the store, has another key, or one where there is none here, or none.
    #[error("{0}")]
    OtherKey(&'static str),
    /// There is no store.
    #[error("{store} is no store: {what}")]
    NotAStore {
        /// Where it was looked for.
        store: String,
        /// What is wrong with it.
        what: String,
    },
    /// The name of a checkpoint in a store is none.
    #[error(
        "{name:?} cannot be the name of a checkpoint: letters, digits, and . _ - inside, 1 to 128 of them"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// There is a checkpoint of that name.
    #[error("The store {store} has a checkpoint {name:?}: remove it first, or give another name")]
    Exists {
        /// The store.
        store: String,
        /// The name.
        name: String,
    },
    /// There is no checkpoint of that name.
    #[error("The store {store} has no checkpoint {name:?}; it has {known}")]
    Missing {
        /// The store.
        store: String,
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Another process adds a checkpoint, or was killed when it did.
    #[error(
        "The checkpoint {name:?} is being added to {store} by {by}: wait for it, or, if that process is gone, \
         `stasis store collect --abandon {store}`"
    )]
    Adding {
        /// The store.
        store: String,
        /// The name.
        name: String,
        /// Which process.
        by: String,
    },
    /// Another process collects, or was killed when it did.
    #[error(
        "{store} is being collected by {by}: wait for it, or, if that process is gone, `stasis store collect --abandon {store}`"
    )]
    Collecting {
        /// The store.
        store: String,
        /// Which process.
        by: String,
    },
    /// Another process took this one for dead.
    #[error(
        "{store} has no {name} of this process any more: `stasis store collect --abandon` has taken it for dead. Nothing was added or \
         removed; do it again"
    )]
    Superseded {
        /// The store.
        store: String,
        /// What this process had reserved.
        name: String,
    },
    /// A server of objects writes whatever the condition is.
    #[error(
        "The server of {store} does not look at If-None-Match and If-Match, without which several processes would overwrite each \
         other's checkpoints: use another one, or a directory"
    )]
    Unconditional {
        /// The store.
        store: String,
    },
    /// Nothing proves who wrote a store.
    #[error(
        "Everybody who can write to {store} could have any program run here: give the --key-file that the store was made with, or say \
         --trust-owner"
    )]
    Unproven {
        /// The store.
        store: String,
    },
    /// A server of objects did not do what was asked.
    #[error("Cannot {act} {object}")]
    Remote {
        /// What was tried.
        act: &'static str,
        /// On which object.
        object: String,
        /// What came of it.
        #[source]
        source: RemoteError,
    },
    /// The address of a bucket, or what belongs to it in the environment, is wrong.
    #[error("The bucket {address} cannot be used: {what}")]
    Bucket {
        /// The address.
        address: String,
        /// What is wrong.
        what: String,
    },
    /// The directory for a checkpoint has something in it.
    #[error("{} is not empty: give a directory that is empty or does not exist", directory.display())]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
    },
    /// Somebody else makes the same directory.
    #[error("{} is being written by another process", directory.display())]
    Busy {
        /// The directory of what is there already.
        directory: PathBuf,
    },
    /// An address is none.
    #[error("{address:?} is no address: tcp://HOST:PORT, unix:PATH, or - for the standard streams")]
    Address {
        /// The address.
        address: String,
    },
    /// An address that anybody can reach.
    #[error(
        "{address} is open to all who can reach it, who could read the process or have any program run: give both sides the same \
         --key-file, use a Unix socket, or say --trust-network"
    )]
    Open {
        /// The address.
        address: String,
    },
    /// The other side speaks of something else.
    #[error("The stream is not as it should be: {what}")]
    Stream {
        /// What is wrong.
        what: String,
    },
    /// The stream ended, or could not be written.
    #[error("The connection broke: {act}")]
    Broken {
        /// What was waited for.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The work was stopped.
    #[error("The checkpoint was not moved: {0}")]
    Stopped(#[from] Stopped),
}

/// What a server of objects has answered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// It refused.
    #[error("The server said {status} {code}: {message}")]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// S3's word for it.
        code: String,
        /// Its text.
        message: String,
    },
    /// It said something that is no answer of S3.
    #[error("The answer of the server is not as it should be: {0}")]
    Answer(String),
    /// It was not reached, or the connection broke.
    #[error("The server was not reached, or the connection broke")]
    Connection(#[source] io::Error),
    /// The object is longer than what is read.
    #[error("It is longer than {0} bytes")]
    TooLong(u64),
}

/// The error of a file operation.
pub(crate) fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { act, path: path.into(), source }
}

/// The same of a call of nix.
pub(crate) fn refused(act: &'static str, path: &Path) -> impl FnOnce(nix::errno::Errno) -> StoreError {
    move |errno| StoreError::Io { act, path: path.into(), source: errno.into() }
}
