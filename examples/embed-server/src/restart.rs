// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restarts the process in place: same pid, same listening socket, a new device.
//!
//! A process has one runtime, because it has one context in the driver, which the driver keeps until the process's
//! memory is freed. So a process whose device is lost cannot open another one. `execve` gives the process new memory.
//! The listening socket becomes its standard input, which the server does not read, so no client is refused meanwhile.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;

/// Environment variable of a restarted process: how often it was restarted in a row, and in all.
const VARIABLE: &str = "EMBED_SERVER_REOPENED";

/// How often the device was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// How often in a row, without a long time in between.
    pub row: u32,
    /// In all.
    pub all: u64,
}

impl Losses {
    /// The losses after one more.
    #[must_use]
    pub fn and_another(self, proven: bool) -> Self {
        let row = if proven { 1 } else { self.row.saturating_add(1) };
        Self { row, all: self.all.saturating_add(1) }
    }

    fn parse(text: &str) -> Option<Self> {
        let (row, all) = text.split_once(' ')?;
        Some(Self { row: row.parse().ok()?, all: all.parse().ok()? })
    }
}

/// The losses and the socket of a restarted process; `None` if this process was not restarted.
///
/// # Errors
/// The variable is set, but there is no listening socket.
pub fn inherited() -> anyhow::Result<Option<(Losses, TcpListener)>> {
    let Ok(text) = std::env::var(VARIABLE) else {
        return Ok(None);
    };
    let losses = Losses::parse(&text).with_context(|| format!("{VARIABLE} is '{text}': unset it"))?;
    let stdin = io::stdin().as_fd().try_clone_to_owned().context("Standard input cannot be taken")?;
    let listener = TcpListener::from(stdin);
    listener
        .local_addr()
        .and_then(|_| listener.set_nonblocking(true))
        .with_context(|| format!("Standard input is no listening socket: unset {VARIABLE}"))?;
    Ok(Some((losses, listener)))
}

/// Restarts the process. Returns only if that fails.
pub fn execute(listener: TcpListener, losses: Losses) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env(VARIABLE, format!("{} {}", losses.row, losses.all));
    command.stdin(OwnedFd::from(listener)).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_survive_their_text_and_a_proven_device_begins_a_new_row() {
        let losses = Losses { row: 3, all: 70 };

        assert_eq!(Losses::parse("3 70"), Some(losses));
        assert_eq!(Losses::parse("3"), None);
        assert_eq!(Losses::parse("x 1"), None);
        assert_eq!(losses.and_another(false), Losses { row: 4, all: 71 });
        assert_eq!(losses.and_another(true), Losses { row: 1, all: 71 });
    }
}
