// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model on an agent: weights, one arena of activations, one queue.
//!
//! INVARIANT: everything on the device is allocated when the engine is opened. A batch allocates nothing there and
//! makes no system call except to wait. A sentence's embedding depends only on the sentence's own rows, in an order of
//! additions that does not depend on their place in the batch.

mod activations;
mod error;
mod forward;
mod kernels;
mod layout;
mod parameters;
mod precision;
mod profile;
mod tables;

use stasis::{Agent, Buffer, Queue, QueueOptions, Runtime, Signal};

pub use self::error::EngineError;
pub use self::parameters::Parameters;
pub use self::precision::Precision;
pub use self::profile::KernelTime;

use self::activations::Activations;
use self::forward::{AHEAD, Stopped};
use self::kernels::Kernels;
use self::layout::Layout;
use self::tables::{Tables, TablesAt};
use crate::embedder::{EmbedError, Embedder, Sentence};

/// Tokens of a batch at most: rows times the widest row stay within 32-bit indices.
const MOST_TOKENS: usize = 1 << 20;

/// The model on an agent.
#[derive(Debug)]
pub struct Engine {
    kernels: Kernels,
    queue: Queue,
    done: Signal,
    /// Completed by the ends of layers, in turn.
    layers: [Signal; AHEAD],
    /// The weights, as [`Parameters::bytes`] has them.
    weights: Buffer,
    activations: Buffer,
    activations_at: Activations,
    /// Tables for the kernels, and the embeddings they make: system memory, which the CPU reads fast.
    exchange: Buffer,
    tables_at: TablesAt,
    embeddings_at: u64,
    shape: Shape,
    tables: Tables,
    profile: Option<profile::Profile>,
}

/// The parts that do not change from batch to batch.
#[derive(Debug)]
struct Shape {
    precision: Precision,
    config: crate::model::Config,
    words: u64,
    places: u64,
    norm: parameters::Norm,
    layers: Vec<parameters::Layer>,
    max_batch_tokens: usize,
}

impl Engine {
    /// Loads kernels and weights into an agent, with room for batches of `max_batch_tokens` tokens.
    ///
    /// # Errors
    /// [`EngineError`] names what was missing; nothing stays allocated then.
    pub fn open(
        runtime: &Runtime,
        agent: &Agent,
        parameters: &Parameters,
        max_batch_tokens: usize,
    ) -> Result<Self, EngineError> {
        let config = &parameters.config;
        let least = config.max_position_embeddings;
        if !(least..=MOST_TOKENS).contains(&max_batch_tokens) {
            return Err(EngineError::BatchTokens { tokens: max_batch_tokens, least, most: MOST_TOKENS });
        }
        let memory = |what| move |source| EngineError::Memory { what, source };
        let kernels = Kernels::load(agent, parameters.precision)?;
        // CAST: usize to u64 widens.
        let weights = agent.vram().alloc(parameters.bytes.len() as u64).map_err(memory("weights"))?;
        weights.write(0, &parameters.bytes)?;
        let activations_at = Activations::new(config, parameters.precision, max_batch_tokens);
        let activations = agent.vram().alloc(activations_at.bytes).map_err(memory("activations"))?;
        let mut layout = Layout::default();
        let tables_at = TablesAt::new(&mut layout, max_batch_tokens);
        // A sentence has a token at least.
        let embeddings_at = layout.take::<f32>(max_batch_tokens * config.hidden_size);
        let exchange = runtime.gtt().alloc(layout.bytes()).map_err(memory("tables and embeddings"))?;
        let signal = || Signal::new(runtime, 0).map_err(memory("a signal"));
        Ok(Self {
            kernels,
            queue: Queue::create(agent, QueueOptions::default())?,
            done: signal()?,
            layers: [signal()?, signal()?],
            weights,
            activations,
            activations_at,
            exchange,
            tables_at,
            embeddings_at,
            shape: Shape {
                precision: parameters.precision,
                config: config.clone(),
                words: parameters.words,
                places: parameters.places,
                norm: parameters.norm,
                layers: parameters.layers.clone(),
                max_batch_tokens,
            },
            tables: Tables::default(),
            profile: None,
        })
    }

