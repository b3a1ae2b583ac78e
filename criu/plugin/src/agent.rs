// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders to the agents of several processes at once, from a single thread.
//!
//! INVARIANT: whoever answers is the process itself: a name in the abstract namespace can be taken by anybody, so the
//! listener's pid is compared. An answer is taken only after the agent has closed its end, for CRIU dumps no half of a
//! connection. No wait is without limit.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use serde::de::IgnoredAny;
use stasis::checkpoint::protocol::{MAX_MESSAGE, socket_name};
use stasis::checkpoint::{Peer, Request, State};
use thiserror::Error;

use crate::process::{Process, proc_directory};

/// TIMEOUT: how long an agent's queue of connections may be full.
const CONNECT: Duration = Duration::from_secs(5);
/// TIMEOUT: how long an agent that has answered may take to close its end.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a full queue is left alone.
const PAUSE: Duration = Duration::from_millis(2);

/// Why an agent did not do what it was told.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum AgentError {
    #[error(
        "The agent socket of process {pid} is held by process {listener} (0: one that is not to be seen)"
    )]
    Impostor { pid: i32, listener: i32 },
    #[error("Cannot enter the network namespace of process {pid} to speak with its agent")]
    Enter {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("Cannot return from the network namespace of process {pid}: criu must not go on")]
    Return {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("Cannot give the agent of process {pid} an order")]
    Order {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error(
        "The agent of process {pid} has not answered within {waited_ms} ms: is the process stopped or frozen?"
    )]
    Silent { pid: i32, waited_ms: u128 },
    #[error("The agent of process {pid} gave an answer of another version")]
    Answer {
        pid: i32,
        #[source]
        source: serde_json::Error,
    },
    #[error("The agent of process {pid} is {state} and says: {message}")]
    Refused { pid: i32, state: State, message: String },
}

/// The part of [`stasis::checkpoint::Reply`] that matters here; the rest may differ between our version and theirs.
#[derive(Deserialize)]
struct Reply {
    state: State,
    done: Result<IgnoredAny, String>,
}

/// An order under way.
#[derive(Debug)]
pub(crate) struct Call<'p> {
    process: &'p Process,
    socket: OwnedFd,
    since: Instant,
}

/// What became of an order: the state of its process after it.
pub(crate) type Outcome = Result<State, AgentError>;

/// A socket of the process's network namespace.
pub(crate) fn socket_of(process: &Process) -> Result<OwnedFd, AgentError> {
    let pid = process.pid;
    let make = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| AgentError::Order { pid, source: error.into() })
    };
    if !process.is_elsewhere {
        return make();
    }
    // CRIU has one thread, and goes to and fro between namespaces itself.
    let enter = |source: io::Error| AgentError::Enter { pid, source };
    let own = File::open("/proc/thread-self/ns/net").map_err(enter)?;
    let theirs = File::open(proc_directory(pid).join("ns/net")).map_err(enter)?;
    move_into_link_name_space(theirs.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| enter(e.into()))?;
    let made = make();
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| AgentError::Return { pid, source: error.into() })?;
    made
}

/// Connects, waiting for at most `patience` for a place in the agent's queue.
fn connect_to(process: &Process, patience: Duration) -> Result<OwnedFd, AgentError> {
    let order = |error: Errno| AgentError::Order { pid: process.pid, source: error.into() };
    let socket = socket_of(process)?;
    let address = SocketAddrUnix::new_abstract_name(&socket_name(process.own_pid)).map_err(order)?;
    let until = Instant::now() + patience;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            Err(error) => return Err(order(error)),
        }
    }
}

fn say(process: &Process, socket: &OwnedFd, request: &Request) -> Result<(), AgentError> {
    let order = |source: io::Error| AgentError::Order { pid: process.pid, source };
    let text = serde_json::to_vec(request).map_err(|error| order(error.into()))?;
    rustix::io::retry_on_intr(|| send(socket, &text, SendFlags::NOSIGNAL)).map_err(|e| order(e.into()))?;
    Ok(())
}

