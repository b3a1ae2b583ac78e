// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as OpenAI's interface shows them: a status, and `{"error": {message, type, param, code}}`.

use std::time::Duration;

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::batch::{BatchError, SubmitError};
use crate::embedder::EmbedError;
use crate::model::TokenizeError;

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

/// An error as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: String) -> Self {
        Self { status, message, kind, param: None, code: None }
    }

    fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Something in the request is not as it must be: 400.
    pub(super) fn invalid(param: &'static str, message: String) -> Self {
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, INVALID, message) }
    }

    /// The body is no JSON object: 400.
    pub(super) fn json(why: &dyn std::fmt::Display) -> Self {
        let message = format!("The body of the request is not a JSON object: {why}");
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// The body did not arrive: 400, for whoever may still be there to read it.
    pub(super) fn body(why: &dyn std::fmt::Display) -> Self {
        let message = format!("The body of the request could not be read: {why}");
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// More inputs than a request may have: 400.
    pub(super) fn inputs(inputs: usize, limit: usize) -> Self {
        let message = format!("'input' has {inputs} items, the limit is {limit}: split the request");
        Self::invalid("input", message).code("array_above_max_length")
    }

    /// An input that is no sentence: 400.
    pub(super) fn sentence(index: usize, error: &TokenizeError) -> Self {
        let invalid = Self::invalid("input", format!("Input {index}: {error}"));
        match error {
            TokenizeError::TooLong { .. } => invalid.code("context_length_exceeded"),
            _ => invalid,
        }
    }

    /// A model that is not served: 404.
    pub(super) fn model(asked: &str, served: &str) -> Self {
        let message = format!("The model '{asked}' does not exist here, the one served is '{served}'");
        Self { param: Some("model"), ..Self::new(StatusCode::NOT_FOUND, INVALID, message) }
            .code("model_not_found")
    }

    /// Nothing is at this path: 404.
    pub(super) fn route(method: &Method, path: &str) -> Self {
        let message = format!("Unknown request URL: {method} {path}");
        Self::new(StatusCode::NOT_FOUND, INVALID, message).code("unknown_url")
    }

    /// The path has other methods: 405.
    pub(super) fn method(method: &Method, path: &str) -> Self {
        let message = format!("{path} does not take {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, message).code("method_not_supported")
    }

    /// A body over the limit: 413.
    pub(super) fn too_large(limit: usize) -> Self {
        let message =
            format!("The body of the request is over the limit of {limit} bytes: split the request");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message).code("request_too_large")
    }

    /// A body that says it is no JSON: 415.
    pub(super) fn media(found: &str) -> Self {
        let message = format!("The body of the request is '{found}': send 'Content-Type: application/json'");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message).code("unsupported_media_type")
    }

    /// A fault of the server's: 500.
    pub(super) fn internal() -> Self {
        let message = "The server had an error while processing the request".to_owned();
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, message)
    }

    /// The server is shutting down: 503.
    pub(super) fn closing() -> Self {
        let message = "The server is shutting down: try again, another may answer".to_owned();
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message).code("shutting_down")
    }

    /// The request took longer than it may: 504.
    pub(super) fn late(limit: Duration) -> Self {
        let message = format!("The request was not answered within {limit:?}");
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER, message).code("timeout")
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Full { .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                // OpenAI's type says which limit it was, requests or tokens.
                Self::new(status, "tokens", message).code("rate_limit_exceeded")
            }
            SubmitError::TooMany { sentences, limit } => Self::inputs(sentences, limit),
            SubmitError::TooLarge { .. } => {
                let code = "max_tokens_per_request";
                Self::new(StatusCode::BAD_REQUEST, code, message).code(code)
            }
            SubmitError::Sentence { .. } => Self::invalid("input", message).code("context_length_exceeded"),
            SubmitError::Closed => Self::closing(),
        }
    }
}

impl From<BatchError> for ApiError {
    fn from(error: BatchError) -> Self {
        // The cause is in the server's log, with the request's id; a client gets what it can act upon.
        match error {
            BatchError::Failed(cause) if matches!(*cause, EmbedError::Device { .. }) => {
                let message = "The device failed while it embedded the request: try again".to_owned();
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, message).code("device_failed")
            }
            _ => Self::internal(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, message, kind, param, code } = self;
        let body = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        let again = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry = again.then_some([(RETRY_AFTER, "1")]);
        match retry {
            Some(retry) => (status, retry, Json(body)).into_response(),
            None => (status, Json(body)).into_response(),
        }
    }
}
