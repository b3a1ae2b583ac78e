// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ids of requests.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderValue};

/// The header that carries an id.
pub(super) const HEADER: &str = "x-request-id";
/// Characters of an id that a client may choose.
const LONGEST: usize = 128;

/// Makes ids: different from those of other processes, and ascending.
#[derive(Debug)]
pub(super) struct Ids {
    prefix: u64,
    next: AtomicU64,
}

impl Default for Ids {
    fn default() -> Self {
        // std seeds the hasher from the system's randomness.
        Self { prefix: RandomState::new().build_hasher().finish(), next: AtomicU64::new(1) }
    }
}

impl Ids {
    /// The client's own id if it is valid in a log, else a new one.
    pub(super) fn id(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(own) = headers.get(HEADER).filter(|id| is_sane(id.as_bytes())) {
            return own.clone();
        }
        // ORDERING: only uniqueness of the number matters.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("req-{:016x}-{number}", self.prefix);
        // INVARIANT: hexadecimal and decimal digits are legal in a header.
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("req"))
    }
}

fn is_sane(id: &[u8]) -> bool {
    let fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    (1..=LONGEST).contains(&id.len()) && id.iter().all(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_the_client_is_kept_if_sane() {
        let ids = Ids::default();
        let id = |value: &'static str| {
            let headers = HeaderMap::from_iter([(HEADER.parse().unwrap(), HeaderValue::from_static(value))]);
            ids.id(&headers).to_str().unwrap().to_owned()
        };

        assert_eq!(id("a-B_9.:"), "a-B_9.:");
        for insane in ["", "a b", "a\"b", "a=b"] {
            assert!(id(insane).starts_with("req-"), "{insane}");
        }
        assert!(is_sane(&[b'a'; LONGEST]) && !is_sane(&[b'a'; LONGEST + 1]));
    }

    #[test]
    fn ids_differ() {
        let (one, other) = (Ids::default(), Ids::default());
        let none = HeaderMap::new();

        assert_ne!(one.id(&none), one.id(&none));
        assert_ne!(one.prefix, other.prefix);
    }
}
