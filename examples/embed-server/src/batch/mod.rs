// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dynamic batching: takes requests of sentences, and gives batches of a token budget to the threads of the embedders.
//!
//! ```text
//! submit ── whole requests ──> Line, bounded ── prefixes ──> worker, one an Embedder ── rows ──> Answer ──> Pending
//! ```
//!
//! INVARIANT: every accepted request is answered exactly once, with all its rows in order or with an error, unless its
//! [`Pending`] is dropped; then its waiting sentences leave the line at once, and a batch all of whose requests were
//! dropped is cancelled. When an agent is lost the requests of its batch fail; when the last agent is lost the requests
//! in line fail too.

mod agents;
mod answer;
mod error;
mod line;
mod metrics;
mod queue;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

pub use self::agents::{Agents, Backoff};
pub use self::answer::Embeddings;
pub use self::error::{BatchError, StartError, SubmitError};
pub use self::metrics::BatchMetrics;
use self::queue::Queue;
use crate::embedder::{OpenAgent, Sentence};

/// Bounds of the queue, and how long a batch waits to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Tokens that may wait. A request of more is never accepted.
    pub queue_tokens: usize,
    /// Sentences that may wait. A request of more is never accepted.
    pub queue_sentences: usize,
    /// How long the oldest sentence waits for a batch to fill while an embedder is idle. With zero a batch is taken at
    /// once: under load the queue fills while the embedders are busy.
    pub wait: Duration,
    /// How often a lost agent is opened again.
    pub backoff: Backoff,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            queue_tokens: 1 << 17,
            queue_sentences: 4096,
            wait: Duration::ZERO,
            backoff: Backoff::default(),
        }
    }
}

/// The queue of the embedders, and their threads. Dropping the batcher closes the queue without waiting.
pub struct Batcher {
    queue: Arc<Queue>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    dimensions: usize,
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("dimensions", &self.dimensions).finish_non_exhaustive()
    }
}

impl Batcher {
    /// Starts a thread for each agent; all take from one queue.
    ///
    /// # Errors
    /// [`StartError`]: no embedders, embedders without numbers or of different models, or no thread.
    pub fn start<A: Into<OpenAgent>>(agents: Vec<A>, options: BatchOptions) -> Result<Self, StartError> {
        Self::start_counted(agents, options, BatchMetrics::default())
    }

    /// The same with existing counters.
    ///
    /// # Errors
    /// As for [`Batcher::start`].
    pub fn start_counted<A: Into<OpenAgent>>(
        agents: Vec<A>,
        options: BatchOptions,
        metrics: BatchMetrics,
    ) -> Result<Self, StartError> {
        let agents: Vec<OpenAgent> = agents.into_iter().map(Into::into).collect();
        let embedders = || agents.iter().map(|agent| &agent.embedder);
        let dimensions = embedders().next().ok_or(StartError::NoEmbedders)?.dimensions();
        if dimensions == 0 {
            return Err(StartError::NoDimensions);
        }
        if let Some(other) = embedders().map(|e| e.dimensions()).find(|other| *other != dimensions) {
            return Err(StartError::Dimensions { first: dimensions, other });
        }
        let sentence = embedders().map(|e| e.max_batch_tokens()).min().unwrap_or(0);
        let queue = Arc::new(Queue::new(options, sentence, agents.len(), metrics));
        let batcher = Self { queue, workers: Mutex::default(), dimensions };
        for (agent, open) in agents.into_iter().enumerate() {
            let queue = batcher.queue.clone();
            // If a thread does not start, Drop ends those that did.
            let worker = std::thread::Builder::new()
                .name(format!("agent-{agent}"))
                .spawn(move || worker::run(agent, open, &queue))
                .map_err(|source| StartError::Thread { agent, source })?;
            batcher.workers.lock().push(worker);
        }
        Ok(batcher)
    }

    /// Accepts a whole request, or refuses it. Its rows come with the [`Pending`].
    ///
    /// # Errors
    /// [`SubmitError`]; nothing of a refused request waits.
    pub fn submit(&self, sentences: Vec<Sentence>) -> Result<Pending, SubmitError> {
        let (answer, receiver) = answer::Answer::new(sentences.len(), self.dimensions);
        let id = self.queue.push(answer, sentences)?;
        Ok(Pending { id, receiver, queue: self.queue.clone(), answered: false })
    }

    /// Whether a request of so many sentences would be accepted now, apart from its tokens: this can be known before
    /// the tokens are counted.
    ///
    /// # Errors
    /// [`SubmitError::Full`], [`SubmitError::TooMany`], [`SubmitError::NoAgent`], [`SubmitError::Closed`].
    pub fn admits(&self, sentences: usize) -> Result<(), SubmitError> {
        self.queue.admits(sentences)
    }

    /// Whether a request of so many tokens is ever accepted.
    ///
    /// # Errors
    /// [`SubmitError::TooLarge`].
    pub fn fits(&self, tokens: usize) -> Result<(), SubmitError> {
        self.queue.fits(tokens)
    }

    /// What the agents are doing, now and whenever it changes.
    #[must_use]
    pub fn agents(&self) -> watch::Receiver<Agents> {
        self.queue.agents().subscribe()
    }

    /// The queue's bounds.
    #[must_use]
    pub fn options(&self) -> BatchOptions {
        self.queue.options()
    }

    /// Numbers in an embedding.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Tokens a sentence may have to fit in every embedder's batch.
    #[must_use]
    pub fn sentence_limit(&self) -> usize {
        self.queue.sentence_limit()
    }

    /// What is counted of queue, batches and agents.
    #[must_use]
    pub fn metrics(&self) -> &BatchMetrics {
        self.queue.metrics()
    }

    /// Closes the queue. Accepted requests are still embedded, then the threads end.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Closes the queue and waits until everything accepted is answered and the embedders are dropped.
    pub fn join(&self) {
        self.close();
        let workers = std::mem::take(&mut *self.workers.lock());
        for worker in workers {
            if worker.join().is_err() {
                tracing::error!(target: "batch", "an agent's thread panicked while it ended");
            }
        }
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.close();
    }
}

/// The future rows of an accepted request. Dropped early, it removes the request's waiting sentences from the queue.
#[derive(Debug)]
pub struct Pending {
    id: u64,
    receiver: oneshot::Receiver<Result<Embeddings, BatchError>>,
    queue: Arc<Queue>,
    answered: bool,
}

impl Future for Pending {
    type Output = Result<Embeddings, BatchError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.receiver).poll(context);
        self.answered |= polled.is_ready();
        polled.map(|received| received.unwrap_or(Err(BatchError::Lost)))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.answered {
            self.queue.withdraw(self.id);
        }
    }
}
