// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agents of the device, each with an engine that is loaded and warm.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use embed_server::batch::Backoff;
use embed_server::embedder::{Embedder, OpenAgent, Reopen, ReopenError, warm_up};
use embed_server::engine::{Engine, EngineError, Parameters, Precision};
use embed_server::model::{Config, Weights};
use stasis::{OpenError, Runtime};

use crate::cli::{Args, OnDeviceLost};

/// The options for engines.
#[derive(Clone, Debug)]
pub struct Device {
    model: PathBuf,
    precision: Precision,
    max_batch_tokens: usize,
    warm_up: bool,
    reopens: bool,
}

impl Device {
    /// A device with these options.
    pub fn new(args: &Args) -> Self {
        Self {
            model: args.model.clone(),
            precision: args.precision(),
            max_batch_tokens: args.max_batch_tokens,
            warm_up: !args.no_warm_up,
            reopens: args.on_device_lost == OnDeviceLost::Reopen,
        }
    }

    /// Opens it: an engine on each agent that there are kernels for.
    ///
    /// # Errors
    /// The model cannot be read, the device not be opened, or no agent runs the kernels.
    pub fn open(&self) -> anyhow::Result<Vec<OpenAgent>> {
        let started = Instant::now();
        let (config, parameters) = self.parameters()?;
        let runtime = Runtime::open_default()?;
        let mut engines = Vec::new();
        for agent in runtime.agents() {
            match Engine::open(&runtime, &agent, &parameters, self.max_batch_tokens) {
                Ok(engine) => {
                    let bytes = engine.bytes();
                    tracing::info!(agent = agent.index(), name = agent.name(), bytes, "loaded");
                    engines.push((agent.index(), engine));
                }
                Err(why @ EngineError::Target { .. }) => {
                    tracing::warn!(agent = agent.index(), "left out: {why}");
                }
                Err(why) => return Err(why).with_context(|| format!("Agent {}", agent.index())),
            }
        }
        ensure!(!engines.is_empty(), "No agent of {} runs the kernels", runtime.transport_name());
        let loaded = started.elapsed();
        if self.warm_up {
            // All engines at once, as they will serve.
            std::thread::scope(|scope| {
                let warming: Vec<_> = engines
                    .iter_mut()
                    .map(|(_, engine)| scope.spawn(|| warm_up(engine, config.max_seq_length)))
                    .collect();
                warming.into_iter().try_for_each(|one| one.join().unwrap_or(Ok(())))
            })?;
        }
        let (loaded_ms, warm_up_ms) = (loaded.as_millis(), (started.elapsed() - loaded).as_millis());
        tracing::info!(precision = self.precision.name(), loaded_ms, warm_up_ms, "ready");
        let open = |(agent, engine): (usize, Engine)| OpenAgent {
            embedder: Box::new(engine),
            reopen: self.reopens.then(|| self.reopen(agent)),
        };
        Ok(engines.into_iter().map(open).collect())
    }

    /// Opens a device that was lost `losses` times in a row, the first time after a while.
    ///
    /// # Errors
    /// As for [`Device::open`], of the last attempt.
    pub fn open_again(&self, losses: u32, backoff: Backoff) -> anyhow::Result<Vec<OpenAgent>> {
        let mut attempt = losses.saturating_sub(1);
        let mut failed = anyhow::anyhow!("The device was lost {losses} times in a row: --reopen-attempts");
        while let Some(wait) = backoff.before(attempt) {
            std::thread::sleep(wait);
            attempt += 1;
            match self.open() {
                Ok(agents) => return Ok(agents),
                Err(error) => {
                    tracing::warn!(attempt, "the device was not opened again: {error:#}");
                    failed = error;
                }
            }
        }
        Err(failed.context("The lost device was not opened again"))
    }

    fn parameters(&self) -> anyhow::Result<(Config, Parameters)> {
        let config = Config::open(&self.model)?;
        let parameters = Parameters::new(&config, &Weights::open(&self.model)?, self.precision)?;
        Ok((config, parameters))
    }

    /// How an agent alone is opened again. The model is read again: it is needed too rarely to be kept.
    fn reopen(&self, agent: usize) -> Reopen {
        let device = self.clone();
        Box::new(move || {
            let runtime = match Runtime::open_default() {
                Ok(runtime) => runtime,
                // A process has one runtime, and it is lost.
                Err(why @ OpenError::Lost(_)) => return Err(ReopenError::Impossible(why.into())),
                Err(why) => return Err(ReopenError::Failed(why.into())),
            };
            device.open_one(&runtime, agent).map_err(|why| ReopenError::Failed(why.into()))
        })
    }

    fn open_one(&self, runtime: &Runtime, agent: usize) -> anyhow::Result<Box<dyn Embedder>> {
        let (config, parameters) = self.parameters()?;
        let agent = runtime.agent(agent).with_context(|| format!("There is no agent {agent} any more"))?;
        let mut engine = Engine::open(runtime, &agent, &parameters, self.max_batch_tokens)?;
        if self.warm_up {
            warm_up(&mut engine, config.max_seq_length)?;
        }
        Ok(Box::new(engine))
    }
}

/// How long a device has to serve so that its loss counts as the first in a row.
pub const PROVEN: Duration = Duration::from_secs(300);
