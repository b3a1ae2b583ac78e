// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore --beside`: a copy in namespaces of its own, whose init this very command is.
//!
//! A restored process wants its pid back, and the names of its sockets: its ports, and the agent's in the abstract
//! namespace. Both may still be the original's. The first process of a pid namespace must outlive the others.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, exit};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, wait};

use crate::{loopback, output};

/// Runs this command again as the first process of new namespaces. Returns only if that fails.
pub fn enter() -> Result<()> {
    let own = std::env::current_exe().context("Cannot find this program's own path")?;
    let error = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(error).context("Cannot start unshare (util-linux) for new namespaces")
}

/// Makes the new namespaces fit to restore in.
pub fn furnish() -> Result<()> {
    loopback::up().context("Cannot bring up the loopback device of the new network namespace")
}

/// Waits, as the first process of its namespace, for the processes `pids` to end, and ends like the last that was not
/// content, or like them.
pub fn stay(pids: &[i32]) -> Result<()> {
    let mut waiting: Vec<Pid> = pids.iter().filter_map(|pid| Pid::from_raw(*pid)).collect();
    let mut code = 0;
    while !waiting.is_empty() {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if waiting.contains(&ended) => {
                waiting.retain(|pid| *pid != ended);
                let status = ExitStatus::from_raw(status.as_raw());
                match pids {
                    [_] => output::report(format_args!("The copy ended: {status}\n")),
                    _ => output::report(format_args!(
                        "The copy of process {} ended: {status}\n",
                        ended.as_raw_nonzero()
                    )),
                }
                code = match status.code().unwrap_or(1) {
                    0 => code,
                    failed => failed,
                };
            }
            Ok(_) | Err(Errno::INTR) => {}
            // It ended while it was being restored, and was reaped with what restored it.
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error).context("Cannot wait for the copy"),
        }
    }
    exit(code)
}