/// Gives an agent an order; [`answers`] waits for what comes of it.
pub(crate) fn call<'p>(process: &'p Process, request: &Request) -> Result<Call<'p>, AgentError> {
    let pid = process.pid;
    let socket = connect_to(process, CONNECT)?;
    let listener = Peer::of(&socket).map_err(|source| AgentError::Order { pid, source })?.pid.unwrap_or(0);
    if listener != pid {
        return Err(AgentError::Impostor { pid, listener });
    }
    say(process, &socket, request)?;
    Ok(Call { process, socket, since: Instant::now() })
}

/// Leaves an order with an agent that does not run yet, and waits for nothing.
pub(crate) fn leave(process: &Process, request: &Request) -> Result<(), AgentError> {
    say(process, &connect_to(process, Duration::ZERO)?, request)
}

/// Waits for all answers, or until `stop` finds one that makes the others needless: these orders are then taken back,
/// for an agent whose controller hangs up gives up.
pub(crate) fn answers<'p>(
    calls: Vec<Call<'p>>,
    patience: Duration,
    stop: impl Fn(&Outcome) -> bool,
) -> Vec<(&'p Process, Outcome)> {
    let (mut waiting, mut answered) = (calls, Vec::new());
    let until = Instant::now() + patience;
    while !waiting.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            answered.extend(waiting.drain(..).map(|call| (call.process, Err(call.silent()))));
            break;
        }
        for index in readable(&waiting, left).into_iter().rev() {
            let call = waiting.swap_remove(index);
            let outcome = call.take();
            let stops = stop(&outcome);
            answered.push((call.process, outcome));
            if stops {
                return answered;
            }
        }
    }
    answered
}

