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

mod socket;

use serde::{Deserialize, Serialize};

pub use self::socket::{
    ReceiveBuffer, Received, WireError, borrow_all, decode, prepare_socket, receive, send,
};
use crate::written::Units;

/// Version of the protocol; the two sides must agree exactly.
pub const PROTOCOL: u32 = 8;

/// Most bytes of an encoded message. Both sides raise their socket buffers to this size.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A file beside the topology that only the software device has, and that no directory lists. It says what executes
/// waves, one `key value` line each for `engine`, `cpu` (the vector extension in use), `cpu_best` (the highest that the
/// CPU has) and `workers`.
pub const ENGINE_FILE: &str = "softgpud/engine";

/// What the client has had its GPUs do so far, one `key value` line each for `dispatches` that were begun, `waves` that have ended,
/// `instructions` that they have executed, and `copied_bytes` of copy engines.
pub const COUNTS_FILE: &str = "softgpud/counts";

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
    /// Reads a topology file, [`ENGINE_FILE`], [`COUNTS_FILE`] or [`APERTURE_FILE`]; answered by [`Reply::Sysfs`].
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
