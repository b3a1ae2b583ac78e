// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentence embeddings over HTTP: all-MiniLM-L6-v2 on the runtime's agents.
//!
//! ```text
//! http ── sentences ──> batch ── batches ──> engine, one an agent ── packets ──> queue
//! ```
//!
//! The server has no code for checkpoints: the example shows that the process may be frozen between any two lines.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod batch;
pub mod embedder;
pub mod engine;
pub mod http;
pub mod model;

// The fake embedder names this crate as the integration tests do, and serves the unit tests too.
#[cfg(test)]
extern crate self as embed_server;
