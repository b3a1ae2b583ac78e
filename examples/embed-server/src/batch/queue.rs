// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bounded queue: requests enter it whole, and workers take batches from it.
//!
//! INVARIANT: sentences and tokens in line never exceed the bounds. A worker sleeps only while the line is empty or its
//! batch may still fill; a worker that leaves sentences in line wakes another. The line is empty while no agent serves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::answer::Answer;
use super::line::{Batch, Line};
use super::{Agents, BatchError, BatchMetrics, BatchOptions, SubmitError};
use crate::embedder::Sentence;

/// How often a worker without work checks its agent.
const LOOK: Duration = Duration::from_millis(500);

/// What waits to be embedded.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    /// Signalled when the queue is closed.
    end: Condvar,
    options: BatchOptions,
    sentence: usize,
    metrics: BatchMetrics,
    agents: watch::Sender<Agents>,
}

#[derive(Debug, Default)]
struct State {
    line: Line<Arc<Answer>>,
    closed: bool,
}

/// What a worker does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Embed this.
    Batch(Batch<Arc<Answer>>),
    /// Check the agent.
    Look,
    /// End: the queue is closed and empty.
    End,
}

impl Queue {
    /// An empty queue for so many agents. No sentence may have more than `sentence` tokens.
    pub(super) fn new(options: BatchOptions, sentence: usize, agents: usize, metrics: BatchMetrics) -> Self {
        metrics.agents(agents);
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            end: Condvar::new(),
            options,
            sentence,
            metrics,
            agents: watch::Sender::new(Agents { serving: agents, ..Agents::default() }),
        }
    }

    pub(super) fn metrics(&self) -> &BatchMetrics {
        &self.metrics
    }

    pub(super) fn options(&self) -> BatchOptions {
        self.options
    }

    pub(super) fn sentence_limit(&self) -> usize {
        self.sentence
    }

    pub(super) fn agents(&self) -> &watch::Sender<Agents> {
        &self.agents
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

    /// Whether a request of so many tokens is ever accepted.
    pub(super) fn fits(&self, tokens: usize) -> Result<(), SubmitError> {
        let limit = self.options.queue_tokens;
        if tokens > limit { Err(SubmitError::TooLarge { tokens, limit }) } else { Ok(()) }
    }

    fn check(&self, state: &State, sentences: usize, tokens: usize) -> Result<(), SubmitError> {
        let BatchOptions { queue_tokens, queue_sentences, .. } = self.options;
        if state.closed {
            return Err(SubmitError::Closed);
        }
        if self.agents.borrow().serving == 0 {
            return Err(SubmitError::NoAgent);
        }
        if sentences > queue_sentences {
            return Err(SubmitError::TooMany { sentences, limit: queue_sentences });
        }
        self.fits(tokens)?;
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

    /// Waits for sentences and takes a batch from the front, or waits for the time to check the agent.
    pub(super) fn next(&self, budget: usize) -> Next {
        let mut state = self.state.lock();
        loop {
            let Some(oldest) = state.line.oldest() else {
                if state.closed {
                    return Next::End;
                }
                if self.work.wait_for(&mut state, LOOK).timed_out() && state.line.oldest().is_none() {
                    return Next::Look;
                }
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
        Next::Batch(batch)
    }

    /// Removes the waiting sentences of a request.
    pub(super) fn withdraw(&self, id: u64) {
        let mut state = self.state.lock();
        if state.line.remove(id) {
            self.metrics.withdrawn.inc();
            self.count(&state);
        }
    }

    /// Changes the state of the agents. When none serves any more, all requests in line fail.
    pub(super) fn change(&self, change: impl FnOnce(&mut Agents)) {
        // Under the queue's lock: a request is pushed before the loss and fails with it, or is refused after it.
        let mut state = self.state.lock();
        self.agents.send_modify(change);
        let serving = self.agents.borrow().serving;
        self.metrics.agents(serving);
        let abandoned = if serving == 0 { state.line.clear() } else { Vec::new() };
        self.count(&state);
        drop(state);
        for owner in abandoned {
            owner.fail(&BatchError::NoAgent);
        }
        // The worker that ends may have been the one that was woken for the sentences in line.
        self.work.notify_all();
    }

    /// Waits so long, or until the queue is closed. Returns whether it is closed.
    pub(super) fn is_closed_within(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.end.wait_while_for(&mut state, |state| !state.closed, time);
        state.closed
    }

    /// Closes the queue; workers end when the line is empty.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
        self.end.notify_all();
    }

    fn count(&self, state: &State) {
        self.metrics.waiting(state.line.sentences(), state.line.tokens());
    }
}
