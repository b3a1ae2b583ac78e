// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of a batch for the kernels: tokens, their positions, and their sentences.
//!
//! Sentences follow each other without padding; rows after the last token, up to a multiple of 16, are tokens 0 at
//! position 0 that belong to no sentence.

use super::layout::Layout;
use crate::embedder::{EmbedError, Sentence};
use crate::model::Config;

/// Rows that matrix instructions take at once.
pub const ROWS: usize = 16;

/// A batch's tables; vectors are reused from batch to batch.
#[derive(Debug, Default)]
pub struct Tables {
    /// Token ids, one per row.
    pub ids: Vec<u32>,
    /// Positions within their sentences, one per row.
    pub positions: Vec<u32>,
    /// First rows of the sentences, and the row after the last.
    pub bounds: Vec<u32>,
    /// For each row, its sentence's first row and the row after the sentence's last.
    pub spans: Vec<[u32; 2]>,
    /// Groups of up to 16 rows of a sentence: first row, then their sentence's span.
    pub tiles: Vec<[u32; 3]>,
}

/// Offsets of the tables in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct TablesAt {
    pub ids: u64,
    pub positions: u64,
    pub bounds: u64,
    pub spans: u64,
    pub tiles: u64,
}

impl TablesAt {
    /// Room for batches of `tokens` tokens.
    pub fn new(layout: &mut Layout, tokens: usize) -> Self {
        let rows = tokens.next_multiple_of(ROWS);
        Self {
            ids: layout.take::<u32>(rows),
            positions: layout.take::<u32>(rows),
            bounds: layout.take::<u32>(tokens + 1),
            spans: layout.take::<[u32; 2]>(rows),
            tiles: layout.take::<[u32; 3]>(tokens),
        }
    }
}

impl Tables {
    /// Makes the tables of a batch of at most `limit` tokens.
    pub fn fill(&mut self, sentences: &[Sentence], config: &Config, limit: usize) -> Result<(), EmbedError> {
        let tokens = sentences.iter().map(Sentence::tokens).sum();
        if tokens > limit {
            return Err(EmbedError::TooLarge { sentences: sentences.len(), tokens, limit });
        }
        self.ids.clear();
        self.positions.clear();
        self.bounds.clear();
        self.spans.clear();
        self.tiles.clear();
        self.bounds.push(0);
        for (index, sentence) in sentences.iter().enumerate() {
            check(sentence, config).map_err(|why| EmbedError::Sentence { index, why })?;
            // CAST: a batch has at most `limit` tokens, which is below 2^32.
            let (begin, length) = (self.ids.len() as u32, sentence.tokens() as u32);
            let span = [begin, begin + length];
            self.ids.extend_from_slice(sentence.ids());
            self.positions.extend(0..length);
            self.bounds.push(span[1]);
            self.spans.extend((0..length).map(|_| span));
            // CAST: 16 fits.
            self.tiles.extend((begin..span[1]).step_by(ROWS).map(|row| [row, span[0], span[1]]));
        }
        let rows = tokens.next_multiple_of(ROWS);
        self.ids.resize(rows, 0);
        self.positions.resize(rows, 0);
        Ok(())
    }

    /// Tokens of the batch.
    pub fn tokens(&self) -> usize {
        self.spans.len()
    }

    /// Rows of the batch: its tokens, padded to a multiple of 16.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Sentences of the batch.
    pub fn sentences(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

fn check(sentence: &Sentence, config: &Config) -> Result<(), &'static str> {
    if sentence.ids().is_empty() {
        return Err("it has no tokens");
    }
    if sentence.tokens() > config.max_position_embeddings {
        return Err("it has more tokens than the model has positions");
    }
    // CAST: u32 to usize widens.
    if sentence.ids().iter().any(|id| *id as usize >= config.vocab_size) {
        return Err("it has a token that the vocabulary does not have");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = r#"{"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12,
            "num_hidden_layers": 6, "vocab_size": 30522, "max_position_embeddings": 512,
            "layer_norm_eps": 1e-12, "hidden_act": "gelu"}"#;
        serde_json::from_str(text).unwrap()
    }

    fn of(lengths: &[usize]) -> Vec<Sentence> {
        lengths.iter().map(|length| Sentence::new((1..=*length as u32).collect::<Vec<_>>())).collect()
    }

    #[test]
    fn fill_puts_sentences_behind_each_other_and_pads_the_end_only() {
        let mut tables = Tables::default();

        tables.fill(&of(&[3, 17, 1]), &config(), 512).unwrap();

        assert_eq!((tables.tokens(), tables.rows(), tables.sentences()), (21, 32, 3));
        assert_eq!(tables.bounds, [0, 3, 20, 21]);
        assert_eq!(tables.ids[..5], [1, 2, 3, 1, 2]);
        assert_eq!(tables.positions[..5], [0, 1, 2, 0, 1]);
        assert_eq!(
            (tables.ids[21..].iter().sum::<u32>(), tables.positions[21..].iter().sum::<u32>()),
            (0, 0)
        );
        assert_eq!(tables.tiles, [[0, 0, 3], [3, 3, 20], [19, 3, 20], [20, 20, 21]]);
        assert!(tables.spans[3..20].iter().all(|span| *span == [3, 20]));
    }

    #[test]
    fn fill_leaves_nothing_of_the_batch_before() {
        let (mut used, mut fresh) = (Tables::default(), Tables::default());
        used.fill(&of(&[40, 40]), &config(), 512).unwrap();

        used.fill(&of(&[5]), &config(), 512).unwrap();
        fresh.fill(&of(&[5]), &config(), 512).unwrap();

        assert_eq!(format!("{used:?}"), format!("{fresh:?}"));
    }

    #[test]
    fn fill_names_what_it_does_not_take() {
        let mut tables = Tables::default();
        let mut refused =
            |sentences: &[Sentence], limit| tables.fill(sentences, &config(), limit).unwrap_err().to_string();

        assert!(refused(&of(&[300, 300]), 599).contains("2 sentences and 600 tokens is more than 599"));
        assert!(refused(&of(&[2, 0]), 512).contains("Sentence 1 of the batch is not one the model takes"));
        assert!(refused(&of(&[513]), 4096).contains("more tokens than the model has positions"));
        assert!(refused(&[Sentence::new([30522])], 512).contains("vocabulary"));
    }
}
