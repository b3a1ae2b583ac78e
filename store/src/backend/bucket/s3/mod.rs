// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bucket over S3's interface: HTTP with requests that are signed in their addresses (Signature Version 4).
//!
//! A request that was not answered, or that a server was too busy for, is made again, with growing pauses. If a write under a condition is
//! made again and the condition is not met, the first one may have had its effect: what is there says so.
//!
//! INVARIANT: bytes arrive as they were sent (Content-MD5), and an answer that is cut off is none. Requests are signed for the time of the
//! server, when it says that the clock here is wrong.

mod config;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, Method, S3Action};
use ureq::http::{Request, Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};
use url::Url;

use super::objects::{Condition, Listed, Objects, Version};
use crate::error::{RemoteError, StoreError};

/// How often a request is made.
const ATTEMPTS: u32 = 11;
/// The first pause; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// TIMEOUT: until there is a connection.
const CONNECTING: Duration = Duration::from_secs(10);
/// TIMEOUT: until all of an answer is there. A pack has 32 MiB.
const ANSWERING: Duration = Duration::from_secs(300);
/// How long an address is good for, from the moment when it is signed.
const SIGNED: Duration = Duration::from_secs(3600);
/// Connections that are kept while nothing is asked.
const CONNECTIONS: usize = 64;
/// Longest list, or error, that is read, bytes.
const MAX_TEXT: u64 = 8 << 20;
/// Most objects of all lists.
const MAX_LISTED: usize = 1 << 24;

/// A bucket, or the part of it whose keys begin with a prefix.
pub(crate) struct S3 {
    agent: Agent,
    bucket: Bucket,
    credentials: Credentials,
    /// With a slash at its end, or empty.
    prefix: String,
    /// Milliseconds that the server's clock is before the one here.
    ahead: AtomicI64,
    pause: Duration,
    /// Pauses of several threads are not alike.
    pauses: AtomicU64,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3")
            .field("bucket", &self.bucket.name())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// What a request is.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    /// What errors call it.
    act: &'static str,
    key: &'a str,
    headers: &'a [(&'static str, String)],
    body: &'a [u8],
    /// Longest answer that is read, bytes.
    most: u64,
}

/// An answer: its status, an entity tag, and the bytes.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    tag: Option<String>,
    bytes: Vec<u8>,
    /// Whether an earlier request of the same may have had its effect.
    is_repeated: bool,
}

impl S3 {
    /// A bucket of the server that the environment names.
    ///
    /// # Errors
    /// [`StoreError::Bucket`].
    pub(crate) fn open(bucket: &str, prefix: &str) -> Result<Self, StoreError> {
        let (bucket, credentials) = config::bucket(bucket, &|name| std::env::var(name).ok())?;
        Ok(Self::new(bucket, credentials, prefix))
    }

