// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terms of a restore, for a copy that wakes up before its controller can give it an order.
//!
//! A restored copy finds out by itself that it is one and takes its device back at once; it may do so before `stasis
//! restore`, which had CRIU make it, gets to speak with it. So the controller has its terms ready beforehand, behind an
//! abstract socket, and the copy asks for them. Nobody there means plain `criu restore`.
//!
//! The names of that socket follow from a secret that the process draws when it is checkpointed: it keeps it in its
//! memory, and the manifest, which is as private as the images, has it too. A name is seen by others while a restore is
//! under way, but then it is taken; for those who take it afterwards, to hinder the next restore, there are more.
//!
//! INVARIANT: terms are told to the process they are meant for only, and taken from the process's own user or root only.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kfd::linux::{accept, poll, retry, set_nonblocking, set_receive_timeout};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, listen, recv, send,
};
use nix::unistd::geteuid;
use thiserror::Error;

use super::terms::Admission;
use crate::checkpoint::message::MAX_MESSAGE;
use crate::checkpoint::secret::TermsSecret;
use crate::linux::credentials::Peer;

/// TIMEOUT: a controller that has bound the socket answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// TIMEOUT: how long the queue of whoever has a name may be full.
const BUSY: Duration = Duration::from_millis(50);
/// How long a full queue is left alone.
const PAUSE: Duration = Duration::from_millis(2);
/// How many may wait to be told that the terms are not meant for them.
const BACKLOG: i32 = 32;

/// Where terms of process `pid` may be. Checkpoints of older programs have no secret, and one name.
fn names(pid: i32, secret: Option<&TermsSecret>) -> Vec<String> {
    match secret {
        Some(secret) => secret.names().collect(),
        None => vec![format!("stasis-terms.{pid}")],
    }
}

fn address(name: &str) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new_abstract(name.as_bytes())?)
}

