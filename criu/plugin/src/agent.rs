// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders to the agents of several processes at once, from a single thread.
//!
//! INVARIANT: an answer comes from the process itself, for no other process's connection is accepted. An answer is
//! taken only after the agent has closed its end, for CRIU does not dump one end of a connection. Every wait has a time
//! limit.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use kfd::linux::{poll, retry, set_nonblocking};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socket};
use serde::Deserialize;
use serde::de::IgnoredAny;
use stasis::checkpoint::contact::{Contact, Invitation};
use stasis::checkpoint::protocol::MAX_MESSAGE;
use stasis::checkpoint::{Request, State};
use thiserror::Error;

use crate::network::{NetworkError, within};
use crate::process::Process;

/// TIMEOUT: how long an agent's inbox may be full.
const INVITE: Duration = Duration::from_secs(5);
/// After how long agents that have not connected are invited again.
const AGAIN: Duration = Duration::from_secs(1);
/// TIMEOUT: how long an agent that has answered may take to close its end.
const FAREWELL: Duration = Duration::from_secs(5);
/// The pause before the next try to write into a full inbox.
const PAUSE: Duration = Duration::from_millis(2);

/// Why an agent did not carry out an order.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum AgentError {
    #[error(transparent)]
    Network(#[from] NetworkError),
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
    #[error("The agent of process {pid} answered in the protocol of another version")]
    Answer {
        pid: i32,
        #[source]
        source: serde_json::Error,
    },
    #[error("The agent of process {pid} is {state} and says: {message}")]
    Refused { pid: i32, state: State, message: String },
}

/// The part of [`stasis::checkpoint::Reply`] that the plugin reads; the rest may differ between the plugin's version
/// and the agent's.
#[derive(Deserialize)]
struct Reply {
    state: State,
    done: Result<IgnoredAny, String>,
}

/// A pending order.
#[derive(Debug)]
pub(crate) struct Call<'p> {
    process: &'p Process,
    order: Vec<u8>,
    stage: Stage,
    since: Instant,
}

/// The stage of a pending order.
#[derive(Debug)]
enum Stage {
    /// The agent has been invited to connect.
    Invited(Invitation, Contact),
    /// The agent has received the order.
    Given(OwnedFd),
}

/// The result of an order: the state of the process after it.
pub(crate) type Outcome = Result<State, AgentError>;

/// A socket of the process's network namespace.
pub(crate) fn socket_of(process: &Process) -> Result<OwnedFd, AgentError> {
    let pid = process.pid;
    let make = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(|error| AgentError::Order { pid, source: error.into() })
    };
    within(pid, make)?
}

/// The inbox of the process's agent.
fn contact(process: &Process) -> io::Result<Contact> {
    Contact::find(process.pid)?.ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
}

/// Invites an agent to take an order; [`answers`] waits for the answer.
pub(crate) fn call<'p>(process: &'p Process, request: &Request) -> Result<Call<'p>, AgentError> {
    let order = |source: io::Error| AgentError::Order { pid: process.pid, source };
    call_by(contact(process).map_err(order)?, process, request)
}

/// The same for an inbox that the caller has.
fn call_by<'p>(contact: Contact, process: &'p Process, request: &Request) -> Result<Call<'p>, AgentError> {
    let order = |source: io::Error| AgentError::Order { pid: process.pid, source };
    let invitation = Invitation::on(socket_of(process)?).map_err(order)?;
    let until = Instant::now() + INVITE;
    while !invitation.send(&contact).map_err(order)? {
        if Instant::now() >= until {
            return Err(order(Errno::EAGAIN.into()));
        }
        std::thread::sleep(PAUSE);
    }
    let text = serde_json::to_vec(request).map_err(|error| order(error.into()))?;
    Ok(Call { process, order: text, stage: Stage::Invited(invitation, contact), since: Instant::now() })
}

/// Leaves an order in the inbox of an agent that does not run yet, without waiting.
pub(crate) fn leave(process: &Process, request: &Request) -> Result<(), AgentError> {
    let left = contact(process).and_then(|contact| contact.leave(request));
    left.map_err(|source| AgentError::Order { pid: process.pid, source })
}

/// Waits for all answers, or until `stop` accepts one of them. The other orders are then cancelled: an agent gives up
/// when its controller closes the connection.
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
        let ready = readable(&waiting, left.min(AGAIN));
        if ready.is_empty() {
            waiting.iter().for_each(Call::invite_again);
        }
        for index in ready.into_iter().rev() {
            let Some(outcome) = waiting.get_mut(index).and_then(Call::advance) else { continue };
            let call = waiting.swap_remove(index);
            let stops = stop(&outcome);
            answered.push((call.process, outcome));
            if stops {
                return answered;
            }
        }
    }
    answered
}

