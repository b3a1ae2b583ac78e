// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the agent of a process hears from controllers: a pipe of that process, which has no name.
//!
//! A name in a namespace that all users share could be taken by any of them before the agent takes it, or while the
//! process is frozen. A pipe can be taken by nobody, and CRIU dumps and restores it like any other. Controllers find it
//! in `/proc` ([`super::contact`]), by a small sealed memory file, the *notice*, which says who its owner is and which
//! descriptor is the pipe's write end:
//!
//! ```text
//! /proc/PID/fd/N -> /memfd:stasis-agent (deleted)    magic, version, PID as its process knows it, M
//! /proc/PID/fd/M -> pipe:[...]                       controllers write, the agent reads
//! ```
//!
//! Looking there takes the right to read the process's memory (`PTRACE_MODE_READ`): its own user's, or privilege.
//!
//! INVARIANT: nothing that is read here is trusted further than its writer: an invitation leads to a connection whose
//! peer the kernel names, and an order without a connection can only have the process run.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use kfd::linux::{SealFlag, memfd};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use serde::{Deserialize, Serialize};

use super::protocol::Request;

/// Name of the notice.
pub(super) const NOTICE_NAME: &str = "stasis-agent";
/// How links in `/proc/PID/fd` to a notice read.
pub const NOTICE_LINK: &str = "/memfd:stasis-agent (deleted)";
/// How the names of the sockets begin that controllers invite agents to.
pub const INVITATION: &str = "stasis-order.";

/// Length of a notice, bytes.
pub(super) const NOTICE_BYTES: usize = 28;
const NOTICE_MAGIC: &[u8; 16] = b"stasis agent\0\0\0\0";
const NOTICE_VERSION: u32 = 1;

/// What every message begins with; the length of what follows, as a little-endian u32, comes next.
const MESSAGE_MAGIC: &[u8; 4] = b"STS1";
const HEADER: usize = 8;
/// Longest message with its header: longer ones would not be written in one piece (`PIPE_BUF`).
const MOST: usize = 4096;
/// How much is read at a time: what a pipe holds.
const READ: usize = 64 << 10;

/// What a notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// The process, as it knows itself. A child that has inherited the notice has another pid.
    pub owner: i32,
    /// The descriptor of the inbox's write end.
    pub writer: i32,
}

impl Notice {
    fn encode(self) -> [u8; NOTICE_BYTES] {
        let mut bytes = [0; NOTICE_BYTES];
        let fields = [NOTICE_VERSION, self.owner.cast_unsigned(), self.writer.cast_unsigned()];
        bytes[..NOTICE_MAGIC.len()].copy_from_slice(NOTICE_MAGIC);
        for (slot, field) in bytes[NOTICE_MAGIC.len()..].chunks_exact_mut(4).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// `None`: it is none, or one of another version.
    pub fn decode(bytes: &[u8; NOTICE_BYTES]) -> Option<Self> {
        let fields = bytes.strip_prefix(NOTICE_MAGIC)?;
        let mut fields = fields.as_chunks().0.iter().map(|field| u32::from_le_bytes(*field));
        let (version, owner, writer) = (fields.next()?, fields.next()?, fields.next()?);
        (version == NOTICE_VERSION)
            .then_some(Self { owner: owner.cast_signed(), writer: writer.cast_signed() })
    }
}

/// What a controller says through the pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    /// The abstract name at which it waits, in the agent's network namespace.
    Invitation(String),
    /// The same of another process that asks for shared memory: it is not followed while this one is locked.
    Question(String),
    /// An order whose answer nobody waits for.
    Order(Request),
}

impl Message {
    /// As it is written, in one piece.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        let length = u32::try_from(text.len()).ok().filter(|_| HEADER + text.len() <= MOST);
        let length = length.ok_or_else(|| {
            let long = format!("the order is {} bytes long, an inbox takes {MOST}", text.len());
            io::Error::new(io::ErrorKind::InvalidInput, long)
        })?;
        Ok([&MESSAGE_MAGIC[..], &length.to_le_bytes(), &text].concat())
    }
}

/// The agent's end.
#[derive(Debug)]
pub struct Inbox {
    reader: OwnedFd,
    /// Kept open, so that there is something to find in `/proc`, and no end of file to read.
    writer: OwnedFd,
    _notice: File,
    /// The begin of a message whose rest was not read yet.
    rest: Vec<u8>,
}

