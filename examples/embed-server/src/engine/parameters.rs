// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model's weights in the kernels' layout: one block of bytes for an agent's memory, made once for all agents.
//!
//! In f16, matrices keep the file's order (a row an output). In f32 they are transposed (a row an input). Queries carry the
//! softmax's factor, log2(e) / sqrt(numbers a head), so that the kernels take powers of 2 of plain products.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::layout::Layout;
use super::precision::Precision;
use crate::model::{Config, HEAD, ModelError, Weights};

/// A matrix of weights and its bias.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Offset of the matrix.
    pub weights: u64,
    /// Offset of `outputs` f32.
    pub bias: u64,
    /// The number of inputs.
    pub inputs: usize,
    /// The number of outputs.
    pub outputs: usize,
}

/// A layer normalisation.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Offset of the factors, f32.
    pub weight: u64,
    /// Offset of the summands, f32.
    pub bias: u64,
}

/// How a layer gets queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub enum Attention {
    /// Queries and keys together; values separately, because their product is transposed.
    F16 {
        /// Queries and keys.
        queries_keys: Linear,
        /// Values.
        values: Linear,
    },
    /// All three together.
    F32(Linear),
}

/// A layer's parts.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Queries, keys and values.
    pub attention: Attention,
    /// The projection after attention.
    pub output: Linear,
    /// The normalisation after the projection and the addition of attention's input.
    pub attention_norm: Norm,
    /// The product to the wide numbers, before GELU.
    pub up: Linear,
    /// The product back from the wide numbers.
    pub down: Linear,
    /// The normalisation after that product and the addition of its input.
    pub norm: Norm,
}

/// A model's weights for one precision.
#[derive(Debug)]
pub struct Parameters {
    /// What to write into an agent's memory.
    pub bytes: Vec<u8>,
    /// What the kernels compute with.
    pub precision: Precision,
    /// Its shape.
    pub config: Config,
    /// Offset of the words' embeddings, in the precision.
    pub words: u64,
    /// Offset of the positions' embeddings, f32, with the token type's added.
    pub places: u64,
    /// The normalisation after the embeddings.
    pub norm: Norm,
    /// The layers.
    pub layers: Vec<Layer>,
}

impl Parameters {
    /// Converts a model's weights.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when one is missing or has another shape than the configuration says.
    pub fn new(config: &Config, weights: &Weights, precision: Precision) -> Result<Self, ModelError> {
        let mut packing = Packing { weights, precision, layout: Layout::default(), bytes: Vec::new() };
        let hidden = config.hidden_size;
        let words = weights.tensor("embeddings.word_embeddings.weight", &[config.vocab_size, hidden])?;
        let words = packing.numbers(&words);
        let positions = config.max_position_embeddings;
        let mut places = weights.tensor("embeddings.position_embeddings.weight", &[positions, hidden])?;
        let types = weights.tensor("embeddings.token_type_embeddings.weight", &[2, hidden])?;
        for (place, kind) in places.iter_mut().zip(types[..hidden].iter().cycle()) {
            *place += kind;
        }
        let places = packing.f32s(&places);
        let norm = packing.norm("embeddings.LayerNorm", hidden)?;
        let layers =
            (0..config.num_hidden_layers).map(|n| packing.layer(n, config)).collect::<Result<_, _>>()?;
        Ok(Self { bytes: packing.bytes, precision, config: config.clone(), words, places, norm, layers })
    }
}

/// A matrix's rows and its bias, as the file has them.
struct Rows {
    matrix: Vec<f32>,
    bias: Vec<f32>,
}

impl Rows {
    fn scaled(mut self, factor: f32) -> Self {
        self.matrix.iter_mut().chain(&mut self.bias).for_each(|number| *number *= factor);
        self
    }

    fn above(mut self, other: Self) -> Self {
        self.matrix.extend(other.matrix);
        self.bias.extend(other.bias);
        self
    }
}

struct Packing<'a> {
    weights: &'a Weights,
    precision: Precision,
    layout: Layout,
    bytes: Vec<u8>,
}

impl Packing<'_> {
    fn part<T: bytemuck::Pod>(&mut self, numbers: &[T]) -> u64 {
        let at = self.layout.take::<T>(numbers.len());
        // CAST: u64 and usize are the same here.
        self.bytes.resize(at as usize, 0);
        self.bytes.extend_from_slice(bytemuck::cast_slice(numbers));
        at
    }

    fn f32s(&mut self, numbers: &[f32]) -> u64 {
        self.part(numbers)
    }

    /// Numbers in the precision.
    fn numbers(&mut self, numbers: &[f32]) -> u64 {
        match self.precision {
            Precision::F32 => self.part(numbers),
            Precision::F16 => {
                let mut halves = vec![f16::ZERO; numbers.len()];
                halves.convert_from_f32_slice(numbers);
                self.part(&halves)
            }
        }
    }

    fn norm(&mut self, name: &str, hidden: usize) -> Result<Norm, ModelError> {
        let weight = self.weights.tensor(&format!("{name}.weight"), &[hidden])?;
        let bias = self.weights.tensor(&format!("{name}.bias"), &[hidden])?;
        Ok(Norm { weight: self.f32s(&weight), bias: self.f32s(&bias) })
    }

    fn rows(&self, name: &str, inputs: usize, outputs: usize) -> Result<Rows, ModelError> {
        Ok(Rows {
            matrix: self.weights.tensor(&format!("{name}.weight"), &[outputs, inputs])?,
            bias: self.weights.tensor(&format!("{name}.bias"), &[outputs])?,
        })
    }

    fn linear(&mut self, rows: &Rows) -> Linear {
        let outputs = rows.bias.len();
        let inputs = rows.matrix.len() / outputs;
        let weights = match self.precision {
            Precision::F16 => self.numbers(&rows.matrix),
            Precision::F32 => self.part(&transposed(&rows.matrix, inputs)),
        };
        Linear { weights, bias: self.f32s(&rows.bias), inputs, outputs }
    }

    fn layer(&mut self, n: usize, config: &Config) -> Result<Layer, ModelError> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let name = |part: &str| format!("encoder.layer.{n}.{part}");
        let square = |part: &str| self.rows(&name(&format!("attention.self.{part}")), hidden, hidden);
        // CAST: a head has 32 numbers.
        let factor = std::f32::consts::LOG2_E / (HEAD as f32).sqrt();
        let queries_keys = square("query")?.scaled(factor).above(square("key")?);
        let values = square("value")?;
        let output = self.rows(&name("attention.output.dense"), hidden, hidden)?;
        let up = self.rows(&name("intermediate.dense"), hidden, wide)?;
        let down = self.rows(&name("output.dense"), wide, hidden)?;
        let attention = match self.precision {
            Precision::F16 => {
                Attention::F16 { queries_keys: self.linear(&queries_keys), values: self.linear(&values) }
            }
            Precision::F32 => Attention::F32(self.linear(&queries_keys.above(values))),
        };
        Ok(Layer {
            attention,
            output: self.linear(&output),
            attention_norm: self.norm(&name("attention.output.LayerNorm"), hidden)?,
            up: self.linear(&up),
            down: self.linear(&down),
            norm: self.norm(&name("output.LayerNorm"), hidden)?,
        })
    }
}

fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    let mut out = vec![0.0; matrix.len()];
    for (r, row) in matrix.chunks_exact(columns).enumerate() {
        for (c, number) in row.iter().enumerate() {
            out[c * rows + r] = *number;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_exchanges_rows_and_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
