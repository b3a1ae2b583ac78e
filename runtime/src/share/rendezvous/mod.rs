// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the processes of a session find each other's memory again, in whatever order and however late they come back.
//!
//! The rendezvous point is in the session's directory. The first process to lock a file there runs the coordinator,
//! which listens on a socket beside it and knows which memory is there already. For each piece the first that asks
//! makes it and gives the coordinator its DMABuf; the others get that. Copies restored in other pid namespaces meet
//! apart, for they are other processes' copies.
//!
//! INVARIANT: within one rendezvous no memory is made twice. A coordinator that ends leaves a record of the
//! participants that have finished with what it gave them ([`registrations::Finished`]); whoever comes later and finds
//! one of those alive is refused, for the memory that it has cannot be reached any more.

mod client;
mod coordinator;
mod error;
mod registrations;
mod wire;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use stasis_protocol::Limit;

pub(crate) use self::client::{Claim, Client};
pub(crate) use self::coordinator::Coordinator;
pub use self::error::RendezvousError;
use self::error::io_error;
use crate::linux::credentials::Peer;

/// How often one that waits for a coordinator looks.
const LOOK: Duration = Duration::from_millis(2);

/// Where the processes of a session find each other in a restore.
#[derive(Clone, Debug)]
pub(crate) struct RendezvousPoint {
    directory: PathBuf,
    /// Tells the rendezvous points in one directory apart.
    stem: String,
}

impl RendezvousPoint {
    /// In a session's directory, for the processes of the pid namespace of this one.
    ///
    /// # Errors
    /// [`RendezvousError::Io`].
    pub fn of(directory: &Path) -> Result<Self, RendezvousError> {
        let namespace = Path::new("/proc/self/ns/pid");
        let inode = fs::metadata(namespace).map_err(io_error("look at", namespace))?.ino();
        Ok(Self { directory: directory.to_owned(), stem: format!("rendezvous-{inode}") })
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}.{kind}", self.stem))
    }

    /// Does something with the socket's address, which is short however long the path is.
    fn with_address<T>(
        &self,
        act: &'static str,
        with: impl FnOnce(&UnixAddr) -> Result<T, Errno>,
    ) -> Result<T, RendezvousError> {
        let directory = File::open(&self.directory).map_err(io_error("open", &self.directory))?;
        let short = format!("/proc/self/fd/{}/{}.sock", directory.as_raw_fd(), self.stem);
        let done = UnixAddr::new(short.as_str()).and_then(|address| with(&address));
        done.map_err(|error| io_error(act, &self.file("sock"))(error.into()))
    }

    /// Joins the rendezvous as `name`, one of `members`. A process that finds no coordinator starts one, which runs
    /// until all have come or the coordinator is dropped. Whoever finds a coordinator that does not listen waits no
    /// longer than `patience`.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn join(
        &self,
        name: &str,
        members: &[String],
        patience: Duration,
        limit: &Limit,
    ) -> Result<(Client, Option<Coordinator>), RendezvousError> {
        let (path, patience) = (self.file("lock"), Limit::within(patience));
        loop {
            let mut options = OpenOptions::new();
            // An open of a FIFO for writing would wait for a reader.
            let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
            options.mode(0o600).custom_flags(flags.bits());
            let lock = options.write(true).create(true).truncate(false).open(&path);
            let lock = lock.map_err(io_error("open", &path))?;
            let coordinator = match lock.try_lock() {
                Ok(()) => Some(self.coordinate(lock, members)?),
                Err(TryLockError::WouldBlock) => None,
                Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
            };
            if let Some(socket) = self.connect()? {
                return Ok((Client::join(socket, name)?, coordinator));
            }
            limit.check().and_then(|()| patience.check()).map_err(RendezvousError::NoCoordinator)?;
            std::thread::sleep(LOOK);
        }
    }

    fn coordinate(&self, lock: File, members: &[String]) -> Result<Coordinator, RendezvousError> {
        let record = self.file("record");
        // This process itself may have finished before, and been restored in its place.
        let own = nix::unistd::getpid().as_raw();
        let others = registrations::read_record(&record)?
            .into_iter()
            .filter(|finished| finished.process.pid != own && finished.process.is_alive());
        let names: Vec<String> = others.map(|finished| finished.name).collect();
        if !names.is_empty() {
            return Err(RendezvousError::GoneOn { names });
        }
        for stale in [&record, &self.file("sock")] {
            match fs::remove_file(stale) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", stale)(error));
                }
                _ => {}
            }
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = self.with_address("listen on", |address| {
            let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            bind(listener.as_raw_fd(), address)?;
            listen(&listener, Backlog::new(64)?)?;
            Ok(listener)
        })?;
        Coordinator::start(lock, listener, members, record, self.file("sock"))
            .map_err(io_error("lead", &self.directory))
    }

    /// A connection to the coordinator, if there is one that listens.
    fn connect(&self) -> Result<Option<OwnedFd>, RendezvousError> {
        let connected = self.with_address("connect to", |address| {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            match connect(socket.as_raw_fd(), address) {
                Ok(()) => Ok(Some(socket)),
                Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::EAGAIN) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        let Some(socket) = connected else { return Ok(None) };
        let peer = Peer::of(&socket).map_err(io_error("look at", &self.file("sock")))?;
        if !peer.is_trusted_by(nix::unistd::geteuid().as_raw()) {
            return Err(RendezvousError::Stranger { path: self.directory.clone(), uid: peer.uid });
        }
        Ok(Some(socket))
    }
}

#[cfg(test)]
mod tests;
