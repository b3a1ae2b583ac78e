// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore --beside`: a copy in namespaces of its own, whose init this very command is.
//!
//! A restored process wants its pid back, and the names of its sockets: its ports, and the agent's in the abstract
//! namespace. Both may still be the original's. The first process of a pid namespace must outlive the others.

use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use anyhow::{Context, Result};
use nix::errno::Errno;

use crate::freeze::RestoreArgs;
use crate::{loopback, output, transfer};

/// Runs this command again as the first process of new namespaces. Returns only if that fails.
pub fn enter(args: &RestoreArgs) -> Result<()> {
    let own = std::env::current_exe().context("Cannot find this program's own path")?;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--"]);
    command.arg(own).args(std::env::args_os().skip(1));
    if let Some(obtained) = &args.obtained {
        transfer::hand_on_all(&mut command, &args.directory, obtained);
    }
    Err(command.exec()).context("Cannot start unshare (util-linux) for new namespaces")
}

/// Makes the new namespaces fit to restore in.
pub fn furnish() -> Result<()> {
    loopback::up().context("Cannot bring up the loopback device of the new network namespace")
}

/// Waits, as the first process of its namespace, for the processes `pids` to end, and ends like the last that was not
/// content, or like them.
pub fn stay(pids: &[i32]) -> Result<()> {
    let mut waiting: Vec<i32> = pids.iter().copied().filter(|pid| *pid != 0).collect();
    let mut code = 0;
    while !waiting.is_empty() {
        match kfd::linux::wait_any() {
            Ok((ended, status)) if waiting.contains(&ended) => {
                waiting.retain(|pid| *pid != ended);
                match pids {
                    [_] => output::report(format_args!("The copy ended: {status}\n")),
                    _ => output::report(format_args!("The copy of process {ended} ended: {status}\n")),
                }
                code = match status.code().unwrap_or(1) {
                    0 => code,
                    failed => failed,
                };
            }
            Ok(_) | Err(Errno::EINTR) => {}
            // The copy ended while it was being restored, and was reaped with the process that restored it.
            Err(Errno::ECHILD) => return Ok(()),
            Err(error) => return Err(error).context("Cannot wait for the copy"),
        }
    }
    exit(code)
}
