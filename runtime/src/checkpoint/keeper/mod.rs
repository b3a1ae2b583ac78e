// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the render-node files open in other processes while this one must not hold them.
//!
//! KFD ties a process's GPU VM to one open render file for the life of the address space (`ACQUIRE_VM` with another
//! file: EBUSY, `kfd_process.c`), so a process that runs on after a checkpoint needs that very file again. Two orphaned
//! forks hold it, each able to serve alone: outside the process tree that CRIU dumps, found again by a socket name, gone
//! with their original.
//!
//! INVARIANT: nothing is given up before something else has it. [`Keepers::hold`] borrows the files and returns once
//! both keepers have said that they serve; a keeper that is asked for its files goes on holding them until it is
//! released.
//!
//! A name in the abstract namespace belongs to whoever binds it first. So it has 128 random bits, which nobody can know
//! before it is bound; and who connects checks whose socket it is, because the name of a keeper that was killed is free.
//!
//! In a container no fork is outside that tree: process 1 inherits it. There whoever dumps the container takes a
//! keeper's place ([`succeed_keeper`]), under the same name: root, who may take those files from their process anyway.

mod fork;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use kfd::linux;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send};
use nix::unistd::{Pid, geteuid, getpid};
use thiserror::Error;

use self::fork::{END, GIVE, fork_keepers};
use super::message::{self, MAX_FILES};
use crate::linux::credentials::Peer;

/// What keepers' sockets are named, before the process that the files belong to, as it knows itself, and a random
/// number.
pub const KEEPER_NAME: &str = "stasis-keeper.";

/// Keepers of a process: one may be killed.
const COUNT: usize = 2;
/// TIMEOUT: how long a keeper may take to answer on a busy machine, before the other one is asked.
const ANSWER: Duration = Duration::from_secs(5);
/// TIMEOUT: how long a keeper that was released is waited for; it ends in any case.
const ENDING: Duration = Duration::from_secs(1);

/// Files could not be left with keepers, or not be had back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// More than a keeper takes.
    #[error("{count} files are too many for a keeper, which holds at most {MAX_FILES}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A system call around it failed.
    #[error("Cannot {act} a keeper of the render files")]
    System {
        /// What was tried.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// No keeper could be forked.
    #[error(
        "Cannot fork a keeper of the render files: raise pids.max or the limit of processes (RLIMIT_NPROC)"
    )]
    Fork(#[source] io::Error),
    /// A keeper did not say that it serves.
    #[error("A keeper of the render files did not begin to serve within {} ms", waited.as_millis())]
    Silent {
        /// How long was waited.
        waited: Duration,
    },
    /// A keeper ended before it served.
    #[error("A keeper of the render files ended before it served")]
    Ended,
    /// A keeper is not there any more.
    #[error("Keeper {pid} of the render files is gone")]
    Gone {
        /// Its pid.
        pid: i32,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Another process listens under a keeper's name.
    #[error(
        "The socket @{name} of keeper {keeper} is held by process {pid} of user {uid}: nothing was taken from it"
    )]
    Stranger {
        /// The socket's name.
        name: String,
        /// The keeper's pid.
        keeper: i32,
        /// The pid of the process that listens; 0 if it is in a PID namespace that this process does not see.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// A keeper's files did not all arrive.
    #[error(
        "{found} of the {wanted} files of keeper {pid} arrived: raise the limit of open files (RLIMIT_NOFILE)"
    )]
    Short {
        /// The keeper's pid.
        pid: i32,
        /// How many arrived.
        found: usize,
        /// How many it holds.
        wanted: usize,
    },
    /// The files are not those that the driver knows.
    #[error("The files that were given back are not those that the driver knows")]
    Others,
    /// No keeper gave its files.
    #[error("No keeper gives the render files back: {}", super::text::list(failures))]
    Nobody {
        /// What each one did.
        failures: Vec<Self>,
    },
}

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> KeeperError {
    move |source| KeeperError::System { act, source: source.into() }
}

impl KeeperError {
    /// Whether no keeper will ever give the files back: trying again is of no use.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Gone { .. } | Self::Stranger { .. } => true,
            Self::Nobody { failures } => failures.iter().all(Self::is_final),
            _ => false,
        }
    }
}

/// What is left with keepers.
#[derive(Debug)]
pub struct Held {
    /// The render files, in the order of the agents.
    pub renders: Vec<OwnedFd>,
    /// The image, and the files of earlier ones that it has contents in, or nothing: whoever moves or removes its directory takes nothing
    /// from a process that has to go on.
    pub image: Vec<OwnedFd>,
}