    /// Bytes of device and system memory that the engine holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.weights.len() + self.activations.len() + self.exchange.len()
    }

    fn write_tables(&self) -> Result<(), stasis::CopyError> {
        let (at, tables) = (self.tables_at, &self.tables);
        let write = |offset: u64, bytes: &[u8]| self.exchange.write(offset, bytes);
        write(at.ids, bytemuck::cast_slice(&tables.ids))?;
        write(at.positions, bytemuck::cast_slice(&tables.positions))?;
        write(at.bounds, bytemuck::cast_slice(&tables.bounds))?;
        match self.shape.precision {
            Precision::F16 => write(at.tiles, bytemuck::cast_slice(&tables.tiles)),
            Precision::F32 => write(at.spans, bytemuck::cast_slice(&tables.spans)),
        }
    }

    /// Computes the batch that the tables describe, as long as it is wanted.
    fn compute(&mut self, out: &mut Vec<f32>, wanted: &dyn Fn() -> bool) -> Result<(), Unfinished> {
        let failed = |act: &'static str| move |why: Failure| Unfinished::Failed(act, why);
        self.write_tables().map_err(|why| failed("writing its tables")(why.into()))?;
        self.done.store(1).map_err(|why| failed("arming its signal")(why.into()))?;
        if let Err(stopped) = self.submit(wanted) {
            // The submitted packets still run, in memory that the next batch will use.
            let _ = self.queue.wait_idle(None);
            return Err(match stopped {
                Stopped::Abandoned(layers) => Unfinished::Abandoned(layers),
                Stopped::Wait(why) => failed("waiting for a layer")(why.into()),
                Stopped::Submit(why) => failed("submitting its kernels")(why.into()),
            });
        }
        self.done.wait_done(None).map_err(|why| failed("waiting for its kernels")(why.into()))?;
        out.resize(self.tables.sentences() * self.shape.config.hidden_size, 0.0);
        self.exchange
            .read(self.embeddings_at, bytemuck::cast_slice_mut(out))
            .map_err(|why| failed("reading its embeddings")(why.into()))
    }
}

/// Why a batch has no embeddings.
enum Unfinished {
    Abandoned(usize),
    Failed(&'static str, Failure),
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Embedder for Engine {
    fn dimensions(&self) -> usize {
        self.shape.config.hidden_size
    }

    fn max_batch_tokens(&self) -> usize {
        self.shape.max_batch_tokens
    }

    fn embed(&mut self, sentences: &[Sentence], out: &mut Vec<f32>) -> Result<(), EmbedError> {
        self.embed_while(sentences, out, &|| true)
    }

    fn embed_while(
        &mut self,
        sentences: &[Sentence],
        out: &mut Vec<f32>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), EmbedError> {
        out.clear();
        self.tables.fill(sentences, &self.shape.config, self.shape.max_batch_tokens)?;
        if sentences.is_empty() {
            return Ok(());
        }
        let tokens = self.tables.tokens();
        self.compute(out, wanted).map_err(|unfinished| {
            out.clear();
            match unfinished {
                Unfinished::Abandoned(done) => {
                    EmbedError::Abandoned { done, layers: self.shape.layers.len() }
                }
                Unfinished::Failed(act, source) => match self.check() {
                    Err(EmbedError::Lost { .. }) => EmbedError::Lost { act, source },
                    _ => EmbedError::Device { act, tokens, source },
                },
            }
        })
    }

    fn check(&self) -> Result<(), EmbedError> {
        let lost = |act: &'static str, source: Failure| EmbedError::Lost { act, source };
        // A signal of a lost device cannot be read, and a queue that stopped takes no packet any more.
        self.done.load().map_err(|why| lost("looking at its signal", why.into()))?;
        self.queue.fault().map_or(Ok(()), |fault| Err(lost("looking at its queue", fault.into())))
    }
}
