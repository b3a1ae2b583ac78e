// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between a client and softgpud: postcard messages, one per SEQPACKET datagram, with file descriptors in
//! SCM_RIGHTS.
//!
//! INVARIANT: a connection ("channel") carries one request at a time, and each request gets exactly one reply. The
//! first request is [`Request::Hello`]. File numbers are valid on every channel of a process.
//!
//! INVARIANT: a request is either carried out or withdrawn, never both. With [`Reply::Welcome`] the device sends an
//! eventfd, the channel's *claim*, whose count is 1 between requests. The device reads the claim before it begins a
//! request, and writes 1 after it has sent the reply. A client that stops waiting also reads the claim. If it gets the
//! 1 and there is no reply, it closes the channel; the device then finds no claim and drops the request. If the client
//! finds no claim, it must wait, since the device has begun the request. Such a client sends nothing before the claim of
//! the last request is back.
//!
//! The listener sets SO_PASSCRED before it listens, and accepted sockets inherit the option. If it were set after
//! accept, a message that arrived before would have no credentials.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, UnixCredentials, getsockopt, recv, setsockopt, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::linux::{self, Message};
use crate::written::Units;

/// Version of the protocol; the two sides must agree exactly.
pub const PROTOCOL: u32 = 8;

/// Most bytes of an encoded message. Both sides raise their socket buffers to this size.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A file beside the topology that only the software device has, and that no directory lists. It says what executes
/// waves, one `key value` line each for `engine`, `cpu` (the vector extension in use), `cpu_best` (the highest that the
/// CPU has) and `workers`.
pub const ENGINE_FILE: &str = "softgpud/engine";

/// What reads through the GPUs' apertures are to cost: `gpu_id picoseconds` a line, a byte each
/// ([`super::Transport::aperture_read_cost`]). Of the GPUs that are not in it they cost nothing.
pub const APERTURE_FILE: &str = "softgpud/aperture";

/// Most descriptors with one message. [`Request::MoreFds`] fetches further descriptors of a reply.
pub const MAX_FDS: usize = 32;

/// Most bytes of client memory in a message. Such a message fits the socket buffers that a user may have without
/// privilege (`net.core.wmem_default`, 208 KiB doubled).
pub const MAX_INLINE_BYTES: usize = 320 << 10;

/// Most bytes of client memory in a memfd that is sent with a message: 64 MiB, the private blob of a checkpoint of more
/// than 240 000 buffers.
pub const MAX_SHARED_BYTES: u64 = 64 << 20;

/// Most ranges of [`Request::Written`].
pub const MAX_RANGES: usize = 16 << 10;

/// Most units of all ranges of [`Request::Written`]: those of a terabyte, each of 2 MiB.
pub const MAX_UNITS: u64 = 1 << 19;

/// What the name of the memfd begins with that is an open file's token ([`Request::Open`]).
pub const TOKEN_NAME: &str = "softgpu:file";

/// What the name of the memfd begins with that holds a process's doorbells.
pub const DOORBELLS_NAME: &str = "softgpu-doorbells";

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First on every connection; answered by [`Reply::Welcome`].
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The targets, comma separated and without `soft:`, exactly as `softgpud serve --devices` got them.
        devices: String,
    },
    /// Opens a device file; answered by [`Reply::Opened`] with the file's identity token, a sealed memfd whose inode names
    /// the open file, and with the process's [`super::gate`].
    Open {
        /// `/dev/kfd` or `/dev/dri/renderD<minor>`.
        path: String,
    },
    /// Adopts an open file; its token is the message's only descriptor. Answered by [`Reply::Opened`] without a
    /// descriptor.
    Adopt {
        /// The path it was opened with.
        path: String,
    },
    /// One ioctl. Its descriptors are, in this order: one per element of `fd_places`; one per element of `shared`; one
    /// per [`PageRun::New`] of `pages`.
    Ioctl {
        /// The file's number.
        file: u64,
        /// The command as the client passed it.
        cmd: u32,
        /// As many bytes as the command's size field says.
        arg: Vec<u8>,
        /// The memory that the argument's pointers name. Memory that is missing could not be read: EFAULT.
        segments: Vec<Segment>,
        /// As `segments`, for memory that is too large for a message. The contents are in a memfd sealed against
        /// shrinking, from offset 0. The device writes its results there too.
        shared: Vec<SharedSegment>,
        /// The 32-bit descriptor fields whose descriptors were sent. A field of the ioctl table that is missing here
        /// held no open descriptor.
        fd_places: Vec<FdPlace>,
        /// For ALLOC_MEMORY_OF_GPU with USERPTR and for SVM: where the client's pages are, from its address rounded down
        /// to a page. None if the client has none there or could not lend them, which gets EFAULT.
        pages: Vec<PageRun>,
    },
    /// Fetches up to [`MAX_FDS`] further descriptors of the previous reply on the same connection; answered by
    /// [`Reply::Fds`]. At any other request the device drops them.
    MoreFds,
    /// Asks for the memory behind a mapping; answered by [`Reply::Mapped`] with one descriptor. For a doorbell cookie a
    /// second descriptor follows: a 4096-byte page whose first u32 is the parked word.
    Mmap {
        /// The file's number.
        file: u64,
        /// Bytes of the mapping.
        length: u64,
        /// Offset or cookie.
        offset: u64,
        /// `PROT_*` bits.
        prot: u32,
    },
    /// Says that the client has mapped doorbells and rings them by stores alone, without a look at the parked word;
    /// answered by [`Reply::ExpectsStores`]. The descriptor beside it, if any, is one of [`crate::userfault::watch`] for
    /// this mapping.
    ExpectStores {
        /// The file's number.
        file: u64,
        /// The cookie that was mapped.
        offset: u64,
        /// Where, in the client.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// Says that the client no longer has some lent pages mapped; answered by [`Reply::PagesAreGone`]. The device takes
    /// them out of the GPUs' page tables before it answers.
    PagesGone(LostPages),
    /// Asks which memory the GPUs have written since the last such question; answered by [`Reply::Written`].
    Written {
        /// Addresses at which GPUs may have memory mapped, and bytes: of whole pages, ascending, without overlap, at most [`MAX_RANGES`]. Of one
        /// that was not in the last question all counts as written.
        ranges: Vec<(u64, u64)>,
        /// Bytes of a unit of the answer, a multiple of a page.
        unit: u64,
    },
    /// Reads a topology file, [`ENGINE_FILE`] or [`APERTURE_FILE`]; answered by [`Reply::Sysfs`].
    ReadSysfs {
        /// Path relative to the topology's root.
        path: String,
    },
    /// Reads all topology files; answered by [`Reply::Topology`].
    ReadTopology {
        /// Files and directories to leave out, in the order of the replies: those that the client has.
        skipped: u32,
    },
}

