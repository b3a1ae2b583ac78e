// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of softgpud. There is none unless `STASIS_LOG` is set.
//!
//! `STASIS_LOG` is a filter such as `info` or `server=debug,processor=trace`; `STASIS_LOG_FILE` names a file to append
//! to (softgpud started on demand has no stderr), otherwise stderr is used.

use std::fs::OpenOptions;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

/// The variable that holds the filter.
pub const LOG_VARIABLE: &str = "STASIS_LOG";
/// The variable that names the file.
pub const LOG_FILE_VARIABLE: &str = "STASIS_LOG_FILE";

/// Whether a log was asked for.
pub(super) fn is_wanted() -> bool {
    std::env::var_os(LOG_VARIABLE).is_some_and(|filter| !filter.is_empty())
}

/// Installs the subscriber that the environment asks for. A file that cannot be opened means stderr.
pub fn install() {
    if !is_wanted() {
        return;
    }
    let filter = EnvFilter::from_env(LOG_VARIABLE);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    let file = std::env::var_os(LOG_FILE_VARIABLE)
        .and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
    // Only a second subscriber could make these fail, and there is none.
    let _ = match file {
        Some(file) => builder.with_writer(Mutex::new(file)).try_init(),
        None => builder.with_writer(std::io::stderr).try_init(),
    };
}
