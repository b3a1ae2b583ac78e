// SPDX-License-Identifier: MIT OR Apache-2.0
//! One order to the agent of a process, and its answer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kfd::linux::{retry, set_receive_timeout};
use nix::sys::socket::{MsgFlags, recv};
use stasis_protocol::State;

use super::contact::{reach, reach_running};
use super::message::{self, MAX_MESSAGE};
use super::protocol::{CallError, Done, Reply, Request};

/// TIMEOUT: of an answer where a limit is longer than a clock can hold: a year.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// TIMEOUT: of an answer when reaching the agent took all the time: 0 would be none.
const SHORTEST: Duration = Duration::from_millis(1);
/// How often an order is given again to an agent that closed the connection before it answered. An order for a
/// checkpoint is not: it may have been carried out.
const HUNG_UP: usize = 3;

/// Gives the agent of `pid` an order and waits for the answer; the connection is closed on both sides afterwards.
///
/// # Errors
/// [`CallError`]; [`CallError::Refused`] carries the agent's own words.
pub fn call(pid: i32, request: &Request, timeout: Duration) -> Result<(State, Done), CallError> {
    call_with(pid, request, &[], timeout).map(|(state, done, _)| (state, done))
}

/// The same with files beside the order, and those that come with the answer.
///
/// # Errors
/// As [`call`].
pub fn call_with(
    pid: i32,
    request: &Request,
    files: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<(State, Done, Vec<OwnedFd>), CallError> {
    let asked = Instant::now();
    let deadline = asked.checked_add(timeout).unwrap_or(asked + LONGEST);
    // An agent that has just let go of its device, or has too many callers, closes the connections that it has not read
    // from yet.
    let mut again = if matches!(request, Request::Checkpoint(_)) { 0 } else { HUNG_UP };
    loop {
        match exchange(pid, request, files, (asked, deadline)) {
            Err(CallError::NoAnswer { source, .. })
                if again > 0 && hung_up(&source) && Instant::now() < deadline =>
            {
                again -= 1;
            }
            answer => return answer,
        }
    }
}

fn hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// One connection, one order, one answer.
fn exchange(
    pid: i32,
    request: &Request,
    files: &[BorrowedFd<'_>],
    (asked, deadline): (Instant, Instant),
) -> Result<(State, Done, Vec<OwnedFd>), CallError> {
    let no_answer = |source: io::Error| CallError::NoAnswer { pid, waited: asked.elapsed(), source };
    let order = serde_json::to_vec(request).map_err(|source| CallError::Answer { pid, source })?;
    let socket = match request {
        Request::Share { .. } => reach_running(pid, deadline)?,
        _ => reach(pid, deadline)?,
    };
    let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
    set_receive_timeout(&socket, left).map_err(|e| no_answer(e.into()))?;
    message::send(&socket, &order, files).map_err(|e| no_answer(e.into()))?;
    let mut answer = vec![0; MAX_MESSAGE];
    let (length, files) = message::receive(&socket, &mut answer).map_err(|e| no_answer(e.into()))?;
    if length == 0 {
        return Err(no_answer(io::ErrorKind::UnexpectedEof.into()));
    }
    // The agent closes its end after the answer; CRIU must find neither half.
    let mut rest = [0u8; 1];
    let _ = retry(|| recv(socket.as_raw_fd(), &mut rest, MsgFlags::empty()));
    let reply: Reply =
        serde_json::from_slice(&answer[..length]).map_err(|source| CallError::Answer { pid, source })?;
    match reply.done {
        Ok(done) => Ok((reply.state, done, files)),
        Err(message) => Err(CallError::Refused { pid, state: reply.state, message }),
    }
}
