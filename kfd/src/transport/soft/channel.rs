// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection to softgpud, which carries one request at a time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::address::Address;
use crate::transport::OpenError;
use crate::transport::wire::{self, PROTOCOL, Received, Reply, Request, WireError};

/// How long softgpud may take to accept and greet.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// A greeted connection.
#[derive(Debug)]
pub(super) struct Channel {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// Nobody listens, or who listened is just leaving.
    Nobody(Errno),
    /// This process cannot make a socket.
    Local(Errno),
    /// No use in trying again.
    Final(OpenError),
}

impl Channel {
    /// Connects and exchanges greetings.
    pub fn connect(address: &Address) -> Result<Self, ConnectError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(ConnectError::Local)?;
        let name = address.socket().map_err(ConnectError::Local)?;
        let limit = |which, timeout| {
            sockopt::set_socket_timeout(&socket, which, timeout).map_err(ConnectError::Local)
        };
        // TIMEOUT: connect waits while the listener's backlog is full, and a stopped softgpud never greets.
        limit(Timeout::Send, Some(GREETING_TIMEOUT))?;
        limit(Timeout::Recv, Some(GREETING_TIMEOUT))?;
        loop {
            match rustix::net::connect(&socket, &name) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ConnectError::Nobody(errno)),
            }
        }
        check_peer(socket.as_fd(), address)?;
        wire::prepare_socket(socket.as_fd()).map_err(greeting_error)?;
        let mut channel = Self { socket: Arc::new(socket), buffer: wire::receive_buffer() };
        channel.greet(&address.devices)?;
        let unlimited = |which| sockopt::set_socket_timeout(&channel.socket, which, None);
        unlimited(Timeout::Send).and_then(|()| unlimited(Timeout::Recv)).map_err(ConnectError::Local)?;
        Ok(channel)
    }

    fn greet(&mut self, devices: &str) -> Result<(), ConnectError> {
        let hello = Request::Hello { protocol: PROTOCOL, devices: devices.to_owned() };
        match self.exchange(&hello, &[]).map_err(greeting_error)?.message {
            Reply::Welcome { protocol: PROTOCOL } => Ok(()),
            Reply::Welcome { protocol } => {
                Err(ConnectError::Final(OpenError::Protocol { wanted: PROTOCOL, found: protocol }))
            }
            Reply::Error { errno, message } => {
                let errno = Errno::from_raw_os_error(errno);
                Err(ConnectError::Final(OpenError::Refused { what: "the connection", errno, message }))
            }
            _ => Err(greeting_error(WireError::UnexpectedReply)),
        }
    }

    /// Sends a request and waits for its reply; fetches the descriptors that did not fit beside it.
    pub fn exchange(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Received<Reply>, WireError> {
        let mut received = self.exchange_once(request, fds)?;
        if let Reply::Ioctl { fd_places, .. } = &received.message
            && received.fds.len() == wire::MAX_FDS
        {
            while received.fds.len() < fd_places.len() {
                let more = self.exchange_once(&Request::MoreFds, &[])?;
                if more.message != Reply::Fds || more.fds.is_empty() {
                    return Err(WireError::UnexpectedReply);
                }
                received.fds.extend(more.fds);
            }
        }
        Ok(received)
    }

    fn exchange_once(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Received<Reply>, WireError> {
        wire::send((*self.socket).as_fd(), request, fds)?;
        wire::receive((*self.socket).as_fd(), &mut self.buffer)
    }

    /// The socket, for whoever may have to cut the connection while it is in use.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }
}

/// The name is free for all users: only a listener of our own user is our softgpud.
fn check_peer(socket: BorrowedFd<'_>, address: &Address) -> Result<(), ConnectError> {
    let peer = sockopt::socket_peercred(socket).map_err(ConnectError::Nobody)?;
    let (wanted, found) = (rustix::process::geteuid().as_raw(), peer.uid.as_raw());
    if wanted == found {
        return Ok(());
    }
    Err(ConnectError::Final(OpenError::Peer { name: address.name.clone(), wanted, found }))
}

fn greeting_error(source: WireError) -> ConnectError {
    match source {
        WireError::Closed => ConnectError::Nobody(Errno::CONNRESET),
        WireError::System { errno: errno @ Errno::AGAIN, .. } => ConnectError::Nobody(errno),
        source => ConnectError::Final(OpenError::Wire { what: "the connection", source }),
    }
}