/// The calls that can go on, in order.
fn readable(calls: &[Call<'_>], limit: Duration) -> Vec<usize> {
    let (mut fds, mut owners) = (Vec::new(), Vec::new());
    for (index, call) in calls.iter().enumerate() {
        match &call.stage {
            Stage::Invited(invitation, contact) => {
                // No events are asked for: poll(2) only reports that no process reads the inbox any more.
                fds.extend([
                    PollFd::new(invitation.as_fd(), PollFlags::POLLIN),
                    PollFd::new(contact.as_fd(), PollFlags::empty()),
                ]);
                owners.extend([index, index]);
            }
            Stage::Given(socket) => {
                fds.push(PollFd::new(socket.as_fd(), PollFlags::POLLIN));
                owners.push(index);
            }
        }
    }
    // After a signal the caller looks at the clock and calls again.
    let count = poll(&mut fds, Some(limit)).unwrap_or(0);
    // `None`: events that nix does not know.
    let is_ready = |fd: &PollFd<'_>| count > 0 && fd.any().unwrap_or(true);
    let ready = fds.iter().zip(owners).filter(|(fd, _)| is_ready(fd)).map(|(_, owner)| owner);
    let mut ready: Vec<usize> = ready.collect();
    ready.dedup();
    ready
}

impl<'p> Call<'p> {
    /// The process that the order is for.
    pub fn process(&self) -> &'p Process {
        self.process
    }

    fn silent(&self) -> AgentError {
        AgentError::Silent { pid: self.process.pid, waited_ms: self.since.elapsed().as_millis() }
    }

    fn order_error(&self, source: impl Into<io::Error>) -> AgentError {
        AgentError::Order { pid: self.process.pid, source: source.into() }
    }

    fn invite_again(&self) {
        if let Stage::Invited(invitation, contact) = &self.stage {
            // A full inbox holds an invitation already.
            let _ = invitation.send(contact);
        }
    }

    /// Does what can be done without waiting. Returns the outcome, if there is one.
    fn advance(&mut self) -> Option<Outcome> {
        match &self.stage {
            Stage::Invited(invitation, contact) => {
                match invitation.accept(self.process.pid) {
                    Err(error) => Some(Err(self.order_error(error))),
                    Ok(None) if contact.is_closed() => {
                        // It ended, or was killed.
                        Some(Err(self.order_error(io::ErrorKind::UnexpectedEof)))
                    }
                    Ok(None) => None,
                    Ok(Some(socket)) => {
                        let fd = socket.as_raw_fd();
                        let sent = set_nonblocking(&socket, true)
                            .and_then(|()| retry(|| send(fd, &self.order, MsgFlags::MSG_NOSIGNAL)));
                        self.stage = Stage::Given(socket);
                        sent.err().map(|error| Err(self.order_error(error)))
                    }
                }
            }
            Stage::Given(socket) => Some(self.take(socket)),
        }
    }

    /// Reads the answer that has arrived.
    fn take(&self, socket: &OwnedFd) -> Outcome {
        let pid = self.process.pid;
        let order = |source: io::Error| AgentError::Order { pid, source };
        let mut message = vec![0; MAX_MESSAGE];
        let received = retry(|| recv(socket.as_raw_fd(), &mut message, MsgFlags::empty()));
        let length = received.map_err(|error| order(error.into()))?;
        if length == 0 {
            // It ended, or was killed.
            return Err(order(io::ErrorKind::UnexpectedEof.into()));
        }
        self.wait_for_its_end(socket)?;
        let reply: Reply = serde_json::from_slice(message.get(..length).unwrap_or_default())
            .map_err(|source| AgentError::Answer { pid, source })?;
        match reply.done {
            Ok(_) => Ok(reply.state),
            Err(message) => Err(AgentError::Refused { pid, state: reply.state, message }),
        }
    }

    fn wait_for_its_end(&self, socket: &OwnedFd) -> Result<(), AgentError> {
        let until = Instant::now() + FAREWELL;
        loop {
            match recv(socket.as_raw_fd(), &mut [0u8; 1], MsgFlags::empty()) {
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(()),
                _ if Instant::now() >= until => return Err(self.silent()),
                _ => {
                    let left = until.saturating_duration_since(Instant::now());
                    let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], Some(left));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::JoinHandle;

    use nix::poll::{PollTimeout, poll};
    use nix::sys::socket::{UnixAddr, connect};
    use stasis::checkpoint::Inbox;

    /// This process, which has several agents in these tests.
    fn process() -> Process {
        let pid = std::process::id().cast_signed();
        Process { pid, own_pid: pid, uid: 0, gid: 0 }
    }

    /// What is in an inbox, as text.
    fn read(inbox: &Inbox) -> String {
        let mut text = vec![0; 4096];
        let length = loop {
            poll(&mut [PollFd::new(inbox.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
            if let Ok(length) = nix::unistd::read(inbox, &mut text) {
                break length;
            }
        };
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    /// A connection to the controller that has invited the owner of this inbox.
    fn come(inbox: &Inbox) -> OwnedFd {
        let text = read(inbox);
        let at = text.find("stasis-order.").expect("an invitation");
        let name = &text[at..text[at..].find('"').map_or(text.len(), |end| at + end)];
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        socket
    }

    /// An agent that answers each order with the next of these words and closes the connection. Returns its inbox.
    fn agent(words: &'static [&'static str]) -> (OwnedFd, JoinHandle<Vec<String>>) {
        let inbox = Inbox::make().unwrap();
        let writer = inbox.writer().try_clone_to_owned().unwrap();
        let served = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for answer in words {
                let peer = come(&inbox);
                let mut message = [0; 4096];
                let length = recv(peer.as_raw_fd(), &mut message, MsgFlags::empty()).unwrap();
                heard.push(String::from_utf8(message[..length].to_vec()).unwrap());
                if *answer == "wait" {
                    // Until the controller closes the connection.
                    assert_eq!(recv(peer.as_raw_fd(), &mut message, MsgFlags::empty()).unwrap(), 0);
                } else if !answer.is_empty() {
                    let _ = send(peer.as_raw_fd(), answer.as_bytes(), MsgFlags::MSG_NOSIGNAL);
                }
            }
            heard
        });
        (writer, served)
    }

    const RUNNING: &str = r#"{"state":"running","done":{"Ok":{"some-later-answer":{"x":[1]}}}}"#;
    const REFUSED: &str = r#"{"state":"running","done":{"Err":"a kernel is late"}}"#;
    const LONG: Duration = Duration::from_secs(60);

    fn ask<'p>(process: &'p Process, inbox: &OwnedFd) -> Call<'p> {
        let contact = Contact::of(process.pid, inbox.try_clone().unwrap());
        call_by(contact, process, &Request::Status).unwrap()
    }

    fn only(answered: Vec<(&Process, Outcome)>) -> Outcome {
        assert_eq!(answered.len(), 1);
        answered.into_iter().next().unwrap().1
    }

    #[test]
    fn answers_of_several_agents_are_collected() {
        let (one, served_one) = agent(&[RUNNING]);
        let (other, served_other) = agent(&[REFUSED]);
        let processes = [process(), Process { own_pid: 1, ..process() }];
        let calls = vec![ask(&processes[0], &one), ask(&processes[1], &other)];
        let mut answered = answers(calls, LONG, |_| false);
        answered.sort_by_key(|(process, _)| process.own_pid == 1);
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
        let process = process();
        let mut slow = ask(&process, &slow);
        // The slow agent has its order before the other agent fails.
        while matches!(slow.stage, Stage::Invited(..)) {
            assert!(slow.advance().is_none());
        }
        let answered = answers(vec![slow, ask(&process, &failing)], LONG, Result::is_err);
        assert!(matches!(only(answered), Err(AgentError::Refused { state: State::Running, .. })));
        served_slow.join().unwrap();
        served_failing.join().unwrap();
    }

    #[test]
    fn agent_that_ends_babbles_or_says_nothing_is_an_error_in_time() {
        let (inbox, served) = agent(&["", "babble"]);
        let process = process();
        let ask = |patience| only(answers(vec![ask(&process, &inbox)], patience, |_| false));
        assert!(matches!(ask(LONG), Err(AgentError::Order { .. })));
        assert!(matches!(ask(LONG), Err(AgentError::Answer { .. })));
        served.join().unwrap();
        // The inbox ended with its agent.
        assert!(matches!(ask(LONG), Err(AgentError::Order { .. })));
        let silent = Inbox::make().unwrap();
        let call = call(&process, &Request::Status).unwrap();
        let outcome = only(answers(vec![call], Duration::from_millis(20), |_| false));
        assert!(matches!(outcome, Err(AgentError::Silent { .. })), "{outcome:?}");
        drop(silent);
        assert!(matches!(super::call(&process, &Request::Status), Err(AgentError::Order { .. })));
    }

    #[test]
    fn whoever_else_comes_gets_nothing() {
        let inbox = Inbox::make().unwrap();
        let writer = inbox.writer().try_clone_to_owned().unwrap();
        // For an agent of another pid, one that lives, this process is a stranger.
        let other = Process { pid: nix::unistd::getppid().as_raw(), ..process() };
        let call = ask(&other, &writer);
        let stranger = come(&inbox);
        let outcome = only(answers(vec![call], Duration::from_millis(20), |_| false));
        assert!(matches!(outcome, Err(AgentError::Silent { .. })), "{outcome:?}");
        // The controller closed the connection and sent nothing.
        let heard = recv(stranger.as_raw_fd(), &mut [0; 64], MsgFlags::empty());
        assert!(matches!(heard, Ok(0) | Err(Errno::ECONNRESET)), "{heard:?}");
    }

    #[test]
    fn order_can_be_left_with_an_agent_that_does_not_run_yet() {
        let inbox = Inbox::make().unwrap();
        let process = process();
        let order = Request::Resume { directory: Some("/moved".into()), admission: None };
        leave(&process, &order).unwrap();
        let left = read(&inbox);
        assert!(left.contains(&serde_json::to_string(&order).unwrap()), "{left}");
        // An inbox that is full is not waited for.
        while leave(&process, &order).is_ok() {}
    }
}
