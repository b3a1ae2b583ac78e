// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terms of a restore, for a copy that wakes up before its controller can give it an order.
//!
//! A restored copy finds out by itself that it is one and takes its device back at once; it may do so before `stasis
//! restore`, which had CRIU make it, gets to speak with it. So the controller has its terms ready beforehand, behind an
//! abstract socket named after the pid, and the copy asks for them. Nobody there means plain `criu restore`.
//!
//! INVARIANT: terms are told to the process they are meant for only, and taken from the process's own user or root only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};

use super::Admission;
use crate::checkpoint::credentials::Peer;
use crate::checkpoint::protocol::MAX_MESSAGE;

/// TIMEOUT: a controller that has bound the socket answers at once.
const PATIENCE: Duration = Duration::from_secs(5);

fn address(pid: i32) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("stasis-terms.{pid}").as_bytes())?)
}

fn socket(more: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | more, None)?)
}

/// Terms held ready for a process about to be restored; withdrawn when dropped.
#[derive(Debug)]
pub struct Standing {
    ended: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Standing {
    /// Holds `terms` ready for the process that will have the pid `pid`.
    ///
    /// # Errors
    /// `EADDRINUSE` if another restore of that process is under way; otherwise as the system answers.
    pub fn offer(pid: i32, terms: &Admission) -> io::Result<Self> {
        let listener = socket(SocketFlags::NONBLOCK)?;
        bind(&listener, &address(pid)?)?;
        listen(&listener, 4)?;
        let text = serde_json::to_vec(terms)?;
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let until = Arc::clone(&ended);
        let serve = move || serve(&listener, until.as_fd(), pid, &text);
        let thread = std::thread::Builder::new().name("stasis-terms".into()).spawn(serve)?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // It fails only at 2^64 - 2 unread wake-ups, when it is readable in any case.
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &OwnedFd, ended: BorrowedFd<'_>, pid: i32, text: &[u8]) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(ended, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        let Ok(peer) = accept_with(listener, SocketFlags::CLOEXEC) else { continue };
        let is_meant = Peer::of(&peer).is_ok_and(|who| who.pid == Some(pid));
        if is_meant {
            // Who does not listen any more has ended.
            let _ = send(&peer, text, SendFlags::NOSIGNAL);
        }
    }
}

/// The terms that a controller holds ready for this process, if one does.
///
/// # Errors
/// When a controller is there and its terms cannot be had or understood.
pub(super) fn ask() -> io::Result<Option<Admission>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let socket = socket(SocketFlags::empty())?;
    match connect(&socket, &address(own)?) {
        Err(rustix::io::Errno::CONNREFUSED) => return Ok(None),
        outcome => outcome?,
    }
    let who = Peer::of(&socket)?;
    if !who.is_trusted_by(rustix::process::geteuid().as_raw()) {
        tracing::warn!(target: "checkpoint", uid = who.uid, "a foreign user's terms were not taken");
        return Ok(None);
    }
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    let mut text = vec![0; MAX_MESSAGE];
    let (length, _) = rustix::io::retry_on_intr(|| recv(&socket, &mut text[..], RecvFlags::empty()))?;
    if length == 0 {
        // The controller has just ended, or means another process of this name.
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&text[..length])?))
}

#[cfg(test)]
mod tests {
    use super::super::checks::{Checks, Switch};
    use super::*;

    #[test]
    fn terms_are_told_to_their_process_only_and_while_they_stand() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let terms = Admission {
            checks: Checks::without(Switch::Numa),
            places: vec!["0=GPU-00000000000000a1".parse().unwrap()],
            allow_staged: true,
            device: Some("soft:gfx1100*2".to_owned()),
            instance: Some("elsewhere".to_owned()),
        };
        // One test for all of it: the name is the process's.
        assert_eq!(ask().unwrap(), None);
        let standing = Standing::offer(own, &terms).unwrap();
        assert_eq!(ask().unwrap().as_ref(), Some(&terms));
        assert_eq!(ask().unwrap().as_ref(), Some(&terms), "a second attempt gets them too");
        let twice = Standing::offer(own, &terms).unwrap_err();
        assert_eq!(twice.raw_os_error(), Some(libc::EADDRINUSE));
        drop(standing);
        assert_eq!(ask().unwrap(), None);
        // Terms for another process are not for this one.
        let other = Standing::offer(1, &terms).unwrap();
        let stranger = socket(SocketFlags::empty()).unwrap();
        connect(&stranger, &address(1).unwrap()).unwrap();
        let (length, _) = recv(&stranger, &mut [0u8; 64][..], RecvFlags::empty()).unwrap();
        assert_eq!(length, 0);
        drop(other);
    }
}
