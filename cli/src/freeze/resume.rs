// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order to one agent to take its device back.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use stasis::checkpoint::{Admission, CallError, Done, Request, RestoreReport, State, call, call_with};

use super::fate;

/// TIMEOUT: how long an agent may take to say its state.
const STATUS: Duration = Duration::from_secs(5);
/// How long a process that others see to is left alone.
const AGAIN: Duration = Duration::from_millis(20);

/// Orders the agent to take the device back, with the files that were held for it; also the retry after a failed restore.
pub fn resume(
    pid: i32,
    files: &[OwnedFd],
    directory: Option<PathBuf>,
    admission: Option<Admission>,
    patience: Duration,
) -> Result<RestoreReport> {
    let deadline = Instant::now() + patience;
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    loop {
        let order = Request::Resume { directory: directory.clone(), admission: admission.clone() };
        match call_with(
            pid,
            &order,
            &files,
            deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
        ) {
            Ok((State::Running, Done::Running(report), _)) => return Ok(report),
            Ok((state, ..)) => bail!("the agent of process {pid} answered out of turn: it is {state}"),
            // Just restored, the agent may not listen yet.
            Err(CallError::NoAgent { .. }) if Instant::now() < deadline && fate::lives(pid) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(CallError::Refused { .. }) if Instant::now() < deadline && is_coming_back(pid) => {
                std::thread::sleep(AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether somebody else's order to resume is at work on a process, or has been carried out.
fn is_coming_back(pid: i32) -> bool {
    match call(pid, &Request::Status, STATUS) {
        Ok((_, Done::Status { order: Some(order), .. })) => order == "resume",
        Ok((state, _)) => state == State::Running,
        Err(_) => false,
    }
}
