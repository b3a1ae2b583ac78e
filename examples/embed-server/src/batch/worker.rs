// SPDX-License-Identifier: MIT OR Apache-2.0
//! An agent's thread: takes a batch, embeds it, and delivers its rows; opens a lost agent again.
//!
//! INVARIANT: the thread survives every failure of its embedder; only the requests of the failed batch get the error.
//! The thread ends when the queue is closed and empty, or when its agent is lost for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::BatchError;
use super::answer::Answer;
use super::line::Batch;
use super::metrics::Outcome;
use super::queue::{Next, Queue};
use crate::embedder::{EmbedError, Embedder, OpenAgent, Reopen, ReopenError};

/// Serves from an agent until the queue is closed and empty, or the agent is lost for ever.
pub(super) fn run(agent: usize, open: OpenAgent, queue: &Queue) {
    let OpenAgent { mut embedder, mut reopen } = open;
    while let Some(lost) = serve(agent, embedder.as_mut(), queue) {
        tracing::error!(target: "batch", agent, error = &*lost as &dyn std::error::Error, "the agent is lost");
        queue.metrics().lost(agent);
        queue.change(|agents| {
            agents.serving -= 1;
            match reopen {
                Some(_) => agents.reopening += 1,
                None => agents.ended += 1,
            }
        });
        // The embedder's memory on the device is freed before the agent is opened again.
        drop(embedder);
        let Some(reopen) = &mut reopen else {
            return;
        };
        match open_again(agent, reopen, queue) {
            Some(open) => {
                embedder = open;
                queue.metrics().reopened(1);
            }
            None => {
                queue.change(|agents| {
                    (agents.reopening, agents.ended) = (agents.reopening - 1, agents.ended + 1)
                });
                return;
            }
        }
        queue
            .change(|agents| (agents.serving, agents.reopening) = (agents.serving + 1, agents.reopening - 1));
    }
}

/// Tries to open a lost agent. `None` after the last attempt, or when the server ends.
fn open_again(agent: usize, reopen: &mut Reopen, queue: &Queue) -> Option<Box<dyn Embedder>> {
    let backoff = queue.options().backoff;
    let mut attempt = 0;
    while let Some(wait) = backoff.before(attempt) {
        if queue.is_closed_within(wait) {
            return None;
        }
        attempt += 1;
        // A panic counts as a failure: its remains are dropped with the attempt.
        match catch_unwind(AssertUnwindSafe(&mut *reopen)) {
            Ok(Ok(embedder)) => {
                tracing::info!(target: "batch", agent, attempt, "the agent serves again");
                return Some(embedder);
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    target: "batch",
                    agent,
                    attempt,
                    error = &error as &dyn std::error::Error,
                    "not opened again"
                );
                if matches!(error, ReopenError::Impossible(_)) {
                    return None;
                }
            }
            Err(_) => tracing::error!(target: "batch", agent, attempt, "opening the agent again panicked"),
        }
    }
    None
}

/// Embeds batches until the queue is closed and empty, or the agent is lost. Returns the loss.
fn serve(agent: usize, embedder: &mut dyn Embedder, queue: &Queue) -> Option<Arc<EmbedError>> {
    let mut rows = Vec::new();
    loop {
        let batch = match queue.next(embedder.max_batch_tokens()) {
            Next::Batch(batch) => batch,
            Next::Look => match embedder.check() {
                Ok(()) => continue,
                Err(lost) => return Some(Arc::new(lost)),
            },
            Next::End => return None,
        };
        let start = Instant::now();
        let result = embed(embedder, &batch, &mut rows);
        let outcome = Outcome::of(result.as_ref().err());
        queue.metrics().batch(agent, batch.sentences.len(), batch.tokens, start.elapsed(), outcome);
        let Err(error) = result else {
            hand_out(&batch, &rows, embedder.dimensions());
            continue;
        };
        fail(agent, &batch, &error, queue);
        match error {
            BatchError::Failed(why) if matches!(*why, EmbedError::Lost { .. }) => return Some(why),
            _ => {}
        }
    }
}

fn fail(agent: usize, batch: &Batch<Arc<Answer>>, error: &BatchError, queue: &Queue) {
    let (sentences, tokens) = (batch.sentences.len(), batch.tokens);
    match Outcome::of(Some(error)) {
        Outcome::Abandoned => {
            tracing::debug!(target: "batch", agent, sentences, tokens, %error, "batch given up")
        }
        _ => tracing::error!(
            target: "batch",
            agent,
            sentences,
            tokens,
            error = error as &dyn std::error::Error,
            "batch failed"
        ),
    }
    for share in &batch.shares {
        queue.withdraw(share.id);
        share.owner.fail(error);
    }
}

fn embed(
    embedder: &mut dyn Embedder,
    batch: &Batch<Arc<Answer>>,
    rows: &mut Vec<f32>,
) -> Result<(), BatchError> {
    let sentences = batch.sentences.len();
    let wanted = || batch.shares.iter().any(|share| share.owner.is_wanted());
    // The next batch clears `rows` after a panic. The embedder may be in any state after a panic; that is better than a
    // server that does not answer any more.
    catch_unwind(AssertUnwindSafe(|| embedder.embed_while(&batch.sentences, rows, &wanted)))
        .map_err(|_| BatchError::Panicked { tokens: batch.tokens })?
        .map_err(|error| BatchError::Failed(Arc::new(error)))?;
    if rows.len() != sentences * embedder.dimensions() {
        return Err(BatchError::Wrong { found: "another number of rows", sentences });
    }
    // JSON would show a NaN as null, which a client may take for a number.
    if !rows.iter().all(|number| number.is_finite()) {
        return Err(BatchError::Wrong { found: "numbers that are not finite", sentences });
    }
    Ok(())
}

fn hand_out(batch: &Batch<Arc<Answer>>, rows: &[f32], dimensions: usize) {
    let mut rest = rows;
    for share in &batch.shares {
        let (own, others) = rest.split_at(share.count * dimensions);
        share.owner.fill(share.first, own);
        rest = others;
    }
}
