// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands between the server and the model: token ids in, unit vectors out.

use std::sync::Arc;

/// A sentence as the model takes it: token ids, with those that begin and end a sentence. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence(Arc<[u32]>);

impl Sentence {
    /// A sentence of these token ids, which a tokenizer made or a client sent.
    #[must_use]
    pub fn new(ids: impl Into<Arc<[u32]>>) -> Self {
        Self(ids.into())
    }

    /// Its token ids.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.0
    }

    /// How many tokens it has, which is what it costs.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.0.len()
    }
}

/// Why a batch has no embeddings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// A batch that the embedder has no room for.
    #[error(
        "A batch of {sentences} sentences and {tokens} tokens is more than {limit} tokens, the room there is"
    )]
    TooLarge {
        /// Sentences in it.
        sentences: usize,
        /// Their tokens.
        tokens: usize,
        /// Tokens there is room for.
        limit: usize,
    },
    /// A sentence without tokens, with more than the model has positions for, or with a token it does not know.
    #[error("Sentence {index} of the batch is not one the model takes: {why}")]
    Sentence {
        /// Its index in the batch.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The device failed.
    #[error("The device could not embed a batch of {tokens} tokens: {act}")]
    Device {
        /// What was being done.
        act: &'static str,
        /// Tokens of the batch.
        tokens: usize,
        /// What the runtime said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Embeds batches, one at a time. What a sentence's embedding is does not depend on what else is in its batch.
pub trait Embedder: Send {
    /// Numbers in an embedding.
    fn dimensions(&self) -> usize;

    /// Tokens that fit in a batch.
    fn max_batch_tokens(&self) -> usize;

    /// Embeds the sentences of a batch: `out` is cleared and gets `dimensions` numbers a sentence, in their order, each
    /// sentence's of length 1.
    ///
    /// # Errors
    /// [`EmbedError`]; nothing of a batch that failed is in `out`, and the next batch may succeed.
    fn embed(&mut self, sentences: &[Sentence], out: &mut Vec<f32>) -> Result<(), EmbedError>;
}

/// Embeds a batch as large as there is room for, of sentences of `longest` tokens, and one short sentence: afterwards
/// memory has been touched, kernels have run, and no request waits for either.
///
/// # Errors
/// As for [`Embedder::embed`].
pub fn warm_up(embedder: &mut dyn Embedder, longest: usize) -> Result<(), EmbedError> {
    let full = Sentence::new(vec![0; longest]);
    let short = Sentence::new(vec![0; 2]);
    let batch = vec![full; embedder.max_batch_tokens() / longest];
    let mut out = Vec::new();
    embedder.embed(&batch, &mut out)?;
    embedder.embed(&[short], &mut out)
}
