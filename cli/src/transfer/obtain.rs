// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of a checkpoint that is to be restored, fetched or received first.

use std::cell::Cell;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use stasis::criu::Trust;
use stasis_store::{Staging, StagingKind, Store};

use super::args::SourceArgs;
use super::stream::receive_all;
use crate::progress::{bar, on};

/// The variable by which a restore that another one starts is told the directory.
const PLACE_VARIABLE: &str = "STASIS_RESTORE_PLACE";
/// The variable with what the user called it: another restore, which has inherited these, is not meant.
const OF_VARIABLE: &str = "STASIS_RESTORE_OF";
/// The variable that tells it to remove the directory when it has come to its end.
const STAGED_VARIABLE: &str = "STASIS_RESTORE_STAGED";

/// What was fetched or received.
pub struct Obtained {
    /// Where it is.
    pub directory: PathBuf,
    /// What is removed when the restore has come to its end.
    staging: Cell<Option<Staging>>,
    /// When the process stopped, if the sender has said so.
    pub stopped: Option<Instant>,
}

/// Gets the directory of a checkpoint: `directory` is its name in a store, or where it goes.
///
/// # Errors
/// Why it was not fetched or received; nothing was restored.
pub fn obtain(source: &SourceArgs, directory: &Path, trust: Trust, quiet: bool) -> Result<Option<Obtained>> {
    source.check()?;
    let is_told = env::var_os(OF_VARIABLE).is_some_and(|of| of == directory.as_os_str());
    if let Some(place) = env::var_os(PLACE_VARIABLE).filter(|_| is_told) {
        let directory = PathBuf::from(place);
        let staging = env::var_os(STAGED_VARIABLE).map(|_| Staging::adopt(&directory)).transpose()?;
        return Ok(Some(Obtained { directory, staging: Cell::new(staging), stopped: None }));
    }
    let SourceArgs { store, from, key, network } = source;
    if let Some(path) = store {
        let store = Store::open(path, key.codec()?, trust)?;
        let name = directory.to_string_lossy().into_owned();
        let staging = store.stage(StagingKind::Out)?;
        let bar = bar(quiet, "fetching chunks");
        let fetched = store.fetch(&name, &staging.checkpoint(), &on(&bar));
        bar.finish_and_clear();
        return Ok(Some(Obtained { directory: fetched?, staging: Cell::new(Some(staging)), stopped: None }));
    }
    let Some(address) = from else { return Ok(None) };
    let received = receive_all(directory, address, &key.codec()?, network, quiet)?;
    Ok(Some(Obtained { directory: received.directory, staging: Cell::default(), stopped: received.stopped }))
}

impl fmt::Debug for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Obtained").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Obtained {
    /// Removes what was fetched for a restore that went well: a process that is lazy has the files open. After another one it stays for
    /// the next attempt, until the store is collected.
    pub fn finish<T>(&self, restored: Result<T>) -> Result<T> {
        let Some(staging) = self.staging.take() else { return restored };
        if restored.is_err() {
            staging.keep();
            let place = self.directory.display();
            return restored
                .with_context(|| format!("What was fetched is in {place} until the store is collected"));
        }
        restored
    }
}

/// Tells a command, which is to restore what the user has `called` so, that it is in `directory`.
pub fn hand_on(command: &mut Command, called: &Path, directory: &Path) {
    command.env(OF_VARIABLE, called).env(PLACE_VARIABLE, directory).env_remove(STAGED_VARIABLE);
}

/// The same of all that was obtained; what has to be removed is its task.
pub fn hand_on_all(command: &mut Command, called: &Path, obtained: &Obtained) {
    hand_on(command, called, &obtained.directory);
    let staging = obtained.staging.take();
    if staging.is_some() {
        command.env(STAGED_VARIABLE, "1");
    }
    obtained.staging.set(staging);
}
