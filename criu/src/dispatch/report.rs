// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis dispatch` prints: code, trace, numbers and time, as prose or as one JSON object.
//!
//! INVARIANT: only what was asked for is in it, and how the dispatch ended if there was one.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use stasis::Agent;

use super::disassemble::Listing;
use super::stats::Stats;

/// All there is to say about one invocation.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    milliseconds: Option<f64>,
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
    pub fn set_run(&mut self, run: &Result<Duration>, agent: &Agent) {
        (self.agent, self.target) = (Some(agent.uuid().to_owned()), Some(agent.name()));
        match run {
            Ok(elapsed) => self.milliseconds = Some(elapsed.as_secs_f64() * 1e3),
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// Prints it.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        if let Some(listing) = &self.disassembly {
            print!("{listing}");
        }
        for line in self.trace.iter().flatten() {
            println!("{line}");
        }
        match self.stats.as_deref() {
            Some([]) => println!("No statistics: the kernel did not end"),
            Some(all) => all.iter().for_each(|stats| print!("{} {stats}", self.kernel)),
            None => {}
        }
        if let (Some(milliseconds), Some(agent), Some(target)) = (self.milliseconds, &self.agent, self.target)
        {
            println!("{}: {milliseconds:.3} ms on {agent} {target}", self.kernel);
        }
        Ok(())
    }
}
