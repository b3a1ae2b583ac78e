// SPDX-License-Identifier: MIT OR Apache-2.0
//! A network with one hidden layer on one GPU, and what it is trained with.

use std::time::Duration;

use anyhow::{Context, Result};
use stasis::{Agent, Arg, Buffer, Executable, Kernel, Queue, QueueOptions, Runtime, Signal};
use stasis_examples::code_for;

include!(concat!(env!("OUT_DIR"), "/train.rs"));

pub const INPUTS: u32 = 64;
pub const HIDDEN: u32 = 128;
pub const CLASSES: u32 = 10;
/// Weights and biases of both layers, one behind the other.
pub const PARAMETERS: u32 = (INPUTS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES;
/// Of all samples, which are gone through again and again.
pub const SAMPLES: u32 = 4096;
const RATE: f32 = 0.5;
/// TIMEOUT: how long a step may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Numbers that are the same everywhere (a linear congruential generator), -1 to 1.
#[derive(Debug)]
struct Numbers(u32);

impl Iterator for Numbers {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((self.0 >> 8) as f32 / f32::from_bits(0x4b00_0000) - 1.0)
    }
}

/// Samples and the classes that they are of: the input among the first that is the largest.
fn samples() -> (Vec<f32>, Vec<u32>) {
    let inputs: Vec<f32> = Numbers(1).take((SAMPLES * INPUTS) as usize).collect();
    let label = |row: &[f32]| {
        let classes = row[..CLASSES as usize].iter().zip(0..);
        classes.max_by(|(a, _), (b, _)| a.total_cmp(b)).map_or(0, |(_, class)| class)
    };
    let labels = inputs.chunks_exact(INPUTS as usize).map(label).collect();
    (inputs, labels)
}

/// The network, its samples and what a step needs, for batches of so many rows.
pub struct Model {
    queue: Queue,
    kernels: [Kernel; 5],
    done: Signal,
    inputs: Buffer,
    labels: Buffer,
    weights: Buffer,
    gradients: Buffer,
    hidden: Buffer,
    hidden_lack: Buffer,
    logits: Buffer,
    losses: Buffer,
    rows: u32,
}

impl Model {
    /// An untrained one.
    pub fn new(runtime: &Runtime, agent: &Agent, rows: u32) -> Result<Self> {
        let executable = Executable::load(agent, code_for(agent, "train", OBJECTS)?)?;
        let names = ["layer", "lack", "gradients", "backward", "descend"];
        let kernels = names.map(|name| executable.kernel(name)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let floats = |count: u32| agent.vram().alloc(u64::from(count) * 4);
        let (inputs, labels) = samples();
        let weights: Vec<f32> = Numbers(2).take(PARAMETERS as usize).map(|number| number * 0.1).collect();
        let model = Self {
            queue: Queue::create(agent, QueueOptions::default())?,
            kernels: kernels.try_into().ok().context("five kernels")?,
            done: Signal::new(runtime, 0)?,
            inputs: floats(SAMPLES * INPUTS)?,
            labels: floats(SAMPLES)?,
            weights: floats(PARAMETERS)?,
            gradients: floats(PARAMETERS)?,
            hidden: floats(rows * HIDDEN)?,
            hidden_lack: floats(rows * HIDDEN)?,
            logits: floats(rows * CLASSES)?,
            losses: floats(rows)?,
            rows,
        };
        model.inputs.write(0, bytemuck::cast_slice(&inputs))?;
        model.labels.write(0, bytemuck::cast_slice(&labels))?;
        model.weights.write(0, bytemuck::cast_slice(&weights))?;
        Ok(model)
    }

    /// Computes the gradients of the batch that begins with this sample, each row for the `share`-th part of the whole batch.
    pub fn compute(&self, first: u32, share: f32) -> Result<()> {
        let [layer, lack, gradients, backward, _] = &self.kernels;
        let (rows, inputs) = (self.rows, self.inputs.va() + u64::from(first * INPUTS) * 4);
        let second = INPUTS * HIDDEN + HIDDEN;
        let weight = |at: u32| Arg::U64(self.weights.va() + u64::from(at) * 4);
        let gradient = |at: u32| Arg::U64(self.gradients.va() + u64::from(at) * 4);
        let (x, labels) = (Arg::U64(inputs), Arg::U64(self.labels.va() + u64::from(first) * 4));
        let (hidden, hidden_lack) = (Arg::Buffer(&self.hidden), Arg::Buffer(&self.hidden_lack));
        let logits = Arg::Buffer(&self.logits);
        let [n, i, h, c] = [rows, INPUTS, HIDDEN, CLASSES].map(Arg::U32);
        self.done.store(6)?;
        let (first_bias, second_bias) = (weight(INPUTS * HIDDEN), weight(second + HIDDEN * CLASSES));
        self.launch(layer, rows * HIDDEN, &[x, weight(0), first_bias, hidden, n, i, h, Arg::U32(1)])?;
        self.launch(
            layer,
            rows * CLASSES,
            &[hidden, weight(second), second_bias, logits, n, h, c, Arg::U32(0)],
        )?;
        self.launch(lack, rows, &[logits, labels, Arg::Buffer(&self.losses), n, c, Arg::F32(share)])?;
        self.launch(gradients, (HIDDEN + 1) * CLASSES, &[hidden, logits, gradient(second), n, h, c])?;
        self.launch(backward, rows * HIDDEN, &[logits, weight(second), hidden, hidden_lack, n, h, c])?;
        self.launch(gradients, (INPUTS + 1) * HIDDEN, &[x, hidden_lack, gradient(0), n, i, h])?;
        Ok(self.done.wait_done(Some(PATIENCE)).map(drop)?)
    }

    /// The gradients that were computed, and the sum of the rows' losses.
    pub fn gradients(&self) -> Result<(Vec<f32>, f32)> {
        let (mut gradients, mut losses) =
            (vec![0.0f32; PARAMETERS as usize], vec![0.0f32; self.rows as usize]);
        self.gradients.read(0, bytemuck::cast_slice_mut(&mut gradients))?;
        self.losses.read(0, bytemuck::cast_slice_mut(&mut losses))?;
        Ok((gradients, losses.iter().sum()))
    }

    /// Takes a step by these gradients.
    pub fn descend(&self, gradients: &[f32]) -> Result<()> {
        self.gradients.write(0, bytemuck::cast_slice(gradients))?;
        self.done.store(1)?;
        let (weights, gradients) = (Arg::Buffer(&self.weights), Arg::Buffer(&self.gradients));
        self.launch(
            &self.kernels[4],
            PARAMETERS,
            &[weights, gradients, Arg::U32(PARAMETERS), Arg::F32(RATE)],
        )?;
        Ok(self.done.wait_done(Some(PATIENCE)).map(drop)?)
    }

    /// The weights, as bytes.
    pub fn weights(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; PARAMETERS as usize * 4];
        self.weights.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn launch(&self, kernel: &Kernel, items: u32, args: &[Arg<'_>]) -> Result<()> {
        let dispatch = self.queue.dispatch(kernel).grid([items.next_multiple_of(64), 1, 1]).block([64, 1, 1]);
        dispatch.args(args).barrier(true).completion(&self.done).submit()?;
        Ok(())
    }
}
