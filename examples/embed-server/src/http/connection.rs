// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves one connection: requests one after the other, each part within its time limit.
//!
//! INVARIANT: no connection waits for its client without a time limit, and a request whose client has closed the
//! connection ends. A client that has only shut down its sending side gets its answer.
//!
//! A server cannot distinguish the two until it sends bytes: a closed socket answers them with a reset. So a client
//! that has shut down its side gets an interim response (`100 Continue`), which HTTP/1.1 clients must skip; a reset
//! then tells that the client has closed the connection.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response, StatusCode, Version};

use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;

use super::error::ApiError;
use super::link::{Link, Phase};
use super::patience::elapse;
use super::state::State;
use super::watch;
use super::wire::Wire;

/// Bytes of a request's headers.
const HEAD: usize = 128 << 10;
/// The pause before a client that sends more than was asked for is looked at again.
const AGAIN: Duration = Duration::from_millis(250);
/// How long, and how many bytes, a client may go on sending after its last answer was sent. A socket that is closed
/// with bytes unread resets the connection, and the client loses the answer.
const LINGER: (Duration, usize) = (Duration::from_secs(2), 8 << 20);
/// Time that half a request's headers have when the server shuts down.
const LAST_HEAD: Duration = Duration::from_secs(1);

/// Why a connection ends before its requests do.
enum End {
    /// The client has closed the connection.
    Gone,
    /// It took too long.
    Late(Phase),
}

/// Serves a connection until it ends, or soon after `draining` says so.
pub(super) async fn serve(stream: TcpStream, router: Router, state: State, mut draining: Receiver<bool>) {
    let stream = Arc::new(stream);
    let link = Arc::new(Link::default());
    let wire = Wire::new(stream.clone(), link.clone(), state.clone());
    let handler = link.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        handler.begin(request.version() >= Version::HTTP_11);
        handle(router.clone(), request, handler.clone())
    });
    let mut builder = http1::Builder::new();
    builder.half_close(true).header_read_timeout(None).max_buf_size(HEAD);
    let mut requests = pin!(builder.serve_connection(TokioIo::new(wire), service));
    let mut drains = *draining.borrow_and_update();
    if drains {
        requests.as_mut().graceful_shutdown();
    }
    let ended = loop {
        tokio::select! {
            biased;
            result = requests.as_mut() => break Ok(result),
            () = link.changed() => {}
            Ok(()) = draining.changed(), if !drains => {
                drains = true;
                requests.as_mut().graceful_shutdown();
            }
            end = too_long(&stream, &link, &state, drains) => break Err(end),
        }
    };
    // The requests' futures hold the library's half of the socket.
    let error = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => unreported(&error, &link),
        Err(End::Late(Phase::Head)) if link.arrived() > 0 => {
            Some(ApiError::slow_head(state.0.options.connections.head))
        }
        Err(_) => return,
    };
    if let Some(error) = error {
        link.set_last();
        send_at_once(&stream, &watch::unread(&state, &error));
    }
    if link.is_last() {
        linger(&stream).await;
    }
}

/// Logs and counts a request that the library could not read.
fn unreported(error: &hyper::Error, link: &Link) -> Option<ApiError> {
    let unread = link.phase() == Phase::Head && link.arrived() > 0 && !link.is_last();
    let of_the_request = error.is_parse() || error.is_incomplete_message();
    (unread && of_the_request).then(|| ApiError::head(StatusCode::BAD_REQUEST))
}

async fn handle(
    router: Router,
    request: Request<Incoming>,
    link: Arc<Link>,
) -> Result<Response<Answer>, Infallible> {
    let service = hyper_util::service::TowerToHyperService::new(router);
    let response = hyper::service::Service::call(&service, request).await?;
    link.answer();
    Ok(response.map(|body| Answer { body, link }))
}

/// An answer's body that reports when it was read to its end.
struct Answer {
    body: Body,
    link: Arc<Link>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.link.end_body();
    }
}

/// Waits until the phase has lasted too long, or the client has closed the connection.
async fn too_long(stream: &TcpStream, link: &Link, state: &State, drains: bool) -> End {
    let limits = state.0.options.connections;
    let phase = link.phase();
    match phase {
        Phase::Head => elapse(if drains { limits.head.min(LAST_HEAD) } else { limits.head }).await,
        // The request has a limit of its own.
        Phase::Handling => return gone(stream, link).await,
        Phase::Writing => {
            let mut sent = link.sent();
            loop {
                elapse(limits.stall).await;
                match link.sent() {
                    now if now == sent => break,
                    now => sent = now,
                }
            }
        }
        Phase::Idle => elapse(limits.idle).await,
    }
    End::Late(phase)
}

/// Waits, while a handler is at work, until the client has closed the connection.
async fn gone(stream: &TcpStream, link: &Link) -> End {
    let mut byte = [0];
    loop {
        match stream.peek(&mut byte).await {
            Err(_) => return End::Gone,
            Ok(0) => break,
            // Bytes that are not read yet: an end of the stream would come after them.
            Ok(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    if link.takes_interim() {
        send_at_once(stream, b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    loop {
        match stream.ready(Interest::ERROR).await {
            Ok(_) if matches!(stream.take_error(), Ok(None)) => pending::<()>().await,
            _ => return End::Gone,
        }
    }
}

/// Sends a few bytes at once, or none.
fn send_at_once(stream: &TcpStream, bytes: &[u8]) {
    match stream.try_write(bytes) {
        Ok(sent) if sent == bytes.len() => {}
        // The socket is full, so the client has read nothing for long.
        other => tracing::debug!(target: "http", ?other, "a client takes nothing"),
    }
}

/// Lets the client read its last answer before the socket is closed.
async fn linger(stream: &TcpStream) {
    if let Err(error) = shutdown(stream.as_raw_fd(), Shutdown::Write).map_err(io::Error::from) {
        tracing::debug!(target: "http", %error, "already closed");
    }
    let (time, mut bytes) = LINGER;
    let discarded = async {
        let mut chunk = vec![0; 16 << 10];
        while bytes > 0 && stream.readable().await.is_ok() {
            match stream.try_read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => bytes = bytes.saturating_sub(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    };
    tokio::select! {
        () = discarded => {}
        () = elapse(time) => {}
    }
}

/// Refuses a connection above the limit.
pub(super) async fn refuse(stream: TcpStream, state: State) {
    let limit = state.0.options.connections.connections;
    send_at_once(&stream, &watch::unread(&state, &ApiError::connections(limit)));
    linger(&stream).await;
}
