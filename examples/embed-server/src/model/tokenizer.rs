// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text to token ids, with `tokenizer.json`'s own rules.
//!
//! INVARIANT: the cost of a text is bounded before it is tokenized. The text is tokenized piece by piece, a piece has
//! at most [`LONGEST_PIECE`] bytes, and no further piece is begun when there are enough tokens to cut or refuse the
//! text, or when no request waits for it.

use std::fs;
use std::path::Path;

use super::ModelError;
use super::pieces::{Pieces, Uncut};
use crate::embedder::Sentence;

/// Bytes of a text that are tokenized at once, where it can be cut.
const PIECE: usize = 4 << 10;
/// Bytes that are tokenized at once at most. A tokenizer needs some 300 bytes for each.
const LONGEST_PIECE: usize = 64 << 10;
/// Bytes of a text that is too long up to which its tokens are counted, for the message.
const COUNTED: usize = 64 << 10;

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
    /// Far more tokens than a sentence may have, so they were not counted.
    #[error(
        "The text of {bytes} bytes has more than {tokens} tokens, the model's limit is {limit}: shorten it or split it"
    )]
    MuchTooLong {
        /// Bytes it has.
        bytes: usize,
        /// Tokens it has at least.
        tokens: usize,
        /// Tokens it may have.
        limit: usize,
    },
    /// A run of letters that is too long for a word.
    #[error("The text has more than {bytes} bytes in a row without a space or a punctuation mark")]
    Run {
        /// Bytes there may be.
        bytes: usize,
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
    /// No request waits for the sentence any more.
    #[error("The text was cancelled before it was split into tokens")]
    Abandoned,
}

/// How long a sentence may be, and what is done with longer texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Tokens of a sentence, with those that begin and end it.
    pub limit: usize,
    /// Whether longer texts are cut instead of refused.
    pub truncate: bool,
}

/// Splits text into the model's tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    /// The tokens that begin and end every sentence.
    around: (Vec<u32>, Vec<u32>),
    length: Length,
    vocabulary: usize,
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
        // The file pads and cuts to 128 tokens: this is not the model's limit, and batches are not padded.
        inner.with_padding(None).with_truncation(None).map_err(|why| failed(&why))?;
        let rules = serde_json::from_slice(&text).map_err(|why| failed(&why))?;
        let around = around(&inner).map_err(|why| failed(&why))?;
        let least = around.0.len() + around.1.len();
        if limit < least {
            return Err(failed(&format!("a sentence has {least} tokens at least, {limit} are allowed")));
        }
        let vocabulary = inner.get_vocab_size(true);
        let pieces = Pieces::new(&rules, PIECE, LONGEST_PIECE);
        Ok(Self { inner, pieces, around, length: Length { limit, truncate }, vocabulary })
    }

    /// Tokens a sentence may have.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.length.limit
    }

    /// The length that sentences have unless a client wants them shorter.
    #[must_use]
    pub fn length(&self) -> Length {
        self.length
    }

    /// Tokens that the shortest sentence has: those that begin and end every one.
    #[must_use]
    pub fn least(&self) -> usize {
        self.around.0.len() + self.around.1.len()
    }

    /// The sentence of a text. An empty text is a sentence too: the two tokens that begin and end every sentence.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`], [`TokenizeError::MuchTooLong`], [`TokenizeError::Run`], [`TokenizeError::Failed`].
    pub fn sentence(&self, text: &str) -> Result<Sentence, TokenizeError> {
        self.sentence_of(text, self.length, &|| true)
    }

    /// The same with another length, of at least [`Tokenizer::least`] tokens, as long as it is `wanted`.
    ///
    /// # Errors
    /// Also [`TokenizeError::Abandoned`].
    pub fn sentence_of(
        &self,
        text: &str,
        length: Length,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Sentence, TokenizeError> {
        let (head, tail) = &self.around;
        let room = length.limit.saturating_sub(self.least());
        let mut ids = head.clone();
        let (mut tokens, mut rest) = (0, text);
        loop {
            if !wanted() {
                return Err(TokenizeError::Abandoned);
            }
            let piece;
            (piece, rest) = self.pieces.next(rest).map_err(|Uncut(bytes)| TokenizeError::Run { bytes })?;
            let encoding = self
                .inner
                .encode_fast(piece, false)
                .map_err(|why| TokenizeError::Failed { why: why.to_string() })?;
            let left = room.saturating_sub(tokens).min(encoding.len());
            ids.extend_from_slice(&encoding.get_ids()[..left]);
            tokens += encoding.len();
            let enough = tokens > room && (length.truncate || text.len() - rest.len() >= COUNTED);
            if rest.is_empty() || enough {
                break;
            }
        }
        if tokens > room && !length.truncate {
            let (tokens, limit, bytes) = (tokens + self.least(), length.limit, text.len());
            return Err(match rest.is_empty() {
                true => TokenizeError::TooLong { tokens, limit },
                false => TokenizeError::MuchTooLong { bytes, tokens, limit },
            });
        }
        ids.extend_from_slice(tail);
        Ok(Sentence::new(ids))
    }

    /// The sentence of token ids that a client made, with those that begin and end it if it wants them.
    ///
    /// # Errors
    /// [`TokenizeError::Empty`], [`TokenizeError::TooLong`], [`TokenizeError::Unknown`].
    pub fn tokens(&self, ids: &[u32]) -> Result<Sentence, TokenizeError> {
        if ids.is_empty() {
            return Err(TokenizeError::Empty);
        }
        let limit = self.length.limit;
        if ids.len() > limit {
            return Err(TokenizeError::TooLong { tokens: ids.len(), limit });
        }
        // CAST: u32 to usize widens.
        match ids.iter().find(|id| **id as usize >= self.vocabulary) {
            Some(&id) => Err(TokenizeError::Unknown { id, vocabulary: self.vocabulary }),
            None => Ok(Sentence::new(ids)),
        }
    }
}

