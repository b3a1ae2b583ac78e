// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's routes, and the handlers that need only its state.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State as Extract};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};

use super::error::ApiError;
use super::state::{HEALTH, Shared, State};
use super::{access, embeddings, watch};

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
