// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection to softgpud, which carries one request at a time.
//!
//! INVARIANT: an exchange that fails with [`WireError::TimedOut`] has changed nothing at the device, and its channel is
//! not used again.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, sockopt};

use super::address::Address;
use crate::transport::OpenError;
use crate::transport::limit::{CallLimit, is_readable};
use crate::transport::wire::{self, PROTOCOL, ReceiveBuffer, Received, Reply, Request, WireError};
use crate::{errno, linux, sys};

/// Longest sleep between two attempts to connect to a listener whose queue is full.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// A greeted connection.
#[derive(Debug)]
pub(super) struct Channel {
    socket: Arc<OwnedFd>,
    buffer: ReceiveBuffer,
    /// The claim (see [`wire`]). The device takes it when it begins a request, the client to withdraw one.
    claim: Option<OwnedFd>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// No process listens, or the listener is about to end.
    Nobody(Errno),
    /// The listener does not answer.
    TimedOut,
    /// The device's clients are being frozen; this one is to connect later.
    Busy,
    /// This process cannot make a socket.
    Local(Errno),
    /// Another attempt would fail too.
    Final(OpenError),
}

impl Channel {
    /// Connects and exchanges greetings.
    pub fn connect(address: &Address, limit: &CallLimit) -> Result<Self, ConnectError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(ConnectError::Local)?;
        let name = address.socket().map_err(ConnectError::Local)?;
        let mut nap = Duration::from_millis(1);
        loop {
            match nix::sys::socket::connect(socket.as_raw_fd(), &name) {
                Ok(()) => break,
                Err(Errno::EINTR) => {}
                // TIMEOUT: the listener's queue is full; the caller's limit ends the attempts.
                Err(Errno::EAGAIN) if limit.is_over() => return Err(ConnectError::TimedOut),
                Err(Errno::EAGAIN) => {
                    std::thread::sleep(nap);
                    nap = (nap * 2).min(LONGEST_NAP);
                }
                Err(errno) => return Err(ConnectError::Nobody(errno)),
            }
        }
        linux::set_nonblocking(&socket, false).map_err(ConnectError::Local)?;
        check_peer(socket.as_fd(), address)?;
        wire::prepare_socket(socket.as_fd()).map_err(greeting_error)?;
        let mut channel = Self { socket: Arc::new(socket), buffer: ReceiveBuffer::looking(), claim: None };
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
                let errno = errno::from_raw(errno);
                Err(ConnectError::Final(OpenError::Refused { what: "the connection", errno, message }))
            }
            Reply::Busy => Err(ConnectError::Busy),
            _ => Err(greeting_error(WireError::UnexpectedReply)),
        }
    }

    /// Sends a request and waits for its reply, within the thread's [`CallLimit`]. Fetches the descriptors that did not
    /// fit the reply.
    pub fn exchange(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Received<Reply>, WireError> {
        self.wait_for_claim()?;
        wire::send((*self.socket).as_fd(), request, fds)?;
        if CallLimit::current().is_some() && !self.buffer.comes_soon((*self.socket).as_fd()) {
            let begun = Instant::now();
            self.wait_for_reply(request)?;
            self.buffer.slept(begun.elapsed());
        }
        let mut received: Received<Reply> = wire::receive((*self.socket).as_fd(), &mut self.buffer)?;
        if let Reply::Ioctl { fd_places, .. } = &received.message
            && received.fds.len() == wire::MAX_FDS
        {
            // No limit applies, since the request has been carried out.
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

    /// Returns when the device has returned the claim of the request before. It does that after its reply, and can be stopped
    /// in between: the next request would look begun. It can be killed there, too: then the connection has ended, which
    /// who sends the next request finds.
    fn wait_for_claim(&self) -> Result<(), WireError> {
        let limit = CallLimit::current();
        let Some(claim) = self.claim.as_ref().filter(|_| limit.is_some()) else { return Ok(()) };
        match limit.wait_any_readable(&[claim.as_fd(), (*self.socket).as_fd()]) {
            Ok(true) => Ok(()),
            Ok(false) => Err(WireError::TimedOut),
            Err(errno) => Err(WireError::System { call: "poll", errno }),
        }
    }

    /// Returns when there is a reply, or the connection has ended. Fails when the limit ends before, if the request was
    /// not carried out or changes nothing.
    fn wait_for_reply(&self, request: &Request) -> Result<(), WireError> {
        let limit = CallLimit::current();
        let socket = (*self.socket).as_fd();
        let poll_error = |errno| WireError::System { call: "poll", errno };
        if limit.wait_readable(socket).map_err(poll_error)? {
            return Ok(());
        }
        if changes_nothing(request) {
            return Err(WireError::TimedOut);
        }
        if !self.take_claim() {
            // The device has begun the request.
            return Ok(());
        }
        // The device returns the claim after it has sent the reply, so that the claim may belong to a request that is
        // done.
        match is_readable(socket, Some(Duration::ZERO)).map_err(poll_error)? {
            true => {
                self.return_claim();
                Ok(())
            }
            false => Err(WireError::TimedOut),
        }
    }

    /// Withdraws the request. Answers whether the device had not begun it; it will not begin it any more.
    fn take_claim(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| nix::unistd::read(claim, &mut [0; 8]).is_ok())
    }

    fn return_claim(&self) {
        if let Some(claim) = &self.claim {
            // The write cannot block, since the counter is 0.
            let _ = nix::unistd::write(claim, &1u64.to_ne_bytes());
        }
    }

    /// The socket. Another thread may cut the connection by it while a call uses the channel.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }
}

/// Any user can listen on the name. Only a listener of our own user is our softgpud.
fn check_peer(socket: BorrowedFd<'_>, address: &Address) -> Result<(), ConnectError> {
    let peer = getsockopt(&socket, sockopt::PeerCredentials).map_err(ConnectError::Nobody)?;
    let (wanted, found) = (nix::unistd::geteuid().as_raw(), peer.uid());
    if wanted == found {
        return Ok(());
    }
    Err(ConnectError::Final(OpenError::Peer { name: address.name.clone(), wanted, found }))
}

/// Whether it makes no difference to anyone if the request was carried out, once its channel is closed.
fn changes_nothing(request: &Request) -> bool {
    match request {
        // A wait may consume an auto-reset event and wake nobody. A wait that ends by its timeout at that moment does
        // the same.
        Request::Ioctl { cmd, .. } => *cmd == sys::AMDKFD_IOC_WAIT_EVENTS,
        // One that is carried out late would take what a later one is to tell.
        Request::Written { .. } => false,
        Request::Open { .. } | Request::Adopt { .. } | Request::MoreFds | Request::ExpectStores { .. } => {
            false
        }
        Request::Hello { .. }
        | Request::Mmap { .. }
        | Request::PagesGone(_)
        | Request::ReadSysfs { .. }
        | Request::ReadTopology { .. } => true,
    }
}

fn greeting_error(source: WireError) -> ConnectError {
    match source {
        WireError::Closed => ConnectError::Nobody(Errno::ECONNRESET),
        WireError::TimedOut => ConnectError::TimedOut,
        source => ConnectError::Final(OpenError::Wire { what: "the connection", source }),
    }
}
