// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a controller (`stasis checkpoint`, `stasis restore`) orders of softgpud for a client that knows nothing of
//! checkpoints: the messages, and the controller's end of the sockets.
//!
//! ```text
//!   checkpoint                                            restore
//!   broker:   Clients, Hold                               broker:   Stay, Start (each client)
//!   executor: Pause (each) ── criu dump ── State,         executor: Take, Memories, Restore ── Resume
//!             Memories, Confirm ── commit, or Resume
//! ```
//!
//! The sockets are abstract ones: [`broker_socket`] and [`executor_socket`] of the run's own. Messages are those of
//! [`super::wire`]: postcard, one a datagram, descriptors beside them.
//!
//! INVARIANT: what an order changes ends with the connection that gave it: a broker that holds new clients back lets them in,
//! and an executor that is paused resumes, when the controller closes its end, however the controller ends. An executor resumes
//! also when its lease ends. A broker that stays for a process ends with that process instead.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::wire::{self, ReceiveBuffer, WireError};
use crate::linux;

/// The socket on which the broker of `run` takes orders; `run` is the socket that its clients connect to.
#[must_use]
pub fn broker_socket(run: &str) -> String {
    format!("{run}.control")
}

/// The socket on which the executor of a client takes orders.
#[must_use]
pub fn executor_socket(run: &str, client: i32) -> String {
    format!("{run}.control.{client}")
}

/// What the broker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerOrder {
    /// Says which processes have an executor.
    Clients,
    /// Lets no process connect that has no executor yet, until this connection ends.
    Hold,
    /// Starts an executor for a client that is restored; it waits for orders.
    Start {
        /// The client.
        client: i32,
    },
    /// Stays until a process has ended, though none has an executor: processes that it starts may want one.
    Stay {
        /// The process.
        process: i32,
    },
}

/// What the broker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerAnswer {
    /// To [`BrokerOrder::Clients`]: their numbers, ascending.
    Clients(Vec<i32>),
    /// To [`BrokerOrder::Hold`].
    Held,
    /// To [`BrokerOrder::Start`].
    Started,
    /// To [`BrokerOrder::Stay`].
    Stays,
    /// Instead of any of them.
    Failed {
        /// Why.
        message: String,
    },
}

/// What an executor is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecutorOrder {
    /// Takes all queues off the hardware, closes the client's gate, and ends its calls.
    Pause {
        /// How long that may take, ms.
        deadline_ms: u64,
        /// After how long without an order the executor resumes by itself, ms.
        lease_ms: u64,
    },
    /// Gives everything but the bytes of memory; while paused.
    State,
    /// Gives the descriptors of memories by name, at most [`wire::MAX_FDS`]; while paused.
    Memories {
        /// The names.
        names: Vec<String>,
    },
    /// Says that it is still paused since the same [`ExecutorOrder::Pause`]; the lease begins again.
    Confirm,
    /// Puts the queues back and opens the gate.
    Resume,
    /// Takes the state of a restored client; it is in the descriptor beside this order.
    Take,
    /// Takes memories of that state; their descriptors are beside this order.
    Give {
        /// Their names, and whether the client has them.
        memories: Vec<(String, bool)>,
    },
    /// Makes the device of them, paused.
    Restore {
        /// Nanoseconds that the clocks of the client are ahead of this machine's (time_namespaces(7)).
        clock_offset: i64,
    },
    /// Says how the device is, paused or not; nothing changes.
    Status,
}

/// A memory of a client's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedMemory {
    /// The name of its memfd, which no other has.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What an executor answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecutorAnswer {
    /// To [`ExecutorOrder::Pause`].
    Paused {
        /// Waves that were saved in the middle of a kernel.
        waves: u64,
        /// Calls of WAIT_EVENTS that were ended.
        waits: u32,
        /// Queues of the client.
        queues: u32,
    },
    /// To [`ExecutorOrder::State`]; the state is in the descriptor beside this answer.
    State {
        /// Bytes of the state.
        bytes: u64,
        /// The memories that it names.
        memories: Vec<NamedMemory>,
    },
    /// To [`ExecutorOrder::Memories`], with as many descriptors as names.
    Memories,
    /// To [`ExecutorOrder::Confirm`].
    Confirmed,
    /// To [`ExecutorOrder::Resume`].
    Resumed,
    /// To [`ExecutorOrder::Take`]: the memories that the state names.
    Taken {
        /// The memories.
        memories: Vec<NamedMemory>,
    },
    /// To [`ExecutorOrder::Give`].
    Given,
    /// To [`ExecutorOrder::Restore`].
    Restored,
    /// Instead of any of them; nothing has changed.
    Failed {
        /// Why.
        message: String,
    },
    /// To [`ExecutorOrder::Status`].
    Status {
        /// Queues of the client.
        queues: u32,
        /// Whether the controller that asks has paused the device.
        paused: bool,
    },
}

