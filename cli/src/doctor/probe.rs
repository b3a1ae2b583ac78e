// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a probe is, and what is said of one.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::bench::Bench;

/// How much depends on a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Without it nothing of the runtime can be trusted.
    Required,
    /// Some of the runtime does not work without it.
    Wanted,
    /// Where it fails, something is slower or is refused by name.
    Optional,
}

impl Grade {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Wanted => "wanted",
            Self::Optional => "optional",
        }
    }
}

/// One thing to be tried.
#[derive(Debug)]
pub struct Probe {
    /// Its name on the command line.
    pub name: &'static str,
    /// How much depends on it.
    pub grade: Grade,
    /// What is right.
    pub expects: &'static str,
    /// What to do, or to report with the row, when it is not so.
    pub advice: &'static str,
    /// Tries it and says what it has seen.
    pub run: fn(&Bench) -> Result<String>,
}

/// The probe cannot be made here, which is no failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

/// What a probe's process prints.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It was right.
    Seen(String),
    /// It was not.
    Failed(String),
    /// It could not be tried.
    Skipped(String),
}

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As expected.
    Passed,
    /// Not as expected.
    Failed,
    /// It could not be tried.
    Skipped,
    /// Its process did not end in time.
    Hung,
    /// Its process ended without an answer.
    Died,
}

impl Verdict {
    pub(super) fn is_bad(self) -> bool {
        !matches!(self, Self::Passed | Self::Skipped)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
            Self::Hung => "HUNG",
            Self::Died => "DIED",
        })
    }
}

/// What is said of a probe.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub grade: Grade,
    pub expects: &'static str,
    pub seen: String,
    pub verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
    pub millis: u64,
}
