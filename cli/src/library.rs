// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libraries of this project that are preloaded into other programs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What the dynamic linker loads before a program's own libraries (ld.so(8)).
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Its file's name.
    pub file: &'static str,
    /// The package that it is built of.
    pub package: &'static str,
    /// The environment variable that names the file, if it is not where this program is.
    pub variable: &'static str,
}

/// What `stasis run` preloads into its program.
pub const OF_PROGRAMS: Library =
    Library { file: "libstasis_kfd.so", package: "stasis-interpose", variable: "STASIS_INTERPOSE" };
/// What `stasis checkpoint` preloads into CRIU.
pub const OF_CRIU: Library = Library {
    file: "libstasis_criu_beside.so",
    package: "stasis-criu-beside",
    variable: "STASIS_CRIU_LIBRARY",
};

/// Why there is no library.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// It is not where this program is.
    #[error("{} is not beside {}; build it (cargo build -p {}) or set {}", library.file, beside.display(), library.package, library.variable)]
    Missing {
        /// The library.
        library: &'static Library,
        /// This program.
        beside: PathBuf,
    },
    /// A path leads nowhere.
    #[error("Cannot find {}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Library {
    /// The file: the one that the environment names, else one beside this program or above it.
    ///
    /// # Errors
    /// [`LibraryError`].
    pub fn find(&'static self) -> Result<PathBuf, LibraryError> {
        let lost = |path: &Path| {
            let path = path.to_owned();
            move |source| LibraryError::Path { path, source }
        };
        if let Some(named) = std::env::var_os(self.variable).filter(|name| !name.is_empty()) {
            let named = PathBuf::from(named);
            return named.canonicalize().map_err(lost(&named));
        }
        let own = std::env::current_exe().map_err(lost(Path::new("/proc/self/exe")))?;
        let mut near = own.ancestors().skip(1).take(2).map(|directory| directory.join(self.file));
        near.find(|path| path.is_file()).ok_or(LibraryError::Missing { library: self, beside: own })
    }
}

/// The value of [`PRELOAD_VARIABLE`] that preloads a library before those that the environment names already.
pub fn preloaded(library: PathBuf) -> OsString {
    let mut libraries = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD_VARIABLE).filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    libraries
}