impl Held {
    fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.renders.iter().chain(&self.image).map(AsFd::as_fd).collect()
    }

    /// All files, in the order in which [`Held::of`] takes them.
    pub fn into_files(self) -> Vec<OwnedFd> {
        self.renders.into_iter().chain(self.image).collect()
    }

    /// Duplicates of files that a controller held for a process of so many agents; `None` if they are not its.
    pub fn of(files: &[OwnedFd], agents: usize) -> Option<Self> {
        let (renders, image) = files.split_at_checked(agents)?;
        let duplicates =
            |files: &[OwnedFd]| files.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>().ok();
        Some(Self { renders: duplicates(renders)?, image: duplicates(image)? })
    }
}

/// One process that has all the files.
#[derive(Debug)]
struct Keeper {
    name: String,
    pid: i32,
}

/// Where the files are.
#[derive(Debug)]
pub struct Keepers {
    keepers: Vec<Keeper>,
    files: usize,
    /// How many of them are render files.
    renders: usize,
}

impl Keepers {
    /// Has two keepers hold the files, too. The caller's descriptors stay open.
    ///
    /// # Errors
    /// [`KeeperError`]: no process is left behind.
    pub fn hold(held: &Held) -> Result<Self, KeeperError> {
        let files = held.files();
        let pid = getpid();
        let bound = (0..COUNT).map(|_| bind(pid)).collect::<Result<Vec<_>, _>>()?;
        let listeners: Vec<_> = bound.iter().map(|(listener, _)| listener.as_fd()).collect();
        let pids = fork_keepers(&listeners, &files, pid, true)?;
        let keepers = bound.into_iter().zip(pids).map(|((_, name), pid)| Keeper { name, pid }).collect();
        Ok(Self { keepers, files: files.len(), renders: held.renders.len() })
    }

    /// Gets the files from one keeper or the other; both go on holding them.
    ///
    /// # Errors
    /// [`KeeperError::Nobody`]; whether it is of use to try again says [`KeeperError::is_final`].
    pub fn fetch(&self) -> Result<Held, KeeperError> {
        let mut failures = Vec::new();
        for keeper in &self.keepers {
            match keeper.fetch(self.files) {
                Ok(mut files) => {
                    // As many as there are: `Keeper::fetch` has counted them.
                    let image = files.split_off(self.renders.min(files.len()));
                    return Ok(Held { renders: files, image });
                }
                Err(error) => failures.push(error),
            }
        }
        Err(KeeperError::Nobody { failures })
    }

    /// Lets the keepers end. One that does not hear of it ends with this process.
    pub fn release(self) {
        for keeper in &self.keepers {
            if let Err(error) = keeper.release() {
                tracing::debug!(target: "checkpoint", %error, "a keeper was not released");
            }
        }
    }
}

