// SPDX-License-Identifier: MIT OR Apache-2.0
//! One batch as packets: 50 dispatches in order in f16, 44 in f32, the last of which completes the signal.

use stasis::{Arg, Kernel, SubmitError, WaitError};

use super::Engine;
use super::parameters::{Attention, Linear, Norm};
use super::precision::Precision;
use crate::model::{HEAD, HIDDEN};

/// Rows that a workgroup of the embedding and normalisation kernels takes, and its work-items.
const NORM_ROWS: usize = 4;
const NORM_ITEMS: u16 = 128;
/// Features and tokens that a workgroup of a product in f16 makes.
const F16_TILE: (usize, usize) = (64, 32);
/// Columns and rows that a workgroup of a product in f32 makes, and its work-items.
const F32_TILE: (usize, usize) = (64, 64);
const F32_ITEMS: u16 = 256;
const WAVE: u16 = 32;

/// A dispatch's size: workgroups in x and y, work-items of each.
#[derive(Clone, Copy, Debug)]
struct Grid(usize, usize, u16);

/// When a packet begins, and what its end completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// It begins when all packets before it are done.
    After,
    /// It begins together with the packet before it.
    Beside,
    /// It begins when all packets before it are done, and is the last of the layer with this number.
    Layer(usize),
    /// It begins when all packets before it are done, and is the last of the batch.
    Last,
}

/// Why a batch was not submitted to its end.
pub(super) enum Stopped {
    /// No client wants the batch any more; so many of its layers were submitted.
    Abandoned(usize),
    /// A layer's end could not be waited for.
    Wait(WaitError),
    /// A packet could not be submitted.
    Submit(SubmitError),
}

impl From<SubmitError> for Stopped {
    fn from(error: SubmitError) -> Self {
        Stopped::Submit(error)
    }
}

/// Layers that are submitted before the first of them has ended: while one runs on the device the next one waits in the
/// queue, so the device never waits for the host.
pub(super) const AHEAD: usize = 2;

/// A product's result.
#[derive(Clone, Copy, Debug)]
struct Output {
    /// Its address.
    address: u64,
    /// Numbers a row.
    width: usize,
    /// The address of a summand besides the bias; 0 if the kernel adds nothing.
    residual: u64,
}

impl Engine {
    fn step(&self, kernel: &Kernel, grid: Grid, args: &[Arg<'_>], order: Order) -> Result<(), SubmitError> {
        let Grid(x, y, items) = grid;
        // CAST: bounded by MOST_TOKENS times the widest row over the items of a workgroup.
        let dispatch = self
            .queue
            .dispatch(kernel)
            .grid([x as u32 * u32::from(items), y as u32, 1])
            .block([items, 1, 1])
            .args(args)
            .barrier(order != Order::Beside);
        let signal = match &self.profile {
            Some(profile) => profile.next(kernel.name()),
            None => match order {
                Order::After | Order::Beside => None,
                Order::Layer(layer) => Some(&self.layers[layer % AHEAD]),
                Order::Last => Some(&self.done),
            },
        };
        match signal {
            Some(signal) => dispatch.completion(signal).submit()?,
            None => dispatch.submit()?,
        };
        if self.profile.is_some() && order == Order::Last {
            self.queue.barrier(&[], Some(&self.done))?;
        }
        Ok(())
    }

    fn weight(&self, offset: u64) -> Arg<'static> {
        Arg::Address(self.weights.va() + offset)
    }

    fn activation(&self, offset: u64) -> u64 {
        self.activations.va() + offset
    }

    fn product(
        &self,
        kernel: &Kernel,
        linear: Linear,
        from: u64,
        into: Output,
        order: Order,
    ) -> Result<(), SubmitError> {
        let rows = self.tables.rows();
        // CAST: shapes of a model are small, rows bounded by MOST_TOKENS.
        let (k, width, rows32) = (Arg::U32(linear.inputs as u32), Arg::U32(into.width as u32), rows as u32);
        let (weights, bias) = (self.weight(linear.weights), self.weight(linear.bias));
        let (from, residual) = (Arg::Address(self.activation(from)), Arg::Address(into.residual));
        let out = Arg::Address(into.address);
        match self.shape.precision {
            Precision::F16 => {
                let grid = Grid(linear.outputs / F16_TILE.0, rows.div_ceil(F16_TILE.1), WAVE);
                let args = [weights, from, bias, residual, out, k, width, Arg::U32(rows32)];
                self.step(kernel, grid, &args, order)
            }
            Precision::F32 => {
                let grid = Grid(linear.outputs / F32_TILE.0, rows.div_ceil(F32_TILE.1), F32_ITEMS);
                self.step(kernel, grid, &[weights, from, bias, residual, out, k, width], order)
            }
        }
    }

