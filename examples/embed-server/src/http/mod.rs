// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server around the model: OpenAI's embeddings interface over HTTP/1.1.
//!
//! ```text
//! connection (limits, wire) ── watch (id, log, counts, time limit) ── access ── input
//!                           ── aside: unpack, parse, tokenize ── Batcher ── aside: render
//! ```
//!
//! INVARIANT: every response that is not 2xx has the body of an [`ApiError`], every response has an `x-request-id`,
//! and no work that grows with a request is done on the async threads.

mod access;
mod aside;
mod connection;
mod embeddings;
mod error;
mod ids;
mod input;
mod keys;
mod link;
mod metrics;
mod options;
mod patience;
mod request;
mod routes;
mod serve;
mod shallow;
mod state;
mod watch;
mod wire;

pub use self::error::ApiError;
pub use self::keys::Keys;
pub use self::options::{ConnectionLimits, Limits, Options};
pub use self::patience::elapse;
pub use self::routes::router;
pub use self::serve::{Port, Served, serve};
pub use self::state::State;
