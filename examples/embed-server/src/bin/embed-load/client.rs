// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client: one connection, one request at a time, tried again under its id until it is answered or its time is over.
//!
//! INVARIANT: a request is sent again only if no complete answer came, or if the server said that it did not take the
//! request.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::connection::{Answer, Connection, Failure, Setback, Target};

/// The pause before a request is sent again after the server was too busy.
const BUSY: Duration = Duration::from_millis(100);

/// A client.
#[derive(Debug)]
pub struct Client {
    target: Target,
    connection: Option<Connection>,
    /// The pause before a refused connect is tried again.
    pause: Duration,
}

/// The result of a request.
#[derive(Debug)]
pub struct Asked {
    /// How often it was begun.
    pub attempts: u32,
    /// The failures of the attempts before the last one.
    pub setbacks: BTreeMap<Setback, u32>,
    /// Whether the connection was opened for this request.
    pub fresh: bool,
    /// The answer, or why there is none.
    pub answer: Result<Answer, Failure>,
}

impl Client {
    /// A client that is not connected yet.
    pub fn new(target: Target, pause: Duration) -> Self {
        Self { target, connection: None, pause }
    }

    /// Asks until there is an answer or the time is over.
    pub fn ask(&mut self, id: &str, body: &[u8], deadline: Instant) -> Asked {
        let request = self.target.request(id, body);
        let mut asked =
            Asked { attempts: 0, setbacks: BTreeMap::new(), fresh: false, answer: Err(Failure::Late) };
        while Instant::now() < deadline {
            asked.attempts += 1;
            asked.fresh = self.connection.is_none();
            asked.answer = self.attempt(&request, deadline);
            let setback = match &asked.answer {
                Ok(Answer { status: 429 | 503, .. }) => Setback::Busy,
                Err(Failure::Setback(setback)) => *setback,
                Ok(_) | Err(_) => return asked,
            };
            *asked.setbacks.entry(setback).or_default() += 1;
            asked.answer = Err(Failure::Late);
            let pause = if setback == Setback::Busy { BUSY } else { self.pause };
            sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        }
        asked
    }

    fn attempt(&mut self, request: &[u8], deadline: Instant) -> Result<Answer, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.target, deadline)?,
        };
        let answer = connection.exchange(request, deadline)?;
        self.connection = answer.keep.then_some(connection);
        Ok(answer)
    }

    /// Whether the connection has no bytes that were not asked for.
    pub fn is_quiet(&mut self) -> bool {
        self.connection.as_mut().is_none_or(Connection::is_quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::tests::{nobody, server, soon};

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    const BUSY: &[u8] = b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n";

    fn client(target: Target) -> Client {
        Client::new(target, Duration::ZERO)
    }

    #[test]
    fn request_is_tried_again_until_its_answer_is_complete_and_no_more() {
        let (target, serve) = server(vec![vec![BUSY, b""], vec![b"HTTP/1.1 2"], vec![OK, OK]]);
        let mut client = client(target);

        let asked = client.ask("a", b"{}", soon());
        assert_eq!(asked.answer.unwrap().body, b"hi");
        assert_eq!((asked.attempts, asked.fresh), (4, true));
        let met = [(Setback::Closed, 1), (Setback::Partial, 1), (Setback::Busy, 1)];
        assert_eq!(asked.setbacks, BTreeMap::from(met));

        let asked = client.ask("b", b"{}", soon());
        assert_eq!((asked.attempts, asked.fresh, asked.setbacks.len()), (1, false, 0));
        assert_eq!(serve.join().unwrap(), 5);
        assert!(client.is_quiet());
    }

    #[test]
    fn answer_that_is_foreign_is_not_tried_again() {
        let (target, serve) = server(vec![vec![b"HTTP/1.1 200 OK\r\n\r\n"]]);

        let asked = client(target).ask("a", b"{}", soon());
        assert!(matches!(asked.answer, Err(Failure::Foreign(_))), "{asked:?}");
        assert_eq!((asked.attempts, serve.join().unwrap()), (1, 1));
    }

    #[test]
    fn nobody_there_is_late_in_the_end() {
        let (target, _held) = nobody();

        let asked = client(target).ask("a", b"{}", Instant::now() + Duration::from_millis(30));
        assert_eq!(asked.answer, Err(Failure::Late));
        // The time may be over before the first attempt, or in the middle of one.
        let refused = asked.setbacks.get(&Setback::Refused).copied().unwrap_or(0);
        assert!((refused..=refused + 1).contains(&asked.attempts) && asked.setbacks.len() <= 1, "{asked:?}");
    }
}
