// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that sends any bytes and parses responses strictly.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use super::fake::PATIENCE;

/// A connection.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    /// Bytes that came and belong to the next response.
    rest: Vec<u8>,
}

/// A response: its status, its headers in lower case, and its body, of the length that it says it has.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Its status and the code of its error, which must have the interface's shape.
    pub fn error(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "{self:?}");
        let body: Value = serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why} in {self:?}"));
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{self:?}"));
        let keys: Vec<_> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["code", "message", "param", "type"], "{self:?}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        (self.status, error["code"].as_str().unwrap_or_default().to_owned())
    }
}

impl Raw {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, rest: Vec::new() }
    }

    /// Sends bytes; a server that has closed the connection is no error.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// Sends a request for embeddings with these headers besides its length.
    pub fn post(&mut self, headers: &str, body: impl AsRef<[u8]>) -> &mut Self {
        let body = body.as_ref();
        let head = format!(
            "POST /v1/embeddings HTTP/1.1\r\nhost: a\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        self.send([head.as_bytes(), body].concat())
    }

    /// Says that nothing more is sent.
    pub fn half_close(&mut self) -> &mut Self {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self
    }

    fn fill(&mut self) -> bool {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(length) => {
                self.rest.extend_from_slice(&chunk[..length]);
                true
            }
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&self.rest)),
        }
    }

    /// The next response, interim ones included; `None` at the end of the connection.
    pub fn reply(&mut self) -> Option<Reply> {
        let head = loop {
            if let Some(at) = self.rest.windows(4).position(|window| window == b"\r\n\r\n") {
                break String::from_utf8(self.rest.drain(..at + 4).collect()).unwrap();
            }
            if !self.fill() {
                assert!(self.rest.is_empty(), "half a response: {:?}", String::from_utf8_lossy(&self.rest));
                return None;
            }
        };
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().strip_prefix("HTTP/1.").unwrap()[2..5].parse().unwrap();
        let headers: Vec<_> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let lengths: Vec<_> = headers.iter().filter(|(name, _)| name == "content-length").collect();
        assert!(lengths.len() <= 1, "{head}");
        let length = lengths.first().map_or(0, |(_, value)| value.parse().unwrap());
        while self.rest.len() < length {
            assert!(self.fill(), "the body is short: {head}");
        }
        let body = String::from_utf8(self.rest.drain(..length).collect()).unwrap();
        Some(Reply { status, headers, body })
    }

    /// The next response, which there must be.
    pub fn expect(&mut self) -> Reply {
        self.reply().expect("the connection ended without a response")
    }

    /// Whether the connection ends here.
    pub fn ends(&mut self) -> bool {
        self.reply().is_none()
    }
}