/// Why terms cannot be held ready.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OfferError {
    /// Another restore of the same checkpoint is under way here.
    #[error("Process {controller} is restoring process {pid} already")]
    UnderWay {
        /// The process to be restored.
        pid: i32,
        /// The process that restores it.
        controller: i32,
    },
    /// The system refuses it.
    #[error("Cannot hold the terms of the restore ready for process {pid}")]
    System {
        /// The process to be restored.
        pid: i32,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// The process that holds this name, if it is a controller like us: of our user or root, in our pid namespace.
fn other_controller(name: &str) -> Option<i32> {
    let socket = socket(SockFlag::SOCK_NONBLOCK).ok()?;
    connect(socket.as_raw_fd(), &address(name).ok()?).ok()?;
    let peer = Peer::of(&socket).ok()?;
    let pid = peer.pid.filter(|_| peer.is_trusted_by(geteuid().as_raw()))?;
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let is_here =
        matches!((namespace("self"), namespace(&pid.to_string())), (Ok(own), Ok(its)) if own == its);
    is_here.then_some(pid)
}

fn socket(more: SockFlag) -> io::Result<OwnedFd> {
    let flags = more | SockFlag::SOCK_CLOEXEC;
    Ok(nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Terms held ready for a process about to be restored; withdrawn when dropped.
#[derive(Debug)]
pub struct TermsOffer {
    ended: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TermsOffer {
    /// Holds `terms` ready for the process that will have the pid `pid`, and whose checkpoint has this secret.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer(pid: i32, secret: Option<&TermsSecret>, terms: &Admission) -> Result<Self, OfferError> {
        let system = |source: io::Error| OfferError::System { pid, source };
        let mut taken = Ok(());
        for name in names(pid, secret) {
            let listener = socket(SockFlag::SOCK_NONBLOCK).map_err(system)?;
            let bound = address(&name).and_then(|address| Ok(bind(listener.as_raw_fd(), &address)?));
            match bound {
                Ok(()) => return Self::hold(listener, pid, terms).map_err(system),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken = Err(error),
                Err(error) => return Err(system(error)),
            }
            if let Some(controller) = other_controller(&name) {
                return Err(OfferError::UnderWay { pid, controller });
            }
        }
        Err(system(taken.err().unwrap_or_else(|| io::ErrorKind::AddrInUse.into())))
    }

    fn hold(listener: OwnedFd, pid: i32, terms: &Admission) -> io::Result<Self> {
        listen(&listener, Backlog::new(BACKLOG)?)?;
        let text = serde_json::to_vec(terms)?;
        let ended = Arc::new(OwnedFd::from(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?));
        let until = Arc::clone(&ended);
        let serve = move || serve(&listener, until.as_fd(), pid, &text);
        let thread = std::thread::Builder::new().name("stasis-terms".into()).spawn(serve)?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for TermsOffer {
    fn drop(&mut self) {
        // It fails only at 2^64 - 2 unread wake-ups, when it is readable in any case.
        let _ = nix::unistd::write(&self.ended, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &OwnedFd, ended: BorrowedFd<'_>, pid: i32, text: &[u8]) {
    loop {
        let mut fds = [listener.as_fd(), ended].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, None) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if fds[1].any().unwrap_or(true) {
            return;
        }
        let Ok(peer) = accept(listener) else { continue };
        let is_meant = Peer::of(&peer).is_ok_and(|who| who.pid == Some(pid));
        if is_meant {
            // The only failure is a peer that has ended.
            let _ = send(peer.as_raw_fd(), text, MsgFlags::MSG_NOSIGNAL);
        }
    }
}

/// A connection to whoever listens under this name, if somebody does and takes it.
fn connect_to(name: &str) -> io::Result<Option<OwnedFd>> {
    let socket = socket(SockFlag::SOCK_NONBLOCK)?;
    let until = Instant::now() + BUSY;
    loop {
        match connect(socket.as_raw_fd(), &address(name)?) {
            Ok(()) => break,
            // A controller's queue is short of places for a moment only; another's may be full for ever.
            Err(Errno::EAGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(Errno::EINTR) => {}
            Err(_) => return Ok(None),
        }
    }
    set_nonblocking(&socket, false)?;
    Ok(Some(socket))
}

/// The terms that a controller holds ready for this process, if one does.
///
/// # Errors
/// When a controller is there and its terms cannot be had or understood.
pub(super) fn ask_for_terms(secret: &TermsSecret) -> io::Result<Option<Admission>> {
    for name in secret.names() {
        let Some(socket) = connect_to(&name)? else { continue };
        let who = Peer::of(&socket)?;
        if !who.is_trusted_by(geteuid().as_raw()) {
            tracing::warn!(target: "checkpoint", uid = who.uid, "a foreign user's terms were not taken");
            continue;
        }
        set_receive_timeout(&socket, PATIENCE)?;
        let mut text = vec![0; MAX_MESSAGE];
        let length = retry(|| recv(socket.as_raw_fd(), &mut text, MsgFlags::empty()))?;
        // Else the controller has just ended, or means another copy, in another pid namespace.
        if length > 0 {
            return Ok(Some(serde_json::from_slice(&text[..length])?));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::checks::{Checks, Switch};
    use super::super::terms::Lazy;
    use super::*;

    #[test]
    fn terms_are_told_to_their_process_only_and_while_they_are_offered() {
        let own = nix::unistd::getpid().as_raw();
        let terms = Admission {
            checks: Checks::without(Switch::Numa),
            places: vec!["0=GPU-00000000000000a1".parse().unwrap()],
            allow_staged: true,
            lazy: Lazy::Asked,
            device: Some("soft:gfx1100*2".to_owned()),
            instance: Some("elsewhere".to_owned()),
        };
        let secret = TermsSecret::draw().unwrap();
        assert_ne!(secret, TermsSecret::draw().unwrap());
        assert_eq!(ask_for_terms(&secret).unwrap(), None);
        let offer = TermsOffer::offer(own, Some(&secret), &terms).unwrap();
        assert_eq!(ask_for_terms(&secret).unwrap().as_ref(), Some(&terms));
        assert_eq!(ask_for_terms(&secret).unwrap().as_ref(), Some(&terms), "a second attempt gets them too");
        let twice = TermsOffer::offer(own, Some(&secret), &terms).unwrap_err();
        assert!(matches!(twice, OfferError::UnderWay { controller, .. } if controller == own), "{twice}");
        drop(offer);
        assert_eq!(ask_for_terms(&secret).unwrap(), None);
        // Terms for another process are not for this one.
        let other = TermsOffer::offer(1, Some(&secret), &terms).unwrap();
        assert_eq!(ask_for_terms(&secret).unwrap(), None);
        drop(other);
    }

    #[test]
    fn names_that_were_seen_and_taken_are_passed_over() {
        let own = nix::unistd::getpid().as_raw();
        let (secret, terms) = (TermsSecret::draw().unwrap(), Admission::default());
        // Bound, and nobody listens: no controller, whoever it is.
        let taken: Vec<OwnedFd> = secret
            .names()
            .take(crate::checkpoint::secret::NAMES as usize - 1)
            .map(|name| {
                let socket = socket(SockFlag::empty()).unwrap();
                bind(socket.as_raw_fd(), &address(&name).unwrap()).unwrap();
                socket
            })
            .collect();
        // One lets its callers wait without end.
        listen(&taken[0], Backlog::new(0).unwrap()).unwrap();
        let seen = secret.names().next().unwrap();
        let _waiting = connect_to(&seen).unwrap().unwrap();
        assert!(connect_to(&seen).unwrap().is_none());
        let offer = TermsOffer::offer(own, Some(&secret), &terms).unwrap();
        assert_eq!(ask_for_terms(&secret).unwrap(), Some(terms.clone()));
        let full = TermsOffer::offer(own, Some(&secret), &terms);
        assert!(matches!(full, Err(OfferError::UnderWay { .. })), "{full:?}");
        drop((offer, taken));
        // An older checkpoint has one name.
        let first = TermsOffer::offer(own, None, &terms).unwrap();
        assert!(connect_to(&format!("stasis-terms.{own}")).unwrap().is_some());
        drop(first);
    }
}
