// SPDX-License-Identifier: MIT OR Apache-2.0
//! The body of a request for embeddings: read and unpacked within the same limit.
//!
//! INVARIANT: all bodies that are held at a time have at most `Limits::buffered_bytes` together. A packed body counts
//! with its largest unpacked size; small bodies are not counted.

use std::borrow::Cow;
use std::io::Read;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::aside::Wanted;
use super::error::ApiError;

/// Bytes of a body over the limit that are read and thrown away. A response that is sent while the client is still
/// writing is lost to most clients, who see a reset connection instead.
const DISCARDED: usize = 32 << 20;
/// Bytes of a body that are not counted: as many as a connection's buffers.
const UNCOUNTED: usize = 16 << 10;
/// Bytes that a permit stands for.
const UNIT: usize = 1 << 10;
/// Bytes that are unpacked at once.
const CHUNK: usize = 64 << 10;
/// How many encodings a body may have, one inside the other.
const LAYERS: usize = 2;

/// Checks that the content type of the body is JSON, or absent.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let text = value.to_str().unwrap_or("not text");
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if json { Ok(()) } else { Err(ApiError::media(text)) }
}

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// `gzip`.
    Gzip,
    /// `deflate`.
    Deflate,
}

/// The encodings of the body, the outermost last.
pub(super) fn packings(headers: &HeaderMap) -> Result<Vec<Packing>, ApiError> {
    let mut packings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        for name in value.to_str().unwrap_or("not text").split(',') {
            match name.trim().to_ascii_lowercase().as_str() {
                "" | "identity" => {}
                "gzip" | "x-gzip" => packings.push(Packing::Gzip),
                "deflate" => packings.push(Packing::Deflate),
                other => return Err(ApiError::encoding(other)),
            }
        }
    }
    if packings.len() > LAYERS { Err(ApiError::encoding("packed more than twice")) } else { Ok(packings) }
}

/// Room for the bodies that are held at a time.
#[derive(Debug)]
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    /// Room for so many bytes, and for one body of `limit` bytes at least.
    pub(super) fn new(bytes: usize, limit: usize) -> Self {
        let units = bytes.max(limit).div_ceil(UNIT).min(u32::MAX as usize);
        Self(Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))))
    }

    /// Waits for room for a body of so many bytes.
    async fn take(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if bytes <= UNCOUNTED {
            return Ok(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.0.clone().acquire_many_owned(units).await.map(Some).map_err(|_| ApiError::internal())
    }
}

/// A body as it came, and its permits.
#[derive(Debug)]
pub(super) struct Packed {
    bytes: Bytes,
    packings: Vec<Packing>,
    limit: usize,
    _room: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    room: &Room,
) -> Result<Packed, ApiError> {
    let packings = packings(headers)?;
    let announced = headers.get(CONTENT_LENGTH).and_then(number);
    if announced.is_some_and(|bytes| bytes > limit.saturating_add(DISCARDED)) {
        return Err(ApiError::too_large(limit));
    }
    let most = if packings.is_empty() { announced.unwrap_or(limit).min(limit) } else { limit };
    let room = room.take(most).await?;
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(limit));
    let mut over = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|why| ApiError::unread(&why))?.into_data() else {
            continue;
        };
        if over > 0 || bytes.len() + data.len() > limit {
            over += data.len();
            if over > DISCARDED {
                break;
            }
        } else {
            bytes.extend_from_slice(&data);
        }
    }
    if over > 0 {
        return Err(ApiError::too_large(limit));
    }
    Ok(Packed { bytes: bytes.into(), packings, limit, _room: room })
}

fn number(value: &HeaderValue) -> Option<usize> {
    value.to_str().ok()?.parse().ok()
}

impl Packed {
    /// The estimated size of the work. The size of a packed body is not known before it is unpacked.
    pub(super) fn weight(&self) -> usize {
        if self.packings.is_empty() { self.bytes.len() } else { self.limit.min(self.bytes.len() << 10) }
    }

    /// Unpacks the body to at most `limit` bytes, as long as the request waits.
    pub(super) fn unpack(&self, wanted: &Wanted) -> Result<Cow<'_, [u8]>, ApiError> {
        let mut bytes = Cow::Borrowed(&self.bytes[..]);
        for packing in self.packings.iter().rev() {
            let from = &bytes[..];
            let unpacked = match packing {
                Packing::Gzip => drain(MultiGzDecoder::new(from), self.limit, wanted),
                // RFC 9110 means zlib's format by `deflate`; some clients send the raw deflate stream.
                Packing::Deflate if is_zlib(from) => drain(ZlibDecoder::new(from), self.limit, wanted),
                Packing::Deflate => drain(DeflateDecoder::new(from), self.limit, wanted),
            };
            bytes = Cow::Owned(unpacked?);
        }
        Ok(bytes)
    }
}

