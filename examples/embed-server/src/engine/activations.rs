// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a batch while it is computed: one buffer, allocated once and used by every batch from its beginning.

use half::f16;

use super::layout::Layout;
use super::precision::Precision;
use crate::model::Config;

/// Rows after a batch's last row that kernels may write: tiles of 64 rows are computed whole.
const SLACK: usize = 64;

/// Offsets of the parts.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// f32: a layer's input and, at its end, its output.
    pub x: u64,
    /// f32: a product with its bias and `x` added.
    pub y: u64,
    /// f16: `x` as a product's operand. In f32 `x` itself is.
    pub h: u64,
    /// Queries and keys (f16), or queries, keys and values (f32) of each row.
    pub heads: u64,
    /// f16: values, transposed, `room` numbers a row.
    pub values: u64,
    /// The output of attention, in the precision.
    pub context: u64,
    /// The wide numbers, in the precision.
    pub wide: u64,
    /// Numbers a row of the transposed values.
    pub room: usize,
    /// Bytes of the buffer.
    pub bytes: u64,
}

impl Activations {
    /// Room for batches of `tokens` tokens.
    pub fn new(config: &Config, precision: Precision, tokens: usize) -> Self {
        let mut layout = Layout::default();
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let room = tokens.next_multiple_of(SLACK) + SLACK;
        let x = layout.take::<f32>(room * hidden);
        let y = layout.take::<f32>(room * hidden);
        let mut take = |numbers: usize| match precision {
            Precision::F16 => layout.take::<f16>(numbers),
            Precision::F32 => layout.take::<f32>(numbers),
        };
        let context = take(room * hidden);
        let wide = take(room * wide);
        let (h, heads, values) = match precision {
            // A part of a row of values is always read whole.
            Precision::F16 => (take(room * hidden), take(room * 2 * hidden), take(room * hidden + SLACK)),
            Precision::F32 => (x, take(room * 3 * hidden), x),
        };
        Self { x, y, h, heads, values, context, wide, room, bytes: layout.bytes() }
    }
}
