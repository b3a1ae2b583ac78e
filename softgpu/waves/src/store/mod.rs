// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated code in files, so that a process does not generate what an earlier one did.
//!
//! Code from a file is executed in this process: whoever writes such a file is this process. So files are taken only from a
//! directory that this user alone can write ([`directory`]), and only as they were written ([`file`]). Who can write
//! there anyway, the user or root, can run code as the user by other ways.
//!
//! INVARIANT: a file is copied to memory before anything of it is looked at, and no descriptor or mapping of it is kept. A
//! failure is a line in the log at debug level, and code that is generated again: nothing here is an error for a client.

mod directory;
mod file;
mod key;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::directory::Place;
pub(crate) use self::file::Generated;
pub(crate) use self::key::Key;

/// Bytes of all files, above which those that were not used for longest are removed.
const LIMIT: u64 = 64 << 20;
/// The directories below the user's own for caches.
const BELOW: [&str; 2] = ["stasis", "code"];

/// A directory with generated code, which processes share.
#[derive(Debug)]
pub struct Store {
    place: Place,
    limit: u64,
    /// Bytes that may be written before the size of all files is looked at again.
    until_trim: AtomicU64,
    found: AtomicU64,
    saved: AtomicU64,
}

impl Store {
    /// The store that `SOFTGPU_CACHE=off|DIRECTORY` names, `$XDG_CACHE_HOME/stasis/code` or `$HOME/.cache/stasis/code` if it is
    /// not set; none where it says `off` or no directory is known.
    #[must_use]
    pub fn from_env() -> Option<Arc<Store>> {
        let place = place(std::env::var_os)?;
        tracing::debug!(base = %place.base.display(), below = ?place.below, "generated code is kept in files");
        Some(Arc::new(Store::at(place)))
    }

    /// A store in a directory; it is made if it is not there, but its parent has to be.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Option<Arc<Store>> {
        Some(Arc::new(Store::at(named(directory)?)))
    }

    fn at(place: Place) -> Store {
        Store {
            place,
            limit: LIMIT,
            until_trim: AtomicU64::new(0),
            found: AtomicU64::new(0),
            saved: AtomicU64::new(0),
        }
    }

    /// Pieces of code that were found in files since this was made.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Pieces of code that were saved in files since this was made.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    /// The code that was saved for `key`. A file that is not as it was written is removed.
    pub(crate) fn load(&self, key: &Key) -> Option<Generated> {
        let name = key.to_string();
        let is_strange = match self.place.read(&name) {
            Ok(None) => false,
            Ok(Some(bytes)) => match Generated::parse(&bytes, key) {
                Ok(generated) => {
                    self.found.fetch_add(1, Ordering::Relaxed);
                    return Some(generated);
                }
                Err(why) => {
                    tracing::debug!(error = &why as &dyn Error, name, "generated code is not used");
                    true
                }
            },
            Err(why) => {
                tracing::debug!(error = &why as &dyn Error, name, "generated code is not read");
                why.is_strange()
            }
        };
        if is_strange && let Err(why) = self.place.remove(&name) {
            tracing::debug!(error = &why as &dyn Error, name, "a file is not removed");
        }
        None
    }

    /// Saves code for `key`.
    pub(crate) fn save(&self, key: &Key, generated: &Generated) {
        let Some(bytes) = generated.encode(key) else { return };
        let name = key.to_string();
        if let Err(why) = self.place.write(&name, &bytes) {
            tracing::debug!(error = &why as &dyn Error, name, "generated code is not saved");
            return;
        }
        self.saved.fetch_add(1, Ordering::Relaxed);
        let written = bytes.len() as u64;
        let enough = self.until_trim.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.checked_sub(written).unwrap_or(self.limit / 16))
        });
        if enough.is_ok_and(|left| left < written)
            && let Err(why) = self.place.trim(self.limit, is_key)
        {
            tracing::debug!(error = &why as &dyn Error, "old generated code is not removed");
        }
    }
}

/// Whether a file's name is a key's.
fn is_key(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == 2 * Key::BYTES && name.iter().all(u8::is_ascii_hexdigit)
}

/// A directory in its parent.
fn named(directory: &Path) -> Option<Place> {
    let (base, name) = (directory.parent()?, directory.file_name()?);
    directory.is_absolute().then(|| Place {
        base: base.to_owned(),
        is_own: false,
        below: vec![name.to_owned()],
    })
}

/// Where the environment puts the store.
fn place(variable: impl Fn(&'static str) -> Option<OsString>) -> Option<Place> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match variable("SOFTGPU_CACHE") {
        Some(value) if value == "off" => return None,
        Some(value) if !value.is_empty() => return named(Path::new(&value)),
        _ => {}
    }
    let (base, first) = match absolute("XDG_CACHE_HOME") {
        Some(base) => (base, None),
        None => (absolute("HOME")?, Some(".cache")),
    };
    let below = first.into_iter().chain(BELOW).map(OsString::from).collect();
    Some(Place { base, is_own: true, below })
}

/// Parses the file that has these contents, for the fuzzer: with the right key and hash, since no fuzzer finds those. Returns
/// whether it is code.
#[doc(hidden)]
#[must_use]
pub fn parse_sealed(contents: &[u8]) -> bool {
    let mut bytes = contents.to_vec();
    bytes.extend(blake3::hash(contents).as_bytes());
    let key = contents.get(8..8 + Key::BYTES).and_then(|key| key.try_into().ok());
    Generated::parse(&bytes, &Key(key.unwrap_or([0; Key::BYTES]))).is_ok()
}