impl Inbox {
    /// Makes the inbox of this process, and puts up its notice.
    ///
    /// # Errors
    /// As the system refuses a pipe or a memory file.
    pub fn make() -> io::Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let owner = nix::unistd::getpid().as_raw();
        let mut notice = File::from(memfd(NOTICE_NAME, 0, SealFlag::empty())?);
        notice.write_all(&Notice { owner, writer: writer.as_raw_fd() }.encode())?;
        notice.rewind()?;
        let fixed = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&notice, FcntlArg::F_ADD_SEALS(fixed | SealFlag::F_SEAL_SEAL))?;
        Ok(Self { reader, writer, _notice: notice, rest: Vec::new() })
    }

    /// The end that controllers open for themselves.
    #[must_use]
    pub fn writer(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }

    /// Everything that is there, each thing once. What is no message is skipped.
    pub(super) fn take(&mut self) -> Vec<Message> {
        let mut read = vec![0; READ];
        let length = match kfd::linux::retry(|| nix::unistd::read(&self.reader, &mut read)) {
            Ok(length) => length,
            // The only other end is our own: there is none.
            Err(Errno::EAGAIN) => 0,
            Err(error) => {
                tracing::warn!(target: "checkpoint", %error, "the agent's inbox cannot be read");
                0
            }
        };
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(&read[..length]);
        // Each message is written in one piece, so only a read that was full can have cut one.
        let (messages, rest) = split(&bytes);
        if length == READ {
            self.rest = rest.to_vec();
        }
        messages
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// The messages among these bytes, each once, and an incomplete one at their end.
fn split(mut bytes: &[u8]) -> (Vec<Message>, &[u8]) {
    let mut messages = Vec::new();
    while let Some(at) = bytes.windows(MESSAGE_MAGIC.len()).position(|window| window == MESSAGE_MAGIC) {
        bytes = &bytes[at..];
        let Some((header, after)) = bytes.split_first_chunk::<HEADER>() else { break };
        let [_, _, _, _, length @ ..] = *header;
        let length = u32::from_le_bytes(length) as usize;
        let message = match after.get(..length) {
            Some(text) if length <= MOST - HEADER => serde_json::from_slice::<Message>(text).ok(),
            None if length <= MOST - HEADER => break,
            _ => None,
        };
        let Some(message) = message else {
            // Another one may begin inside of what only looked like one.
            bytes = &bytes[MESSAGE_MAGIC.len()..];
            continue;
        };
        bytes = &after[length..];
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    (messages, &bytes[bytes.len().saturating_sub(MOST)..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use crate::checkpoint::contact::has_agent;

    fn invitation(name: &str) -> Message {
        Message::Invitation(name.to_owned())
    }

    fn order() -> Message {
        Message::Order(Request::Resume { directory: Some("/moved".into()), admission: None })
    }

    #[test]
    fn notice_says_who_and_where_and_cannot_be_changed() {
        let inbox = Inbox::make().unwrap();
        let mut bytes = [0; NOTICE_BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&inbox._notice, &mut bytes, 0).unwrap();
        let owner = std::process::id().cast_signed();
        assert_eq!(Notice::decode(&bytes), Some(Notice { owner, writer: inbox.writer.as_raw_fd() }));
        let path = format!("/proc/self/fd/{}", inbox._notice.as_raw_fd());
        assert_eq!(std::fs::read_link(&path).unwrap().to_str(), Some(NOTICE_LINK));
        assert!(std::fs::write(&path, b"something else").is_err());
        bytes[16] += 1;
        assert_eq!(Notice::decode(&bytes), None, "of another version");
        assert_eq!(Notice::decode(&[0; NOTICE_BYTES]), None);
    }

    #[test]
    fn child_that_has_inherited_the_inbox_has_no_agent() {
        let inbox = Inbox::make().unwrap();
        for fd in [inbox._notice.as_fd(), inbox.reader.as_fd(), inbox.writer.as_fd()] {
            kfd::linux::set_close_on_exec(fd, false).unwrap();
        }
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let inherited = format!("/proc/{pid}/fd/{}", inbox._notice.as_raw_fd());
        assert_eq!(std::fs::read_link(inherited).unwrap().to_str(), Some(NOTICE_LINK));
        assert!(has_agent(std::process::id().cast_signed()) && !has_agent(pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn messages_are_taken_in_order_and_once() {
        let mut inbox = Inbox::make().unwrap();
        assert_eq!(inbox.take(), []);
        for message in [invitation("a"), order(), invitation("a"), invitation("b")] {
            nix::unistd::write(inbox.writer(), &message.encode().unwrap()).unwrap();
        }
        assert_eq!(inbox.take(), [invitation("a"), order(), invitation("b")]);
        assert_eq!(inbox.take(), []);
    }

    #[test]
    fn noise_hides_no_message_that_follows_it() {
        let message = invitation("x").encode().unwrap();
        let (long, unknown) = ([&MESSAGE_MAGIC[..], &[0xff; 4]].concat(), b"STS1\x02\0\0\0{}");
        for noise in [&b"STS"[..], b"\0\0", &long, unknown, b"STS1\x01\0\0\0", &[b'x'; 5000]] {
            let mut inbox = Inbox::make().unwrap();
            for bytes in [noise, &message] {
                nix::unistd::write(inbox.writer(), bytes).unwrap();
            }
            assert_eq!(inbox.take(), [invitation("x")], "{noise:?}");
        }
        // What looks like the begin of a message, and is none, is forgotten with the read that it ended.
        let mut inbox = Inbox::make().unwrap();
        nix::unistd::write(inbox.writer(), b"STS1\xff\x0f\0\0").unwrap();
        assert_eq!(inbox.take(), []);
        nix::unistd::write(inbox.writer(), &message).unwrap();
        assert_eq!(inbox.take(), [invitation("x")]);
    }

    #[test]
    fn full_pipe_is_read_to_its_last_message() {
        let mut inbox = Inbox::make().unwrap();
        let names = (0..).map(|n| format!("{n:->1999}"));
        let mut written = Vec::new();
        for name in names {
            if nix::unistd::write(inbox.writer(), &invitation(&name).encode().unwrap()).is_err() {
                break;
            }
            written.push(invitation(&name));
        }
        let mut taken = inbox.take();
        taken.extend(inbox.take());
        assert_eq!(taken, written);
        assert!(taken.len() > 16);
    }

    #[test]
    fn order_that_would_be_torn_is_refused() {
        let directory = Some(PathBuf::from("/".repeat(5000)));
        let error = Message::Order(Request::Resume { directory, admission: None }).encode().unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
    }
}
