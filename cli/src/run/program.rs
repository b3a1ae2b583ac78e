// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the program of a run, and ends as it ends.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use stasis_criu::session;

use super::device::Device;
use super::loadable;
use crate::output;

/// What shells answer for a program that is not there, and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Runs the program on this device; answers its exit status.
///
/// # Errors
/// Why it cannot be waited for. A program that cannot be started is an exit status, and a line on standard error.
pub fn run(command: &[OsString], device: &Device) -> Result<u8> {
    let (program, arguments) = command.split_first().context("no program was named")?;
    if let Some(obstacle) = loadable::obstacle(program) {
        let program = program.display();
        output::complain(format_args!("stasis run: {program} {obstacle}; it will find no GPU here\n"));
    }
    // Before the program is started: a signal must not end this process and leave the program.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = signals.context("Cannot handle signals")?;
    // The leader of a process group cannot; preflight tells who wants a checkpoint then.
    let _ = session::begin_if_outside();
    let mut child = match Command::new(program).args(arguments).envs(device.environment()).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(program, &error)),
    };
    let pid = Pid::from_raw(child.id().cast_signed());
    let handle = signals.handle();
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever() {
            let from_terminal = matches!(signal, SIGINT | SIGQUIT) && is_in_foreground();
            // The terminal has sent it to the program, too.
            if let (false, Ok(signal)) = (from_terminal, Signal::try_from(signal)) {
                let _ = kill(pid, signal);
            }
        }
    });
    let status = child.wait().context("Cannot wait for the program")?;
    handle.close();
    let _ = forwarder.join();
    Ok(code(status))
}

/// Whether a terminal sends its signals to this process' group.
fn is_in_foreground() -> bool {
    std::fs::File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

fn not_started(program: &OsStr, error: &std::io::Error) -> u8 {
    output::complain(format_args!("stasis run: cannot execute {}: {error}\n", program.display()));
    if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(BY_SIGNAL + status.signal()?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
