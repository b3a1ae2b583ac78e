// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong between a request and its rows.

use std::sync::Arc;

use crate::embedder::EmbedError;

/// Why there is no batcher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There are no embedders.
    #[error("There is no agent to serve from: the device gave none")]
    NoEmbedders,
    /// Embeddings without numbers.
    #[error("The agents' embeddings have no numbers")]
    NoDimensions,
    /// Embedders of different models, whose rows cannot be in one answer.
    #[error("The agents disagree about an embedding's length: {first} numbers and {other}")]
    Dimensions {
        /// The first embedder's.
        first: usize,
        /// Another's.
        other: usize,
    },
    /// An embedder's thread did not start.
    #[error("The thread of agent {agent} could not be started")]
    Thread {
        /// The agent's number.
        agent: usize,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full; there will be room when waiting sentences have been embedded.
    #[error(
        "The queue has no room for {sentences} sentences of {tokens} tokens: {waiting_sentences} of \
         {queue_sentences} sentences and {waiting_tokens} of {queue_tokens} tokens wait already, try again later"
    )]
    Full {
        /// Sentences of the request.
        sentences: usize,
        /// Their tokens; 0 when they were not counted yet.
        tokens: usize,
        /// Sentences that wait.
        waiting_sentences: usize,
        /// Tokens that wait.
        waiting_tokens: usize,
        /// Sentences that may wait.
        queue_sentences: usize,
        /// Tokens that may wait.
        queue_tokens: usize,
    },
    /// More sentences than the queue ever holds.
    #[error("The request has {sentences} sentences, the server's limit is {limit}: split it")]
    TooMany {
        /// Sentences of the request.
        sentences: usize,
        /// Sentences that may wait.
        limit: usize,
    },
    /// More tokens than the queue ever holds.
    #[error(
        "The request has at least {tokens} tokens, the server's limit is {limit} tokens a request: split it"
    )]
    TooLarge {
        /// Tokens of the request, as far as they were counted.
        tokens: usize,
        /// Tokens that may wait.
        limit: usize,
    },
    /// A sentence that fits in no batch.
    #[error("Sentence {index} has {tokens} tokens, a batch has room for {limit}: shorten it or split it")]
    Sentence {
        /// Its index in the request.
        index: usize,
        /// Tokens it has.
        tokens: usize,
        /// Tokens of the smallest batch.
        limit: usize,
    },
    /// Every agent is lost.
    #[error("No agent is left to embed anything: the device was lost")]
    NoAgent,
    /// The batcher was closed.
    #[error("The server is shutting down and accepts nothing more")]
    Closed,
}

/// Why an accepted request has no rows.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A batch with sentences of the request failed. Its other requests fail with the same error.
    #[error("A batch with sentences of the request failed")]
    Failed(#[source] Arc<EmbedError>),
    /// The embedder panicked in a batch with sentences of the request.
    #[error("The embedder panicked in a batch of {tokens} tokens")]
    Panicked {
        /// Tokens of the batch.
        tokens: usize,
    },
    /// The embedder did not return unit vectors.
    #[error("The embedder returned {found} for a batch of {sentences} sentences")]
    Wrong {
        /// What it returned.
        found: &'static str,
        /// Sentences of the batch.
        sentences: usize,
    },
    /// The last agent was lost while sentences of the request waited.
    #[error("The last agent was lost while the request waited")]
    NoAgent,
    /// The batcher ended without an answer.
    #[error("The batcher ended without an answer")]
    Lost,
}
