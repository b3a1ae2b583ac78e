// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection's socket under the HTTP library. It reports the bytes that pass to the [`Link`], and replaces the
//! library's own error responses, which have no bodies, by the interface's.
//!
//! INVARIANT: no byte of the server's answers is changed. The library's own responses are recognised by a form that the
//! server's answers never have: a status of 4xx with `content-length: 0`, at the end of the written bytes.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::error::ApiError;
use super::link::Link;
use super::state::State;
use super::watch;

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;
/// Bytes that the library's own error responses have at most.
const BARE: usize = 512;

/// The socket.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Arc<TcpStream>,
    link: Arc<Link>,
    state: State,
    /// What is written instead of a response of the library, and how much of it was written.
    instead: (Vec<u8>, usize),
}

impl Wire {
    pub(super) fn new(stream: Arc<TcpStream>, link: Arc<Link>, state: State) -> Self {
        Self { stream, link, state, instead: (Vec::new(), 0) }
    }

    fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(taken) => {
                    self.link.write(taken);
                    return Poll::Ready(Ok(taken));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Sends the replacement of a response of the library.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.instead.1 < self.instead.0.len() {
            let sent = ready!(self.poll_send(context, &self.instead.0[self.instead.1..]))?;
            self.instead.1 += sent;
        }
        Poll::Ready(Ok(()))
    }
}

/// Where a response of the library begins in the bytes that it writes, and its status.
fn bare(bytes: &[u8]) -> Option<(usize, StatusCode)> {
    const BEGIN: &[u8] = b"HTTP/1.1 4";
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = bytes.len().saturating_sub(BARE);
    let at = from + bytes[from..].windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    let head = std::str::from_utf8(&bytes[at..]).ok()?.to_ascii_lowercase();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let empty = lines.any(|line| line.replace(' ', "") == "content-length:0");
    empty.then_some((at, status))
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let most = buffer.remaining().min(CHUNK);
            match self.stream.try_read(buffer.initialize_unfilled_to(most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(bytes) => {
                    buffer.advance(bytes);
                    self.link.read(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Also if the socket takes no byte: there are bytes to be sent.
        self.link.write(0);
        ready!(self.poll_instead(context))?;
        match bare(bytes) {
            Some((0, status)) => {
                self.link.set_last();
                let response = watch::unread(&self.state, &ApiError::head(status));
                self.instead = (response, 0);
                Poll::Ready(Ok(bytes.len()))
            }
            // First the bytes before it.
            Some((at, _)) => self.poll_send(context, &bytes[..at]),
            None => self.poll_send(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        self.link.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The sending side ends here; the receiving side ends with the connection, which lingers.
        ready!(self.poll_instead(context))?;
        Poll::Ready(Ok(shutdown(self.stream.as_raw_fd(), Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_responses_of_the_library_are_bare() {
        let own =
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\nContent-Length: 0\r\n\r\n";
        let ours = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
        let empty = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

        assert_eq!(bare(own), Some((0, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)));
        assert_eq!(bare(ours), None);
        assert_eq!(bare(empty), None);
        assert_eq!(bare(&ours[..ours.len() - 2]), None);
        let both = [&ours[..], own].concat();
        assert_eq!(bare(&both).map(|(at, _)| at), Some(ours.len()));
        assert_eq!(bare(b"\r\n\r\n"), None);
        assert_eq!(bare(b"HTTP/1.1 4\xff\r\n\r\n"), None);
    }
}
