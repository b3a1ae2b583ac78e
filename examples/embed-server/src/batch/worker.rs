// SPDX-License-Identifier: MIT OR Apache-2.0
//! An agent's thread: takes a batch, embeds it, hands out its rows.
//!
//! INVARIANT: it outlives every failure of its embedder, whose requests alone hear of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::BatchError;
use super::answer::Answer;
use super::line::Batch;
use super::queue::Queue;
use crate::embedder::Embedder;

/// Embeds batches until the queue is closed and empty.
pub(super) fn run(agent: usize, mut embedder: Box<dyn Embedder>, queue: &Queue) {
    let mut rows = Vec::new();
    while let Some(batch) = queue.next(embedder.max_batch_tokens()) {
        let start = Instant::now();
        let result = embed(embedder.as_mut(), &batch, &mut rows);
        queue.metrics().batch(agent, batch.sentences.len(), batch.tokens, start.elapsed(), result.is_ok());
        match result {
            Ok(()) => hand_out(&batch, &rows, embedder.dimensions()),
            Err(error) => {
                tracing::error!(
                    target: "batch",
                    agent,
                    sentences = batch.sentences.len(),
                    tokens = batch.tokens,
                    error = &error as &dyn std::error::Error,
                    "batch failed"
                );
                for share in &batch.shares {
                    queue.withdraw(share.id);
                    share.owner.fail(&error);
                }
            }
        }
    }
}

fn embed(
    embedder: &mut dyn Embedder,
    batch: &Batch<Arc<Answer>>,
    rows: &mut Vec<f32>,
) -> Result<(), BatchError> {
    let sentences = batch.sentences.len();
    // What a panic leaves of `rows` is cleared by the next batch; what it leaves of the embedder is the embedder's
    // matter, and better than a server that answers nobody any more.
    catch_unwind(AssertUnwindSafe(|| embedder.embed(&batch.sentences, rows)))
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
