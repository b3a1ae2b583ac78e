// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thing that a checkpoint would stumble over, or that its owner should know.
//!
//! INVARIANT: `Refused` is said only of what makes the checkpoint fail, or makes it lose something without a word.

use std::fmt;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The checkpoint fails, or sharing would be lost silently.
    Refused,
    /// The checkpoint succeeds; a restore may fail or differ.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The process.
    pub pid: i32,
    /// Where: `fd 7`, `mapping 7f00-7f10`, `process`, `criu`.
    pub place: String,
    /// What it is, as /proc names it.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do: a flag or a change. Empty where nothing is to be done.
    pub remedy: String,
}

impl Finding {
    /// A finding of this severity at a place.
    pub fn new(severity: Severity, pid: i32, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            severity,
            pid,
            place: place.into(),
            what: what.into(),
            why: String::new(),
            remedy: String::new(),
        }
    }

    /// The reason.
    pub fn why(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    /// The way out.
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of process {} is {}: {}", self.place, self.pid, self.what, self.why)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, " ({})", self.remedy) }
    }
}