/// Lent pages that the client no longer has mapped, by what they were lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LostPages {
    /// Some page of a USERPTR object. The object stays, and no page of it is mapped on a GPU any more.
    Object {
        /// The object.
        handle: u64,
    },
    /// All pages from an address on, of shared virtual memory. Its ranges end there.
    Range {
        /// The address.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// Where some pages of a USERPTR allocation or of shared virtual memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageRun {
    /// In the next descriptor, from offset 0: a memfd sealed against shrinking that the client has mapped in place of its
    /// own pages.
    New {
        /// How many bytes.
        bytes: u64,
        /// Whether the client itself may write them.
        writable: bool,
    },
    /// Where the device has them already for the range of shared virtual memory at their addresses, or, if that has no
    /// memory, with the client alone. The client has mapped them.
    Unchanged {
        /// How many bytes.
        bytes: u64,
    },
    /// Where the USERPTR object `handle` has them.
    Of {
        /// The object.
        handle: u64,
        /// Where in the object, bytes.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// Client memory that an embedded pointer names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its address in the client.
    pub address: u64,
    /// Its contents when the client read it.
    pub bytes: Vec<u8>,
    /// Whether the reply may carry it back.
    pub writable: bool,
}

/// Where the number of a descriptor is stored: a 32-bit word of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FdPlace {
    /// At this byte offset in the argument.
    Field(u16),
    /// At this address, inside memory that one of the argument's pointers names.
    Memory(u64),
}

/// Client memory that travels beside a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSegment {
    /// Its address in the client.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Whether the device may write it.
    pub writable: bool,
}

/// What the device answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`], with one descriptor: the channel's claim.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// To [`Request::Open`] and [`Request::Adopt`].
    Opened {
        /// The file's number.
        file: u64,
    },
    /// To [`Request::Ioctl`]. Descriptors: one per element of `fd_places`; beyond [`MAX_FDS`] by
    /// [`Request::MoreFds`].
    Ioctl {
        /// The result if not negative, else `-errno`.
        result: i32,
        /// The argument to copy back if `copy_back`; no longer than the request's.
        arg: Vec<u8>,
        /// Memory to copy back; each must lie in a writable segment of the request.
        segments: Vec<Segment>,
        /// Ranges of writable shared segments, address and bytes, that were written.
        written: Vec<(u64, u64)>,
        /// Where the client must put the numbers of the descriptors it received.
        fd_places: Vec<FdPlace>,
        /// Whether `arg` is copied back (KFD does so even when the handler failed).
        copy_back: bool,
    },
    /// To [`Request::Ioctl`], by a device that is being paused: nothing was done. The client leaves the gate
    /// ([`super::gate`]), and issues the same ioctl again when that is open, with this argument.
    Later {
        /// As long as the request's.
        arg: Vec<u8>,
    },
    /// To any first request, by a device whose clients are being frozen: the client closes the connection, and connects
    /// again a little later.
    Busy,
    /// To [`Request::MoreFds`], with at least one descriptor.
    Fds,
    /// To [`Request::Mmap`].
    Mapped {
        /// Offset in the descriptor sent beside.
        offset: u64,
    },
    /// To [`Request::ExpectStores`].
    ExpectsStores,
    /// To [`Request::PagesGone`].
    PagesAreGone,
    /// To [`Request::Written`]: the units of each range; none by a device that does not look.
    Written(Option<Vec<Units>>),
    /// To [`Request::ReadSysfs`]: the text or an errno.
    Sysfs(Result<String, i32>),
    /// To [`Request::ReadTopology`].
    Topology {
        /// Each path with the file's text, or without one for a directory that may be empty. At least one unless there is no other,
        /// and as many as fit a message.
        entries: Vec<(String, Option<String>)>,
        /// Whether the client must ask again for the others.
        more: bool,
    },
    /// To any request: the request itself failed.
    Error {
        /// Positive errno.
        errno: i32,
        /// A message for the user.
        message: String,
    },
}

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
    pub(super) fn comes_soon(&mut self, socket: BorrowedFd<'_>) -> bool {
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
    pub(super) fn slept(&mut self, time: Duration) {
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
