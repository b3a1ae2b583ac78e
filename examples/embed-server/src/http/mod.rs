// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server around the model: OpenAI's embeddings interface over HTTP/1.1.
//!
//! ```text
//! connection (limits, wire) ── watch (id, log, counts, time limit) ── access ── input
//!                           ── aside: unpack, parse, tokenize ── Batcher ── aside: render
//! ```
//!
//! INVARIANT: every response that is not 2xx has the body of an [`ApiError`], every response has an `x-request-id`,
//! and no work that grows with a request is done on the async threads.

mod access;
mod aside;
mod connection;
mod embeddings;
mod error;
mod input;
mod link;
mod metrics;
mod options;
mod patience;
mod request;
mod serve;
mod shallow;
mod watch;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State as Extract};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};
use tokio::sync::watch as seen;

pub use self::access::Keys;
pub use self::error::ApiError;
use self::metrics::HttpMetrics;
pub use self::options::{ConnectionLimits, Limits, Options};
pub use self::patience::elapse;
pub use self::serve::{Port, Served, serve};
use crate::batch::{BatchMetrics, Batcher};
use crate::model::Tokenizer;

/// Where health is asked for, by whoever.
const HEALTH: [&str; 2] = ["/health", "/healthz"];

/// What the handlers share. Clones are the same state.
#[derive(Clone, Debug)]
pub struct State(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    limits: Limits,
    created: u64,
    tokenizer: Tokenizer,
    batcher: OnceLock<Arc<Batcher>>,
    aside: aside::Aside,
    room: input::Room,
    metrics: HttpMetrics,
    ids: watch::Ids,
    draining: AtomicBool,
    given_up: seen::Sender<bool>,
}

impl State {
    /// A server that has no agents yet; those that [`State::open`] brings are counted by `metrics`.
    #[must_use]
    pub fn new(options: Options, tokenizer: Tokenizer, metrics: &BatchMetrics) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let limits = options.limits;
        Self(Arc::new(Shared {
            limits,
            created,
            tokenizer,
            batcher: OnceLock::new(),
            aside: aside::Aside::new(limits.threads),
            room: input::Room::new(limits.buffered_bytes, limits.body_bytes),
            metrics: HttpMetrics::new(metrics, created),
            ids: watch::Ids::default(),
            draining: AtomicBool::new(false),
            given_up: seen::Sender::new(false),
            options,
        }))
    }

    /// A server of these agents.
    #[must_use]
    pub fn with(options: Options, tokenizer: Tokenizer, batcher: Arc<Batcher>) -> Self {
        let state = Self::new(options, tokenizer, batcher.metrics());
        state.open(batcher);
        state
    }

    /// From now on requests are embedded, by these agents. A second call changes nothing.
    pub fn open(&self, batcher: Arc<Batcher>) {
        let _ = self.0.batcher.set(batcher);
    }

    /// From now on health is 503 and so are new requests for embeddings; those begun are answered.
    pub fn drain(&self) {
        // ORDERING: it is a flag by itself; nothing else is published with it.
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// From now on every request is answered with 503, also those that were begun.
    pub fn give_up(&self) {
        self.drain();
        self.0.given_up.send_replace(true);
    }

    /// Waits for [`State::give_up`].
    async fn is_given_up(&self) {
        let mut given_up = self.0.given_up.subscribe();
        // The sender lives as long as this state does.
        let _ = given_up.wait_for(|given_up| *given_up).await;
    }

    /// Requests that have no response yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.metrics.in_flight()
    }

    /// The agents, if they can be asked for anything.
    fn admits(&self) -> Result<&Arc<Batcher>, ApiError> {
        let batcher = self.0.batcher.get().ok_or_else(ApiError::opening)?;
        if batcher.agents().borrow().serving == 0 {
            return Err(ApiError::lost());
        }
        // ORDERING: see `drain`.
        match self.0.draining.load(Ordering::Relaxed) {
            true => Err(ApiError::closing()),
            false => Ok(batcher),
        }
    }

    fn name(&self) -> &str {
        &self.0.options.name
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let Options { name, aliases, .. } = &self.0.options;
        std::iter::once(name).chain(aliases).map(String::as_str)
    }

    fn model(&self, name: &str) -> Value {
        json!({"id": name, "object": "model", "created": self.0.created, "owned_by": "stasis"})
    }

    fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if self.names().any(|own| own == name) { Ok(()) } else { Err(ApiError::model(name, self.name())) }
    }
}

/// The server's routes.
pub fn router(state: State) -> Router {
    let origins = state.0.options.origins.clone();
    let mut router = Router::new()
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(models))
        // Names of models may have slashes.
        .route("/v1/models/{*id}", get(model))
        .route("/info", get(info))
        .route("/metrics", get(metrics));
    for path in HEALTH {
        router = router.route(path, get(health));
    }
    let mut router = router
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(state.clone(), access::check_key));
    // A browser asks for permission without the key, so this comes before it.
    if !origins.is_empty() {
        router = router.layer(access::cors(&origins));
    }
    router.layer(middleware::from_fn_with_state(state.clone(), watch::watch)).with_state(state)
}

async fn models(Extract(state): Extract<State>) -> Response {
    let models: Vec<_> = state.names().map(|name| state.model(name)).collect();
    Json(json!({"object": "list", "data": models})).into_response()
}

async fn model(
    Extract(state): Extract<State>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::path())?;
    state.check_model(&id)?;
    Ok(Json(state.model(&id)).into_response())
}

async fn health(Extract(state): Extract<State>) -> Result<Response, ApiError> {
    state.admits()?;
    Ok(Json(json!({"status": "ok"})).into_response())
}

async fn info(Extract(state): Extract<State>) -> Response {
    let Shared { options, limits, tokenizer, batcher, .. } = &*state.0;
    let queue = batcher.get().map(|batcher| {
        let (bounds, agents) = (batcher.options(), *batcher.agents().borrow());
        json!({
            "dimensions": batcher.dimensions(),
            "max_queue_tokens": bounds.queue_tokens,
            "max_queue_sentences": bounds.queue_sentences,
            "agents": {"serving": agents.serving, "reopening": agents.reopening, "lost": agents.ended},
        })
    });
    let mut info = json!({
        "model_id": options.name,
        "aliases": options.aliases,
        "model_dtype": options.precision,
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_input_length": tokenizer.limit(),
        "auto_truncate": tokenizer.length().truncate,
        "max_client_batch_size": limits.inputs,
        "max_body_bytes": limits.body_bytes,
        "max_concurrent_connections": options.connections.connections,
        "tokenization_workers": limits.threads,
        "version": env!("CARGO_PKG_VERSION"),
    });
    if let (Some(Value::Object(queue)), Some(info)) = (queue, info.as_object_mut()) {
        info.extend(queue);
    }
    Json(info).into_response()
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
