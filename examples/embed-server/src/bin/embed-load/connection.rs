// SPDX-License-Identifier: MIT OR Apache-2.0
//! A keep-alive connection that reports how far an exchange got: HTTP/1.1, answers with a `Content-Length`.
//!
//! INVARIANT: an answer is returned when it is complete, and without the bytes that came after it.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Bytes of an answer's head at most.
const HEAD: usize = 64 << 10;

/// Where a server is: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    address: SocketAddr,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let host = url.strip_prefix("http://").ok_or("a URL begins with http:// here")?.trim_end_matches('/');
        let mut addresses = host.to_socket_addrs().map_err(|why| format!("{host} is no HOST:PORT: {why}"))?;
        let address = addresses.next().ok_or_else(|| format!("{host} has no address"))?;
        Ok(Self { host: host.to_owned(), address })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.host)
    }
}

impl Target {
    /// The bytes of a request for embeddings.
    pub fn request(&self, id: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "POST /v1/embeddings HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nx-request-id: {id}\r\n\
             content-length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        [head.as_bytes(), body].concat()
    }
}

/// What keeps an answer from being complete and may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setback {
    /// No process listened.
    Refused,
    /// The connection was reset before the answer's first byte.
    Reset,
    /// The connection was closed before the answer's first byte.
    Closed,
    /// The connection ended in the middle of the answer.
    Partial,
    /// 429 or 503: the server did not take the request.
    Busy,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It may be tried again.
    Setback(Setback),
    /// The time is over.
    Late,
    /// The bytes that came are not an answer to the request, or the machine failed.
    Foreign(String),
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP's status.
    pub status: u16,
    /// Its `x-request-id`.
    pub id: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
    /// Whether the connection can be used again.
    pub keep: bool,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Bytes that came and were not returned yet.
    came: Vec<u8>,
}

/// The time that is left until then.
fn left(deadline: Instant) -> Result<Duration, Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Failure::Late) } else { Ok(left) }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// [`Failure`]; a port that nobody listens on is [`Setback::Refused`].
    pub fn open(target: &Target, deadline: Instant) -> Result<Self, Failure> {
        let stream = match TcpStream::connect_timeout(&target.address, left(deadline)?) {
            Ok(stream) => stream,
            Err(why) => {
                return Err(match why.kind() {
                    ErrorKind::ConnectionRefused => Failure::Setback(Setback::Refused),
                    ErrorKind::ConnectionReset => Failure::Setback(Setback::Reset),
                    ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::Late,
                    _ => Failure::Foreign(format!("cannot connect: {why}")),
                });
            }
        };
        let address = |end: std::io::Result<SocketAddr>| end.map_err(|why| Failure::Foreign(why.to_string()));
        if address(stream.local_addr())? == address(stream.peer_addr())? {
            // A connect to a free port of this machine may choose the same port as its own, and is then connected to
            // itself.
            return Err(Failure::Setback(Setback::Refused));
        }
        stream.set_nodelay(true).map_err(|why| Failure::Foreign(format!("no TCP_NODELAY: {why}")))?;
        Ok(Self { stream, came: Vec::new() })
    }

    /// Sends a request and reads its answer. After a failure the connection must not be used again.
    ///
    /// # Errors
    /// [`Failure`] says how far the exchange got.
    pub fn exchange(&mut self, request: &[u8], deadline: Instant) -> Result<Answer, Failure> {
        let failed = |why| Failure::Foreign(format!("no timeout: {why}"));
        self.stream.set_write_timeout(Some(left(deadline)?)).map_err(failed)?;
        self.stream.write_all(request).map_err(|why| self.ended(&why))?;
        let (status, id, keep, body) = loop {
            if let Some(head) = head(&self.came)? {
                break head;
            }
            self.more(deadline)?;
        };
        while self.came.len() < body.end {
            self.more(deadline)?;
        }
        if self.came.len() > body.end {
            return Err(Failure::Foreign(format!("{} bytes behind the answer", self.came.len() - body.end)));
        }
        let body = self.came.split_off(body.start);
        self.came.clear();
        Ok(Answer { status, id, body, keep })
    }

    /// Whether no bytes came that were not asked for.
    pub fn is_quiet(&mut self) -> bool {
        let set = self.stream.set_nonblocking(true);
        let quiet = set.is_ok() && !matches!(self.stream.read(&mut [0]), Ok(1..));
        quiet && self.stream.set_nonblocking(false).is_ok()
    }

    fn more(&mut self, deadline: Instant) -> Result<(), Failure> {
        let mut part = [0; 16 << 10];
        let timeout = self.stream.set_read_timeout(Some(left(deadline)?));
        timeout.map_err(|why| Failure::Foreign(format!("no timeout: {why}")))?;
        match self.stream.read(&mut part) {
            Ok(0) if self.came.is_empty() => Err(Failure::Setback(Setback::Closed)),
            Ok(0) => Err(Failure::Setback(Setback::Partial)),
            Ok(length) => {
                self.came.extend_from_slice(&part[..length]);
                Ok(())
            }
            Err(why) if why.kind() == ErrorKind::Interrupted => Ok(()),
            Err(why) => Err(self.ended(&why)),
        }
    }

    fn ended(&self, why: &std::io::Error) -> Failure {
        match why.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Late,
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                Failure::Setback(if self.came.is_empty() { Setback::Reset } else { Setback::Partial })
            }
            _ => Failure::Foreign(format!("the connection failed: {why}")),
        }
    }
}