    fn new(bucket: Bucket, credentials: Credentials, prefix: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECTING))
            .timeout_global(Some(ANSWERING))
            .max_idle_connections(CONNECTIONS)
            .max_idle_connections_per_host(CONNECTIONS)
            // As other programs of this machine do it, and a site with an authority of its own.
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .user_agent(concat!("stasis/", env!("CARGO_PKG_VERSION")));
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let agent = config.build().new_agent();
        let (ahead, pauses) = (AtomicI64::new(0), AtomicU64::new(0));
        Self { agent, bucket, credentials, prefix, ahead, pause: PAUSE, pauses }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn failed(&self, asked: &Asked<'_>, source: RemoteError) -> StoreError {
        StoreError::Remote { act: asked.act, object: self.called(asked.key), source }
    }

    /// Signs for the time that the server has.
    fn sign<'s>(&self, action: &mut impl S3Action<'s>, headers: &'s [(&'static str, String)]) -> Url {
        for (name, value) in headers {
            action.headers_mut().insert(*name, value.as_str());
        }
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::Relaxed));
        let now = Timestamp::now();
        action.sign_with_time(SIGNED, &now.checked_add(ahead).unwrap_or(now))
    }

    /// Makes a request until it is answered; answers that refuse it are errors, unless they are about the object or a condition.
    fn ask(&self, asked: Asked<'_>, method: Method, sign: impl Fn() -> Url) -> Result<Answer, StoreError> {
        let mut is_repeated = false;
        for attempt in 1.. {
            let ahead = self.ahead.load(Ordering::Relaxed);
            let (error, had_effect) = match self.ask_once(&asked, method, &sign()) {
                Ok((status, tag, bytes)) => match judge(status, &bytes) {
                    None => return Ok(Answer { status, tag, bytes, is_repeated }),
                    Some((error, true)) => (error, status.is_server_error()),
                    // It was signed for another time than the server has; it is learnt once.
                    Some((error, false)) if self.ahead.load(Ordering::Relaxed) != ahead => (error, false),
                    Some((error, false)) => return Err(self.failed(&asked, error)),
                },
                Err(error @ RemoteError::Connection(_)) => (error, true),
                Err(error) => return Err(self.failed(&asked, error)),
            };
            if attempt == ATTEMPTS {
                return Err(self.failed(&asked, error));
            }
            is_repeated |= had_effect;
            tracing::debug!(act = asked.act, key = asked.key, attempt, %error, "a request is made again");
            sleep(self.pause_before(attempt));
        }
        unreachable!("the last attempt returns")
    }

    /// How long to wait: at least half of what is due, so that those who were refused at the same time do not come back at the same time.
    fn pause_before(&self, attempt: u32) -> Duration {
        let due = self.pause.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_PAUSE);
        let number = self.pauses.fetch_add(1, Ordering::Relaxed) ^ u64::from(std::process::id());
        let share = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        // CAST: ten bits.
        due / 2 + due * (share as u32) / 2048
    }

    fn ask_once(
        &self,
        asked: &Asked<'_>,
        method: Method,
        url: &Url,
    ) -> Result<(StatusCode, Option<String>, Vec<u8>), RemoteError> {
        let mut request = Request::builder().method(method.to_str()).uri(url.as_str());
        for (name, value) in asked.headers {
            request = request.header(*name, value);
        }
        let wrong = |error: &dyn fmt::Display| RemoteError::Answer(error.to_string());
        let sent = match method {
            Method::Put => self.agent.run(request.body(asked.body).map_err(|error| wrong(&error))?),
            _ => self.agent.run(request.body(()).map_err(|error| wrong(&error))?),
        };
        let mut response = sent.map_err(connection)?;
        self.learn_time(&response);
        let status = response.status();
        let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let most = if status.is_success() { asked.most } else { MAX_TEXT };
        let length = response.body().content_length();
        let limited = response.body_mut().with_config().limit(most.saturating_add(1));
        let bytes = limited.read_to_vec().map_err(|error| match error {
            _ if length.is_some_and(|length| length > most) => RemoteError::TooLong(most),
            error => connection(error),
        })?;
        if bytes.len() as u64 > most {
            return Err(RemoteError::TooLong(most));
        }
        if length.is_some_and(|length| length != bytes.len() as u64) {
            return Err(RemoteError::Connection(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok((status, tag, bytes))
    }

    /// Notes what time it is at a server that refuses requests because of the time.
    fn learn_time(&self, response: &Response<Body>) {
        if response.status() != StatusCode::FORBIDDEN {
            return;
        }
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        if let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) {
            let ahead = date.timestamp().as_millisecond() - Timestamp::now().as_millisecond();
            // Its text has seconds, and it took a while to come.
            let known = self.ahead.load(Ordering::Relaxed);
            if (ahead - known).abs() >= 30_000 {
                self.ahead.store(ahead, Ordering::Relaxed);
            }
        }
    }

    fn get_with(&self, asked: Asked<'_>) -> Result<Answer, StoreError> {
        let key = self.key(asked.key);
        let sign = || self.sign(&mut self.bucket.get_object(Some(&self.credentials), &key), asked.headers);
        self.ask(asked, Method::Get, sign)
    }
}

/// Why an answer is none, and whether to ask again.
fn judge(status: StatusCode, bytes: &[u8]) -> Option<(RemoteError, bool)> {
    if status.is_success() {
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    let code = element(&text, "Code").unwrap_or_default();
    // What another server on the way does not find may well be there.
    let is_about_object = match status {
        StatusCode::NOT_FOUND => matches!(code, "NoSuchKey" | "NoSuchVersion"),
        StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => true,
        _ => false,
    };
    if is_about_object {
        return None;
    }
    let is_worth = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
        || matches!(
            code,
            "ConditionalRequestConflict"
                | "OperationAborted"
                | "RequestTimeTooSkewed"
                | "RequestTimeout"
                | "SlowDown"
                | "BadDigest"
                | "IncompleteBody"
        );
    let message = element(&text, "Message").unwrap_or_default();
    let printable = |text: &str| text.chars().filter(|c| !c.is_control()).take(300).collect::<String>();
    let refused =
        RemoteError::Refused { status: status.as_u16(), code: printable(code), message: printable(message) };
    Some((refused, is_worth))
}

/// The text of the first element of this name.
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(inside, _)| inside)
}

fn connection(error: ureq::Error) -> RemoteError {
    RemoteError::Connection(match error {
        ureq::Error::Io(error) => error,
        error => io::Error::other(error),
    })
}

