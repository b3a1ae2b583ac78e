// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentences of all kinds and languages, and the directory of the model.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use embed_server::model::{Config, Tokenizer};

/// Texts by language or kind. Those of [`generated`] are too long to write by hand.
const WRITTEN: &str = include_str!("sentences.json");

/// The kind of the texts that are generated.
pub const GENERATED: &str = "generated";

/// The model's directory, which `cargo xtask setup` makes and `cargo xtask test` names.
pub fn model() -> PathBuf {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.stasis/models/all-MiniLM-L6-v2");
    let directory = std::env::var_os("STASIS_MODEL").map_or_else(|| PathBuf::from(own), PathBuf::from);
    assert!(
        directory.join("config.json").exists(),
        "there is no model in {}: run `cargo xtask setup`, or `cargo xtask test`",
        directory.display()
    );
    directory
}

/// The tokenizer with the model's own limit.
pub fn tokenizer() -> Tokenizer {
    let config = Config::open(&model()).unwrap();
    Tokenizer::open(&model(), config.max_seq_length, false).unwrap()
}

/// The whole corpus: the kind of each text, and the text.
pub fn corpus() -> Vec<(String, String)> {
    let written: BTreeMap<String, Vec<String>> = serde_json::from_str(WRITTEN).unwrap();
    let mut all = Vec::new();
    for (kind, texts) in written {
        all.extend(texts.into_iter().map(|text| (kind.clone(), text)));
    }
    all.extend(generated().into_iter().map(|text| (GENERATED.to_owned(), text)));
    all
}

/// Texts around the lengths where a kernel's tile ends, and of the most tokens a sentence may have.
pub fn generated() -> Vec<String> {
    [13, 14, 15, 30, 31, 62, 126, 254].map(words).to_vec()
}

/// A text of this many tokens, without those that begin and end it; another for each number.
pub fn words(tokens: usize) -> String {
    const WORDS: [&str; 7] = ["fog", "ship", "stone", "under", "seven", "quiet", "bread"];
    let words: Vec<&str> = (0..tokens).map(|index| WORDS[(index * index + tokens) % WORDS.len()]).collect();
    words.join(" ")
}
