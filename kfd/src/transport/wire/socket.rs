// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends and receives the messages over a SEQPACKET socket, one message a datagram, encoded by postcard.
//!
//! The listener sets SO_PASSCRED before it listens, and accepted sockets inherit the option. If it were set after
//! accept, a message that arrived before would have no credentials.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, UnixCredentials, getsockopt, recv, setsockopt, sockopt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MAX_FDS, MAX_MESSAGE_BYTES};
use crate::linux::{self, Message};

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message does not fit the socket.
    #[error("A message of {bytes} bytes exceeds the socket's limit of {limit}")]
    TooLarge {
        /// Encoded bytes (0 if unknown, on receipt).
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many descriptors for one message.
    #[error("A message with {found} descriptors exceeds the limit of {limit}")]
    TooManyFds {
        /// How many.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Descriptors were lost on receipt.
    #[error(
        "Descriptors of a message were dropped; the process may have no descriptors left (see ulimit -n)"
    )]
    LostFds,
    /// The message is not of the protocol.
    #[error("A message could not be encoded or decoded")]
    Codec {
        /// Why.
        #[source]
        source: postcard::Error,
    },
    /// The other side is gone.
    #[error("The other side closed the connection")]
    Closed,
    /// The caller's limit ended. The request was not carried out, or changes nothing.
    #[error("The device did not answer in time; the session is intact: try again")]
    TimedOut,
    /// The answer does not belong to the question.
    #[error("The answer does not match the request")]
    UnexpectedReply,
    /// A system call on the socket failed.
    #[error("{call} on the device's socket failed ({errno})")]
    System {
        /// The call.
        call: &'static str,
        /// Its errno.
        errno: Errno,
    },
}

impl WireError {
    fn system(call: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN | Errno::ESHUTDOWN => Self::Closed,
            _ => Self::System { call, errno },
        }
    }
}

/// A received message.
#[derive(Debug)]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// The descriptors beside it, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The sender, if the socket has SO_PASSCRED.
    pub credentials: Option<UnixCredentials>,
}

/// Raises the socket's buffers, as far as the user may, so that a message of [`MAX_MESSAGE_BYTES`] fits. Returns the
/// most bytes that one datagram can have.
///
/// # Errors
/// [`WireError::System`] if the socket's options cannot be read or set.
pub fn prepare_socket(socket: BorrowedFd<'_>) -> Result<usize, WireError> {
    // Only CAP_NET_ADMIN allows more than net.core.wmem_max.
    if setsockopt(&socket, sockopt::SndBufForce, &MAX_MESSAGE_BYTES).is_err() {
        setsockopt(&socket, sockopt::SndBuf, &MAX_MESSAGE_BYTES)
            .map_err(|errno| WireError::system("setsockopt(SO_SNDBUF)", errno))?;
    }
    let bytes = getsockopt(&socket, sockopt::SndBuf)
        .map_err(|errno| WireError::system("getsockopt(SO_SNDBUF)", errno))?;
    // unix_dgram_sendmsg keeps 32 bytes of the buffer for itself.
    Ok(bytes.saturating_sub(32).min(MAX_MESSAGE_BYTES))
}

/// Sends one message with `fds` beside it, without SIGPIPE.
///
/// # Errors
/// [`WireError::Closed`] if the other side is gone, [`WireError::TooLarge`] and [`WireError::TooManyFds`]
/// before anything is sent.
pub fn send<M: Serialize>(
    socket: BorrowedFd<'_>,
    message: &M,
    fds: &[BorrowedFd<'_>],
) -> Result<(), WireError> {
    let bytes = postcard::to_stdvec(message).map_err(|source| WireError::Codec { source })?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_MESSAGE_BYTES });
    }
    if fds.len() > MAX_FDS {
        return Err(WireError::TooManyFds { found: fds.len(), limit: MAX_FDS });
    }
    match linux::retry(|| linux::send_message(socket, &bytes, fds, MsgFlags::MSG_NOSIGNAL)) {
        Ok(_) => Ok(()),
        Err(Errno::EMSGSIZE) => {
            let limit = getsockopt(&socket, sockopt::SndBuf).unwrap_or(0).saturating_sub(32);
            Err(WireError::TooLarge { bytes: bytes.len(), limit })
        }
        Err(errno) => Err(WireError::system("sendmsg", errno)),
    }
}

/// Scratch memory for [`receive`]: grows with the messages that arrive, and shrinks after a large one.
///
/// A channel's usual messages have a few hundred bytes. A buffer for the largest message would cost each channel a
/// megabyte.
#[derive(Debug)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    most: usize,
    /// How long the next message is looked for before the thread sleeps until it comes; `None` if it never is.
    moment: Option<Duration>,
}

/// Longest look for a message. Of two threads that answer each other, each on a CPU of its own, waking one takes longer than most
/// answers do.
const MOMENT: Duration = Duration::from_micros(50);
/// A shorter one is left out.
const SHORTEST_MOMENT: Duration = Duration::from_micros(5);

/// Bytes that a buffer keeps after a larger message.
const KEPT_BYTES: usize = 16 << 10;

impl ReceiveBuffer {
    /// For messages of up to [`MAX_MESSAGE_BYTES`].
    #[must_use]
    pub const fn new() -> Self {
        Self::with_limit(MAX_MESSAGE_BYTES)
    }

    /// For messages of up to `most` bytes.
    #[must_use]
    pub const fn with_limit(most: usize) -> Self {
        Self { bytes: Vec::new(), most, moment: None }
    }

