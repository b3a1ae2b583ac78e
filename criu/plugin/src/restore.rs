// SPDX-License-Identifier: MIT OR Apache-2.0
//! `criu restore`: tells a process where its contents are now.
//!
//! The process comes back by itself and looks where it wrote them. Only if the images were moved does it need to be
//! told, and all that can be done in this hook is to leave a message: the process does not run yet, and CRIU ignores
//! what the hook answers. It waits for nobody: processes that share memory wait for each other once all of them run, and
//! here none does.

use std::convert::Infallible;

use stasis::checkpoint::Request;

use crate::agent::leave;
use crate::host::{Level, log};
use crate::images::Images;
use crate::marker::{self, MarkerError};
use crate::process::find;

/// Before anything else of a restore: whether all contents are there.
pub(crate) fn prepare() -> Result<(), MarkerError> {
    match Images::open() {
        Ok(images) => marker::check(images.fd, &images.path),
        // CRIU says itself what it is missing.
        Err(_) => Ok(()),
    }
}

/// Leaves word with a process that is about to run.
pub(crate) fn resume(pid: i32) -> Result<(), Infallible> {
    let Some(process) = find(pid) else { return Ok(()) };
    let found = Images::open().ok().and_then(|images| images.find(&process));
    let Some(directory) = found else {
        log(
            Level::Info,
            &format!(
                "process {pid} is ours; no contents of it beside these images: it has them itself, or looks where it wrote them"
            ),
        );
        return Ok(());
    };
    let text = directory.display().to_string();
    match leave(&process, &Request::Resume { directory: Some(directory), admission: None }) {
        Ok(()) => log(Level::Info, &format!("process {pid} will find its contents in {text}")),
        Err(error) => log(
            Level::Warning,
            &format!(
                "process {pid} was not told that its contents are in {text} ({error}); it will look where it wrote them"
            ),
        ),
    }
    Ok(())
}
