// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common beginning of the examples.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use stasis::Agent;

/// Sends the library's log to the standard error, at the level of `STASIS_LOG`.
pub fn log_to_stderr() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("STASIS_LOG"))
        .with_writer(std::io::stderr)
        .init();
}

/// The code object for an agent's target among those that were built for a program.
///
/// # Errors
/// When there is none.
pub fn code_for(agent: &Agent, program: &str, objects: &[(&str, &'static [u8])]) -> Result<&'static [u8]> {
    objects
        .iter()
        .find_map(|(target, object)| (*target == agent.name()).then_some(*object))
        .with_context(|| format!("{program} has no kernel for {}", agent.name()))
}