    /// Memory for the next message in `socket`: as much as it needs, but at least one byte, so that a message that is
    /// too large is cut and not taken for the end of the connection. Waits for a message.
    fn fit(&mut self, socket: BorrowedFd<'_>) -> Result<&mut [u8], WireError> {
        let next = match self.next(socket) {
            Some(next) => next,
            None => {
                let begun = Instant::now();
                let next = linux::retry(|| recv(socket.as_raw_fd(), &mut [], NEXT))
                    .map_err(|errno| WireError::system("recv", errno))?;
                self.slept(begun.elapsed());
                next
            }
        };
        let wanted = next.clamp(1, self.most);
        if self.bytes.len() > KEPT_BYTES && wanted <= KEPT_BYTES {
            self.bytes = Vec::new();
        }
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        Ok(&mut self.bytes[..wanted])
    }
}

/// Asks for the length of the next message.
const NEXT: MsgFlags = MsgFlags::MSG_PEEK.union(MsgFlags::MSG_TRUNC);

impl ReceiveBuffer {
    /// For one of two that answer each other: it looks for messages.
    #[must_use]
    pub const fn looking() -> Self {
        Self { bytes: Vec::new(), most: MAX_MESSAGE_BYTES, moment: Some(MOMENT) }
    }

    /// Whether a message is there, or comes within a moment. A moment is long while messages come at once, and none while they do
    /// not.
    pub(in crate::transport) fn comes_soon(&mut self, socket: BorrowedFd<'_>) -> bool {
        self.next(socket).is_some()
    }

    /// The length of the message that comes within a moment.
    fn next(&mut self, socket: BorrowedFd<'_>) -> Option<usize> {
        let moment = self.moment?;
        let begun = Instant::now();
        loop {
            match recv(socket.as_raw_fd(), &mut [], NEXT | MsgFlags::MSG_DONTWAIT) {
                Ok(next) => return Some(next),
                Err(Errno::EAGAIN | Errno::EINTR) if begun.elapsed() < moment => std::hint::spin_loop(),
                // What is wrong is said to who waits.
                Err(_) => return None,
            }
        }
    }

    /// Hears how long the thread slept until the message came.
    pub(in crate::transport) fn slept(&mut self, time: Duration) {
        let after = |moment: Duration| match time < MOMENT * 2 && has_cpus() {
            true => MOMENT,
            false => Some(moment / 2).filter(|half| *half >= SHORTEST_MOMENT).unwrap_or_default(),
        };
        self.moment = self.moment.map(after);
    }
}

/// Whether two threads run at a time here.
fn has_cpus() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1))
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Receives one message; `buffer` is scratch memory.
///
/// # Errors
/// [`WireError::Closed`] at the end of the connection, [`WireError::TooLarge`] if the message was cut off
/// by `buffer`'s limit.
pub fn receive<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut ReceiveBuffer,
) -> Result<Received<M>, WireError> {
    let buffer = buffer.fit(socket)?;
    let Message { bytes, flags, fds, credentials } =
        linux::retry(|| linux::receive_message(socket, buffer, MAX_FDS, MsgFlags::empty()))
            .map_err(|errno| WireError::system("recvmsg", errno))?;
    if flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(WireError::TooLarge { bytes: 0, limit: buffer.len() });
    }
    if flags.contains(MsgFlags::MSG_CTRUNC) {
        return Err(WireError::LostFds);
    }
    // A message is never empty: zero bytes mean the end of the connection.
    if bytes == 0 {
        return Err(WireError::Closed);
    }
    let message = decode(buffer.get(..bytes).unwrap_or_default())?;
    Ok(Received { message, fds, credentials })
}

/// Decodes one datagram.
///
/// # Errors
/// [`WireError::Codec`] if it is no message of this protocol.
pub fn decode<M: DeserializeOwned>(datagram: &[u8]) -> Result<M, WireError> {
    postcard::from_bytes(datagram).map_err(|source| WireError::Codec { source })
}

/// Borrows each of `fds`, as [`send`] wants them.
pub fn borrow_all(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::super::{Reply, Request};
    use super::*;

    #[test]
    fn buffer_is_as_large_as_the_messages_and_small_again_after_a_large_one() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let mut buffer = ReceiveBuffer::new();
        let mut held = |bytes: usize| {
            let message = Request::Open { path: "x".repeat(bytes) };
            send(a.as_fd(), &message, &[]).unwrap();
            let received = receive::<Request>(b.as_fd(), &mut buffer).unwrap();
            assert_eq!(received.message, message);
            buffer.bytes.capacity()
        };
        assert!(held(100) < 256, "room for the largest costs a megabyte a channel");
        assert!((100_000..300_000).contains(&held(100_000)));
        assert!(held(100) < 256);
    }

    #[test]
    fn message_is_looked_for_while_messages_come_at_once() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let mut buffer = ReceiveBuffer::looking();
        assert!(!buffer.comes_soon(b.as_fd()));
        for _ in 0..8 {
            buffer.slept(MOMENT * 3);
        }
        assert_eq!(buffer.moment, Some(Duration::ZERO));
        // There is no need to look for what is there.
        send(a.as_fd(), &Reply::Busy, &[]).unwrap();
        assert!(buffer.comes_soon(b.as_fd()));
        receive::<Reply>(b.as_fd(), &mut buffer).unwrap();
        buffer.slept(MOMENT / 2);
        assert_eq!(buffer.moment, Some(if has_cpus() { MOMENT } else { Duration::ZERO }));
        drop(a);
        assert!(buffer.comes_soon(b.as_fd()), "the end of a connection comes, too");
        assert!(matches!(receive::<Reply>(b.as_fd(), &mut buffer), Err(WireError::Closed)));
    }
}