fn is_zlib(bytes: &[u8]) -> bool {
    match bytes {
        [first, second, ..] => first & 15 == 8 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0,
        _ => false,
    }
}

fn drain(mut from: impl Read, limit: usize, wanted: &Wanted) -> Result<Vec<u8>, ApiError> {
    let (mut all, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    while wanted.is_wanted() {
        match from.read(&mut chunk).map_err(|why| ApiError::unpack(&why))? {
            0 => break,
            length if all.len() + length > limit => return Err(ApiError::too_large(limit)),
            length => all.extend_from_slice(&chunk[..length]),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    fn headers(name: axum::http::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn types_that_are_json() {
        let check = |kind: &'static str| check_type(&headers(CONTENT_TYPE, kind)).is_ok();

        assert!(check_type(&HeaderMap::new()).is_ok());
        assert!(check("application/json") && check("Application/JSON; charset=utf-8"));
        assert!(check("application/vnd.api+json"));
        assert!(!check("text/plain") && !check("application/x-www-form-urlencoded") && !check(""));
    }

    #[test]
    fn packings_are_named_in_their_order() {
        let of = |names: &'static str| packings(&headers(CONTENT_ENCODING, names));

        assert_eq!(of("identity"), Ok(vec![]));
        assert_eq!(of("Deflate, GZIP"), Ok(vec![Packing::Deflate, Packing::Gzip]));
        assert_eq!(of("br"), Err(ApiError::encoding("br")));
        assert!(of("gzip, gzip, gzip").is_err());
    }

    async fn read_all(headers: &HeaderMap, bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, ApiError> {
        let room = Room::new(limit, limit);
        let packed = read(headers, Body::from(bytes), limit, &room).await?;
        let aside = super::super::aside::Aside::new(1);
        aside
            .run(super::super::aside::Size::Medium, move |wanted| packed.unpack(wanted).map(Cow::into_owned))
            .await?
    }

    #[tokio::test]
    async fn body_is_read_up_to_its_limit() {
        let read = |text: &str, limit| {
            let bytes = text.as_bytes().to_vec();
            async move { read_all(&HeaderMap::new(), bytes, limit).await.map(|bytes| bytes.len()) }
        };

        assert_eq!(read("12345", 5).await, Ok(5));
        assert_eq!(read("123456", 5).await, Err(ApiError::too_large(5)));
    }

    #[tokio::test]
    async fn body_is_unpacked_up_to_the_same_limit() {
        let text = vec![b'a'; 100_000];
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        let mut plain = DeflateEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&text).unwrap();
        zlib.write_all(&text).unwrap();
        plain.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        for (name, packed) in [
            ("gzip", gzip.clone()),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", plain.finish().unwrap()),
        ] {
            let headers = headers(CONTENT_ENCODING, name);
            assert_eq!(read_all(&headers, packed.clone(), 100_000).await, Ok(text.clone()), "{name}");
            let over = read_all(&headers, packed.clone(), 99_999).await;
            assert_eq!(over, Err(ApiError::too_large(99_999)), "{name}");
            assert!(
                read_all(&headers, packed[..packed.len() / 2].to_vec(), 100_000).await.is_err(),
                "{name}"
            );
        }
        let both = headers(CONTENT_ENCODING, "gzip, gzip");
        let mut twice = GzEncoder::new(Vec::new(), Compression::default());
        twice.write_all(&gzip).unwrap();
        assert_eq!(read_all(&both, twice.finish().unwrap(), 100_000).await, Ok(text));
    }

    #[tokio::test]
    async fn bodies_wait_for_room() {
        let room = Room::new(64 << 10, 64 << 10);
        let body = || Body::from(vec![b'a'; 40 << 10]);
        let limit = 64 << 10;
        let headers = headers(CONTENT_LENGTH, "40960");

        let first = read(&headers, body(), limit, &room).await.unwrap();
        let mut second = std::pin::pin!(read(&headers, body(), limit, &room));
        assert!(poll_once(second.as_mut()).is_none());
        let one = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from(1))]);
        assert!(read(&one, Body::from("a"), limit, &room).await.is_ok());

        drop(first);
        assert!(second.await.is_ok());
    }

    fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }
}