/// The tokens that the post-processor puts before and after those of a text.
fn around(inner: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    let ids = |special| {
        let encoding = inner.encode_fast("a", special).map_err(|why| why.to_string())?;
        Ok::<_, String>(encoding.get_ids().to_vec())
    };
    let (all, text) = (ids(true)?, ids(false)?);
    let at = all.windows(text.len().max(1)).position(|window| window == text);
    let at =
        at.ok_or_else(|| format!("the tokens {text:?} of a text are not among its sentence's, {all:?}"))?;
    Ok((all[..at].to_vec(), all[at + text.len()..].to_vec()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A tokenizer of BERT's kind with pieces of a few bytes.
    fn small(longest: usize) -> Tokenizer {
        let words = [
            "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "ab", "##ab", "é", "e", "##e", "東",
            "京", ",", ".", "-", "[", "]", "mask", "##mask", "!", "。",
        ];
        let vocabulary: serde_json::Map<_, _> =
            words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
        let part = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        let special = |name: &str, id: u32| json!({"id": name, "ids": [id], "tokens": [name]});
        let a = json!({"Sequence": {"id": "A", "type_id": 0}});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "decoder": null,
            "added_tokens": [{"id": 3, "content": "[MASK]", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [part("[CLS]"), a, part("[SEP]")],
                "pair": [part("[CLS]"), a, part("[SEP]")],
                "special_tokens": {"[CLS]": special("[CLS]", 1), "[SEP]": special("[SEP]", 2)},
            },
            "model": {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 12},
        });
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let tokenizer_json = tokenizer;
        let mut small = Tokenizer::open(directory.path(), 1 << 20, false).unwrap();
        small.pieces = Pieces::new(&tokenizer_json, 8, longest);
        small
    }

    /// Texts with everything that could make a cut wrong: added tokens whole and in parts, letters with accents that
    /// stand by themselves, control characters, spaces of all kinds, ideographs, and long words.
    fn texts() -> impl Strategy<Value = String> {
        const PARTS: &[&str] = &[
            "a",
            "b",
            "ab",
            "[MASK]",
            "[MA",
            "SK]",
            "[",
            "]",
            "[mask]",
            "é",
            "e\u{301}",
            "\u{301}",
            "\u{327}",
            " ",
            "  ",
            "\t",
            "\n",
            "\r",
            "\u{a0}",
            "\u{3000}",
            "\u{85}",
            "\u{200b}",
            "\0",
            "\u{fffd}",
            ",",
            ".",
            "-",
            "!",
            "。",
            "東",
            "京",
            "\u{f900}",
            "\u{2f800}",
            "가",
            "A",
            "İ",
            "ß",
            "🙂",
            "abababababababa",
        ];
        prop::collection::vec(prop::sample::select(PARTS), 0..60).prop_map(|all| all.concat())
    }

    proptest! {
        #[test]
        fn pieces_have_the_tokens_of_the_whole(text in texts()) {
            let tokenizer = small(1 << 20);
            let whole = tokenizer.inner.encode_fast(text.as_str(), true).unwrap();

            let sentence = tokenizer.sentence(&text).unwrap();

            prop_assert_eq!(sentence.ids(), whole.get_ids());
        }

        #[test]
        fn a_text_cut_short_keeps_the_tokens_of_the_whole(text in texts(), limit in 2_usize..40) {
            let tokenizer = small(1 << 20);
            let whole = tokenizer.inner.encode_fast(text.as_str(), true).unwrap();
            let ids = whole.get_ids();
            let length = Length { limit, truncate: true };

            let sentence = tokenizer.sentence_of(&text, length, &|| true).unwrap();

            if ids.len() <= limit {
                prop_assert_eq!(sentence.ids(), ids);
            } else {
                prop_assert_eq!(sentence.ids(), &[&ids[..limit - 1], &[2]].concat()[..]);
            }
            let refused = tokenizer.sentence_of(&text, Length { limit, truncate: false }, &|| true);
            prop_assert_eq!(refused.is_ok(), ids.len() <= limit);
        }
    }

    #[test]
    fn text_that_is_not_wanted_any_more_is_not_tokenized_to_its_end() {
        let tokenizer = small(64);
        let asked = std::cell::Cell::new(0);
        let wanted = || {
            asked.set(asked.get() + 1);
            asked.get() < 4
        };

        let abandoned = tokenizer.sentence_of(&"ab ".repeat(1000), tokenizer.length(), &wanted);

        assert_eq!(abandoned, Err(TokenizeError::Abandoned));
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn text_far_beyond_the_limit_is_refused_without_its_count() {
        let tokenizer = small(64);
        let length = Length { limit: 16, truncate: false };
        let text = "a ".repeat(1 << 20);

        let refused = tokenizer.sentence_of(&text, length, &|| true).unwrap_err();

        let TokenizeError::MuchTooLong { bytes, tokens, limit: 16 } = refused else {
            panic!("{refused}");
        };
        assert_eq!(bytes, text.len());
        assert!((COUNTED / 2..COUNTED).contains(&tokens), "{tokens} tokens were counted");
    }

    #[test]
    fn run_of_letters_without_an_end_is_refused() {
        let tokenizer = small(64);

        assert!(tokenizer.sentence(&"a".repeat(64)).is_ok());
        let refused = tokenizer.sentence(&format!("ab {}", "a".repeat(65)));
        assert_eq!(refused, Err(TokenizeError::Run { bytes: 64 }));
    }
}
