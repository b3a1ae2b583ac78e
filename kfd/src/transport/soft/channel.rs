// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection to softgpud, which carries one request at a time.
//!
//! INVARIANT: an exchange that fails with [`WireError::TimedOut`] has changed nothing at the device, and nothing of its
//! channel is used again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::address::Address;
use crate::sys;
use crate::transport::OpenError;
use crate::transport::limit::{CallLimit, is_readable};
use crate::transport::wire::{self, PROTOCOL, ReceiveBuffer, Received, Reply, Request, WireError};

/// How long to sleep at most between two attempts at a listener with too many waiting.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// A greeted connection.
#[derive(Debug)]
pub(super) struct Channel {
    socket: Arc<OwnedFd>,
    buffer: ReceiveBuffer,
    /// Taken by the device when it begins a request, or by us to withdraw it (see [`wire`]).
    claim: Option<OwnedFd>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// Nobody listens, or who listened is just leaving.
    Nobody(Errno),
    /// Somebody listens and does not answer.
    TimedOut,
    /// This process cannot make a socket.
    Local(Errno),
    /// No use in trying again.
    Final(OpenError),
}

impl Channel {
    /// Connects and exchanges greetings.
    pub fn connect(address: &Address, limit: &CallLimit) -> Result<Self, ConnectError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(ConnectError::Local)?;
        let name = address.socket().map_err(ConnectError::Local)?;
        let mut nap = Duration::from_millis(1);
        loop {
            match rustix::net::connect(&socket, &name) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                // TIMEOUT: too many connections wait to be accepted; the limit ends it.
                Err(Errno::AGAIN) if limit.is_over() => return Err(ConnectError::TimedOut),
                Err(Errno::AGAIN) => {
                    std::thread::sleep(nap);
                    nap = (nap * 2).min(LONGEST_NAP);
                }
                Err(errno) => return Err(ConnectError::Nobody(errno)),
            }
        }
        rustix::io::ioctl_fionbio(&socket, false).map_err(ConnectError::Local)?;
        check_peer(socket.as_fd(), address)?;
        wire::prepare_socket(socket.as_fd()).map_err(greeting_error)?;
        let mut channel = Self { socket: Arc::new(socket), buffer: ReceiveBuffer::new(), claim: None };
        limit.clone().hold(|| channel.greet(&address.devices))?;
        Ok(channel)
    }

    fn greet(&mut self, devices: &str) -> Result<(), ConnectError> {
        let hello = Request::Hello { protocol: PROTOCOL, devices: devices.to_owned() };
        let received = self.exchange(&hello, &[]).map_err(greeting_error)?;
        match received.message {
            Reply::Welcome { protocol: PROTOCOL } => {
                self.claim = received.fds.into_iter().next();
                Ok(())
            }
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

    /// Sends a request and waits for its reply, within the thread's [`CallLimit`]; fetches the descriptors that did not
    /// fit beside it.
    pub fn exchange(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Received<Reply>, WireError> {
        wire::send((*self.socket).as_fd(), request, fds)?;
        self.wait_for_reply(request)?;
        let mut received: Received<Reply> = wire::receive((*self.socket).as_fd(), &mut self.buffer)?;
        if let Reply::Ioctl { fd_places, .. } = &received.message
            && received.fds.len() == wire::MAX_FDS
        {
            // Without limit: the request has been carried out.
            while received.fds.len() < fd_places.len() {
                wire::send((*self.socket).as_fd(), &Request::MoreFds, &[])?;
                let more: Received<Reply> = wire::receive((*self.socket).as_fd(), &mut self.buffer)?;
                if more.message != Reply::Fds || more.fds.is_empty() {
                    return Err(WireError::UnexpectedReply);
                }
                received.fds.extend(more.fds);
            }
        }
        Ok(received)
    }

    /// Returns when there is a reply or the connection's end; fails when the limit is over before, and the request is
    /// not carried out or changes nothing.
    fn wait_for_reply(&self, request: &Request) -> Result<(), WireError> {
        let limit = CallLimit::current();
        if !limit.is_some() {
            return Ok(());
        }
        let socket = (*self.socket).as_fd();
        let poll_error = |errno| WireError::System { call: "poll", errno };
        if limit.wait_readable(socket).map_err(poll_error)? {
            return Ok(());
        }
        if changes_nothing(request) {
            return Err(WireError::TimedOut);
        }
        if !self.take_claim() {
            // The device is at work on it.
            return Ok(());
        }
        // The device returns the claim after it has sent the reply: this one may be of a request that is done.
        match is_readable(socket, Some(Duration::ZERO)).map_err(poll_error)? {
            true => {
                self.return_claim();
                Ok(())
            }
            false => Err(WireError::TimedOut),
        }
    }

    /// Whether the device had not begun the request: it will not any more.
    fn take_claim(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| rustix::io::read(claim, &mut [0; 8][..]).is_ok())
    }

    fn return_claim(&self) {
        if let Some(claim) = &self.claim {
            // A counter at 0 has room for 1.
            let _ = rustix::io::write(claim, &1u64.to_ne_bytes());
        }
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

/// Whether nobody can tell a request that was carried out from one that was not, once its channel is closed.
fn changes_nothing(request: &Request) -> bool {
    match request {
        // It may use up an event that resets itself, which then wakes nobody: as a wait that ends by time just before.
        Request::Ioctl { cmd, .. } => *cmd == sys::AMDKFD_IOC_WAIT_EVENTS,
        Request::Open { .. } | Request::Adopt { .. } | Request::MoreFds => false,
        Request::Hello { .. }
        | Request::Mmap { .. }
        | Request::ReadSysfs { .. }
        | Request::ReadSysfsFiles { .. }
        | Request::ListSysfs { .. } => true,
    }
}

fn greeting_error(source: WireError) -> ConnectError {
    match source {
        WireError::Closed => ConnectError::Nobody(Errno::CONNRESET),
        WireError::TimedOut => ConnectError::TimedOut,
        source => ConnectError::Final(OpenError::Wire { what: "the connection", source }),
    }
}
