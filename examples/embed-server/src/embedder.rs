// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between the server and the model: token ids in, unit vectors out.

use std::fmt;
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

    /// The number of its tokens, which is its cost.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.0.len()
    }
}

/// Why a batch has no embeddings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// A batch that is larger than the embedder's room.
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
    /// The device, or the embedder's memory on it, is lost: no batch can succeed any more.
    #[error("The device was lost: {act}")]
    Lost {
        /// What was being done when the loss was found.
        act: &'static str,
        /// What the runtime said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The batch was cancelled, because no client wanted it any more.
    #[error("The batch was cancelled after {done} of {layers} layers: no request waits for it")]
    Abandoned {
        /// Layers that had been begun.
        done: usize,
        /// Layers of the model.
        layers: usize,
    },
}

/// Why a lost embedder was not opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReopenError {
    /// It may be opened again later.
    #[error("The agent could not be opened again")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It can never be opened again in this process.
    #[error("The agent cannot be opened again in this process")]
    Impossible(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Opens the embedder of a lost agent again, with its weights.
pub type Reopen = Box<dyn FnMut() -> Result<Box<dyn Embedder>, ReopenError> + Send>;

/// An agent to serve from.
pub struct OpenAgent {
    /// The agent's embedder.
    pub embedder: Box<dyn Embedder>,
    /// How the agent is opened again after a loss; without this it stays lost.
    pub reopen: Option<Reopen>,
}

impl fmt::Debug for OpenAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAgent").field("reopens", &self.reopen.is_some()).finish_non_exhaustive()
    }
}

impl From<Box<dyn Embedder>> for OpenAgent {
    fn from(embedder: Box<dyn Embedder>) -> Self {
        Self { embedder, reopen: None }
    }
}

/// Embeds batches, one at a time. A sentence's embedding does not depend on the other sentences of its batch.
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

    /// The same, as long as the batch is `wanted`. An embedder that cannot stop in the middle need not check that.
    ///
    /// # Errors
    /// Also [`EmbedError::Abandoned`].
    fn embed_while(
        &mut self,
        sentences: &[Sentence],
        out: &mut Vec<f32>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), EmbedError> {
        let _ = wanted;
        self.embed(sentences, out)
    }

    /// Checks, without using the device, that it is not lost: called for an embedder without work.
    ///
    /// # Errors
    /// [`EmbedError::Lost`].
    fn check(&self) -> Result<(), EmbedError> {
        Ok(())
    }
}

/// Embeds the largest possible batch of sentences of `longest` tokens, and one short sentence. Afterwards all memory
/// has its pages and all kernels are loaded, so no request waits for them.
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
