// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis dispatch` prints: code, trace, numbers and time, as prose or as one JSON object.
//!
//! INVARIANT: only what was asked for is in it, and how the dispatch ended if there was one.

use anyhow::Result;
use serde::Serialize;
use stasis::Agent;

use super::disassemble::Listing;
use super::stats::Stats;
use super::times::Times;
use crate::output::line;

/// All there is to say about one invocation.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
    /// The median if there were several runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    milliseconds: Option<f64>,
    /// If several were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Times>,
    /// Why the dispatch failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The kernel's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disassembly: Option<Listing>,
    /// The first wave's instructions, a line each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Vec<String>>,
    /// The device's counts; empty if the kernel did not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<Vec<Stats>>,
}

impl Report {
    /// A report about this kernel.
    pub fn new(kernel: &str) -> Self {
        Self { kernel: kernel.to_owned(), ..Self::default() }
    }

    /// Says how the dispatch ended.
    pub fn set_run(&mut self, run: &Result<Times>, agent: &Agent) {
        (self.agent, self.target) = (Some(agent.uuid().to_owned()), Some(agent.name()));
        match run {
            Ok(times) => {
                self.milliseconds = Some(times.median_ms);
                self.runs = (times.repeat > 1 || times.warm_up > 0).then_some(*times);
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// It as JSON or as prose.
    pub fn text(&self, json: bool) -> Result<String> {
        if json {
            return Ok(serde_json::to_string_pretty(self)? + "\n");
        }
        let mut text = self.disassembly.as_ref().map(Listing::to_string).unwrap_or_default();
        for trace in self.trace.iter().flatten() {
            line!(text, "{trace}");
        }
        match self.stats.as_deref() {
            Some([]) => line!(text, "No statistics: the kernel did not end"),
            Some(all) => all.iter().for_each(|stats| text.push_str(&format!("{} {stats}", self.kernel))),
            None => {}
        }
        let (Some(milliseconds), Some(agent), Some(target)) = (self.milliseconds, &self.agent, self.target)
        else {
            return Ok(text);
        };
        match self.runs {
            None => line!(text, "{}: {milliseconds:.3} ms on {agent} {target}", self.kernel),
            Some(Times { warm_up, repeat, min_ms, median_ms, max_ms }) => {
                let warm = if warm_up > 0 { format!(" after {warm_up} to warm up") } else { String::new() };
                line!(
                    text,
                    "{}: min {min_ms:.3} ms, median {median_ms:.3} ms, max {max_ms:.3} ms on {agent} {target}, {repeat} \
                     runs{warm}",
                    self.kernel
                );
            }
        }
        Ok(text)
    }
}