fn readable(calls: &[Call<'_>], limit: Duration) -> Vec<usize> {
    let mut fds: Vec<_> = calls.iter().map(|call| PollFd::new(&call.socket, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).ok();
    // A signal is no answer; the caller looks at its clock and comes again.
    let count = poll(&mut fds, limit.as_ref()).unwrap_or(0);
    let is_ready = |fd: &PollFd<'_>| count > 0 && !fd.revents().is_empty();
    fds.iter().enumerate().filter(|(_, fd)| is_ready(fd)).map(|(index, _)| index).collect()
}

impl<'p> Call<'p> {
    /// Whom the order is for.
    pub fn process(&self) -> &'p Process {
        self.process
    }

    fn silent(&self) -> AgentError {
        AgentError::Silent { pid: self.process.pid, waited_ms: self.since.elapsed().as_millis() }
    }

    /// The answer that has come.
    fn take(&self) -> Outcome {
        let pid = self.process.pid;
        let order = |source: io::Error| AgentError::Order { pid, source };
        let mut message = vec![0; MAX_MESSAGE];
        let received = rustix::io::retry_on_intr(|| recv(&self.socket, &mut message[..], RecvFlags::empty()));
        let (length, _) = received.map_err(|error| order(error.into()))?;
        if length == 0 {
            // It ended, or was killed.
            return Err(order(io::ErrorKind::UnexpectedEof.into()));
        }
        self.wait_for_its_end()?;
        let reply: Reply = serde_json::from_slice(message.get(..length).unwrap_or_default())
            .map_err(|source| AgentError::Answer { pid, source })?;
        match reply.done {
            Ok(_) => Ok(reply.state),
            Err(message) => Err(AgentError::Refused { pid, state: reply.state, message }),
        }
    }

    fn wait_for_its_end(&self) -> Result<(), AgentError> {
        let until = Instant::now() + FAREWELL;
        loop {
            match recv(&self.socket, &mut [0u8; 1][..], RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(()),
                _ if Instant::now() >= until => return Err(self.silent()),
                _ => {
                    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::thread::JoinHandle;

    use rustix::net::{accept, bind, listen};

    /// A process of ours with an agent that answers each connection with the next of these words, and hangs up.
    fn agent(words: &'static [&'static str]) -> (Process, JoinHandle<Vec<String>>) {
        // Names of processes that cannot exist, so that none is disturbed.
        static NEXT: AtomicI32 = AtomicI32::new(1 << 24);
        let own_pid = NEXT.fetch_add(1, Ordering::Relaxed) + (std::process::id() << 8).cast_signed();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new_abstract_name(&socket_name(own_pid)).unwrap()).unwrap();
        listen(&socket, 4).unwrap();
        let served = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for answer in words {
                let peer = accept(&socket).unwrap();
                let mut message = [0; 4096];
                let (length, _) = recv(&peer, &mut message[..], RecvFlags::empty()).unwrap();
                heard.push(String::from_utf8(message[..length].to_vec()).unwrap());
                if *answer == "wait" {
                    // Until the controller hangs up.
                    assert_eq!(recv(&peer, &mut message[..], RecvFlags::empty()).unwrap().0, 0);
                } else if !answer.is_empty() {
                    let _ = send(&peer, answer.as_bytes(), SendFlags::NOSIGNAL);
                }
            }
            heard
        });
        let pid = std::process::id().cast_signed();
        (Process { pid, own_pid, uid: 0, gid: 0, is_elsewhere: false }, served)
    }

    const RUNNING: &str = r#"{"state":"running","done":{"Ok":{"some-later-answer":{"x":[1]}}}}"#;
    const REFUSED: &str = r#"{"state":"running","done":{"Err":"a kernel is late"}}"#;
    const LONG: Duration = Duration::from_secs(60);

    fn only(answered: Vec<(&Process, Outcome)>) -> Outcome {
        assert_eq!(answered.len(), 1);
        answered.into_iter().next().unwrap().1
    }

    #[test]
    fn answers_of_several_agents_are_collected() {
        let (one, served_one) = agent(&[RUNNING]);
        let (other, served_other) = agent(&[REFUSED]);
        let calls = [&one, &other].map(|process| call(process, &Request::Status).unwrap());
        let mut answered = answers(calls.into(), LONG, |_| false);
        answered.sort_by_key(|(process, _)| process.own_pid);
        assert!(matches!(answered[0].1, Ok(State::Running)), "{answered:?}");
        let error = answered[1].1.as_ref().unwrap_err().to_string();
        assert!(error.contains("running") && error.contains("a kernel is late"), "{error}");
        assert_eq!(served_one.join().unwrap(), ["\"status\""]);
        served_other.join().unwrap();
    }

    #[test]
    fn first_failure_takes_the_other_orders_back() {
        let (slow, served_slow) = agent(&["wait"]);
        let (failing, served_failing) = agent(&[REFUSED]);
        let calls = [&slow, &failing].map(|process| call(process, &Request::Status).unwrap());
        let answered = answers(calls.into(), LONG, Result::is_err);
        assert!(matches!(only(answered), Err(AgentError::Refused { state: State::Running, .. })));
        served_slow.join().unwrap();
        served_failing.join().unwrap();
    }

    #[test]
    fn agent_that_ends_babbles_or_says_nothing_is_an_error_in_time() {
        let (process, served) = agent(&["", "babble", "wait"]);
        let ask =
            |patience| only(answers(vec![call(&process, &Request::Status).unwrap()], patience, |_| false));
        assert!(matches!(ask(LONG), Err(AgentError::Order { .. })));
        assert!(matches!(ask(LONG), Err(AgentError::Answer { .. })));
        assert!(matches!(ask(Duration::from_millis(20)), Err(AgentError::Silent { .. })));
        served.join().unwrap();
        assert!(matches!(call(&process, &Request::Status), Err(AgentError::Order { .. })));
    }

    #[test]
    fn listener_of_another_pid_gets_nothing() {
        let (process, served) = agent(&[RUNNING]);
        let impostor = Process { pid: process.pid + 1, ..process.clone() };
        assert!(matches!(call(&impostor, &Request::Status), Err(AgentError::Impostor { .. })));
        // It was connected to and hung up on.
        assert_eq!(served.join().unwrap(), [""]);
    }

    #[test]
    fn order_can_be_left_with_an_agent_that_does_not_run_yet() {
        let own_pid = i32::MAX - std::process::id().cast_signed();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new_abstract_name(&socket_name(own_pid)).unwrap()).unwrap();
        listen(&socket, 0).unwrap();
        let process = Process { pid: 1, own_pid, uid: 0, gid: 0, is_elsewhere: false };
        let order = Request::Resume { directory: Some("/moved".into()), admission: None };
        leave(&process, &order).unwrap();
        // A queue that is full is not waited for.
        while leave(&process, &order).is_ok() {}
        let mut message = [0; 4096];
        let (length, _) = recv(accept(&socket).unwrap(), &mut message[..], RecvFlags::empty()).unwrap();
        assert_eq!(serde_json::from_slice::<Request>(&message[..length]).unwrap(), order);
    }
}
