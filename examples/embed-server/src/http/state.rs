// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state that the handlers share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::watch as seen;

use super::aside::Aside;
use super::error::ApiError;
use super::ids::Ids;
use super::input::Room;
use super::metrics::HttpMetrics;
use super::options::{Limits, Options};
use crate::batch::{BatchMetrics, Batcher};
use crate::model::Tokenizer;

/// The paths for health, which need no key.
pub(super) const HEALTH: [&str; 2] = ["/health", "/healthz"];

/// The state that the handlers share. Clones are the same state.
#[derive(Clone, Debug)]
pub struct State(pub(super) Arc<Shared>);

#[derive(Debug)]
pub struct Shared {
    pub(super) options: Options,
    pub(super) limits: Limits,
    pub(super) created: u64,
    pub(super) tokenizer: Tokenizer,
    pub(super) batcher: OnceLock<Arc<Batcher>>,
    pub(super) aside: Aside,
    pub(super) room: Room,
    pub(super) metrics: HttpMetrics,
    pub(super) ids: Ids,
    pub(super) draining: AtomicBool,
    pub(super) given_up: seen::Sender<bool>,
}

impl State {
    /// A server that has no agents yet; those that [`State::open`] brings are counted by `metrics`.
    #[must_use]
    pub fn new(options: Options, tokenizer: Tokenizer, metrics: &BatchMetrics) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let limits = options.limits;
        Self(Arc::new(Shared {
            limits,
            created,
            tokenizer,
            batcher: OnceLock::new(),
            aside: Aside::new(limits.threads),
            room: Room::new(limits.buffered_bytes, limits.body_bytes),
            metrics: HttpMetrics::new(metrics, created),
            ids: Ids::default(),
            draining: AtomicBool::new(false),
            given_up: seen::Sender::new(false),
            options,
        }))
    }

    /// A server of these agents.
    #[must_use]
    pub fn with(options: Options, tokenizer: Tokenizer, batcher: Arc<Batcher>) -> Self {
        let state = Self::new(options, tokenizer, batcher.metrics());
        state.open(batcher);
        state
    }

    /// From now on these agents embed requests. A second call changes nothing.
    pub fn open(&self, batcher: Arc<Batcher>) {
        let _ = self.0.batcher.set(batcher);
    }

    /// From now on health and new requests for embeddings get 503; pending requests are answered.
    pub fn drain(&self) {
        // ORDERING: it is a flag by itself; nothing else is published with it.
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// From now on every request gets 503, also pending ones.
    pub fn give_up(&self) {
        self.drain();
        self.0.given_up.send_replace(true);
    }

    /// Waits for [`State::give_up`].
    pub(super) async fn is_given_up(&self) {
        let mut given_up = self.0.given_up.subscribe();
        // The sender lives as long as this state does.
        let _ = given_up.wait_for(|given_up| *given_up).await;
    }

    /// Requests that have no response yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.metrics.in_flight()
    }

    /// The agents, if they serve.
    pub(super) fn admits(&self) -> Result<&Arc<Batcher>, ApiError> {
        let batcher = self.0.batcher.get().ok_or_else(ApiError::opening)?;
        if batcher.agents().borrow().serving == 0 {
            return Err(ApiError::lost());
        }
        // ORDERING: see `drain`.
        match self.0.draining.load(Ordering::Relaxed) {
            true => Err(ApiError::closing()),
            false => Ok(batcher),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.0.options.name
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let Options { name, aliases, .. } = &self.0.options;
        std::iter::once(name).chain(aliases).map(String::as_str)
    }

    pub(super) fn model(&self, name: &str) -> Value {
        json!({"id": name, "object": "model", "created": self.0.created, "owned_by": "stasis"})
    }

    pub(super) fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if self.names().any(|own| own == name) { Ok(()) } else { Err(ApiError::model(name, self.name())) }
    }
}