    fn attention_of(&self, attention: Attention) -> Result<(), SubmitError> {
        let (at, kernels) = (self.activations_at, &self.kernels);
        let heads = HIDDEN / HEAD;
        let (from, out) = (self.activation(at.heads), Arg::Address(self.activation(at.context)));
        let table = |offset: u64| Arg::Address(self.exchange.va() + offset);
        let plain = |width: usize| Output { address: from, width, residual: 0 };
        match attention {
            Attention::F16 { queries_keys, values } => {
                self.product(
                    &kernels.gemm_bias,
                    queries_keys,
                    at.h,
                    plain(queries_keys.outputs),
                    Order::After,
                )?;
                if let Some(transposed) = &kernels.gemm_transposed {
                    let rows = self.tables.rows();
                    // CAST: as in `product`; room is rows and a little.
                    let sizes = [values.inputs as u32, at.room as u32, rows as u32].map(Arg::U32);
                    let [k, room, rows32] = sizes;
                    let grid = Grid(values.outputs / F16_TILE.0, rows.div_ceil(F16_TILE.1), WAVE);
                    let args = [
                        self.weight(values.weights),
                        Arg::Address(self.activation(at.h)),
                        self.weight(values.bias),
                        Arg::Address(self.activation(at.values)),
                        k,
                        room,
                        rows32,
                    ];
                    self.step(transposed, grid, &args, Order::Beside)?;
                }
                let args = [
                    table(self.tables_at.tiles),
                    Arg::Address(from),
                    Arg::Address(self.activation(at.values)),
                    out,
                    // CAST: as above.
                    Arg::U32(at.room as u32),
                ];
                self.step(&kernels.attention, Grid(self.tables.tiles.len(), heads, WAVE), &args, Order::After)
            }
            Attention::F32(all) => {
                self.product(&kernels.gemm_bias, all, at.x, plain(all.outputs), Order::After)?;
                let args = [table(self.tables_at.spans), Arg::Address(from), out];
                self.step(&kernels.attention, Grid(self.tables.tokens(), heads, WAVE), &args, Order::After)
            }
        }
    }

    fn norm(&self, norm: Norm, order: Order) -> Result<(), SubmitError> {
        let at = self.activations_at;
        let rows = self.tables.rows();
        let args = [
            Arg::Address(self.activation(at.y)),
            self.weight(norm.weight),
            self.weight(norm.bias),
            Arg::Address(self.activation(at.x)),
            Arg::Address(self.activation(at.h)),
            // CAST: bounded by MOST_TOKENS.
            Arg::U32(rows as u32),
        ];
        let grid = Grid(rows.div_ceil(NORM_ROWS), 1, NORM_ITEMS);
        self.step(&self.kernels.norm, grid, &args, order)
    }

    fn begin(&self) -> Result<(), SubmitError> {
        let at = self.activations_at;
        let rows = self.tables.rows();
        let args = [
            Arg::Address(self.exchange.va() + self.tables_at.ids),
            Arg::Address(self.exchange.va() + self.tables_at.positions),
            self.weight(self.shape.words),
            self.weight(self.shape.places),
            self.weight(self.shape.norm.weight),
            self.weight(self.shape.norm.bias),
            Arg::Address(self.activation(at.x)),
            Arg::Address(self.activation(at.h)),
            // CAST: bounded by MOST_TOKENS.
            Arg::U32(rows as u32),
        ];
        let grid = Grid(rows.div_ceil(NORM_ROWS), 1, NORM_ITEMS);
        self.step(&self.kernels.embed, grid, &args, Order::After)
    }

    /// Waits for the end of the earlier layer with the same signal, and sets the signal for this layer.
    fn next_layer(&self, layer: usize, wanted: &dyn Fn() -> bool) -> Result<(), Stopped> {
        // A profile uses the signals itself.
        if self.profile.is_some() {
            return Ok(());
        }
        let signal = &self.layers[layer % AHEAD];
        if layer >= AHEAD {
            signal.wait_done(None).map_err(Stopped::Wait)?;
        }
        if !wanted() {
            return Err(Stopped::Abandoned(layer));
        }
        signal.store(1).map_err(Stopped::Wait)
    }

    /// Writes a batch's packets, two layers ahead of the device, and returns without waiting for the last of them. A batch
    /// that is not wanted any more ends with the layers that were submitted.
    pub(super) fn submit(&self, wanted: &dyn Fn() -> bool) -> Result<(), Stopped> {
        let (at, kernels) = (self.activations_at, &self.kernels);
        let (x, y) = (self.activation(at.x), self.activation(at.y));
        let sum = |width: usize| Output { address: y, width, residual: x };
        self.next_layer(0, wanted)?;
        self.begin()?;
        for (index, layer) in self.shape.layers.iter().enumerate() {
            if index > 0 {
                self.next_layer(index, wanted)?;
            }
            self.attention_of(layer.attention)?;
            let hidden = layer.output.outputs;
            self.product(&kernels.gemm_residual, layer.output, at.context, sum(hidden), Order::After)?;
            self.norm(layer.attention_norm, Order::After)?;
            let wide = Output { address: self.activation(at.wide), width: layer.up.outputs, residual: 0 };
            self.product(&kernels.gemm_gelu, layer.up, at.h, wide, Order::After)?;
            self.product(&kernels.gemm_residual, layer.down, at.wide, sum(hidden), Order::After)?;
            self.norm(layer.norm, Order::Layer(index))?;
        }
        let args = [
            Arg::Address(self.exchange.va() + self.tables_at.bounds),
            Arg::Address(x),
            Arg::Address(self.exchange.va() + self.embeddings_at),
        ];
        Ok(self.step(&kernels.pool, Grid(self.tables.sentences(), 1, WAVE), &args, Order::Last)?)
    }
}
