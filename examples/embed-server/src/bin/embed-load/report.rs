// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: a JSON line at the beginning, one for each request when it ends, and one at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::connection::Setback;

/// The final result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered completely and, as far as it could be checked, correctly.
    Ok,
    /// Answered wrongly.
    Wrong,
    /// Not answered in its time.
    Lost,
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its id, in every attempt.
    pub id: String,
    /// The client's number.
    pub client: u32,
    /// Sentences in it.
    pub sentences: usize,
    /// When the request was begun, from the beginning of the run.
    pub start_ms: f64,
    /// From there to its answer's last byte, over all attempts.
    pub latency_ms: f64,
    /// The number of attempts.
    pub attempts: u32,
    /// The failures of earlier attempts.
    pub setbacks: BTreeMap<Setback, u32>,
    /// Whether the answer came over a connection that was opened for it.
    pub fresh: bool,
    /// The result.
    pub outcome: Outcome,
    /// What was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Request {
    /// When its answer came.
    pub fn end_ms(&self) -> f64 {
        self.start_ms + self.latency_ms
    }
}

/// The sum of all requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Requests begun.
    pub requests: u64,
    /// Answered correctly.
    pub ok: u64,
    /// Not answered.
    pub lost: u64,
    /// Answered wrongly, and connections on which bytes came that were not asked for.
    pub wrong: u64,
    /// Tried more than once.
    pub retried: u64,
    /// Sentences of those answered.
    pub sentences: u64,
    /// From the beginning to the last answer.
    pub seconds: f64,
    /// Sentences answered a second.
    pub sentences_per_s: f64,
    /// Half of the answers took no longer.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// The longest time.
    pub max_ms: f64,
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The first.
    Begin {
        /// The moment that `start_ms` counts from, in milliseconds since 1970.
        unix_ms: f64,
        /// Clients.
        clients: u32,
    },
    /// A request has ended.
    Request(Request),
    /// The last.
    Summary(Summary),
}

/// Milliseconds since 1970, with their fractions.
pub fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

impl Summary {
    /// Of `begun` requests these have ended; on `unasked` connections bytes came that were not asked for.
    pub fn new(begun: u64, ended: &[Request], unasked: u64) -> Self {
        let count = |test: &dyn Fn(&Request) -> bool| ended.iter().filter(|r| test(r)).count() as u64;
        let ok = |request: &Request| request.outcome == Outcome::Ok;
        let mut latencies: Vec<f64> = ended.iter().filter(|r| ok(r)).map(|r| r.latency_ms).collect();
        latencies.sort_by(f64::total_cmp);
        let sentences = ended.iter().filter(|r| ok(r)).map(|r| r.sentences as u64).sum();
        let seconds = ended.iter().map(Request::end_ms).fold(0.0, f64::max) / 1e3;
        // CAST: counts, far below 2^53.
        let rate = if seconds > 0.0 { sentences as f64 / seconds } else { 0.0 };
        Self {
            requests: begun,
            ok: count(&ok),
            // A request without a reported end is lost, too.
            lost: begun - count(&|r| r.outcome != Outcome::Lost),
            wrong: count(&|r| r.outcome == Outcome::Wrong) + unasked,
            retried: count(&|r| r.attempts > 1),
            sentences,
            seconds,
            sentences_per_s: rate,
            p50_ms: percentile(&latencies, 0.5),
            p99_ms: percentile(&latencies, 0.99),
            max_ms: latencies.last().copied().unwrap_or(0.0),
        }
    }

    /// Whether no request is lost or wrong.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.wrong == 0 && self.ok == self.requests
    }
}

/// The least that `part` of them do not exceed (nearest rank).
fn percentile(ascending: &[f64], part: f64) -> f64 {
    // CAST: an index.
    let rank = (part * ascending.len() as f64).ceil() as usize;
    ascending.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Reads a report.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    lines.with_context(|| format!("{} is not what --json prints", path.display()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn request(start_ms: f64, latency_ms: f64, attempts: u32, outcome: Outcome) -> Request {
        Request {
            id: format!("r-{start_ms}"),
            client: 0,
            sentences: 2,
            start_ms,
            latency_ms,
            attempts,
            setbacks: if attempts > 1 { [(Setback::Refused, attempts - 1)].into() } else { [].into() },
            fresh: attempts > 1,
            outcome,
            why: None,
        }
    }

    #[test]
    fn what_has_not_ended_is_lost() {
        let mut ended: Vec<_> = (0..99).map(|n| request(f64::from(n), 10.0, 1, Outcome::Ok)).collect();
        ended.push(request(900.0, 100.0, 3, Outcome::Ok));
        let clean = Summary::new(100, &ended, 0);
        assert!(clean.is_clean());
        assert_eq!((clean.retried, clean.sentences, clean.sentences_per_s), (1, 200, 200.0));
        assert_eq!((clean.p50_ms, clean.p99_ms, clean.max_ms), (10.0, 10.0, 100.0));

        ended.push(request(1.0, 1.0, 1, Outcome::Wrong));
        ended.push(request(1.0, 1.0, 1, Outcome::Lost));
        let bad = Summary::new(103, &ended, 1);
        assert_eq!((bad.ok, bad.lost, bad.wrong), (100, 2, 2));
        assert!(!bad.is_clean() && !Summary::new(101, &ended[..100], 0).is_clean());
        assert_eq!(Summary::new(0, &[], 0), Summary::default());
    }

    #[test]
    fn lines_are_read_as_written() {
        let lines = [
            Line::Begin { unix_ms: 1.5, clients: 8 },
            Line::Request(request(1.0, 2.5, 2, Outcome::Ok)),
            Line::Summary(Summary::default()),
        ];
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let text: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        fs::write(&path, text.join("\n")).unwrap();

        assert!(
            text[1].contains(r#""kind":"request""#) && text[1].contains(r#"{"refused":1}"#),
            "{}",
            text[1]
        );
        assert_eq!(read(&path).unwrap(), lines);
    }
}
