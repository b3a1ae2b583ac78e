// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a connection, which its socket, its handler and its time limits share.
//!
//! ```text
//! Head ── headers are read ──> Handling ── the handler has answered ──> Writing ── all is sent ──> Idle
//!   ^                                                                                               │
//!   └──────────────────────────────────── a byte arrives ──────────────────────────────────────────┘
//! ```

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The headers of a request are awaited or arrive.
    Head,
    /// A handler is at work.
    Handling,
    /// An answer is being sent.
    Writing,
    /// Nothing, after an answer.
    Idle,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Bytes that arrived in this phase.
    arrived: u64,
    /// Bytes that were sent since the connection began.
    sent: u64,
    /// Whether there may be bytes of an answer that the socket has not taken yet.
    unsent: bool,
    /// Whether the answer's body was read to its end.
    whole: bool,
    /// Whether the client's HTTP version has interim responses.
    interim: bool,
    /// Whether the connection's last answer was sent, or is being sent.
    last: bool,
}

/// The shared state of a connection.
#[derive(Debug)]
pub(super) struct Link {
    state: Mutex<State>,
    changed: Notify,
}

impl Default for Link {
    fn default() -> Self {
        let state = State {
            phase: Phase::Head,
            arrived: 0,
            sent: 0,
            unsent: false,
            whole: false,
            interim: false,
            last: false,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl Link {
    fn enter(&self, state: &mut State, phase: Phase) {
        (state.phase, state.arrived) = (phase, 0);
        // A notification is kept until a task waits for it.
        self.changed.notify_one();
    }

    /// Waits until the phase is another.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// Bytes that arrived since the phase began.
    pub(super) fn arrived(&self) -> u64 {
        self.state.lock().arrived
    }

    /// Bytes that were sent since the connection began.
    pub(super) fn sent(&self) -> u64 {
        self.state.lock().sent
    }

    /// Whether interim responses can be sent: no answer has begun, and the client's HTTP version has them.
    pub(super) fn takes_interim(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Handling && state.interim && !state.unsent
    }

    /// Whether the connection's last answer was sent, or is being sent.
    pub(super) fn is_last(&self) -> bool {
        self.state.lock().last
    }

    /// The connection's last answer goes out.
    pub(super) fn set_last(&self) {
        self.state.lock().last = true;
    }

    /// Bytes arrived.
    pub(super) fn read(&self, bytes: usize) {
        let mut state = self.state.lock();
        if state.phase == Phase::Idle && bytes > 0 {
            self.enter(&mut state, Phase::Head);
        }
        // CAST: usize to u64 is lossless here.
        state.arrived += bytes as u64;
    }

    /// A handler begins with a request.
    pub(super) fn begin(&self, interim: bool) {
        let mut state = self.state.lock();
        state.interim = interim;
        self.enter(&mut state, Phase::Handling);
    }

    /// The handler has answered.
    pub(super) fn answer(&self) {
        let mut state = self.state.lock();
        state.whole = false;
        self.enter(&mut state, Phase::Writing);
    }

    /// The answer's body was read to its end.
    pub(super) fn end_body(&self) {
        self.state.lock().whole = true;
    }

    /// Notes that bytes were offered to the socket, and how many it took.
    pub(super) fn write(&self, taken: usize) {
        let mut state = self.state.lock();
        state.unsent = true;
        // CAST: as above.
        state.sent += taken as u64;
    }

    /// Notes that the socket has taken all bytes.
    pub(super) fn flushed(&self) {
        let mut state = self.state.lock();
        state.unsent = false;
        if state.phase == Phase::Writing && state.whole {
            self.enter(&mut state, Phase::Idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let link = Link::default();
        assert_eq!(link.phase(), Phase::Head);

        link.read(10);
        assert_eq!(link.arrived(), 10);
        link.begin(true);
        assert!(link.phase() == Phase::Handling && link.takes_interim());
        link.answer();
        link.write(5);
        link.flushed();
        assert_eq!(link.phase(), Phase::Writing, "the body is not whole yet");
        link.end_body();
        link.flushed();
        assert_eq!((link.phase(), link.sent()), (Phase::Idle, 5));
        link.read(0);
        assert_eq!(link.phase(), Phase::Idle);
        link.read(1);
        assert_eq!((link.phase(), link.arrived()), (Phase::Head, 1));
    }

    #[test]
    fn interim_answers_go_to_who_takes_them_and_never_into_another_answer() {
        let link = Link::default();
        assert!(!link.takes_interim());

        link.begin(false);
        assert!(!link.takes_interim());
        link.begin(true);
        link.write(0);
        assert!(!link.takes_interim());
        link.flushed();
        assert!(link.takes_interim());
    }
}
