// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint that is complete goes where it is to be.
//!
//! INVARIANT: the directory that CRIU wrote is removed when the checkpoint is complete in the store, or the receiver has said
//! that it has it all; until then it is a checkpoint like any other, and errors name it.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use stasis::criu::Trust;
use stasis_store::{
    Added, Address, Checkpoint, Codec, Sender, Sent, Stage, Staging, StagingKind, Store, StoreError,
};

use super::args::DestinationArgs;
use super::stream::Way;
use crate::output;
use crate::progress::{bar, mebibytes, milliseconds, on};

/// Where a checkpoint goes, made sure of before anything is frozen.
pub enum Destination {
    /// Into the directory that was given.
    Directory(PathBuf),
    /// Into a store, under a name.
    Store {
        /// The store.
        store: Store,
        /// The checkpoint's name.
        name: String,
        /// Where it is written first: on the store's file system.
        staging: Cell<Option<Staging>>,
        /// The directory there.
        directory: PathBuf,
    },
    /// Over a stream.
    Stream {
        /// The directory that was given.
        directory: PathBuf,
        /// How chunks are sent.
        codec: Codec,
        /// The connection to the receiver, as long as it holds.
        sender: RefCell<Option<Sender>>,
    },
}

/// What became of a checkpoint that went on.
#[derive(Debug, Serialize)]
pub struct Delivered {
    /// Its name in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The store.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// The receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    deliver_ms: f64,
    #[serde(flatten)]
    moved: Moved,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Moved {
    Added(Added),
    Sent(Sent),
}

impl Destination {
    /// Finds out where a checkpoint goes, and that it can go there.
    ///
    /// # Errors
    /// When the key cannot be read, the store cannot be opened or has a checkpoint of that name.
    pub fn of(args: &DestinationArgs, directory: &Path) -> Result<Self> {
        if let Some(path) = &args.store {
            let store = Store::create(path, args.write.codec()?, Trust::of_caller(), args.chunks.bytes())?;
            let name = directory.to_string_lossy().into_owned();
            store.check_free(&name)?;
            let staging = store.stage(StagingKind::In)?;
            let directory = staging.checkpoint();
            return Ok(Self::Store { store, name, staging: Cell::new(Some(staging)), directory });
        }
        args.check()?;
        let directory = directory.to_owned();
        match &args.to {
            None => Ok(Self::Directory(directory)),
            Some(to) => {
                let codec = args.write.codec()?;
                // Before anything is stopped: without a receiver it would have been in vain.
                let way = Way { address: to, codec: &codec, network: &args.network, quiet: true };
                let sender = RefCell::new(Some(way.connect()?));
                Ok(Self::Stream { directory, codec, sender })
            }
        }
    }

    /// The directory that CRIU writes into.
    #[must_use]
    pub fn directory(&self) -> &Path {
        match self {
            Self::Directory(directory) | Self::Stream { directory, .. } | Self::Store { directory, .. } => {
                directory
            }
        }
    }

    /// Where the checkpoint, which CRIU has written into `directory`, will be in the end, for those who read it.
    #[must_use]
    pub fn place(&self, args: &DestinationArgs, directory: &Path) -> PathBuf {
        match (self, &args.to) {
            (Self::Store { store, name, .. }, _) => store.place_of(name).into(),
            (_, Some(to)) if to.is_answered() && !args.keep => to.to_string().into(),
            _ => directory.into(),
        }
    }

