// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a stream goes to or comes from.
//!
//! INVARIANT: over TCP nothing is sent or taken without a key, unless somebody says that all who can reach the address are trusted; of a
//! Unix socket the process at the other end is of this user or of root.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::connection::{FrameWriter, Writer};
use crate::StoreError;
use crate::object::Codec;

/// TIMEOUT: how long a connection may take to come about.
const CONNECTING: Duration = Duration::from_secs(10);
/// How often somebody who does not listen yet is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// Where a stream goes to or comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `-`: standard output or input.
    Standard,
    /// `tcp://HOST:PORT`.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let bad = || StoreError::Address { address: text.to_owned() };
        if text == "-" {
            return Ok(Self::Standard);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let place = text.strip_prefix("tcp://").ok_or_else(bad)?;
        let (host, port) = place.rsplit_once(':').ok_or_else(bad)?;
        match !host.is_empty() && port.parse::<u16>().is_ok() {
            true => Ok(Self::Tcp(place.to_owned())),
            false => Err(bad()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard => f.write_str("-"),
            Self::Tcp(place) => write!(f, "tcp://{place}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Whether the other side can answer.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        *self != Self::Standard
    }

    /// Makes sure that whoever is at the other end has the key, or is trusted without.
    fn check(&self, codec: &Codec, is_trusted: bool) -> Result<(), StoreError> {
        match self {
            Self::Tcp(_) if codec.key.is_none() && !is_trusted => {
                Err(StoreError::Open { address: self.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Connects to a receiver that listens there, or does by `until`. `is_trusted`: even without a key.
    ///
    /// # Errors
    /// [`StoreError::Open`], [`StoreError::Broken`].
    pub fn connect(&self, codec: &Codec, is_trusted: bool, until: Instant) -> Result<Channel, StoreError> {
        self.check(codec, is_trusted)?;
        let broken = |source| StoreError::Broken { act: "no receiver was reached", source };
        loop {
            let connected = match self {
                Self::Standard => Ok(Channel::new(io::empty(), Standard::output(), false)),
                Self::Tcp(place) => connect_tcp(place).and_then(Channel::of_tcp),
                Self::Unix(path) => UnixStream::connect(path).and_then(Channel::of_unix),
            };
            match connected {
                Ok(channel) => return Ok(channel),
                // Of another user, or an impossible name: it will not be another one.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(broken(error)),
                Err(error) if Instant::now() >= until => return Err(broken(error)),
                Err(_) => thread::sleep(AGAIN),
            }
        }
    }
}

fn connect_tcp(place: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Standard input or output, without the buffer of `std`'s, which ends lines.
struct Standard;

impl Standard {
    fn output() -> impl Write + Send {
        io::BufWriter::with_capacity(1 << 20, io::stdout())
    }

    fn input() -> impl Read + Send {
        io::BufReader::with_capacity(1 << 20, io::stdin())
    }
}

/// Both directions to the other side.
pub struct Channel {
    pub(super) reader: Box<dyn Read + Send>,
    pub(super) writer: Writer,
    /// Whether the other side can answer.
    pub(super) is_answered: bool,
    /// Whose time to wait is set.
    socket: Option<Socket>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("is_answered", &self.is_answered).finish_non_exhaustive()
    }
}

/// Bytes that are read or written at a time.
const BUFFER: usize = 1 << 20;

impl Channel {
    /// A channel of two streams; without `is_answered` one of them is not used.
    pub fn new(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        is_answered: bool,
    ) -> Self {
        let writer = Arc::new(Mutex::new(FrameWriter::new(Box::new(writer))));
        Self { reader: Box::new(reader), writer, is_answered, socket: None }
    }

    fn buffered(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        socket: Socket,
    ) -> Self {
        let (reader, writer) =
            (io::BufReader::with_capacity(BUFFER, reader), io::BufWriter::with_capacity(BUFFER, writer));
        Self { socket: Some(socket), ..Self::new(reader, writer, true) }
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Self::buffered(stream.try_clone()?, stream.try_clone()?, Socket::Tcp(stream)))
    }

    pub(super) fn of_unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let peer = getsockopt(&stream, PeerCredentials)?.uid();
        if ![0, geteuid().as_raw()].contains(&peer) {
            let text = format!("the process at the other end is of user {peer}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self::buffered(stream.try_clone()?, stream.try_clone()?, Socket::Unix(stream)))
    }

    /// Has reads and writes fail when the other side is silent for so long.
    pub(super) fn limit(&self, silence: Duration) -> io::Result<()> {
        let silence = Some(silence);
        match &self.socket {
            None => Ok(()),
            Some(Socket::Tcp(stream)) => {
                stream.set_read_timeout(silence)?;
                stream.set_write_timeout(silence)
            }
            Some(Socket::Unix(stream)) => {
                stream.set_read_timeout(silence)?;
                stream.set_write_timeout(silence)
            }
        }
    }
}

/// Where senders connect to.
#[derive(Debug)]
pub enum Listener {
    /// One sender, who needs no connection.
    Standard,
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket, which is removed with this.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at an address. `is_trusted`: even without a key.
    ///
    /// # Errors
    /// [`StoreError::Open`], [`StoreError::Io`].
    pub fn bind(address: &Address, codec: &Codec, is_trusted: bool) -> Result<Self, StoreError> {
        address.check(codec, is_trusted)?;
        let io = |source| StoreError::Io { act: "listen at", path: address.to_string().into(), source };
        match address {
            Address::Standard => Ok(Self::Standard),
            Address::Tcp(place) => {
                let listener = TcpListener::bind(place).map_err(io)?;
                // Somebody who connected may be gone again when it is looked.
                listener.set_nonblocking(true).map_err(io)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                let listener = bind_unix(path).map_err(io)?;
                listener.set_nonblocking(true).map_err(io)?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    /// Where it listens: of port 0, the one that it was given.
    #[must_use]
    pub fn address(&self) -> Address {
        match self {
            Self::Standard => Address::Standard,
            Self::Tcp(listener) => {
                Address::Tcp(listener.local_addr().map(|address| address.to_string()).unwrap_or_default())
            }
            Self::Unix(_, path) => Address::Unix(path.clone()),
        }
    }

    /// Waits for a sender, until `until`. One of another user is turned away.
    ///
    /// # Errors
    /// [`StoreError::Broken`] when none came.
    pub fn accept(&self, until: Instant) -> Result<Channel, StoreError> {
        let broken = |source| StoreError::Broken { act: "no sender came", source };
        let fd = match self {
            Self::Standard => return Ok(Channel::new(Standard::input(), io::sink(), false)),
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
                Ok(0) => return Err(broken(io::ErrorKind::TimedOut.into())),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(broken(errno.into())),
            }
            let accepted = match self {
                Self::Standard => continue,
                Self::Tcp(listener) => listener.accept().and_then(|(stream, _)| Channel::of_tcp(stream)),
                Self::Unix(listener, _) => listener.accept().and_then(|(stream, _)| Channel::of_unix(stream)),
            };
            match accepted {
                Ok(channel) => return Ok(channel),
                Err(error) => {
                    tracing::warn!(%error, "a sender was turned away");
                    thread::sleep(AGAIN);
                }
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|status| status.file_type().is_socket())
}

/// Listens at a path; a socket there that nobody listens at any more is replaced.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match UnixStream::connect(path) {
            // A file that is no socket is refused in the same way.
            Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            _ => Err(error),
        },
        bound => bound,
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}
