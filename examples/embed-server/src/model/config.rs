// SPDX-License-Identifier: MIT OR Apache-2.0
//! `config.json` and `sentence_bert_config.json`.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::ModelError;

/// Shape of a BERT encoder, under the names that the files use.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Config {
    /// Numbers a token.
    pub hidden_size: usize,
    /// Numbers a token between the two halves of a feed-forward layer.
    pub intermediate_size: usize,
    /// Heads of an attention layer, which share the hidden numbers evenly.
    pub num_attention_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Tokens a sentence may have at most.
    pub max_position_embeddings: usize,
    /// Added to the variance before its root is taken.
    pub layer_norm_eps: f64,
    /// What is between the two halves of a feed-forward layer.
    pub hidden_act: String,
    /// Tokens a sentence should have at most: what the model was trained with. From `sentence_bert_config.json`.
    #[serde(skip)]
    pub max_seq_length: usize,
}

#[derive(Deserialize)]
struct SentenceConfig {
    max_seq_length: usize,
}

/// Numbers a token that the kernels are written for: a wave holds a token, 12 numbers a lane.
pub const HIDDEN: usize = 384;
/// Numbers a head that the kernels are written for.
pub const HEAD: usize = 32;

/// What the kernels add to a variance.
const LAYER_NORM_EPS: f64 = 1e-12;

impl Config {
    /// Reads a model's configuration.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Json`]; [`ModelError::Unsupported`] when the kernels are for other shapes.
    pub fn open(directory: &Path) -> Result<Self, ModelError> {
        let path = directory.join("config.json");
        let mut config: Config = json(&path)?;
        config.max_seq_length =
            json::<SentenceConfig>(&directory.join("sentence_bert_config.json"))?.max_seq_length;
        let needs = |field, found: &dyn ToString, needed: &dyn ToString| {
            let (found, needed) = (found.to_string(), needed.to_string());
            (found == needed).then_some(()).ok_or(ModelError::Unsupported {
                path: path.clone(),
                field,
                found,
                needed,
            })
        };
        needs("hidden_size", &config.hidden_size, &HIDDEN)?;
        needs("num_attention_heads", &config.num_attention_heads, &(HIDDEN / HEAD))?;
        needs("intermediate_size modulo 64", &(config.intermediate_size % 64), &0)?;
        needs("layer_norm_eps", &config.layer_norm_eps, &LAYER_NORM_EPS)?;
        needs("hidden_act", &config.hidden_act, &"gelu")?;
        needs("num_hidden_layers > 0", &(config.num_hidden_layers > 0), &true)?;
        let within = config.max_seq_length.clamp(3, config.max_position_embeddings.max(3));
        needs("max_seq_length", &config.max_seq_length, &within)?;
        Ok(config)
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let text = fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}