    /// Sends images of processes that still run, each by its path in `directory` and by that which it will have. What cannot be sent now
    /// is sent with the checkpoint.
    ///
    /// # Errors
    /// Why the receiver will not take the checkpoint either.
    pub fn send_before(
        &self,
        args: &DestinationArgs,
        directory: &Path,
        images: &[(String, String)],
    ) -> Result<()> {
        let (Self::Stream { sender, codec, .. }, Some(to)) = (self, &args.to) else { return Ok(()) };
        if !to.is_answered() {
            return Ok(());
        }
        let mut sender = sender.borrow_mut();
        let Some(connected) = sender.as_mut() else { return Ok(()) };
        let before = Checkpoint::of_images(directory, images, &|_, _| ());
        match before.and_then(|before| connected.send(&before, Stage::Before, &|_, _| ())) {
            Ok(_) => Ok(()),
            Err(error @ StoreError::Broken { .. }) => {
                tracing::warn!(target: "checkpoint", %error, "what was copied before is sent with the checkpoint");
                let way = Way { address: to, codec, network: &args.network, quiet: true };
                *sender = Some(way.connect()?);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Has the complete checkpoint, of a process that `stopped` then, go where it is to be.
    ///
    /// # Errors
    /// Why it is not there; it is complete in its directory then, which the error names.
    pub fn deliver(
        &self,
        args: &DestinationArgs,
        directory: &Path,
        stopped: Instant,
        quiet: bool,
    ) -> Result<Option<Delivered>> {
        let started = Instant::now();
        let delivered = |moved| Delivered {
            name: None,
            store: None,
            to: args.to.as_ref().map(ToString::to_string),
            deliver_ms: milliseconds(started),
            moved,
        };
        let place = directory.display();
        let again = args.write.again();
        match self {
            Self::Directory(_) => Ok(None),
            Self::Store { store, name, staging, .. } => {
                let added = add(store, name, directory, Trust::of_caller(), quiet).with_context(|| {
                    format!(
                        "The checkpoint is complete in {place}, and is not in the store: restore it from there, or `stasis store \
                         add {} {place} {name}{again}`",
                        store.place()
                    )
                })?;
                drop(staging.take());
                let (name, store) = (Some(name.clone()), Some(store.place()));
                Ok(Some(Delivered { name, store, ..delivered(Moved::Added(added)) }))
            }
            Self::Stream { codec, sender, .. } => {
                let Some(to) = &args.to else { return Ok(None) };
                let way = Way { address: to, codec, network: &args.network, quiet };
                let stage = Stage::Last(Some(stopped));
                let sent = way.send(directory, &Trust::of_caller(), stage, sender.take());
                let sent = sent.with_context(|| {
                    format!(
                        "The checkpoint is complete in {place}, and the receiver has not said that it has it. If it has none: `stasis \
                         send {place} {to}{again}`, or restore it from here"
                    )
                })?;
                if to.is_answered() && !args.keep {
                    remove(directory)?;
                }
                Ok(Some(delivered(Moved::Sent(sent))))
            }
        }
    }
}

/// Says what a checkpoint has done, but not where the checkpoint itself goes: the outcome as JSON, or the prose of it and of what was
/// delivered.
///
/// # Errors
/// When the outcome cannot be JSON.
pub fn report(
    args: &DestinationArgs,
    json: bool,
    outcome: &impl Serialize,
    prose: String,
    delivered: Option<&Delivered>,
) -> Result<()> {
    let text = match json {
        true => serde_json::to_string(outcome)? + "\n",
        false => prose + &delivered.map(Delivered::prose).unwrap_or_default(),
    };
    match args.to {
        Some(Address::Standard) => output::complain(text),
        _ => output::report(text),
    }
    Ok(())
}

impl Drop for Destination {
    fn drop(&mut self) {
        let Self::Store { staging, directory, .. } = self else { return };
        // CRIU's log of what failed, or a checkpoint that is complete and not in the store.
        let is_empty = match fs::read_dir(directory) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(mut entries) => entries.next().is_none(),
        };
        if let Some(staging) = staging.take()
            && !is_empty
        {
            staging.keep();
        }
    }
}

/// Adds the checkpoint in a directory, whose files are those of `trust`, to a store.
pub(super) fn add(store: &Store, name: &str, directory: &Path, trust: Trust, quiet: bool) -> Result<Added> {
    let bar = bar(quiet, "cutting the files");
    let checkpoint = Checkpoint::open(directory, trust, store.grain(), &on(&bar))?;
    bar.set_message("keeping new chunks");
    let added = store.add(name, &checkpoint, &on(&bar));
    bar.finish_and_clear();
    Ok(added?)
}

fn remove(directory: &Path) -> Result<()> {
    fs::remove_dir_all(directory).with_context(|| {
        format!("The checkpoint is where it is to be, but {} was not removed", directory.display())
    })
}

impl Delivered {
    /// The same as prose: a line.
    #[must_use]
    pub fn prose(&self) -> String {
        let ms = self.deliver_ms;
        match (&self.moved, &self.name, &self.store) {
            (Moved::Added(added), Some(name), Some(store)) => format!(
                "  kept as {name} in {}: {:.1} of its {:.1} MiB are new there, {ms:.0} ms\n",
                store,
                mebibytes(added.new_bytes),
                mebibytes(added.file_bytes),
            ),
            (Moved::Sent(sent), ..) => {
                let to = self.to.as_deref().unwrap_or_default();
                format!(
                    "  sent to {to}: {:.1} of its {:.1} MiB, {ms:.0} ms\n",
                    mebibytes(sent.sent_bytes),
                    mebibytes(sent.file_bytes)
                )
            }
            _ => String::new(),
        }
    }
}
