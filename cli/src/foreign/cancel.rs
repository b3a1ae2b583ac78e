// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis cancel` of a program that is being checkpointed: the command at work is found by the socket that it listens on, and
//! told to end by SIGTERM.
//!
//! INVARIANT: a signal is sent only to the process that listens on the socket, of this user or root's. The socket is the lock that
//! makes one command at a time checkpoint a tree.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kfd::linux::{pidfd_open, poll};
use kfd::transport::control::{Control, ControlError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::{Pid, geteuid};

use stasis_criu_foreign::{Run, members};

use super::clients::Tree;
use crate::freeze::lives;
use crate::output;

/// TIMEOUT: how long a command may take to end: CRIU is ended with it, and the devices go on before.
const ENDING: Duration = Duration::from_secs(60);

/// The socket of the command that checkpoints the tree of `root`.
fn name(run: &str, root: i32) -> String {
    format!("{run}.checkpoint.{root}")
}

/// The right to checkpoint a tree, or to restore one of a run.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "the socket's name is free again when it is closed")] OwnedFd);

impl Claim {
    /// Takes it.
    ///
    /// # Errors
    /// When another command has it.
    pub fn take(tree: &Tree) -> Result<Self> {
        Self::of(&tree.run.socket, tree.pid)
    }

    /// Takes that of restoring trees of a run: they have one softgpud, and one directory.
    ///
    /// # Errors
    /// When another command has it.
    pub fn take_restore(run: &Run) -> Result<Self> {
        let taken = "Another `stasis restore` of this program is at work; wait until it has ended";
        Self::bind(&format!("{}.restore", run.socket))?.context(taken)
    }

    fn of(run: &str, root: i32) -> Result<Self> {
        Self::bind(&name(run, root))?.with_context(|| {
            let holder = holder(run, root).map_or_else(String::new, |pid| format!(" (process {pid})"));
            format!("Another `stasis checkpoint`{holder} is at work on process {root}")
        })
    }

    /// Listens on a socket; `None` if another command does.
    fn bind(name: &str) -> Result<Option<Self>> {
        const WHAT: &str = "Cannot make a socket that tells other commands of this one";
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).context(WHAT)?;
        let address = UnixAddr::new_abstract(name.as_bytes()).context(WHAT)?;
        match bind(socket.as_raw_fd(), &address) {
            Err(Errno::EADDRINUSE) => return Ok(None),
            bound => bound.context(WHAT)?,
        }
        listen(&socket, Backlog::new(16).context(WHAT)?).context(WHAT)?;
        Ok(Some(Self(socket)))
    }
}

/// The command that checkpoints the tree of `root`, if one does.
fn holder(run: &str, root: i32) -> Option<i32> {
    let connect = |user| Control::connect(&name(run, root), user);
    let connected = match connect(geteuid().as_raw()) {
        // The command may be root's.
        Err(ControlError::Peer { .. }) => connect(0),
        connected => connected,
    };
    connected.ok()?.peer().ok()
}

/// The processes above this one, from below.
fn above(pid: i32) -> Vec<i32> {
    let parent = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|parent| *parent > 1)
    };
    std::iter::successors(parent(&pid), parent).collect()
}

/// Has the command give up that checkpoints a tree, or one above or below it, and waits until it has ended.
///
/// # Errors
/// When the command does not end.
pub fn run(tree: &Tree) -> Result<()> {
    let run = &tree.run.socket;
    let roots = members(tree.pid).into_iter().chain(above(tree.pid));
    let found = roots.into_iter().find_map(|root| Some((root, holder(run, root)?)));
    let Some((root, command)) = found else {
        output::report(format_args!("Nothing is at work; process {} is running\n", tree.pid));
        return Ok(());
    };
    let failed = || format!("Cannot end the `stasis checkpoint` that is process {command}");
    let pidfd = pidfd_open(Pid::from_raw(command)).with_context(failed)?;
    // If it listens still, the descriptor is of that process and not of a later one with its pid.
    if holder(run, root) == Some(command) {
        kill(Pid::from_raw(command), Signal::SIGTERM).with_context(failed)?;
        wait_end(&pidfd).with_context(failed)?;
    }
    output::report(match lives(root) {
        true => format!("The command that checkpointed process {root} has ended; the process goes on\n"),
        false => format!("The checkpoint of process {root} was complete already\n"),
    });
    Ok(())
}

fn wait_end(pidfd: &OwnedFd) -> Result<()> {
    let deadline = Instant::now() + ENDING;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, Some(left)) {
            Ok(0) => bail!("it has not ended within {} s", ENDING.as_secs()),
            Err(Errno::EINTR) => {}
            ended => return ended.map(drop).context("poll"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_at_a_time_has_a_tree_and_is_found() {
        let run = format!("test-cancel-{}", std::process::id());
        let own = std::process::id().cast_signed();
        assert_eq!(holder(&run, 7), None);
        let claim = Claim::of(&run, 7).unwrap();
        assert_eq!((holder(&run, 7), holder(&run, 8)), (Some(own), None));
        let second = Claim::of(&run, 7).unwrap_err().to_string();
        assert!(second.contains(&format!("process {own}")) && second.contains("process 7"), "{second}");
        drop(claim);
        Claim::of(&run, 7).unwrap();
    }

    #[test]
    fn processes_above_and_living_ones_are_seen() {
        let own = std::process::id().cast_signed();
        let parent = nix::unistd::getppid().as_raw();
        assert_eq!(above(own).first().copied(), Some(parent).filter(|parent| *parent > 1));
        assert!(lives(own) && !lives(i32::MAX));
    }
}
