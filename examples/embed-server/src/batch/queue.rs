// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bounded queue that requests enter whole and workers take batches from.
//!
//! INVARIANT: sentences and tokens in line never exceed the bounds. A worker sleeps only while the line is empty or
//! its batch may still fill, and whoever leaves something in line wakes another.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::answer::Answer;
use super::line::{Batch, Line};
use super::{BatchMetrics, BatchOptions, SubmitError};
use crate::embedder::Sentence;

/// What waits to be embedded.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    options: BatchOptions,
    sentence: usize,
    metrics: BatchMetrics,
}

#[derive(Debug, Default)]
struct State {
    line: Line<Arc<Answer>>,
    closed: bool,
}

impl Queue {
    /// An empty queue. No sentence may have more than `sentence` tokens.
    pub(super) fn new(options: BatchOptions, sentence: usize) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            options,
            sentence,
            metrics: BatchMetrics::default(),
        }
    }

    pub(super) fn metrics(&self) -> &BatchMetrics {
        &self.metrics
    }

    pub(super) fn sentence_limit(&self) -> usize {
        self.sentence
    }

    /// Puts a request in line, whole, and returns its id.
    pub(super) fn push(&self, answer: Answer, sentences: Vec<Sentence>) -> Result<u64, SubmitError> {
        let limit = self.sentence;
        let long = sentences.iter().map(Sentence::tokens).enumerate().find(|(_, tokens)| *tokens > limit);
        if let Some((index, tokens)) = long {
            return Err(SubmitError::Sentence { index, tokens, limit });
        }
        let tokens = sentences.iter().map(Sentence::tokens).sum();
        let mut state = self.state.lock();
        self.check(&state, sentences.len(), tokens)?;
        let id = state.line.push(Arc::new(answer), sentences, Instant::now());
        self.count(&state);
        drop(state);
        self.work.notify_one();
        Ok(id)
    }

    /// Whether a request of so many sentences would be accepted now, its tokens aside.
    pub(super) fn admits(&self, sentences: usize) -> Result<(), SubmitError> {
        self.check(&self.state.lock(), sentences, 0)
    }

    fn check(&self, state: &State, sentences: usize, tokens: usize) -> Result<(), SubmitError> {
        let BatchOptions { queue_tokens, queue_sentences, .. } = self.options;
        if state.closed {
            return Err(SubmitError::Closed);
        }
        if sentences > queue_sentences {
            return Err(SubmitError::TooMany { sentences, limit: queue_sentences });
        }
        if tokens > queue_tokens {
            return Err(SubmitError::TooLarge { tokens, limit: queue_tokens });
        }
        let (waiting_sentences, waiting_tokens) = (state.line.sentences(), state.line.tokens());
        if waiting_sentences + sentences > queue_sentences || waiting_tokens + tokens > queue_tokens {
            self.metrics.rejected.inc();
            return Err(SubmitError::Full {
                sentences,
                tokens,
                waiting_sentences,
                waiting_tokens,
                queue_sentences,
                queue_tokens,
            });
        }
        Ok(())
    }

    /// Waits for sentences and cuts a batch from the front. None when the queue is closed and empty.
    pub(super) fn next(&self, budget: usize) -> Option<Batch<Arc<Answer>>> {
        let mut state = self.state.lock();
        loop {
            let Some(oldest) = state.line.oldest() else {
                if state.closed {
                    return None;
                }
                self.work.wait(&mut state);
                continue;
            };
            let deadline = oldest + self.options.wait;
            if state.line.tokens() >= budget || state.closed || Instant::now() >= deadline {
                break;
            }
            self.work.wait_until(&mut state, deadline);
        }
        let batch = state.line.take(budget);
        self.count(&state);
        let more = state.line.sentences() > 0;
        drop(state);
        if more {
            self.work.notify_one();
        }
        Some(batch)
    }

    /// Takes what still waits of a request out of line.
    pub(super) fn withdraw(&self, id: u64) {
        let mut state = self.state.lock();
        if state.line.remove(id) {
            self.metrics.withdrawn.inc();
            self.count(&state);
        }
    }

    /// Accepts nothing more; workers end once the line is empty.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }

    fn count(&self, state: &State) {
        self.metrics.waiting(state.line.sentences(), state.line.tokens());
    }
}
