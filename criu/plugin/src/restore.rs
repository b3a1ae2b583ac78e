// SPDX-License-Identifier: MIT OR Apache-2.0
//! `criu restore`: tells a process where its contents are now.
//!
//! A restored process rebuilds its device by itself and looks for its contents where it wrote them. Only if the images
//! were moved must the process be told. This hook can only leave a message: the process does not run yet, and CRIU
//! ignores the hook's answer. The hook does not wait: processes that share memory wait for each other when all of them
//! run, and here none runs.

use stasis::checkpoint::Request;
use thiserror::Error;

use crate::agent::leave;
use crate::foreign::{self, RestoreError};
use crate::host::{self, Level, log};
use crate::images::Images;
use crate::marker::{self, MarkerError};
use crate::process::find;

/// Why nothing is restored.
#[derive(Debug, Error)]
pub(crate) enum PrepareError {
    #[error(transparent)]
    Marker(#[from] MarkerError),
    #[error(transparent)]
    Foreign(#[from] RestoreError),
}

/// The first hook of a restore: checks that all contents are there, and starts the softgpud of programs under `stasis run`.
pub(crate) fn prepare() -> Result<(), PrepareError> {
    let is_required = host::attend_requirement();
    // CRIU itself reports what it is missing.
    let Ok(images) = Images::open() else { return Ok(()) };
    let has_devices = marker::check(images.fd, &images.path)?;
    if has_devices {
        foreign::prepare(&images)?;
    } else if is_required {
        return Err(MarkerError::NoDevices { path: images.path }.into());
    }
    Ok(())
}

/// Restores the devices of programs under `stasis run`; leaves a message for a process with an agent that is about to run.
pub(crate) fn resume(pid: i32) -> Result<(), RestoreError> {
    foreign::restore(pid)?;
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