/// Why an order was not carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No process listens on the socket.
    #[error("No softgpud takes orders on socket {name} ({errno})")]
    Nobody {
        /// The abstract socket's name.
        name: String,
        /// The answer of connect(2).
        errno: Errno,
    },
    /// The socket belongs to somebody else.
    #[error("The socket {name} belongs to user {found}, not to {wanted}")]
    Peer {
        /// The abstract socket's name.
        name: String,
        /// The user whose softgpud was expected.
        wanted: u32,
        /// The user whose socket it is.
        found: u32,
    },
    /// It says why not.
    #[error("softgpud cannot {order}: {message}")]
    Failed {
        /// What was ordered.
        order: &'static str,
        /// Why not.
        message: String,
    },
    /// A message failed.
    #[error("Cannot order softgpud to {order}")]
    Wire {
        /// What was ordered.
        order: &'static str,
        /// Why.
        #[source]
        source: WireError,
    },
    /// The answer is none to the order.
    #[error("softgpud answered something else when it was told to {order}; are both of one build?")]
    Answer {
        /// What was ordered.
        order: &'static str,
    },
}

/// A connection to somebody who takes orders.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
    buffer: ReceiveBuffer,
}

impl Control {
    /// Connects. `user` is whose softgpud is expected there.
    ///
    /// # Errors
    /// [`ControlError::Nobody`], [`ControlError::Peer`].
    pub fn connect(name: &str, user: u32) -> Result<Self, ControlError> {
        let nobody = |errno| ControlError::Nobody { name: name.to_owned(), errno };
        let ours =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(nobody)?;
        let address = UnixAddr::new_abstract(name.as_bytes()).map_err(nobody)?;
        linux::retry(|| connect(ours.as_raw_fd(), &address)).map_err(nobody)?;
        let found = getsockopt(&ours, sockopt::PeerCredentials).map_err(nobody)?.uid();
        if found != user {
            return Err(ControlError::Peer { name: name.to_owned(), wanted: user, found });
        }
        let prepared = wire::prepare_socket(ours.as_fd());
        prepared.map_err(|source| ControlError::Wire { order: "listen", source })?;
        Ok(Self { socket: ours, buffer: ReceiveBuffer::new() })
    }

    /// The process at the other end: the one that listens on the socket.
    ///
    /// # Errors
    /// The errno of getsockopt(2).
    pub fn peer(&self) -> Result<i32, Errno> {
        Ok(getsockopt(&self.socket, sockopt::PeerCredentials)?.pid())
    }

    /// A pidfd of that process, which names it also when its number is another one's by now.
    ///
    /// # Errors
    /// ESRCH when it has ended, or cannot be seen; the errno of getsockopt(2) or pidfd_open(2).
    pub fn process(&self) -> Result<OwnedFd, Errno> {
        match getsockopt(&self.socket, sockopt::PeerPidfd) {
            // Before Linux 6.5 only the number is known.
            Err(Errno::ENOPROTOOPT) => match self.peer()? {
                ..=0 => Err(Errno::ESRCH),
                pid => linux::pidfd_open(Pid::from_raw(pid)),
            },
            found => found,
        }
    }

    /// How long an answer may take from now on.
    ///
    /// # Errors
    /// The errno of setsockopt(2).
    pub fn set_limit(&self, limit: Duration) -> Result<(), Errno> {
        linux::set_receive_timeout(&self.socket, limit)
    }

    /// Gives an order, which `what` names in errors, and waits for the answer.
    ///
    /// # Errors
    /// [`ControlError::Wire`].
    pub fn order<O: Serialize, A: DeserializeOwned>(
        &mut self,
        what: &'static str,
        order: &O,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(A, Vec<OwnedFd>), ControlError> {
        let failed = |source| ControlError::Wire { order: what, source };
        wire::send(self.socket.as_fd(), order, fds).map_err(failed)?;
        let received = wire::receive(self.socket.as_fd(), &mut self.buffer).map_err(failed)?;
        Ok((received.message, received.fds))
    }
}
