// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text to token ids, with `tokenizer.json`'s own rules.

use std::fs;
use std::path::Path;

use super::ModelError;
use crate::embedder::Sentence;

/// Why a text is no sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizeError {
    /// More tokens than a sentence may have.
    #[error("The text has {tokens} tokens, the model's limit is {limit}: shorten it or split it")]
    TooLong {
        /// Tokens it has, with those that begin and end it.
        tokens: usize,
        /// Tokens it may have.
        limit: usize,
    },
    /// No tokens at all, not even those that begin and end a sentence.
    #[error("A list of tokens must not be empty")]
    Empty,
    /// A token id that the vocabulary has no entry for.
    #[error("Token {id} is not below {vocabulary}, the size of the vocabulary")]
    Unknown {
        /// The id.
        id: u32,
        /// Entries in the vocabulary.
        vocabulary: usize,
    },
    /// The tokenizer itself failed.
    #[error("The text could not be split into tokens: {why}")]
    Failed {
        /// What it said.
        why: String,
    },
}

/// Splits text into the model's tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    limit: usize,
    vocabulary: usize,
    truncate: bool,
}

impl Tokenizer {
    /// Reads the vocabulary of a model. Sentences have at most `limit` tokens; longer ones are refused, or cut with
    /// `truncate`.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Tokenizer`].
    pub fn open(directory: &Path, limit: usize, truncate: bool) -> Result<Self, ModelError> {
        let path = directory.join("tokenizer.json");
        let text = fs::read(&path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let failed = |why: &dyn ToString| ModelError::Tokenizer { path: path.clone(), why: why.to_string() };
        let mut inner = tokenizers::Tokenizer::from_bytes(&text).map_err(|why| failed(&why))?;
        // The file pads and cuts to 128 tokens, which is neither the model's limit nor what a batch needs.
        inner.with_padding(None).with_truncation(None).map_err(|why| failed(&why))?;
        let vocabulary = inner.get_vocab_size(true);
        Ok(Self { inner, limit, vocabulary, truncate })
    }

    /// Tokens a sentence may have.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The sentence that a text is. An empty text is one, too: the two tokens that begin and end every sentence.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`], [`TokenizeError::Failed`].
    pub fn sentence(&self, text: &str) -> Result<Sentence, TokenizeError> {
        let encoding = self
            .inner
            .encode_fast(text, true)
            .map_err(|why| TokenizeError::Failed { why: why.to_string() })?;
        let ids = encoding.get_ids();
        if ids.len() <= self.limit {
            return Ok(Sentence::new(ids));
        }
        match ids {
            [head @ .., end] if self.truncate => {
                Ok(Sentence::new([&head[..self.limit - 1], &[*end]].concat()))
            }
            _ => Err(TokenizeError::TooLong { tokens: ids.len(), limit: self.limit }),
        }
    }

    /// The sentence of token ids that a client made, with those that begin and end it if it wants them.
    ///
    /// # Errors
    /// [`TokenizeError::Empty`], [`TokenizeError::TooLong`], [`TokenizeError::Unknown`].
    pub fn tokens(&self, ids: &[u32]) -> Result<Sentence, TokenizeError> {
        if ids.is_empty() {
            return Err(TokenizeError::Empty);
        }
        if ids.len() > self.limit {
            return Err(TokenizeError::TooLong { tokens: ids.len(), limit: self.limit });
        }
        // CAST: u32 to usize widens.
        match ids.iter().find(|id| **id as usize >= self.vocabulary) {
            Some(&id) => Err(TokenizeError::Unknown { id, vocabulary: self.vocabulary }),
            None => Ok(Sentence::new(ids)),
        }
    }
}
