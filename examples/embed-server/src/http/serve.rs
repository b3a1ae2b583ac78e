// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket: serving, then draining, then closed.
//!
//! INVARIANT: a shutdown answers every pending request: with its result if the time suffices, else with status 503. No
//! connection is closed before that.

use std::future::ready;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use nix::sys::socket::{self, Shutdown};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::connection;
use super::patience::elapse;
use super::routes::router;
use super::state::State;

/// How long the last answers may take to be sent when the time of a shutdown is over.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How long nothing is accepted when the process has no descriptor for it.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Refused connections that get a response at a time; further ones are closed at once.
const REFUSALS: usize = 64;

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Requests that got 503 because the time was over.
    pub unanswered: usize,
}

/// What happens to the port when serving ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// It is closed, also if other processes have the socket.
    Close,
    /// Connections wait in the socket for another process that has it.
    Keep,
}

/// Accepts connections and keeps them within their number.
struct Acceptor {
    listener: TcpListener,
    router: Router,
    state: State,
    free: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    open: JoinSet<()>,
    draining: watch::Sender<bool>,
}

impl Acceptor {
    /// Waits for a connection and serves it.
    async fn accept(&mut self) {
        let stream = match self.listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) if is_of_the_connection(&error) => return,
            Err(error) => {
                tracing::error!(target: "http", %error, "no connection can be accepted");
                return tokio::time::sleep(EXHAUSTED).await;
            }
        };
        self.serve(stream);
        // Ended tasks are removed here, so that they do not accumulate.
        while self.open.try_join_next().is_some() {}
    }

    fn serve(&mut self, stream: TcpStream) {
        // A response is one write; Nagle's algorithm could only delay it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(target: "http", %error, "no TCP_NODELAY");
        }
        let state = self.state.clone();
        let metrics = &self.state.0.metrics;
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            metrics.refused.inc();
            if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
                self.open.spawn(async move {
                    connection::refuse(stream, state).await;
                    drop(permit);
                });
            }
            return;
        };
        metrics.connections.inc();
        let (router, draining) = (self.router.clone(), self.draining.subscribe());
        self.open.spawn(async move {
            // Dropped also when the task is aborted.
            let _open = Open(state.clone());
            connection::serve(stream, router, state, draining).await;
            drop(permit);
        });
    }
}

/// Counts a connection until it ends.
struct Open(State);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.metrics.connections.dec();
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves until `shutdown`. Then accepts no more connections, closes the port if `shutdown` says so, and gives pending
/// requests the time `grace`. Requests without an answer then get 503.
pub async fn serve(
    listener: TcpListener,
    state: State,
    shutdown: impl Future<Output = Port> + Send,
    grace: impl Future<Output = ()> + Send,
) -> Served {
    let connections = state.0.options.connections.connections;
    let mut acceptor = Acceptor {
        listener,
        router: router(state.clone()),
        state: state.clone(),
        free: Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS))),
        refusals: Arc::new(Semaphore::new(REFUSALS)),
        open: JoinSet::new(),
        draining: watch::Sender::new(false),
    };
    let mut shutdown = std::pin::pin!(shutdown);
    let port = loop {
        tokio::select! {
            port = shutdown.as_mut() => break port,
            () = acceptor.accept() => {}
        }
    };
    state.drain();
    tracing::info!(target: "http", in_flight = state.in_flight(), "shutting down");
    // Clients in the socket's backlog count themselves as connected.
    loop {
        tokio::select! {
            biased;
            () = acceptor.accept() => {}
            () = ready(()) => break,
        }
    }
    let Acceptor { listener, mut open, draining, .. } = acceptor;
    if port == Port::Close
        && let Err(error) = socket::shutdown(listener.as_raw_fd(), Shutdown::Both).map_err(io::Error::from)
    {
        tracing::debug!(target: "http", %error, "the listening socket was not shut down");
    }
    drop(listener);
    draining.send_replace(true);
    let all = async { while open.join_next().await.is_some() {} };
    let late = tokio::select! {
        () = all => false,
        () = grace => true,
    };
    let mut unanswered = 0;
    if late {
        unanswered = state.in_flight();
        tracing::warn!(target: "http", unanswered, "no more time: what is unanswered gets 503");
        state.give_up();
        let all = async { while open.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = elapse(LAST_ANSWERS) => {
                tracing::warn!(target: "http", connections = open.len(), "closed with answers unsent");
            }
        }
    }
    Served { unanswered }
}
