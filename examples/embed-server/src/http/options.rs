// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of a server.

use std::time::Duration;

use axum::http::HeaderValue;

use super::keys::Keys;

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Inputs of a request.
    pub inputs: usize,
    /// Bytes of a request's body, as it comes and unpacked.
    pub body_bytes: usize,
    /// Bytes of all bodies that are held at a time.
    pub buffered_bytes: usize,
    /// Threads that tokenize and write answers.
    pub threads: usize,
    /// Time from a request's headers to its answer; time for which the process was frozen is not counted, see
    /// [`elapse`](super::elapse).
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let time = Duration::from_secs(60);
        Self { inputs: 2048, body_bytes: 8 << 20, buffered_bytes: 64 << 20, threads: 2, time }
    }
}

/// What a connection may take. Time for which the process was frozen is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at a time.
    pub connections: usize,
    /// Time for the headers of a request.
    pub head: Duration,
    /// Time between an answer and the next request.
    pub idle: Duration,
    /// Time for which a client takes nothing of an answer.
    pub stall: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connections: 1024, head: seconds(10), idle: seconds(75), stall: seconds(30) }
    }
}

/// The settings of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name of the model.
    pub name: String,
    /// Other names that clients may know it by.
    pub aliases: Vec<String>,
    /// What a request may ask for.
    pub limits: Limits,
    /// What a connection may take.
    pub connections: ConnectionLimits,
    /// Keys that clients may have.
    pub keys: Keys,
    /// Origins of pages that browsers may send requests for; `*` is all.
    pub origins: Vec<HeaderValue>,
    /// The precision of the weights, `f16` or `f32`, which `/info` reports.
    pub precision: &'static str,
}
