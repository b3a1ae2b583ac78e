// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentence embeddings over HTTP: all-MiniLM-L6-v2 on the runtime's agents.
//!
//! ```text
//! http ── sentences ──> batch ── batches ──> engine, one an agent ── packets ──> queue
//! ```
//!
//! It knows nothing of checkpoints: that the process may be frozen between any two lines is the point.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod embedder;
pub mod engine;
pub mod model;
