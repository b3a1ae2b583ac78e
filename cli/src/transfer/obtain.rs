// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of a checkpoint that is to be restored, fetched or received first.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use stasis::criu::Trust;
use stasis_store::Store;

use super::args::SourceArgs;
use super::deliver::STAGING;
use super::stream::receive_all;
use crate::progress::{bar, on};

/// Options that say where a checkpoint comes from, which have a value; whoever has its directory does not need them.
const WITH_VALUES: [&str; 4] = ["--store", "--from", "--key-file", "--wait-ms"];
/// The same without a value.
const ALONE: &str = "--trust-network";

/// What was fetched or received.
#[derive(Clone, Debug)]
pub struct Obtained {
    /// Where it is.
    pub directory: PathBuf,
    /// It is for this restore only.
    pub is_staged: bool,
    /// When the process stopped, if the sender has said so.
    pub stopped: Option<Instant>,
}

/// Gets the directory of a checkpoint: `directory` is its name in a store, or where it goes.
///
/// # Errors
/// Why it was not fetched or received; nothing was restored.
pub fn obtain(source: &SourceArgs, directory: &Path, trust: Trust, quiet: bool) -> Result<Option<Obtained>> {
    let SourceArgs { store, from, key, network } = source;
    if let Some(path) = store {
        let store = Store::open(path, key.codec()?, trust)?;
        let name = directory.to_string_lossy().into_owned();
        let directory = store.path().join(STAGING).join(format!("{name}-{}", std::process::id()));
        let bar = bar(quiet, "fetching chunks");
        let fetched = store.fetch(&name, &directory, &on(&bar));
        bar.finish_and_clear();
        fetched?;
        return Ok(Some(Obtained { directory, is_staged: true, stopped: None }));
    }
    let Some(address) = from else { return Ok(None) };
    let received = receive_all(directory, address, &key.codec()?, network, quiet)?;
    Ok(Some(Obtained { directory: received.directory, is_staged: false, stopped: received.stopped }))
}

/// The words of a command without those that say where a checkpoint comes from.
#[must_use]
pub fn without_source(words: Vec<OsString>) -> Vec<OsString> {
    let mut left = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if WITH_VALUES.iter().any(|option| word == *option) {
            words.next();
        } else if word != ALONE && !WITH_VALUES.iter().any(|option| is_set(&word, option)) {
            left.push(word);
        }
    }
    left
}

/// Whether a word is this option with its value.
fn is_set(word: &OsStr, option: &str) -> bool {
    word.to_string_lossy().strip_prefix(option).is_some_and(|rest| rest.starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_no_longer_where_it_came_from() {
        let left = |words: &str| {
            let left = without_source(words.split(' ').map(OsString::from).collect());
            left.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(left("restore --store /s web-1 --beside"), "restore web-1 --beside");
        assert_eq!(left("restore --lazy --store=/s --key-file k web-1"), "restore --lazy web-1");
        assert_eq!(left("restore web-1 --from tcp://a:1 --trust-network --wait-ms=5"), "restore web-1");
        assert_eq!(left("restore --stores web-2"), "restore --stores web-2");
    }
}
