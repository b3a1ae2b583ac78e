// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is counted of queue, batches and agents.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::BatchError;
use crate::embedder::EmbedError;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Agent {
    agent: usize,
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With its rows.
    Embedded,
    /// With an error, which its requests got.
    Failed,
    /// Before its end, because no client waited for it any more.
    Abandoned,
}

impl Outcome {
    /// The error of the batch.
    pub(super) fn of(error: Option<&BatchError>) -> Self {
        match error {
            None => Outcome::Embedded,
            Some(BatchError::Failed(why)) if matches!(**why, EmbedError::Abandoned { .. }) => {
                Outcome::Abandoned
            }
            Some(_) => Outcome::Failed,
        }
    }
}

/// Counters of a [`super::Batcher`]; clones share the counters.
#[derive(Clone, Debug)]
pub struct BatchMetrics {
    queue_sentences: Gauge,
    queue_tokens: Gauge,
    batch_sentences: Histogram,
    batch_tokens: Histogram,
    embeddings: Counter,
    tokens: Counter,
    failed: Counter,
    abandoned: Counter,
    agents: Gauge,
    losses: Family<Agent, Counter>,
    reopened: Counter,
    busy: Family<Agent, Counter<f64, AtomicU64>>,
    /// Requests refused because the queue was full.
    pub(super) rejected: Counter,
    /// Requests of which sentences left the queue unembedded.
    pub(super) withdrawn: Counter,
}

impl Default for BatchMetrics {
    fn default() -> Self {
        Self {
            queue_sentences: Gauge::default(),
            queue_tokens: Gauge::default(),
            batch_sentences: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            batch_tokens: Histogram::new(exponential_buckets(8.0, 2.0, 12)),
            embeddings: Counter::default(),
            tokens: Counter::default(),
            failed: Counter::default(),
            abandoned: Counter::default(),
            agents: Gauge::default(),
            losses: Family::default(),
            reopened: Counter::default(),
            busy: Family::default(),
            rejected: Counter::default(),
            withdrawn: Counter::default(),
        }
    }
}

impl BatchMetrics {
    /// Puts them in a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Self { queue_sentences, queue_tokens, batch_sentences, batch_tokens, .. } = self.clone();
        registry.register("queue_sentences", "Sentences that wait", queue_sentences);
        registry.register("queue_tokens", "Tokens that wait", queue_tokens);
        registry.register("batch_sentences", "Sentences a batch", batch_sentences);
        registry.register("batch_tokens", "Tokens a batch", batch_tokens);
        let Self { embeddings, tokens, failed, busy, rejected, withdrawn, .. } = self.clone();
        registry.register("embeddings", "Sentences embedded", embeddings);
        registry.register("tokens", "Tokens embedded", tokens);
        registry.register("batches_failed", "Batches whose requests got an error", failed);
        let Self { abandoned, agents, losses, reopened, .. } = self.clone();
        registry.register("batches_abandoned", "Batches given up, for their clients were gone", abandoned);
        registry.register("agents_serving", "Agents that take batches", agents);
        registry.register("device_losses", "Times that an agent was lost", losses);
        registry.register("device_reopened", "Times that a lost device or agent was opened again", reopened);
        registry.register("rejected", "Requests refused because the queue was full", rejected);
        registry.register("withdrawn", "Requests that were abandoned or failed while in line", withdrawn);
        registry.register_with_unit("agent_busy", "Time in batches", Unit::Seconds, busy);
    }

    /// Sentences that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        usize::try_from(self.queue_sentences.get()).unwrap_or(0)
    }

    pub(super) fn waiting(&self, sentences: usize, tokens: usize) {
        self.queue_sentences.set(i64::try_from(sentences).unwrap_or(i64::MAX));
        self.queue_tokens.set(i64::try_from(tokens).unwrap_or(i64::MAX));
    }

    pub(super) fn batch(
        &self,
        agent: usize,
        sentences: usize,
        tokens: usize,
        busy: Duration,
        outcome: Outcome,
    ) {
        // CAST: counts of a batch, far below 2^52 where f64 begins to round.
        self.batch_sentences.observe(sentences as f64);
        self.batch_tokens.observe(tokens as f64);
        self.busy.get_or_create(&Agent { agent }).inc_by(busy.as_secs_f64());
        match outcome {
            Outcome::Embedded => {
                // CAST: usize to u64 is lossless here.
                self.embeddings.inc_by(sentences as u64);
                self.tokens.inc_by(tokens as u64);
            }
            Outcome::Failed => {
                self.failed.inc();
            }
            Outcome::Abandoned => {
                self.abandoned.inc();
            }
        }
    }

    /// Sets how many agents take batches.
    pub(super) fn agents(&self, serving: usize) {
        self.agents.set(i64::try_from(serving).unwrap_or(i64::MAX));
    }

    /// Adds to the number of lost devices or agents that were opened again.
    pub fn reopened(&self, times: u64) {
        self.reopened.inc_by(times);
    }

    /// An agent was lost.
    pub(super) fn lost(&self, agent: usize) {
        self.losses.get_or_create(&Agent { agent }).inc();
    }
}
