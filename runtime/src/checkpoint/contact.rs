// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a controller reaches the agent of a process: it leaves an invitation in the agent's inbox (`inbox.rs`), and
//! the agent comes.
//!
//! The controller listens under a name that nobody could know before, in the network namespace of the process, and takes
//! only the connection of that very process (`SO_PEERCRED`), whoever else may find the name. The agent looks at the
//! listener's credentials in the same way. From then on each has one end of a socket of the kind SEQPACKET.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kfd::linux::{self, pidfd_open, poll, set_nonblocking};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use super::inbox::{INVITATION, Message, NOTICE_BYTES, NOTICE_LINK, Notice};
use super::protocol::{CallError, Request};
use crate::linux::credentials::Peer;

/// How many strangers may wait in front of an agent; they are sent away at once.
const BACKLOG: i32 = 32;
/// After how long an agent that has not come is invited again: one that has more callers than it keeps forgets some.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a full inbox is left alone.
const PAUSE: Duration = Duration::from_millis(5);

/// The inbox of an agent, as a controller has it.
#[derive(Debug)]
pub struct Contact {
    pid: i32,
    /// Its write end, opened anew: nothing that is done to it is seen by the process.
    inbox: OwnedFd,
}

/// The pid of a process in its innermost pid namespace.
fn own_pid(directory: &Path) -> io::Result<i32> {
    let status = fs::read_to_string(directory.join("status"))?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_ascii_whitespace().next_back()?.parse().ok());
    own.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/status has no NSpid"))
}

/// Opens what a process has open, without waiting for anything.
fn open_again(path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    Ok(open(path, flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY, Mode::empty())?)
}

/// What a descriptor says, if it is an agent's notice.
fn notice(path: &Path) -> Option<Notice> {
    let is_one = fs::read_link(path).is_ok_and(|link| link.as_os_str() == NOTICE_LINK);
    if !is_one {
        return None;
    }
    let mut bytes = [0; NOTICE_BYTES];
    File::from(open_again(path, OFlag::O_RDONLY).ok()?).read_exact(&mut bytes).ok()?;
    Notice::decode(&bytes)
}

/// The write end of a pipe that some process has open.
fn pipe(path: &Path) -> Option<OwnedFd> {
    // Looked at before it is opened: opening a device may do something.
    let is_pipe =
        fs::read_link(path).is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"pipe:["));
    let is_pipe = is_pipe && fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    let opened = File::from(open_again(path, OFlag::O_WRONLY).ok().filter(|_| is_pipe)?);
    opened.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()).then(|| opened.into())
}

impl Contact {
    /// The inbox of the agent of `pid`; `None` if that has none, or is gone.
    ///
    /// # Errors
    /// When we may not look: only the process's own user may, and who is privileged.
    pub fn find(pid: i32) -> io::Result<Option<Self>> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let descriptors = directory.join("fd");
        let found = own_pid(&directory).and_then(|own| Ok((own, fs::read_dir(&descriptors)?)));
        let (own, entries) = match found {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            Err(_) => return Ok(None),
            Ok(found) => found,
        };
        let notices = entries.flatten().filter_map(|entry| notice(&entry.path()));
        let inbox = notices
            .filter(|notice| notice.owner == own)
            .find_map(|notice| pipe(&descriptors.join(notice.writer.to_string())));
        Ok(inbox.map(|inbox| Self { pid, inbox }))
    }

    /// The same of an inbox whose write end is at hand.
    #[must_use]
    pub fn of(pid: i32, inbox: OwnedFd) -> Self {
        Self { pid, inbox }
    }

    /// The process, as we know it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether nobody reads it any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(self.inbox.as_fd(), PollFlags::empty())];
        poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|count| count > 0)
    }

    fn write(&self, message: &Message) -> io::Result<()> {
        let text = message.encode()?;
        // Opened for reading too: a write to a pipe that nobody reads would end this process by SIGPIPE.
        let path = format!("/proc/self/fd/{}", self.inbox.as_raw_fd());
        let both = open_again(Path::new(&path), OFlag::O_RDWR)?;
        linux::retry(|| nix::unistd::write(&both, &text)).map(drop).map_err(Into::into)
    }

    /// Leaves an order with the agent, which need not run yet, and waits for nothing. It takes only [`Request::Resume`]
    /// in this way.
    ///
    /// # Errors
    /// `EAGAIN` if the inbox is full; the order is too long for it.
    pub fn leave(&self, order: &Request) -> io::Result<()> {
        self.write(&Message::Order(order.clone()))
    }
}

impl AsFd for Contact {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.as_fd()
    }
}

