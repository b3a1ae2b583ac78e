// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket's life: serving, then draining, then gone.

use std::future::{IntoFuture as _, pending};
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::{State, elapse, router};

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Requests that had no answer when the time for it was over; their connections end with the process.
    pub unanswered: usize,
}

/// Serves until `shutdown`, then accepts no more connections and gives the requests that were begun `grace` to be
/// answered.
///
/// # Errors
/// What the listening socket fails with. Errors of single connections are not errors of the server.
pub async fn serve(
    listener: TcpListener,
    state: State,
    shutdown: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> std::io::Result<Served> {
    let (told, draining) = oneshot::channel();
    let drained = state.clone();
    let stop = async move {
        shutdown.await;
        drained.drain();
        tracing::info!(target: "http", in_flight = drained.in_flight(), "shutting down");
        // The other end is gone only when nobody serves any more.
        let _ = told.send(());
    };
    let late = async {
        match draining.await {
            Ok(()) => elapse(grace).await,
            Err(_) => pending().await,
        }
    };
    // A response is one write; Nagle could only hold it back.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(target: "http", %error, "no TCP_NODELAY");
        }
    });
    let server = axum::serve(listener, router(state.clone())).with_graceful_shutdown(stop);
    tokio::select! {
        ended = server.into_future() => ended?,
        () = late => {}
    }
    Ok(Served { unanswered: state.in_flight() })
}
