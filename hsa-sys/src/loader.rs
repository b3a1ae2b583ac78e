// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding the vendor's library: an explicit path, then `STASIS_LIBHSA_PATH`, then the dynamic linker's search.
//!
//! A path that fails is remembered with its reason and the next one is tried, as IREE does; if none works the
//! error lists all of them.
#![allow(unsafe_code)]

use crate::symbols::Symbols;
use libloading::Library;
use std::ffi::OsString;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::path::PathBuf;
use thiserror::Error;

/// The library's names, the versioned one first: the other is only there with development packages.
const SONAMES: [&str; 2] = ["libhsa-runtime64.so.1", "libhsa-runtime64.so"];
/// The variable that names a library, or a directory with one.
const VARIABLE: &str = "STASIS_LIBHSA_PATH";

/// Where to look before the dynamic linker's own directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchOptions {
    /// A library, or a directory with one, that the user asked for.
    pub explicit: Option<PathBuf>,
    /// The same from the environment.
    pub environment: Option<PathBuf>,
}

impl SearchOptions {
    /// The explicit path, if any, with `STASIS_LIBHSA_PATH` of this process behind it.
    #[must_use]
    pub fn from_env(explicit: Option<PathBuf>) -> Self {
        let environment = std::env::var_os(VARIABLE).filter(|value: &OsString| !value.is_empty());
        Self { explicit, environment: environment.map(PathBuf::from) }
    }

    /// Every path in the order it is tried.
    fn candidates(&self) -> Vec<PathBuf> {
        let named = self.explicit.iter().chain(&self.environment).flat_map(|path| inside(path));
        named.chain(SONAMES.map(PathBuf::from)).collect()
    }
}

/// A directory stands for the libraries in it.
fn inside(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() { SONAMES.map(|name| path.join(name)).to_vec() } else { vec![path.to_path_buf()] }
}

/// A path that was tried in vain.
#[derive(Debug)]
pub struct Attempt {
    /// The path, or a bare name left to the dynamic linker.
    pub path: PathBuf,
    /// What was wrong with it.
    pub reason: Reason,
}

/// Why a library could not be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The dynamic linker refused it.
    Load(libloading::Error),
    /// It is no HSA runtime, or too old a one.
    MissingSymbols(Vec<&'static str>),
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Load(error) => write!(f, "{}: {error}", self.path.display()),
            Reason::MissingSymbols(names) => {
                write!(f, "{}: it lacks the required symbols {}", self.path.display(), names.join(", "))
            }
        }
    }
}

/// No usable library.
#[derive(Debug, Error)]
#[error("No vendor HSA runtime could be loaded; tried:{}", list(attempts))]
pub struct LoadError {
    /// Every path that was tried, in order.
    pub attempts: Vec<Attempt>,
}

fn list(attempts: &[Attempt]) -> String {
    attempts.iter().map(|attempt| format!("\n  {attempt}")).collect()
}

/// The vendor's library, loaded.
#[derive(Debug)]
pub struct Loader {
    path: PathBuf,
    symbols: Symbols,
    skipped: Vec<Attempt>,
    // The vendor's runtime leaves threads, exit handlers and fork handlers behind: it is never unloaded.
    _library: ManuallyDrop<Library>,
}

impl Loader {
    /// Loads the first library of the search order that has every required symbol.
    ///
    /// # Errors
    /// [`LoadError`] with every path and reason.
    pub fn open(options: &SearchOptions) -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for path in options.candidates() {
            match load(&path) {
                Ok((library, symbols)) => {
                    return Ok(Self { path, symbols, skipped: attempts, _library: library });
                }
                Err(reason) => attempts.push(Attempt { path, reason }),
            }
        }
        Err(LoadError { attempts })
    }

    /// The path that was loaded, or the bare name if the dynamic linker found it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was tried before, for a warning that the path asked for was not the one taken.
    #[must_use]
    pub fn skipped(&self) -> &[Attempt] {
        &self.skipped
    }

    /// The library's functions.
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }
}

fn load(path: &Path) -> Result<(ManuallyDrop<Library>, Symbols), Reason> {
    // SAFETY: loading runs the library's constructors. The user named it or it is installed under the vendor's
    // soname; whoever can plant a library there runs code in this process anyway.
    let library = unsafe { Library::new(path) }.map_err(Reason::Load)?;
    // What lacks a symbol is not the vendor's runtime and did not start anything: it may be unloaded.
    let symbols = Symbols::resolve(&library).map_err(Reason::MissingSymbols)?;
    Ok((ManuallyDrop::new(library), symbols))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_explicit_then_environment_then_sonames() {
        let dir = tempfile::tempdir().unwrap();
        let options = SearchOptions {
            explicit: Some(PathBuf::from("/nowhere/libhsa.so")),
            environment: Some(dir.path().to_path_buf()),
        };
        let expected = [
            PathBuf::from("/nowhere/libhsa.so"),
            dir.path().join("libhsa-runtime64.so.1"),
            dir.path().join("libhsa-runtime64.so"),
            PathBuf::from("libhsa-runtime64.so.1"),
            PathBuf::from("libhsa-runtime64.so"),
        ];
        assert_eq!(options.candidates(), expected);
    }
}
