// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server around the model: OpenAI's embeddings interface over HTTP/1.1.
//!
//! ```text
//! watch (id, log, counts, time limit) ── input ── aside: parse and tokenize ── Batcher ── aside: render
//! ```
//!
//! INVARIANT: every response that is not 2xx has the body of an [`ApiError`], every response has an `x-request-id`,
//! and no work that grows with a request is done on the async threads.

mod aside;
mod embeddings;
mod error;
mod input;
mod metrics;
mod patience;
mod serve;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Path, Request, State as Extract};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};

pub use self::error::ApiError;
use self::metrics::HttpMetrics;
pub use self::patience::elapse;
pub use self::serve::{Served, serve};
use crate::batch::Batcher;
use crate::model::Tokenizer;

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Inputs of a request.
    pub inputs: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Time from a request's headers to its answer; time for which the process was frozen is not counted, see
    /// [`elapse`].
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { inputs: 2048, body_bytes: 8 << 20, time: Duration::from_secs(60) }
    }
}

/// What the handlers share. Clones are the same state.
#[derive(Clone, Debug)]
pub struct State(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    created: u64,
    tokenizer: Tokenizer,
    batcher: Arc<Batcher>,
    limits: Limits,
    metrics: HttpMetrics,
    ids: watch::Ids,
    draining: AtomicBool,
}

impl State {
    /// A server of this model, known to clients by this name.
    #[must_use]
    pub fn new(name: String, tokenizer: Tokenizer, batcher: Arc<Batcher>, limits: Limits) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let metrics = HttpMetrics::new(batcher.metrics(), created);
        let (ids, draining) = (watch::Ids::default(), AtomicBool::new(false));
        Self(Arc::new(Shared { name, created, tokenizer, batcher, limits, metrics, ids, draining }))
    }

    /// From now on health is 503 and so are new requests for embeddings; those begun are answered.
    pub fn drain(&self) {
        // ORDERING: it is a flag by itself; nothing else is published with it.
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// Requests that have no response yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.metrics.in_flight()
    }

    fn admits(&self) -> Result<(), ApiError> {
        // ORDERING: see `drain`.
        match self.0.draining.load(Ordering::Relaxed) {
            true => Err(ApiError::closing()),
            false => Ok(()),
        }
    }

    fn model(&self) -> Value {
        json!({"id": self.0.name, "object": "model", "created": self.0.created, "owned_by": "stasis"})
    }

    fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if name == self.0.name { Ok(()) } else { Err(ApiError::model(name, &self.0.name)) }
    }
}

/// The server's routes.
pub fn router(state: State) -> Router {
    Router::new()
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(models))
        // Names of models may have slashes.
        .route("/v1/models/{*id}", get(model))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(state.clone(), watch::watch))
        .with_state(state)
}

async fn models(Extract(state): Extract<State>) -> Response {
    Json(json!({"object": "list", "data": [state.model()]})).into_response()
}

async fn model(Extract(state): Extract<State>, Path(id): Path<String>) -> Result<Response, ApiError> {
    state.check_model(&id)?;
    Ok(Json(state.model()).into_response())
}

async fn health(Extract(state): Extract<State>) -> Result<Response, ApiError> {
    state.admits()?;
    Ok(Json(json!({"status": "ok"})).into_response())
}

async fn metrics(Extract(state): Extract<State>) -> Result<Response, ApiError> {
    let text = state.0.metrics.text().map_err(|_| ApiError::internal())?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

async fn unknown(request: Request) -> ApiError {
    ApiError::route(request.method(), request.uri().path())
}

async fn not_allowed(request: Request) -> ApiError {
    ApiError::method(request.method(), request.uri().path())
}
