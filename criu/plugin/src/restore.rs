// SPDX-License-Identifier: MIT OR Apache-2.0
//! `criu restore`: tells a process where its contents are now.
//!
//! A restored process rebuilds its device by itself and looks for its contents where it wrote them. Only if the images
//! were moved must the process be told. This hook can only leave a message: the process does not run yet, and CRIU
//! ignores the hook's answer. The hook does not wait: processes that share memory wait for each other when all of them
//! run, and here none runs.

use std::convert::Infallible;

use stasis::checkpoint::Request;

use crate::agent::leave;
use crate::host::{Level, log};
use crate::images::Images;
use crate::marker::{self, MarkerError};
use crate::process::find;

/// The first hook of a restore: checks that all contents are there.
pub(crate) fn prepare() -> Result<(), MarkerError> {
    match Images::open() {
        Ok(images) => marker::check(images.fd, &images.path),
        // CRIU itself reports what it is missing.
        Err(_) => Ok(()),
    }
}

/// Leaves a message for a process that is about to run.
pub(crate) fn resume(pid: i32) -> Result<(), Infallible> {
    let Some(process) = find(pid) else { return Ok(()) };
    let found = Images::open().ok().and_then(|images| images.find(&process));
    let Some(directory) = found else {
        log(
            Level::Info,
            &format!(
                "process {pid} has an agent, but no contents beside these images: they are in its memory, or where it wrote them"
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