impl Objects for S3 {
    fn called(&self, key: &str) -> String {
        let all = format!("s3://{}/{}{key}", self.bucket.name(), self.prefix);
        all.trim_end_matches('/').to_owned()
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let asked = Asked { act: "read", key, headers: &[], body: &[], most };
        let answer = self.get_with(asked)?;
        if !answer.status.is_success() {
            return Ok(None);
        }
        let no_tag = || self.failed(&asked, RemoteError::Answer("it has no ETag".to_owned()));
        let tag = answer.tag.ok_or_else(no_tag)?;
        Ok(Some((answer.bytes, Version(tag))))
    }

    fn get_part(&self, key: &str, offset: u64, bytes: u64) -> Result<Option<Vec<u8>>, StoreError> {
        if bytes == 0 {
            return Ok(Some(Vec::new()));
        }
        let headers = [("range", format!("bytes={offset}-{}", offset.saturating_add(bytes - 1)))];
        let asked = Asked { act: "read", key, headers: &headers, body: &[], most: bytes };
        let answer = self.get_with(asked)?;
        match answer.status {
            StatusCode::PARTIAL_CONTENT => Ok(Some(answer.bytes)),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Some(Vec::new())),
            status => {
                let what = format!("it has status {status} for a part of an object");
                Err(self.failed(&asked, RemoteError::Answer(what)))
            }
        }
    }

    fn put(&self, key: &str, bytes: &[u8], when: Condition<'_>) -> Result<Option<Version>, StoreError> {
        let mut headers = vec![("content-md5", STANDARD.encode(md5::compute(bytes).0))];
        match when {
            Condition::Always => {}
            Condition::Absent => headers.push(("if-none-match", "*".to_owned())),
            Condition::Is(version) => headers.push(("if-match", version.0.clone())),
        }
        let asked = Asked { act: "write", key, headers: &headers, body: bytes, most: MAX_TEXT };
        let whole = self.key(key);
        let sign = || self.sign(&mut self.bucket.put_object(Some(&self.credentials), &whole), &headers);
        let answer = self.ask(asked, Method::Put, sign)?;
        if answer.status.is_success() {
            let no_tag = || self.failed(&asked, RemoteError::Answer("it has no ETag".to_owned()));
            return Ok(Some(Version(answer.tag.ok_or_else(no_tag)?)));
        }
        if answer.is_repeated
            && let Some((there, version)) = self.get(key, bytes.len() as u64 + MAX_TEXT)?
            && there == bytes
        {
            return Ok(Some(version));
        }
        match when {
            Condition::Always => {
                let what = format!("it has status {} for a write without a condition", answer.status);
                Err(self.failed(&asked, RemoteError::Answer(what)))
            }
            _ => Ok(None),
        }
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let asked = Asked { act: "remove", key, headers: &[], body: &[], most: MAX_TEXT };
        let whole = self.key(key);
        let sign = || self.sign(&mut self.bucket.delete_object(Some(&self.credentials), &whole), &[]);
        self.ask(asked, Method::Delete, sign).map(drop)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, StoreError> {
        let asked = Asked { act: "list", key: prefix, headers: &[], body: &[], most: MAX_TEXT };
        let wrong = |what: String| self.failed(&asked, RemoteError::Answer(what));
        let (whole, mut found, mut token) = (self.key(prefix), Vec::new(), None::<String>);
        loop {
            let sign = || {
                let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
                action.with_prefix(whole.as_str());
                if let Some(token) = &token {
                    action.with_continuation_token(token.as_str());
                }
                self.sign(&mut action, &[])
            };
            let answer = self.ask(asked, Method::Get, sign)?;
            if !answer.status.is_success() {
                return Err(wrong(format!("it has status {} for a list", answer.status)));
            }
            let text = String::from_utf8(answer.bytes).map_err(|error| wrong(error.to_string()))?;
            let list = ListObjectsV2::parse_response(&text).map_err(|error| wrong(error.to_string()))?;
            for object in list.contents {
                let key = object.key.strip_prefix(&self.prefix).filter(|key| key.starts_with(prefix));
                let key = key.ok_or_else(|| wrong(format!("{:?} was not asked for", object.key)))?.to_owned();
                let written = object.last_modified.unwrap_or_default();
                found.push(Listed { key, bytes: object.size.unwrap_or(0), written });
            }
            if found.len() > MAX_LISTED {
                return Err(wrong(format!("it lists more than {MAX_LISTED} objects")));
            }
            match list.next_continuation_token {
                Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                Some(_) => return Err(wrong("it lists the same again".to_owned())),
                None => return Ok(found),
            }
        }
    }
}
