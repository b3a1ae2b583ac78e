// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access control: keys, and the origins of browsers' pages.

use axum::extract::{Request, State as Extract};
use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::error::ApiError;
use super::state::{HEALTH, State};

/// Accepts requests with a key, and requests for the server's health.
pub(super) async fn check_key(
    Extract(state): Extract<State>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &state.0.options.keys;
    if !keys.is_empty() && !HEALTH.contains(&request.uri().path()) {
        match bearer(request.headers()) {
            Some(key) if keys.has(key) => {}
            key => return Err(ApiError::key(key.is_some())),
        }
    }
    Ok(next.run(request).await)
}

/// The key that a client sent.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// The CORS headers for pages of these origins; `*` means all.
pub(super) fn cors(origins: &[HeaderValue]) -> CorsLayer {
    let any = origins.iter().any(|origin| origin == "*");
    let origins = if any { AllowOrigin::any() } else { AllowOrigin::list(origins.iter().cloned()) };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // A page may send what the client libraries send, whose headers differ.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), RETRY_AFTER])
}

#[cfg(test)]
mod tests {
    use super::super::keys::Keys;
    use super::*;

    #[test]
    fn keys_are_compared_whole() {
        let keys = Keys::new(["one", "other"]);

        assert!(keys.has(b"one") && keys.has(b"other"));
        assert!(!keys.has(b"") && !keys.has(b"on") && !keys.has(b"onee") && !keys.has(b"One"));
    }

    #[test]
    fn key_is_a_bearer_token() {
        let key = |value: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            bearer(&headers).map(|key| String::from_utf8_lossy(key).into_owned())
        };

        assert_eq!(key("Bearer secret").as_deref(), Some("secret"));
        assert_eq!(key("bearer  secret").as_deref(), Some("secret"));
        assert_eq!(key("Basic secret"), None);
        assert_eq!(key("Bearer"), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