/// Where a controller waits for an agent.
#[derive(Debug)]
pub struct Invitation {
    listener: OwnedFd,
    name: String,
}

impl Invitation {
    /// Listens with this socket, of the process's network namespace, under a name that is drawn.
    ///
    /// # Errors
    /// As the system refuses random numbers or the name.
    pub fn on(socket: OwnedFd) -> io::Result<Self> {
        let name = format!("{INVITATION}{:032x}", u128::from_ne_bytes(linux::random()?));
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        set_nonblocking(&socket, true)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Self { listener: socket, name })
    }

    /// Invites an agent; whether there was room in its inbox.
    ///
    /// # Errors
    /// As the system answers.
    pub fn send(&self, to: &Contact) -> io::Result<bool> {
        self.leave(to, &Message::Invitation(self.name.clone()))
    }

    /// The same of an agent that is to answer only while its process runs.
    fn ask(&self, to: &Contact) -> io::Result<bool> {
        self.leave(to, &Message::Question(self.name.clone()))
    }

    fn leave(&self, to: &Contact, message: &Message) -> io::Result<bool> {
        match to.write(message) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// The connection of process `pid`, if it has come; others are sent away.
    ///
    /// # Errors
    /// As the system answers.
    pub fn accept(&self, pid: i32) -> io::Result<Option<OwnedFd>> {
        // Bounded: connections of other processes, however many, must not keep this from its deadline.
        for _ in 0..BACKLOG {
            match linux::accept(&self.listener) {
                Ok(peer) if Peer::of(&peer).is_ok_and(|who| who.pid == Some(pid)) => return Ok(Some(peer)),
                Ok(_) | Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

impl AsFd for Invitation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// A connection to whoever has invited an agent, and who that is.
pub(super) fn follow(name: &str) -> io::Result<(OwnedFd, Peer)> {
    if !name.starts_with(INVITATION) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no controller's name"));
    }
    let socket = socket(SockFlag::SOCK_NONBLOCK)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    let peer = Peer::of(&socket)?;
    Ok((socket, peer))
}

fn socket(flags: SockFlag) -> io::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    Ok(nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// A socket of the network namespace of process `pid`.
fn socket_beside(pid: i32) -> io::Result<OwnedFd> {
    let theirs = format!("/proc/{pid}/ns/net");
    let is_same = |own: PathBuf| fs::read_link(&theirs).is_ok_and(|theirs| theirs == own);
    if fs::read_link("/proc/thread-self/ns/net").is_ok_and(is_same) {
        return socket(SockFlag::empty());
    }
    // A namespace is a thread's.
    let make = move || {
        setns(File::open(theirs)?, CloneFlags::CLONE_NEWNET)?;
        socket(SockFlag::empty())
    };
    std::thread::scope(|scope| scope.spawn(make).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread that enters the namespace failed")))
}

/// Whether a process has an agent that can be looked for from here.
#[must_use]
pub fn has_agent(pid: i32) -> bool {
    matches!(Contact::find(pid), Ok(Some(_))) || matches!(by_name(pid), Ok(Some(_)))
}

/// A connection to the agent of `pid`, which is waited for until `deadline`.
///
/// # Errors
/// [`CallError`], but for those of an answer.
pub fn reach(pid: i32, deadline: Instant) -> Result<OwnedFd, CallError> {
    reach_by(pid, deadline, Invitation::send)
}

/// The same of an agent that comes only while its process runs.
///
/// # Errors
/// As for [`reach`].
pub(super) fn reach_running(pid: i32, deadline: Instant) -> Result<OwnedFd, CallError> {
    reach_by(pid, deadline, Invitation::ask)
}

fn reach_by(
    pid: i32,
    deadline: Instant,
    invite: impl Fn(&Invitation, &Contact) -> io::Result<bool>,
) -> Result<OwnedFd, CallError> {
    let started = Instant::now();
    let contact = match Contact::find(pid) {
        Ok(Some(contact)) => contact,
        Ok(None) => return by_name(pid)?.ok_or_else(|| no_agent(pid, Errno::ECONNREFUSED.into())),
        Err(source) => return Err(CallError::Denied { pid, source }),
    };
    let denied = |source: io::Error| CallError::Denied { pid, source };
    let invitation = socket_beside(pid).and_then(Invitation::on).map_err(denied)?;
    let process = pidfd_open(Pid::from_raw(pid)).ok();
    let mut invite_at = started;
    loop {
        let now = Instant::now();
        let waits = |source| CallError::NoAnswer { pid, waited: started.elapsed(), source };
        if let Some(peer) = invitation.accept(pid).map_err(waits)? {
            return Ok(peer);
        }
        if now >= deadline {
            return Err(waits(Errno::ETIMEDOUT.into()));
        }
        if now >= invite_at {
            let sent = invite(&invitation, &contact).map_err(|source| no_agent(pid, source))?;
            invite_at = now + if sent { AGAIN } else { PAUSE };
        }
        let mut fds = vec![
            PollFd::new(invitation.as_fd(), PollFlags::POLLIN),
            PollFd::new(contact.as_fd(), PollFlags::empty()),
        ];
        fds.extend(process.as_ref().map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)));
        let limit = invite_at.min(deadline).saturating_duration_since(Instant::now());
        let _ = poll(&mut fds, Some(limit));
        if fds[1..].iter().any(|fd| fd.any().unwrap_or(true)) {
            return Err(no_agent(pid, Errno::ECONNREFUSED.into()));
        }
    }
}

fn no_agent(pid: i32, source: io::Error) -> CallError {
    CallError::NoAgent { pid, source }
}

/// A connection to an agent that listens under a name, as those of programs do that were built, and perhaps
/// checkpointed, before there were inboxes; `None` if nobody does.
///
/// # Errors
/// [`CallError::Impostor`]: anybody can take a name of the abstract namespace.
fn by_name(pid: i32) -> Result<Option<OwnedFd>, CallError> {
    let connection = || -> io::Result<OwnedFd> {
        let socket = socket(SockFlag::SOCK_NONBLOCK)?;
        let name = format!("stasis-agent.{pid}");
        connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        set_nonblocking(&socket, false)?;
        Ok(socket)
    };
    let Ok(socket) = connection() else { return Ok(None) };
    let peer = Peer::of(&socket).map_err(|source| no_agent(pid, source))?;
    if peer.pid == Some(pid) { Ok(Some(socket)) } else { Err(CallError::Impostor { pid, uid: peer.uid }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::inbox::Inbox;

    fn own() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn inbox_is_found_while_it_is_there() {
        assert!(Contact::find(own()).unwrap().is_none());
        let inbox = Inbox::make().unwrap();
        let contact = Contact::find(own()).unwrap().unwrap();
        assert!(!contact.is_closed() && has_agent(own()));
        assert!(Contact::find(i32::MAX).unwrap().is_none());
        drop(inbox);
        assert!(contact.is_closed() && !has_agent(own()));
        assert!(contact.leave(&Request::Status).is_ok(), "no signal, whoever reads it");
    }

    #[test]
    fn agent_comes_where_it_is_invited_and_strangers_are_sent_away() {
        let mut inbox = Inbox::make().unwrap();
        let contact = Contact::of(own(), inbox.writer().try_clone_to_owned().unwrap());
        let invitation = Invitation::on(socket_beside(own()).unwrap()).unwrap();
        assert!(invitation.send(&contact).unwrap());
        let messages = inbox.take();
        let [Message::Invitation(name)] = &messages[..] else { panic!("{messages:?}") };
        assert!(invitation.accept(own()).unwrap().is_none());
        let (_agent, peer) = follow(name).unwrap();
        assert_eq!(peer.pid, Some(own()));
        // For an agent of another pid this process is a stranger.
        assert!(invitation.accept(own() + 1).unwrap().is_none());
        let (_agent, _) = follow(name).unwrap();
        assert!(invitation.accept(own()).unwrap().is_some());
        drop(invitation);
        assert!(follow(name).is_err(), "a controller that has gone is not followed");
        assert!(follow("somebody.else").is_err());
    }

    #[test]
    fn agent_that_does_not_come_is_waited_for_until_the_deadline() {
        let _inbox = Inbox::make().unwrap();
        let error = reach(own(), Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, CallError::NoAnswer { .. }), "{error}");
        let gone = reach(i32::MAX, Instant::now() + Duration::from_secs(60)).unwrap_err();
        assert!(matches!(gone, CallError::NoAgent { .. }), "{gone}");
    }

    #[test]
    fn end_of_the_process_or_of_its_agent_ends_the_wait() {
        let inbox = Inbox::make().unwrap();
        let waiting = std::thread::spawn(|| reach(own(), Instant::now() + Duration::from_secs(60)));
        let contact = Contact::find(own()).unwrap().unwrap();
        // Until it is invited.
        let is_empty = || {
            let mut fds = [PollFd::new(inbox.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, Some(Duration::ZERO)).unwrap() == 0
        };
        while is_empty() {
            std::thread::yield_now();
        }
        drop((contact, inbox));
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, CallError::NoAgent { .. }), "{error}");
    }
}