/// A socket under a name that nobody can have taken.
fn bind(owner: Pid) -> Result<(OwnedFd, String), KeeperError> {
    let random = linux::random().map_err(system("draw a name for"))?;
    let name = format!("{KEEPER_NAME}{owner}.{:032x}", u128::from_ne_bytes(random));
    let listener = socket().map_err(system("make a socket for"))?;
    let address = UnixAddr::new_abstract(name.as_bytes());
    let bound = address.and_then(|address| nix::sys::socket::bind(listener.as_raw_fd(), &address));
    bound.map_err(system("name the socket of"))?;
    Ok((listener, name))
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

impl Keeper {
    /// A connection to the keeper itself.
    fn connect(&self, patience: Duration) -> Result<OwnedFd, KeeperError> {
        let socket = socket().map_err(system("make a socket to reach"))?;
        linux::set_send_timeout(&socket, patience)
            .and_then(|()| linux::set_receive_timeout(&socket, patience))
            .map_err(system("set limits for"))?;
        let address = UnixAddr::new_abstract(self.name.as_bytes()).map_err(system("name"))?;
        match linux::retry(|| connect(socket.as_raw_fd(), &address)) {
            Ok(()) => {}
            Err(error @ Errno::ECONNREFUSED) => {
                return Err(KeeperError::Gone { pid: self.pid, source: error.into() });
            }
            Err(error) => return Err(system("reach")(error)),
        }
        let peer = Peer::of(&socket).map_err(system("identify"))?;
        // A process that takes the place of a keeper (`succeed_keeper`) has the keeper's socket, whose credentials stay the keeper's.
        if peer.pid == Some(self.pid) && peer.is_trusted_by(geteuid().as_raw()) {
            return Ok(socket);
        }
        let (name, pid) = (self.name.clone(), peer.pid.unwrap_or(0));
        Err(KeeperError::Stranger { name, keeper: self.pid, pid, uid: peer.uid })
    }

    fn fetch(&self, wanted: usize) -> Result<Vec<OwnedFd>, KeeperError> {
        let files = receive(&self.connect(ANSWER)?)?;
        if files.len() == wanted {
            return Ok(files);
        }
        Err(KeeperError::Short { pid: self.pid, found: files.len(), wanted })
    }

    fn release(&self) -> Result<(), KeeperError> {
        let connection = self.connect(ENDING)?;
        order(&connection, END)?;
        // It closes the connection by its end; what comes of the wait does not matter.
        let _ = linux::retry(|| recv(connection.as_raw_fd(), &mut [0u8; 1], MsgFlags::empty()));
        Ok(())
    }
}

fn order(connection: &OwnedFd, order: u8) -> Result<(), KeeperError> {
    linux::retry(|| send(connection.as_raw_fd(), &[order], MsgFlags::MSG_NOSIGNAL))
        .map(drop)
        .map_err(system("give an order to"))
}

/// Everything that a keeper has, which it goes on holding.
fn receive(connection: &OwnedFd) -> Result<Vec<OwnedFd>, KeeperError> {
    order(connection, GIVE)?;
    let received = message::receive(connection, &mut [0u8; 1]);
    let (length, files) = received.map_err(system("hear from"))?;
    if length == 0 {
        return Err(system("hear from")(io::Error::from(io::ErrorKind::UnexpectedEof)));
    }
    Ok(files)
}

/// Takes the place of a keeper, which ends: a fork of the caller has the files from now on. `listener` is the keeper's
/// own socket, so that its name is never free; `connection` is connected to it; `owner` is the process that the files
/// belong to, by the pid that the caller knows it by.
///
/// # Errors
/// When the keeper gives nothing, to who is not root, or no fork serves: the keeper goes on then.
pub fn succeed_keeper(listener: &OwnedFd, connection: &OwnedFd, owner: i32) -> Result<(), KeeperError> {
    let files = receive(connection)?;
    if files.is_empty() {
        return Err(KeeperError::Short { pid: 0, found: 0, wanted: 1 });
    }
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    fork_keepers(&[listener.as_fd()], &files, Pid::from_raw(owner), false)?;
    order(connection, END)
}

/// Where the render files of a process are while its device is gone.
#[derive(Debug, Default)]
pub enum Kept {
    /// Nowhere: they are not needed, or are in use.
    #[default]
    Nowhere,
    /// Open in this process, because no keeper could be had. CRIU would refuse to dump it.
    Here(Held),
    /// With keepers.
    WithKeepers(Keepers),
    /// With keepers that are gone.
    Lost(KeeperError),
}

impl Kept {
    /// Leaves files with keepers, or else keeps them open here.
    pub fn secure(held: Held) -> Self {
        match Keepers::hold(&held) {
            Ok(keepers) => Self::WithKeepers(keepers),
            Err(error) => {
                let error = crate::context::error::explain(&error);
                tracing::warn!(target: "checkpoint", error, "the render files stay open in this process");
                Self::Here(held)
            }
        }
    }

    /// Gets the files; `None` if there are none, or none any more.
    ///
    /// # Errors
    /// When the keepers cannot give them now: they can be asked again.
    pub fn fetch(&mut self) -> Result<Option<Held>, KeeperError> {
        match std::mem::take(self) {
            Self::Nowhere => Ok(None),
            Self::Here(held) => Ok(Some(held)),
            Self::WithKeepers(keepers) => match keepers.fetch() {
                Err(error) if error.is_final() => {
                    *self = Self::Lost(error);
                    Ok(None)
                }
                fetched => {
                    *self = Self::WithKeepers(keepers);
                    fetched.map(Some)
                }
            },
            lost @ Self::Lost(_) => {
                *self = lost;
                Ok(None)
            }
        }
    }

    /// Lets keepers end, and closes what is open here.
    pub fn release(self) {
        if let Self::WithKeepers(keepers) = self {
            keepers.release();
        }
    }

    /// Duplicates of the files, for somebody else to hold them, too.
    ///
    /// # Errors
    /// [`Keepers::fetch`].
    pub fn lend(&self) -> Result<Vec<OwnedFd>, KeeperError> {
        match self {
            Self::WithKeepers(keepers) => keepers.fetch().map(Held::into_files),
            Self::Nowhere | Self::Here(_) | Self::Lost(_) => Ok(Vec::new()),
        }
    }

    /// Whether there is nothing to be had.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Nowhere | Self::Lost(_))
    }
}
