// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other process: this program again, which does what it is told over a socket that is its standard input.
//!
//! INVARIANT: orders and answers have fixed lengths, and nobody writes before the other has read what came before, so that
//! the same socket carries descriptors in between.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytemuck::Zeroable;
use stasis::share::Received;
use stasis::{Buffer, Runtime};

use super::cycle::{self, NAMES, Phases};
use super::memfd::{self, Mapping};
use super::restore;

/// The role of the other process.
pub const ROLE: &str = "share-second";
/// TIMEOUT: for an answer.
const PATIENCE: Duration = Duration::from_secs(40);

/// What the other process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// So often receive buffers, then memfds of so many bytes; an answer each, and one in the end.
    Pings { rounds: u64, bytes: u64 },
    /// Receive a message of buffers and keep them.
    Take,
    /// Look whether what was taken has these bytes.
    Check { salt: u64 },
    /// Let go of all.
    Free,
    /// Lock and checkpoint as one of a session, into this generation's directory.
    Down { generation: u64 },
    /// Restore and unlock.
    Up,
}

impl Order {
    fn encode(self) -> [u64; 3] {
        match self {
            Self::Pings { rounds, bytes } => [0, rounds, bytes],
            Self::Take => [1, 0, 0],
            Self::Free => [2, 0, 0],
            Self::Down { generation } => [3, generation, 0],
            Self::Up => [4, 0, 0],
            Self::Check { salt } => [5, salt, 0],
        }
    }

    fn decode(words: [u64; 3]) -> Option<Self> {
        Some(match words {
            [0, rounds, bytes] => Self::Pings { rounds, bytes },
            [1, 0, 0] => Self::Take,
            [2, 0, 0] => Self::Free,
            [3, generation, 0] => Self::Down { generation },
            [4, 0, 0] => Self::Up,
            [5, salt, 0] => Self::Check { salt },
            _ => return None,
        })
    }
}

/// The other process as the first sees it.
#[derive(Debug)]
pub struct Second {
    socket: UnixStream,
    child: Child,
}

impl Second {
    /// Starts it; with images in subdirectories of `base`.
    pub fn start(base: Option<&Path>) -> Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let base = base.and_then(Path::to_str).unwrap_or_default();
        let mut command = crate::spawn(ROLE, &[base])?;
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let mut second = Self { socket, child: command.spawn().context("Cannot start a process")? };
        // It has a runtime now.
        second.answer()?;
        Ok(second)
    }

    /// Where to send buffers to.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Gives an order, which is answered.
    pub fn order(&mut self, order: Order) -> Result<()> {
        Ok(self.socket.write_all(bytemuck::bytes_of(&order.encode()))?)
    }

    /// Waits for the answer.
    pub fn answer(&mut self) -> Result<Phases> {
        let mut phases = Phases::zeroed();
        let read = self.socket.read_exact(bytemuck::bytes_of_mut(&mut phases));
        read.context("The other process does not answer")?;
        Ok(phases)
    }

    /// The end of it.
    pub fn end(mut self) -> Result<()> {
        self.socket.shutdown(std::net::Shutdown::Both)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "The other process failed ({status})");
        Ok(())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // It has ended, or is of no use any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Player {
    runtime: Runtime,
    socket: UnixStream,
    base: PathBuf,
    buffers: Vec<Buffer>,
    phases: Phases,
}

impl Player {
    fn answer(&mut self, phases: Phases) -> Result<()> {
        Ok(self.socket.write_all(bytemuck::bytes_of(&phases))?)
    }

    fn receive(&self) -> Result<Vec<Buffer>> {
        let agent = self.runtime.agent(0).context("There is no agent")?;
        let buffer = |received| match received {
            Received::Buffer(buffer) => Ok(buffer),
            Received::Signal(_) => bail!("nobody sends signals"),
        };
        self.runtime.receive(&self.socket, &agent)?.into_iter().map(buffer).collect()
    }

    fn obey(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Pings { rounds, bytes } => {
                for _ in 0..rounds {
                    let buffers = self.receive()?;
                    self.answer(Phases::default())?;
                    drop(buffers);
                    let files = memfd::receive(self.socket.as_fd())?;
                    // CAST: 64 MiB at most.
                    let map = |file| Mapping::new(file, bytes as usize);
                    let mappings = files.into_iter().map(map).collect::<Result<Vec<_>>>()?;
                    self.answer(Phases::default())?;
                    drop(mappings);
                }
            }
            Order::Take => {
                let mut received = self.receive()?;
                self.buffers.append(&mut received);
            }
            Order::Check { salt } => restore::check(&self.buffers, salt)?,
            Order::Free => self.buffers.drain(..).try_for_each(|buffer| buffer.free())?,
            Order::Down { generation } => {
                self.phases = cycle::down(&self.runtime, &self.base, generation, NAMES[1], false)?;
            }
            Order::Up => self.phases = cycle::up(&self.runtime, self.phases)?,
        }
        self.answer(self.phases)
    }
}

/// Does what comes from the standard input until it ends.
pub fn play(arguments: &[String]) -> Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let base = arguments.first().map(PathBuf::from).unwrap_or_default();
    let runtime = Runtime::open_default()?;
    let mut player = Player { runtime, socket, base, buffers: Vec::new(), phases: Phases::default() };
    player.answer(Phases::default())?;
    let mut words = [0_u64; 3];
    while player.socket.read_exact(bytemuck::bytes_of_mut(&mut words)).is_ok() {
        player.obey(Order::decode(words).context("an order that nobody knows")?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_encoded_and_decoded_is_the_same() {
        let all = [
            Order::Pings { rounds: 3, bytes: 4096 },
            Order::Take,
            Order::Free,
            Order::Down { generation: 7 },
            Order::Up,
            Order::Check { salt: 2 },
        ];
        for order in all {
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
        assert_eq!(Order::decode([9, 0, 0]), None);
        assert_eq!(Order::decode([1, 5, 0]), None);
    }
}
