// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as OpenAI's interface shows them: a status, and `{"error": {message, type, param, code}}`.

use std::time::Duration;

use axum::Json;
use axum::http::header::{ACCEPT_ENCODING, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::batch::{BatchError, SubmitError};
use crate::embedder::EmbedError;
use crate::model::TokenizeError;

/// Content encodings that the server takes.
const ENCODINGS: &str = "gzip, deflate";
const ENCODING_CODE: &str = "unsupported_content_encoding";
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

    /// The body did not arrive: 400, for a client that still reads.
    pub(super) fn unread(why: &dyn std::fmt::Display) -> Self {
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
            TokenizeError::TooLong { .. } | TokenizeError::MuchTooLong { .. } => {
                invalid.code("context_length_exceeded")
            }
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

    /// A body whose content type is not JSON: 415.
    pub(super) fn media(found: &str) -> Self {
        let message = format!("The body of the request is '{found}': send 'Content-Type: application/json'");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message).code("unsupported_media_type")
    }

    /// A body with a content encoding that this server does not support: 415.
    pub(super) fn encoding(found: &str) -> Self {
        let shown: String = found.chars().take(32).collect();
        let message =
            format!("The body's Content-Encoding is '{shown}': the server takes {ENCODINGS} and identity");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message).code(ENCODING_CODE)
    }

    /// A body that cannot be unpacked: 400.
    pub(super) fn unpack(why: &dyn std::fmt::Display) -> Self {
        let message = format!("The body of the request could not be unpacked: {why}");
        Self::new(StatusCode::BAD_REQUEST, INVALID, message).code("invalid_content_encoding")
    }

    /// A request without a key, or with a wrong one: 401.
    pub(super) fn key(given: bool) -> Self {
        let message = match given {
            true => "The API key is not one of this server's",
            false => "The request has no API key: send 'Authorization: Bearer KEY'",
        };
        Self::new(StatusCode::UNAUTHORIZED, INVALID, message.to_owned()).code("invalid_api_key")
    }

    /// A path that is no text: 400.
    pub(super) fn path() -> Self {
        let message = "The path of the request is not valid UTF-8".to_owned();
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// Headers that did not come in time: 408.
    pub(super) fn slow_head(limit: Duration) -> Self {
        let message = format!("The headers of the request did not arrive within {limit:?}");
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, message).code("request_timeout")
    }

    /// A request that could not be read as HTTP; the status says why.
    pub(super) fn head(status: StatusCode) -> Self {
        let (message, code) = match status {
            StatusCode::URI_TOO_LONG => ("The request's target is too long", "uri_too_long"),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                ("The request's headers are too many or too large", "headers_too_large")
            }
            _ => ("The request is not a valid HTTP/1.1 request", "bad_http"),
        };
        Self::new(status, INVALID, message.to_owned()).code(code)
    }

    /// A connection more than there may be: 503.
    pub(super) fn connections(limit: usize) -> Self {
        let message = format!("The server has {limit} connections, as many as it may: try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message).code("too_many_connections")
    }

    /// No agent serves: 503.
    pub(super) fn lost() -> Self {
        let message = "The device is lost, nothing can be embedded now: try again later".to_owned();
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message).code("device_lost")
    }

    /// The device is being opened: 503.
    pub(super) fn opening() -> Self {
        let message = "The server is opening its device: try again later".to_owned();
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message).code("device_opening")
    }

    /// The time limit of a shutdown passed before the request was answered: 503.
    pub(super) fn given_up() -> Self {
        let message = "The server is shutting down and had no more time for the request: try again, another may \
                       answer";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message.to_owned()).code("shutting_down")
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
                // OpenAI's type says which limit was exceeded, requests or tokens.
                Self::new(status, "tokens", message).code("rate_limit_exceeded")
            }
            SubmitError::TooMany { sentences, limit } => Self::inputs(sentences, limit),
            SubmitError::TooLarge { .. } => {
                let code = "max_tokens_per_request";
                Self::new(StatusCode::BAD_REQUEST, code, message).code(code)
            }
            SubmitError::Sentence { .. } => Self::invalid("input", message).code("context_length_exceeded"),
            SubmitError::NoAgent => Self::lost(),
            SubmitError::Closed => Self::closing(),
        }
    }
}

impl From<BatchError> for ApiError {
    fn from(error: BatchError) -> Self {
        // The cause is in the server's log, with the request's id; a client gets only what helps it.
        match error {
            BatchError::Failed(cause) => match &*cause {
                EmbedError::Device { .. } => {
                    let message = "The device failed while it embedded the request: try again".to_owned();
                    Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, message).code("device_failed")
                }
                EmbedError::Lost { .. } => Self::lost(),
                _ => Self::internal(),
            },
            BatchError::NoAgent => Self::lost(),
            _ => Self::internal(),
        }
    }
}

impl ApiError {
    /// Its status.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    fn body(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }

    /// The headers that say what the client can do next.
    fn advice(&self) -> Option<(HeaderName, HeaderValue)> {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Some((RETRY_AFTER, HeaderValue::from_static("1")))
            }
            StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            _ if self.code == Some(ENCODING_CODE) => {
                Some((ACCEPT_ENCODING, HeaderValue::from_static(ENCODINGS)))
            }
            _ => None,
        }
    }

    /// The whole response as bytes, for a connection that gets no other response.
    pub(super) fn to_bytes(&self, id: &str) -> Vec<u8> {
        let body = self.body().to_string();
        let advice = self.advice().map_or(String::new(), |(name, value)| {
            format!("{name}: {}\r\n", value.to_str().unwrap_or_default())
        });
        let (status, length) = (self.status, body.len());
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             x-request-id: {id}\r\n{advice}connection: close\r\n\r\n"
        );
        (head + &body).into_bytes()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (body, advice) = (self.body(), self.advice());
        let mut response = (self.status, Json(body)).into_response();
        if let Some((name, value)) = advice {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
