// SPDX-License-Identifier: MIT OR Apache-2.0
//! The embedding server's model by another implementation: candle's BERT on the CPU, in f32.
//!
//! INVARIANT: this crate uses no code of the server, its kernels or the runtime. It reads the same files with other
//! code and takes the same token ids. A result that both agree on is right, unless two programs without common code
//! have the same error.
//!
//! It computes with rayon's threads; the environment's `RAYON_NUM_THREADS` says how many.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config, HiddenAct};

/// The token that pads a row of a batch up to the longest sentence; the attention mask hides it.
const PADDING: u32 = 0;

/// all-MiniLM-L6-v2, or another BERT whose sentences are the mean of their tokens.
pub struct Reference {
    model: BertModel,
    device: Device,
    positions: usize,
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reference").field("positions", &self.positions).finish_non_exhaustive()
    }
}

impl Reference {
    /// Reads `config.json` and `model.safetensors` of a model's directory.
    ///
    /// # Errors
    /// A file that cannot be read or is not what BERT needs; an activation that is not the exact GELU.
    pub fn open(directory: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read(&path).with_context(|| format!("Cannot read {}", path.display()))
        };
        let config: Config =
            serde_json::from_slice(&read("config.json")?).context("config.json is not a BERT's")?;
        // candle computes `Gelu` with erf. The approximation by tanh has an error of 1e-3, which would hide the
        // server's error.
        ensure!(config.hidden_act == HiddenAct::Gelu, "hidden_act is {:?}, not gelu", config.hidden_act);
        let device = Device::Cpu;
        let weights = VarBuilder::from_buffered_safetensors(read("model.safetensors")?, DType::F32, &device)
            .context("model.safetensors is not a safetensors file")?;
        let model = BertModel::load(weights, &config).context("model.safetensors lacks a BERT's tensors")?;
        Ok(Self { model, device, positions: config.max_position_embeddings })
    }

    /// The embedding of each sentence (token ids, with those that begin and end it), unpadded, of length 1. Only sentences
    /// of the same length are computed together.
    ///
    /// # Errors
    /// A sentence that is empty, has more tokens than the model has positions, or a token it does not know.
    pub fn embed(&self, sentences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, sentence) in sentences.iter().enumerate() {
            self.check(sentence)?;
            by_length.entry(sentence.len()).or_default().push(index);
        }
        let mut all = vec![Vec::new(); sentences.len()];
        for (tokens, indices) in by_length {
            let ids: Vec<u32> = indices.iter().flat_map(|&index| &sentences[index]).copied().collect();
            let ids = Tensor::from_vec(ids, (indices.len(), tokens), &self.device)?;
            let embeddings = normalised(&self.hidden(&ids, None)?.mean(1)?)?;
            for (index, embedding) in indices.into_iter().zip(embeddings) {
                all[index] = embedding;
            }
        }
        Ok(all)
    }

    /// The same for all sentences in one batch, as most servers compute it: each is padded to the longest.
    ///
    /// # Errors
    /// As [`Reference::embed`].
    pub fn embed_padded(&self, batch: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let Some(longest) = batch.iter().map(Vec::len).max() else { return Ok(Vec::new()) };
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for sentence in batch {
            self.check(sentence)?;
            let padding = longest - sentence.len();
            ids.extend(sentence.iter().copied().chain(std::iter::repeat_n(PADDING, padding)));
            mask.extend(sentence.iter().map(|_| 1.0_f32).chain(std::iter::repeat_n(0.0, padding)));
        }
        let shape = (batch.len(), longest);
        let ids = Tensor::from_vec(ids, shape, &self.device)?;
        let mask = Tensor::from_vec(mask, shape, &self.device)?;
        let hidden = self.hidden(&ids, Some(&mask))?;
        let mask = mask.unsqueeze(D::Minus1)?;
        let mean = hidden.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
        normalised(&mean)
    }

    fn hidden(&self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        Ok(self.model.forward(ids, &ids.zeros_like()?, mask)?)
    }

    fn check(&self, sentence: &[u32]) -> Result<()> {
        let (tokens, limit) = (sentence.len(), self.positions);
        ensure!(
            (1..=limit).contains(&tokens),
            "A sentence has {tokens} tokens, the model takes 1 to {limit}"
        );
        Ok(())
    }
}

/// Rows scaled to length 1.
fn normalised(rows: &Tensor) -> Result<Vec<Vec<f32>>> {
    let length = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    Ok(rows.broadcast_div(&length)?.to_vec2()?)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn open() -> Reference {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.stasis/models/all-MiniLM-L6-v2");
        let directory = std::env::var_os("STASIS_MODEL").map_or_else(|| PathBuf::from(own), PathBuf::from);
        Reference::open(&directory).expect("a model: `cargo xtask setup` fetches it")
    }

    fn cosine(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    /// "This is an example sentence", and how its embedding begins in what the model's authors publish of it.
    #[test]
    fn a_sentence_whose_embedding_is_published_has_it() {
        const PUBLISHED: [f64; 8] =
            [0.067657, 0.063496, 0.048713, 0.079305, 0.037448, 0.0026528, 0.039375, -0.0070984];
        let embedding = &open().embed(&[vec![101, 2023, 2003, 2019, 2742, 6251, 102]]).unwrap()[0];
        assert_eq!(embedding.len(), 384);
        for (found, published) in embedding.iter().zip(PUBLISHED) {
            assert!((f64::from(*found) - published).abs() < 1e-6, "{found} is not {published}");
        }
    }

    #[test]
    fn padding_changes_nothing_and_the_order_is_kept() {
        let reference = open();
        let lengths = [2, 9, 3, 9, 17, 1];
        let sentences: Vec<Vec<u32>> = lengths
            .iter()
            .zip(0..)
            .map(|(&n, seed)| (0..n).map(|t| 2000 + 31 * t + 7 * seed).collect())
            .collect();
        let (alone, padded) =
            (reference.embed(&sentences).unwrap(), reference.embed_padded(&sentences).unwrap());
        for (index, sentence) in sentences.iter().enumerate() {
            let only = &reference.embed(std::slice::from_ref(sentence)).unwrap()[0];
            assert!((cosine(only, only) - 1.0).abs() < 1e-6);
            assert!(cosine(only, &alone[index]) > 1.0 - 1e-6, "{index} among its like");
            assert!(cosine(only, &padded[index]) > 1.0 - 1e-6, "{index} padded");
        }
        assert!(cosine(&alone[1], &alone[3]) < 0.999, "other tokens, another embedding");
    }

    #[test]
    fn sentences_the_model_does_not_take_are_refused() {
        let reference = open();
        for sentence in [vec![], vec![101; 513], vec![101, 30522]] {
            assert!(reference.embed(std::slice::from_ref(&sentence)).is_err(), "{} tokens", sentence.len());
            assert!(reference.embed_padded(&[vec![101, 102], sentence]).is_err());
        }
        assert!(reference.embed_padded(&[]).unwrap().is_empty());
    }
}