type Head = (u16, Option<String>, bool, std::ops::Range<usize>);

/// Status, id, whether the connection stays, and where the body will be; `None` while the head is not complete.
fn head(came: &[u8]) -> Result<Option<Head>, Failure> {
    let foreign = |what: &str| Failure::Foreign(format!("the answer is not HTTP as understood here: {what}"));
    let Some(length) = came.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if came.len() > HEAD { Err(foreign("its head has no end")) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&came[..length]).map_err(|_| foreign("its head is no text"))?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| foreign("no status line"))?;
    let (mut id, mut keep, mut body) = (None, true, None);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "x-request-id" => id = Some(value.to_owned()),
            "connection" => keep = !value.eq_ignore_ascii_case("close"),
            "content-length" => body = value.parse::<usize>().ok(),
            "transfer-encoding" => return Err(foreign("it is sent in chunks")),
            _ => {}
        }
    }
    let body = body.ok_or_else(|| foreign("no Content-Length"))?;
    let start = length + 4;
    let end = start.checked_add(body).ok_or_else(|| foreign("its Content-Length is absurd"))?;
    Ok(Some((status, id, keep, start..end)))
}

#[cfg(test)]
pub mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::thread::{JoinHandle, spawn};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};

    use super::*;

    /// A server that reads requests on each connection and gives these answers. Its thread returns how many requests it
    /// read.
    pub fn server(says: Vec<Vec<&'static [u8]>>) -> (Target, JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serve = spawn(move || {
            let mut read = 0;
            for answers in says {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                for answer in answers {
                    let mut length = 0;
                    loop {
                        let mut line = String::new();
                        stream.read_line(&mut line).unwrap();
                        if let Some(value) = line.strip_prefix("content-length: ") {
                            length = value.trim().parse().unwrap();
                        }
                        if line == "\r\n" {
                            break;
                        }
                    }
                    stream.read_exact(&mut vec![0; length]).unwrap();
                    read += 1;
                    stream.get_mut().write_all(answer).unwrap();
                }
            }
            read
        });
        (target, serve)
    }

    /// A port that no process listens on, nor can while the socket is open.
    pub fn nobody() -> (Target, OwnedFd) {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        let address: SockaddrIn = getsockname(socket.as_raw_fd()).unwrap();
        (format!("http://{address}/").parse().unwrap(), socket)
    }

    pub fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn exchange(answer: &'static [u8]) -> Result<Answer, Failure> {
        let (target, serve) = server(vec![vec![answer]]);
        let mut connection = Connection::open(&target, soon()).unwrap();
        let result = connection.exchange(&target.request("id", b"{}"), soon());
        assert_eq!(serve.join().unwrap(), 1);
        result
    }

    #[test]
    fn complete_answers_are_given_out_one_by_one() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Request-Id: a\r\n\r\nhi".as_slice();
        let other = b"HTTP/1.1 429 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".as_slice();
        let (target, serve) = server(vec![vec![answer, other]]);
        let mut connection = Connection::open(&target, soon()).unwrap();
        let mut ask = || connection.exchange(&target.request("a", b"{}"), soon()).unwrap();

        assert_eq!(ask(), Answer { status: 200, id: Some("a".into()), body: b"hi".to_vec(), keep: true });
        assert_eq!(ask(), Answer { status: 429, id: None, body: Vec::new(), keep: false });
        assert_eq!(serve.join().unwrap(), 2);
        assert!(connection.is_quiet());
    }

    #[test]
    fn answer_that_is_cut_is_no_answer() {
        let setback = |answer| match exchange(answer) {
            Err(Failure::Setback(setback)) => setback,
            other => panic!("{other:?}"),
        };

        assert_eq!(setback(b""), Setback::Closed);
        assert_eq!(setback(b"HTTP/1.1 200 OK\r\ncont"), Setback::Partial);
        assert_eq!(setback(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi"), Setback::Partial);
    }

    #[test]
    fn what_is_no_answer_to_the_question_is_named() {
        for (answer, why) in [
            (b"SSH-2.0-x\r\n\r\n".as_slice(), "no status line"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "in chunks"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\ntwo", "2 bytes behind"),
        ] {
            let Err(Failure::Foreign(text)) = exchange(answer) else { panic!("{why}") };
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn closed_port_is_refused_and_time_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target: Target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let mut connection = Connection::open(&target, soon()).unwrap();
        let short = Instant::now() + Duration::from_millis(20);
        assert_eq!(connection.exchange(b"GET", short), Err(Failure::Late));

        let (target, _held) = nobody();
        assert_eq!(Connection::open(&target, soon()).unwrap_err(), Failure::Setback(Setback::Refused));
        assert_eq!(Connection::open(&target, Instant::now()).unwrap_err(), Failure::Late);
        assert!("https://h:1".parse::<Target>().is_err() && "http://127.0.0.1".parse::<Target>().is_err());
    }
}
