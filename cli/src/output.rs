// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output, whose reader may be gone: `stasis ... | head`.
//!
//! INVARIANT: SIGPIPE stays ignored, as Rust starts a program, until a print finds nobody to read it: a write to the socket
//! of an agent or of the device that has ended is an error with a name, never the end of a checkpoint in its middle. What
//! this command starts (softgpud, criu) gets the default disposition from `std::process::Command`.
#![allow(unsafe_code)]

use std::fmt::{Arguments, Display};
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, raise, signal};

/// Adds a line to a `String`.
macro_rules! line {
    ($text:expr, $($format:tt)*) => {{
        $text.push_str(&format!($($format)*));
        $text.push('\n');
    }};
}
pub(crate) use line;

fn write(text: Arguments<'_>) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_fmt(text)?;
    output.flush()
}

/// Prints what a command that only looks has found. If nobody reads it, the command ends as programs do then, by SIGPIPE
/// and without a word; if it cannot be written for another reason, with that.
///
/// Nothing may be left to do that matters: destructors do not run.
pub fn show(text: impl Display) {
    let Err(error) = write(format_args!("{text}")) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        end_by_sigpipe();
    }
    complain(format_args!("Error: Cannot write to the standard output\n  because: {error}\n"));
    exit(1)
}

/// Prints what a command has done. Whether anybody reads it does not change that it is done, nor how the command ends.
pub fn report(text: impl Display) {
    match write(format_args!("{text}")) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            complain(format_args!("It is done, but cannot be written to the standard output: {error}\n"));
        }
    }
}

/// Prints to the standard error, if somebody reads it.
pub fn complain(text: impl Display) {
    // A caller that cannot read the reason still gets the exit status.
    let _ = io::stderr().lock().write_fmt(format_args!("{text}"));
}

fn end_by_sigpipe() -> ! {
    // SAFETY: sets the default disposition, which runs no code of this process.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let _ = raise(Signal::SIGPIPE);
    // Blocked by whoever started us, or this is the first process of a pid namespace: what a shell says of such an end.
    exit(128 + libc::SIGPIPE)
}

/// So many of a thing.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
