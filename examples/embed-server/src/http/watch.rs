// SPDX-License-Identifier: MIT OR Apache-2.0
//! The middleware of every request: its id, its time limit, a line in the log and its counts.
//!
//! INVARIANT: a request is logged and counted once, also when its client closes the connection before the answer
//! (status 499, which no client sees).

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State as Extract};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument as _;

use super::error::ApiError;
use super::ids::HEADER;
use super::patience::elapse;
use super::state::State;

/// The status that is counted when the client has closed the connection.
const GONE: u16 = 499;

/// A response's tokens, for the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens(pub(super) usize);

/// Logs and counts a request when it ends, or is dropped unanswered.
struct Record {
    state: State,
    id: HeaderValue,
    method: Method,
    path: String,
    route: String,
    start: Instant,
    status: u16,
    tokens: usize,
}

impl Drop for Record {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        self.state.0.metrics.end(&self.route, self.status, took);
        tracing::info!(
            target: "http",
            id = self.id.to_str().unwrap_or_default(),
            method = %self.method,
            path = self.path,
            status = self.status,
            ms = %format_args!("{:.3}", took.as_secs_f64() * 1e3),
            tokens = self.tokens,
            "request"
        );
    }
}

/// The middleware.
pub(super) async fn watch(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    let id = state.0.ids.id(request.headers());
    // Counted by route, of which there are few, and not by path, of which clients can make up any number.
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    state.0.metrics.begin();
    let mut record = Record {
        id: id.clone(),
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        route,
        start: Instant::now(),
        status: GONE,
        tokens: 0,
        state,
    };
    let limit = record.state.0.limits.time;
    let span = tracing::info_span!(target: "http", "request", id = id.to_str().unwrap_or_default());
    let answered = async {
        tokio::select! {
            biased;
            response = next.run(request) => response,
            () = record.state.is_given_up() => ApiError::given_up().into_response(),
            () = elapse(limit) => ApiError::late(limit).into_response(),
        }
    };
    let mut response = answered.instrument(span).await;
    record.status = response.status().as_u16();
    record.tokens = response.extensions().get::<Tokens>().map_or(0, |tokens| tokens.0);
    response.headers_mut().insert(HEADER, id);
    response
}

/// Logs and counts a request that no handler saw. Returns the whole response.
pub(super) fn unread(state: &State, error: &ApiError) -> Vec<u8> {
    let id = state.0.ids.id(&HeaderMap::new());
    state.0.metrics.begin();
    let response = error.to_bytes(id.to_str().unwrap_or_default());
    drop(Record {
        id,
        method: Method::default(),
        path: String::new(),
        route: "unread".to_owned(),
        start: Instant::now(),
        status: error.status().as_u16(),
        tokens: 0,
        state: state.clone(),
    });
    response
}
